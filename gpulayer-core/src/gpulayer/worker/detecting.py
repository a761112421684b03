"""What this machine would offer as a worker, found once: the same probes and framework checks, and nothing is started.

Blocks for as long as the slowest of them, 75 s at most; no control plane is asked, and nothing is left on the disk.
"""

import asyncio
import subprocess
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
from gpulayer.plugins.contracts.probe import ProbeSite, ProcessOnDevice
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.settings import PluginSettings
from gpulayer.plugins.starting import Abandoned, load_beside
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.plain import plain_line
from gpulayer.worker.facts import KnownFacts, Probing
from gpulayer.worker.frameworks import FrameworkChecks, jobs_python
from gpulayer.worker.occupancy import Occupancy, is_whole_host
from gpulayer.worker.settings import LOCK_FOLDERS

__all__ = ["Detected", "NoPythonError", "detect", "ensure_python"]

_CHECK: Final = "check "
_CHECKS_S: Final = 60.0  # all together
_LOOK_S: Final = 10.0  # what a probe has
_TELL_EVERY_S: Final = 5.0
_OLDEST: Final = (3, 8)
_ASKED_S: Final = 10.0
_SAID_LIMIT: Final = 200
_VERSION: Final = "import sys; sys.stdout.write('python %d %d' % sys.version_info[:2])"


class NoPythonError(Exception):
    """What it is instead, or what it said."""


@dataclass(frozen=True, slots=True)
class Detected:
    """facts: as a worker would report them. python: whose frameworks they are. checked: the frameworks that were looked
    for. faults: what went wrong with plugins, a line each. processes: on the devices; None where that is not known."""

    facts: WorkerFacts
    python: str
    checked: tuple[str, ...]
    faults: tuple[str, ...]
    processes: tuple[ProcessOnDevice, ...] | None = None


def detect(
    *,
    environment: Mapping[str, str],
    plugins: PluginSettings,
    python: str = "",
    now: Callable[[str], None] = lambda _: None,
    tell_every_s: float = _TELL_EVERY_S,
) -> Detected:
    """environment: of the worker that this machine would be. python: that of the jobs whose frameworks are checked;
    empty: the one that a job finds on its ``PATH``. now: told what is waited for, and again every ``tell_every_s``."""
    asked = python or jobs_python(environment, otherwise=sys.executable)
    with tempfile.TemporaryDirectory(prefix="gpulayer-detect-", ignore_cleanup_errors=True) as folder:
        return asyncio.run(_detect(Path(folder), environment, plugins, asked, now, tell_every_s=tell_every_s))


def ensure_python(program: str, *, environment: Mapping[str, str]) -> None:
    """Raises NoPythonError where it is no Python 3.8 or newer. Runs nothing that is installed there; 10 s at most."""
    try:
        done = subprocess.run(
            [program, "-E", "-S", "-c", _VERSION],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKED_S,
            check=False,
        )
    except OSError as error:
        raise NoPythonError(f"it can't be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoPythonError(f"it did not tell its version within {_ASKED_S:g} s") from None
    words = done.stdout.decode(errors="replace").split()
    if len(words) != 3 or words[0] != "python" or not all(word.isdecimal() for word in words[1:]):
        said = plain_line((done.stderr or done.stdout).decode(errors="replace"), _SAID_LIMIT)
        raise NoPythonError(f"it is no Python; asked for its version it said: {said}" if said else "it is no Python")
    if (int(words[1]), int(words[2])) < _OLDEST:
        raise NoPythonError(f"it is Python {words[1]}.{words[2]}; 3.8 is the oldest whose frameworks can be checked")


async def _detect(
    folder: Path,
    environment: Mapping[str, str],
    plugins: PluginSettings,
    python: str,
    now: Callable[[str], None],
    *,
    tell_every_s: float,
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

    now(f"looking at the machine, {_LOOK_S:g} s at most …")
    host = await load_beside(load)
    try:
        site = ProbeSite(folder, MappingProxyType(dict(environment)))
        occupancy = Occupancy(folder / "spawner", LOCK_FOLDERS, is_whole_host=is_whole_host())
        probing = Probing(host, site, version=__version__, labels=(), clock=SystemClock(), occupancy=occupancy)
        async with aclosing(probing):
            facts = await probing.start()
            checks = FrameworkChecks(host, folder, environment=environment, python=python)
            if host.registry.framework_checks:
                now(f"computing with the frameworks of {python}, {_CHECKS_S:g} s at most …")
                async with asyncio.TaskGroup() as group:
                    telling = group.create_task(_tell(checks, python, now, tell_every_s))
                    await checks.run(facts, within_s=_CHECKS_S)
                    telling.cancel()
            version = checks.python_version
            facts = await probing.catch_up() or facts
            known = KnownFacts(facts, probing, checks.found, python=python, python_version=version)
        return Detected(known.seen, python, _checked(host), _faults(host), probing.processes)
    finally:
        host.close()


async def _tell(checks: FrameworkChecks, python: str, now: Callable[[str], None], every_s: float) -> None:
    """Until cancelled: what is waited for, and since when."""
    started_s = asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(every_s)
        what = ", ".join(checks.running) or f"{python}, which is asked what is installed"
        now(f"waiting for {what}: {asyncio.get_running_loop().time() - started_s:.0f} s")


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
