"""What this machine offers: the findings of all probes as one set of facts.

A probe that fails or takes too long costs its own findings alone, and says so in the log.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpulayer.net.interfaces import own_first
from gpulayer.plugins.contracts import PROBE_DEADLINE_S, Findings, Probe, ProbeSite
from gpulayer.spec.machine import Locality, WorkerFacts

__all__ = ["KnownFacts", "combine", "gather_facts"]

_log: Final = logging.getLogger(__name__)
_DISK_STEP: Final = 10**9  # free space always changes; equal machines shall share their facts


class KnownFacts:
    """The facts of this machine as last found, with what the worker's spawner can hold jobs to."""

    def __init__(
        self,
        facts: WorkerFacts,
        probes: Sequence[Probe],
        site: ProbeSite,
        *,
        version: str,
        labels: tuple[tuple[str, str], ...],
    ) -> None:
        self.facts = facts
        self._probes = probes
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
        facts = await gather_facts(self._probes, self._site, version=self._version, labels=self._labels)
        addresses = own_first(self._own, facts.addresses)
        return self._set(replace(facts, enforces=self.facts.enforces, addresses=addresses))

    def _set(self, facts: WorkerFacts) -> bool:
        is_new = facts != self.facts
        self.facts = facts
        return is_new


async def gather_facts(
    probes: Sequence[Probe],
    site: ProbeSite,
    *,
    version: str,
    labels: tuple[tuple[str, str], ...],
) -> WorkerFacts:
    """Ask every probe, side by side, each in a thread and for ``PROBE_DEADLINE_S`` at most."""
    found = await asyncio.gather(*(_look(probe, site) for probe in probes))
    return combine(found, version=version, labels=labels)


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
    )


async def _look(probe: Probe, site: ProbeSite) -> Findings:
    try:
        async with asyncio.timeout(PROBE_DEADLINE_S):
            return await asyncio.to_thread(probe.look, site)
    except TimeoutError:
        _log.warning("probe %s did not answer within %g s", probe.name, PROBE_DEADLINE_S)
    except Exception:  # a plugin's: whatever it raises, the worker goes on without its findings
        _log.exception("probe %s failed", probe.name)
    return Findings()
