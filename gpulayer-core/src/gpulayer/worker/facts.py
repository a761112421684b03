"""What this machine offers: the findings of all probes as one set of facts.

A probe that fails or takes too long costs its own findings alone, and says so in the log.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpulayer.errors import PluginFault
from gpulayer.net.interfaces import own_first
from gpulayer.plugins.contracts.probe import PROBE_DEADLINE_S, Findings, Probe, ProbeSite
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.plugins.results import instance_of
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT, DEFAULT_LAUNCHER
from gpulayer.spec.machine import Locality, WorkerFacts

__all__ = ["KnownFacts", "capabilities_of", "combine", "gather_facts"]

_log: Final = logging.getLogger(__name__)
_DISK_STEP: Final = 10**9  # free space always changes; equal machines shall share their facts


class KnownFacts:
    """The facts of this machine as last found, with what the worker's spawner can hold jobs to."""

    def __init__(
        self,
        facts: WorkerFacts,
        host: Host,
        site: ProbeSite,
        *,
        version: str,
        labels: tuple[tuple[str, str], ...],
    ) -> None:
        self.facts = facts
        self._host = host
        self._site = site
        self._version = version
        self._labels = labels
        self._own = ""

    def set_addresses(self, found: Sequence[str], *, own: str) -> bool:
        """own: from which the control plane was reached last. True where the addresses are new."""
        self._own = own or self._own
        return self._set(replace(self.facts, addresses=own_first(self._own, found)))

    def set_enforced(self, enforces: Sequence[str]) -> bool:
        """What a spawner says of itself when the worker attaches to it; True where that is new."""
        return self._set(replace(self.facts, enforces=tuple(sorted(enforces))))

    async def look_again(self) -> bool:
        """True where something has changed."""
        facts = await gather_facts(self._host, self._site, version=self._version, labels=self._labels)
        addresses = own_first(self._own, facts.addresses)
        return self._set(replace(facts, enforces=self.facts.enforces, addresses=addresses))

    def _set(self, facts: WorkerFacts) -> bool:
        is_new = facts != self.facts
        self.facts = facts
        return is_new


async def gather_facts(
    host: Host,
    site: ProbeSite,
    *,
    version: str,
    labels: tuple[tuple[str, str], ...],
) -> WorkerFacts:
    """Ask every probe, side by side, each for ``PROBE_DEADLINE_S`` at most."""
    found = await asyncio.gather(*(_look(host, probe, site) for probe in host.registry.probes))
    facts = combine(found, version=version, labels=labels)
    return replace(facts, capabilities=capabilities_of(host.registry))


def combine(found: Sequence[Findings], *, version: str, labels: tuple[tuple[str, str], ...]) -> WorkerFacts:
    """Pure. ``labels`` that were given win over those that were found."""
    disk = next((finding.disk_bytes for finding in found if finding.disk_bytes is not None), None)
    return WorkerFacts(
        platform=next((finding.platform for finding in found if finding.platform), "unknown"),
        version=version,
        cpus=next((finding.cpus for finding in found if finding.cpus is not None), 1),
        memory_bytes=next((finding.memory_bytes for finding in found if finding.memory_bytes is not None), 0),
        disk_bytes=None if disk is None else disk // _DISK_STEP * _DISK_STEP,
        devices=tuple(device for finding in found for device in finding.devices),
        frameworks=tuple(framework for finding in found for framework in finding.frameworks),
        labels=tuple(sorted({**dict(label for finding in found for label in finding.labels), **dict(labels)}.items())),
        locality=next((finding.locality for finding in found if finding.locality is not None), Locality()),
        addresses=tuple(address for finding in found for address in finding.addresses),
        resources=tuple(sorted(dict(one for finding in reversed(found) for one in finding.resources).items())),
    )


async def _look(host: Host, probe: Registered[Probe], site: ProbeSite) -> Findings:
    try:
        return await host.acall(
            probe,
            "Probe.look",
            lambda thing: instance_of(Findings, thing.look(site)),
            deadline_s=PROBE_DEADLINE_S,
        )
    except PluginFault as fault:
        _log.warning("%s", fault.message)
        return Findings()


def capabilities_of(registry: Registry) -> tuple[str, ...]:
    """What the plugins add to what every worker can do."""
    found = {f"stager:{scheme}" for scheme in registry.stagers}
    found |= {f"launcher:{name}" for name in registry.launchers if name != DEFAULT_LAUNCHER}
    found |= {f"environment:{name}" for name in registry.environments if name != DEFAULT_ENVIRONMENT}
    return tuple(sorted(found))
