"""What this machine offers: the findings of all probes, and of framework checks, as one set of facts.

A probe that fails, takes too long or says what can't be true costs nothing but news: what it found last stands, and
nothing of it where it never answered.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from gpulayer.errors import PluginFault
from gpulayer.net.interfaces import own_first
from gpulayer.plugins.contracts.probe import PROBE_DEADLINE_S, Findings, Probe, ProbeSite
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT, DEFAULT_LAUNCHER
from gpulayer.spec.machine import Device, Framework, Locality, WorkerFacts
from gpulayer.worker.findings import (
    MAX_ADDRESSES,
    MAX_DEVICES,
    MAX_FRAMEWORKS,
    MAX_LABELS,
    MAX_RESOURCES,
    checked_findings,
)

__all__ = ["KnownFacts", "Probing", "capabilities_of", "combine", "devices_of"]

_log: Final = logging.getLogger(__name__)
_DISK_STEP: Final = 10**9  # free space always changes; equal machines shall share their facts
_MAX_CAPABILITIES: Final = 256

T = TypeVar("T")


class Probing:
    """The probes of this machine, and what each of them found last."""

    def __init__(self, host: Host, site: ProbeSite, *, version: str, labels: tuple[tuple[str, str], ...]) -> None:
        self._host = host
        self._site = site
        self._version = version
        self._labels = labels
        self._last: dict[int, Findings] = {}
        self._noted: set[str] = set()

    async def look(self) -> WorkerFacts:
        """Ask every probe, side by side, each for ``PROBE_DEADLINE_S`` at most."""
        probes = self._host.registry.probes
        found = await asyncio.gather(*(self._look(number, probe) for number, probe in enumerate(probes)))
        self._note_doubles(found)
        facts = combine(found, version=self._version, labels=self._labels)
        return replace(facts, capabilities=capabilities_of(self._host.registry))

    async def _look(self, number: int, probe: Registered[Probe]) -> Findings:
        try:
            self._last[number] = await self._host.acall(
                probe, "Probe.look", lambda thing: checked_findings(thing.look(self._site)), deadline_s=PROBE_DEADLINE_S
            )
        except PluginFault as fault:
            _log.warning("%s", fault.message)
        return self._last.get(number, Findings())

    def _note_doubles(self, found: Sequence[Findings]) -> None:
        first: dict[str, int] = {}
        for number, finding in enumerate(found):
            for device in finding.devices:
                by = first.setdefault(device.uuid, number)
                if by != number and device.uuid not in self._noted:
                    self._noted.add(device.uuid)
                    probes = self._host.registry.probes
                    _log.warning(
                        "device %s is found by plugins %s and %s: the first is believed",
                        device.uuid,
                        probes[by].plugin,
                        probes[number].plugin,
                    )


class KnownFacts:
    """The facts of this machine as last found, with what the worker's spawner can hold jobs to and what its framework
    checks found."""

    def __init__(self, facts: WorkerFacts, probing: Probing, frameworks: Sequence[Framework] = ()) -> None:
        """facts: as probed."""
        self._probing = probing
        self._probed = facts.frameworks
        self._checked = tuple(frameworks)
        self._own = ""
        self.facts = replace(facts, frameworks=self._frameworks())

    def set_addresses(self, found: Sequence[str], *, own: str) -> bool:
        """own: from which the control plane was reached last. True where the addresses are new."""
        self._own = own or self._own
        return self._set(replace(self.facts, addresses=tuple(own_first(self._own, found))[:MAX_ADDRESSES]))

    def set_enforced(self, enforces: Sequence[str]) -> bool:
        """What a spawner says of itself when the worker attaches to it; True where that is new."""
        return self._set(replace(self.facts, enforces=tuple(sorted(enforces))))

    def set_frameworks(self, found: Sequence[Framework]) -> bool:
        """What the checks found; True where that is new."""
        self._checked = tuple(found)
        return self._set(replace(self.facts, frameworks=self._frameworks()))

    async def look_again(self) -> bool:
        """True where something has changed."""
        facts = await self._probing.look()
        self._probed = facts.frameworks
        addresses = own_first(self._own, facts.addresses)
        kept = replace(facts, enforces=self.facts.enforces, addresses=addresses, frameworks=self._frameworks())
        return self._set(kept)

    def _frameworks(self) -> tuple[Framework, ...]:
        """What was computed is believed before what was only found."""
        known: dict[tuple[str, str], Framework] = {}
        for framework in (*self._checked, *self._probed):
            known.setdefault((framework.name, framework.accelerator), framework)
        return tuple(known.values())[:MAX_FRAMEWORKS]

    def _set(self, facts: WorkerFacts) -> bool:
        if facts == self.facts:
            return False
        self.facts = facts
        return True


def combine(found: Sequence[Findings], *, version: str, labels: tuple[tuple[str, str], ...]) -> WorkerFacts:
    """Pure. ``labels`` that were given win over those that were found. Of what several probes find together no more is
    told than a report holds: that of the first."""
    disk = next((finding.disk_bytes for finding in found if finding.disk_bytes is not None), None)
    devices: dict[str, Device] = {}
    resources: dict[str, int] = {}
    found_labels: dict[str, str] = {}
    for finding in found:
        _add(devices, [(device.uuid, device) for device in finding.devices], at_most=MAX_DEVICES)
        _add(resources, finding.resources, at_most=MAX_RESOURCES)
    for finding in reversed(found):
        found_labels |= finding.labels
    told_labels = dict(labels)
    _add(told_labels, tuple(found_labels.items()), at_most=max(MAX_LABELS, len(told_labels)))
    return WorkerFacts(
        platform=next((finding.platform for finding in found if finding.platform), "unknown"),
        version=version,
        cpus=next((finding.cpus for finding in found if finding.cpus is not None), 1),
        memory_bytes=next((finding.memory_bytes for finding in found if finding.memory_bytes is not None), 0),
        disk_bytes=None if disk is None else disk // _DISK_STEP * _DISK_STEP,
        devices=tuple(devices.values()),
        frameworks=tuple(framework for finding in found for framework in finding.frameworks)[:MAX_FRAMEWORKS],
        labels=tuple(sorted(told_labels.items())),
        locality=next((finding.locality for finding in found if finding.locality is not None), Locality()),
        addresses=tuple(address for finding in found for address in finding.addresses)[:MAX_ADDRESSES],
        resources=tuple(sorted((name, count) for name, count in resources.items() if count)),
    )


def _add(known: dict[str, T], found: Sequence[tuple[str, T]], *, at_most: int) -> None:
    """The first one of a name is believed."""
    for name, value in found:
        if len(known) < at_most:
            known.setdefault(name, value)


def devices_of(facts: WorkerFacts) -> tuple[tuple[str, ...], ...]:
    """Which devices there are and whether they work, without what always changes about them."""
    return tuple(sorted((device.uuid, device.kind, device.state) for device in facts.devices))


def capabilities_of(registry: Registry) -> tuple[str, ...]:
    """What the plugins add to what every worker can do."""
    found = {f"stager:{scheme}" for scheme in registry.stagers}
    found |= {f"launcher:{name}" for name in registry.launchers if name != DEFAULT_LAUNCHER}
    found |= {f"environment:{name}" for name in registry.environments if name != DEFAULT_ENVIRONMENT}
    return tuple(sorted(found)[:_MAX_CAPABILITIES])
