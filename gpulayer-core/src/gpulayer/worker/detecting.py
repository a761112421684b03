"""What this machine would offer as a worker, found once: the same probes and framework checks, and nothing is started.

Blocks for as long as the slowest of them; no control plane is asked, and nothing is left on the disk.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpulayer import __version__
from gpulayer.clock import SystemClock
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.contracts.probe import ProbeSite
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.settings import PluginSettings
from gpulayer.plugins.starting import Abandoned, load_beside
from gpulayer.spec.machine import WorkerFacts
from gpulayer.worker.facts import KnownFacts, Probing
from gpulayer.worker.frameworks import FrameworkChecks, jobs_python
from gpulayer.worker.occupancy import Occupancy, is_whole_host
from gpulayer.worker.settings import LOCK_FOLDERS

__all__ = ["Detected", "detect"]

_CHECK: Final = "check "


@dataclass(frozen=True, slots=True)
class Detected:
    """facts: as a worker would report them. python: whose frameworks they are. checked: the frameworks that were looked
    for. faults: what went wrong with plugins, a line each."""

    facts: WorkerFacts
    python: str
    checked: tuple[str, ...]
    faults: tuple[str, ...]


def detect(
    *,
    environment: Mapping[str, str],
    plugins: PluginSettings,
    python: str = "",
    now: Callable[[str], None] = lambda _: None,
) -> Detected:
    """environment: of the worker that this machine would be. python: that of the jobs whose frameworks are checked;
    empty: the one that a job finds on its ``PATH``. now: told what is waited for."""
    asked = python or jobs_python(environment, otherwise=sys.executable)
    with tempfile.TemporaryDirectory(prefix="gpulayer-detect-", ignore_cleanup_errors=True) as folder:
        return asyncio.run(_detect(Path(folder), environment, plugins, asked, now))


async def _detect(
    folder: Path, environment: Mapping[str, str], plugins: PluginSettings, python: str, now: Callable[[str], None]
) -> Detected:
    def load(abandoned: Abandoned) -> Host:
        return load_plugins(
            Where.WORKER,
            plugins,
            clock=SystemClock(),
            version=__version__,
            python=sys.executable,
            marks=folder / "plugin-marks",
            begun=abandoned.then,
        )

    now("looking at the machine …")
    host = await load_beside(load)
    try:
        site = ProbeSite(folder, MappingProxyType(dict(environment)))
        occupancy = Occupancy(folder / "spawner", LOCK_FOLDERS, is_whole_host=is_whole_host())
        probing = Probing(host, site, version=__version__, labels=(), clock=SystemClock(), occupancy=occupancy)
        async with aclosing(probing):
            facts = await probing.start()
            checks = FrameworkChecks(host, folder, environment=environment, python=python)
            if host.registry.framework_checks:
                now("computing with each framework …")
                await checks.run(facts)
            known = KnownFacts(await probing.catch_up() or facts, probing, checks.found)
        return Detected(known.seen, python, _checked(host), _faults(host))
    finally:
        host.close()


def _checked(host: Host) -> tuple[str, ...]:
    provided = [name for record in host.records() for name in record.provides]
    return tuple(sorted({name.removeprefix(_CHECK) for name in provided if name.startswith(_CHECK)}))


def _faults(host: Host) -> tuple[str, ...]:
    """Of plugins that did not come to be loaded, and of those that failed just now."""
    found = []
    for record in host.records():
        if record.status not in (PluginStatus.OK, PluginStatus.DISABLED) and record.error:
            found.append(f"plugin {record.name} is {record.status}: {record.error}")
        found += [f"plugin {record.name}: {fault.message}" for fault in record.last_faults]
    return tuple(found)
