"""What this machine offers: the findings of all probes, and of framework checks, as one set of facts.

A probe that fails, takes too long or says what can't be true costs nothing but news: what it found last stands, of an
outside one also what it found in an earlier life of the worker, and nothing of it where it never answered. It is asked
again soon. One that was late at a start is waited for at the next starts for a moment only, for an hour: it has its
time all the same, and what it finds then follows as news.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from gpulayer.clock import Clock
from gpulayer.errors import PluginFault
from gpulayer.net.interfaces import own_first
from gpulayer.plugins.contracts.probe import PROBE_DEADLINE_S, Findings, Probe, ProbeSite
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT, DEFAULT_LAUNCHER
from gpulayer.spec.labels import located
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality, WorkerFacts
from gpulayer.whole import write_whole
from gpulayer.worker.findings import (
    MAX_ADDRESSES,
    MAX_DEVICES,
    MAX_FRAMEWORKS,
    MAX_LABELS,
    MAX_MISSING,
    MAX_RESOURCES,
    checked_findings,
)
from gpulayer.worker.kept import KeptFindings
from gpulayer.worker.known_devices import KnownDevices
from gpulayer.worker.occupancy import Lent, Occupancy

__all__ = ["KnownFacts", "Probing", "capabilities_of", "combine", "devices_of"]

_log: Final = logging.getLogger(__name__)
_DISK_STEP: Final = 10**9  # free space always changes; equal machines shall share their facts
_MAX_CAPABILITIES: Final = 256
_LATE_FOR_MS: Final = 3_600_000
_MOMENT_S: Final = 2.0
_WATCH_S: Final = 2.0
_BEFORE_START_S: Final = PROBE_DEADLINE_S / 2
_AGAIN_S: Final = (2.0, 10.0)  # by looks in a row that failed; then as often as any

T = TypeVar("T")


class Probing:
    """The probes of this machine, and what each of them found last. ``aclose`` it in the end.

    occupancy: of its devices; None: nobody looks who is on them. lent: which devices programs of this worker have, by
    uuid; None: not known yet. Set by whoever runs them.
    moment_s: how long one is waited for at the start that was late at the last one.
    """

    def __init__(
        self,
        host: Host,
        site: ProbeSite,
        *,
        version: str,
        labels: tuple[tuple[str, str], ...],
        clock: Clock,
        occupancy: Occupancy | None = None,
        deadline_s: float = PROBE_DEADLINE_S,
        moment_s: float = _MOMENT_S,
    ) -> None:
        self._host = host
        self._site = site
        self._version = version
        self._labels = labels
        self._last: dict[int, Findings] = {}
        self._noted: set[str] = set()
        self._deadline_s = deadline_s
        self._moment_s = moment_s
        self._late = _Late(site.work_dir / "late-probes.json", clock)
        self._kept = KeptFindings(site.work_dir / "found-by-probes.json", clock)
        self._own: frozenset[str] = frozenset()  # plugins of the core
        self._failures: dict[int, int] = {}  # in a row
        self._devices = KnownDevices()
        self._going_on: set[asyncio.Task[None]] = set()
        self._has_more_to_come = False
        self._occupancy = occupancy
        self.lent: Callable[[], Mapping[str, Lent] | None] = lambda: None

    async def start(self) -> WorkerFacts:
        """The first look, at the start of a worker; after ``catch_up`` it is whole."""
        records = await asyncio.to_thread(self._host.records)
        versions = {record.name: record.version for record in records}
        self._own = frozenset(record.name for record in records if record.is_builtin)
        keys = [f"{probe.plugin} {versions.get(probe.plugin, '')} {probe.key}" for probe in self._host.registry.probes]
        known = await asyncio.to_thread(self._late.read)
        await asyncio.to_thread(self._kept.read)
        soon: list[asyncio.Task[None]] = []
        later: list[asyncio.Task[None]] = []
        for number, probe in enumerate(self._host.registry.probes):
            task = asyncio.create_task(self._first_look(number, probe, keys[number]), name=f"probe {probe.plugin}")
            self._going_on.add(task)
            task.add_done_callback(self._going_on.discard)
            (later if keys[number] in known else soon).append(task)
        try:
            if later:
                await asyncio.wait(later, timeout=self._moment_s)
            if soon:
                await asyncio.wait(soon)
        except BaseException:
            await self.aclose()
            raise
        self._has_more_to_come = bool(self._going_on)
        self._fall_back()
        await self._write()
        return await self._facts()

    async def catch_up(self) -> WorkerFacts | None:
        """What is known when all have answered that ``start`` did not wait for, or their time is over; None where it
        waited for all."""
        if not self._has_more_to_come:
            return None
        if self._going_on:
            await asyncio.wait(self._going_on)
        await self._write()
        return await self._facts()

    async def aclose(self) -> None:
        """Nobody waits any more."""
        for task in tuple(self._going_on):
            task.cancel()
        await asyncio.gather(*self._going_on, return_exceptions=True)

    async def look(self) -> WorkerFacts:
        """Ask every probe, side by side, each for ``PROBE_DEADLINE_S`` at most."""
        probes = self._host.registry.probes
        await asyncio.gather(*(self._look(number, probe) for number, probe in enumerate(probes)))
        await self._write()
        return await self._facts()

    @property
    def retry_in_s(self) -> float | None:
        """When ``retry`` is due, of a probe that has failed just now; None where nothing is to be asked so soon."""
        waits = [_AGAIN_S[failures - 1] for failures in self._failures.values() if failures <= len(_AGAIN_S)]
        return min(waits, default=None)

    async def retry(self) -> WorkerFacts:
        """Ask those alone again that have failed just now."""
        probes = self._host.registry.probes
        due = [number for number, failures in self._failures.items() if failures <= len(_AGAIN_S)]
        await asyncio.gather(*(self._look(number, probes[number]) for number in due))
        await self._write()
        return await self._facts()

    async def look_at(self, devices: Collection[str]) -> WorkerFacts:
        """Of the probes that know what runs on these devices, now. One that is slow is believed as of before."""
        probes = self._host.registry.probes
        asked = [
            self._look(number, probes[number], deadline_s=_BEFORE_START_S)
            for number, found in self._last.items()
            if found.processes is not None and any(device.uuid in devices for device in found.devices)
        ]
        await asyncio.gather(*asked)
        return await self._facts()

    async def until_left(self) -> None:
        """Until somebody who made a device busy has gone; see ``Occupancy``."""
        while True:
            await asyncio.sleep(_WATCH_S)
            there = self._occupancy
            if there is not None and there.is_anybody_there and await asyncio.to_thread(there.has_changed):
                return

    async def _write(self) -> None:
        await asyncio.to_thread(self._late.write)
        await asyncio.to_thread(self._kept.write)

    def _fall_back(self) -> None:
        for number, probe in enumerate(self._host.registry.probes):
            if number in self._last or probe.plugin in self._own:
                continue
            found = self._kept.of(_kept_as(probe))
            if found is not None:
                self._last[number] = found
                _log.info("plugin %s, %s: what it found before this start stands", probe.plugin, probe.key)

    async def _facts(self) -> WorkerFacts:
        found = [self._last.get(number, Findings()) for number in range(len(self._host.registry.probes))]
        self._note_doubles(found)
        facts = combine(found, version=self._version, labels=self._labels)
        facts = replace(facts, devices=self._devices.settle(facts.devices, dict(facts.missing)))
        if self._occupancy is not None and facts.devices:
            processes = [process for finding in found for process in finding.processes or ()]
            judge = partial(self._occupancy.judge, facts.devices, processes, lent=self.lent())
            facts = replace(facts, devices=await asyncio.to_thread(judge))
        return replace(facts, capabilities=capabilities_of(self._host.registry))

    async def _first_look(self, number: int, probe: Registered[Probe], key: str) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._look(number, probe)
        self._late.note(key, is_late=loop.time() - began_s >= self._deadline_s)

    async def _look(self, number: int, probe: Registered[Probe], *, deadline_s: float | None = None) -> None:
        try:
            found = await self._host.acall(
                probe,
                "Probe.look",
                lambda thing: checked_findings(thing.look(self._site)),
                deadline_s=deadline_s or self._deadline_s,
            )
        except PluginFault as fault:
            _log.warning("%s", fault.message)
            self._failures[number] = self._failures.get(number, 0) + 1
            return
        self._last[number] = found
        self._failures.pop(number, None)
        if probe.plugin not in self._own:
            self._kept.keep(_kept_as(probe), found)

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


def _kept_as(probe: Registered[Probe]) -> str:
    return f"{probe.plugin} {probe.key}"


class _Late:
    """Which probes were late at the last start, in a file: by name, since when."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._since: dict[str, int] = {}
        self._is_written = True

    def read(self) -> frozenset[str]:
        """Those of the last hour. A file that can't be read says nothing."""
        now_ms = self._clock.wall_ms()
        try:
            said = json.loads(self._path.read_bytes())
            self._since = {
                str(key): int(wall_ms) for key, wall_ms in said.items() if 0 <= now_ms - int(wall_ms) < _LATE_FOR_MS
            }
        except (OSError, ValueError, TypeError, AttributeError):
            self._since = {}
        return frozenset(self._since)

    def note(self, key: str, *, is_late: bool) -> None:
        """One that is late again stays noted since the first time: it is waited for once an hour."""
        if is_late and key not in self._since:
            self._since[key] = self._clock.wall_ms()
            self._is_written = False
        elif not is_late and self._since.pop(key, None) is not None:
            self._is_written = False

    def write(self) -> None:
        if self._is_written:
            return
        try:
            write_whole(self._path, json.dumps(self._since).encode())
        except OSError as error:
            _log.warning("which probes are late can't be kept: %s", error)
        self._is_written = True


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

    async def catch_up(self) -> bool:
        """Wait for the probes that the start did not wait for; True where something has changed."""
        facts = await self._probing.catch_up()
        return facts is not None and self._set_probed(facts)

    async def look_again(self) -> bool:
        """True where something has changed."""
        return self._set_probed(await self._probing.look())

    @property
    def retry_in_s(self) -> float | None:
        """As of ``Probing``."""
        return self._probing.retry_in_s

    async def look_at(self, devices: Collection[str]) -> bool:
        """As of ``Probing``; True where something has changed."""
        return self._set_probed(await self._probing.look_at(devices))

    def why_busy(self, devices: Collection[str]) -> str:
        """Of the first of these that somebody else is on; empty where there is none."""
        for device in self.facts.devices:
            if device.uuid in devices and device.state is DeviceState.BUSY:
                return f"device {device.index} ({device.uuid}) is busy: {device.reason}"
        return ""

    async def until_left(self) -> None:
        """As of ``Probing``; never returns where there is no device."""
        if not self.facts.devices:
            await asyncio.Event().wait()
        await self._probing.until_left()

    async def retry(self) -> bool:
        """As of ``Probing``; True where something has changed."""
        return self._set_probed(await self._probing.retry())

    def _set_probed(self, facts: WorkerFacts) -> bool:
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
    """Pure. ``labels`` that were given win over those that were found, and over the locality that was found. Of what
    several probes find together no more is told than a report holds: that of the first."""
    disk = next((finding.disk_bytes for finding in found if finding.disk_bytes is not None), None)
    devices: dict[str, Device] = {}
    resources: dict[str, int] = {}
    missing: dict[str, str] = {}
    found_labels: dict[str, str] = {}
    for finding in found:
        _add(devices, [(device.uuid, device) for device in finding.devices], at_most=MAX_DEVICES)
        _add(resources, finding.resources, at_most=MAX_RESOURCES)
        _add(missing, finding.missing, at_most=MAX_MISSING)
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
        locality=located(labels, _locality([each.locality for each in found if each.locality is not None])),
        addresses=tuple(address for finding in found for address in finding.addresses)[:MAX_ADDRESSES],
        resources=tuple(sorted((name, count) for name, count in resources.items() if count)),
        cpu_model=next((finding.cpu_model for finding in found if finding.cpu_model), ""),
        missing=tuple(sorted(missing.items())),
    )


def _locality(found: Sequence[Locality]) -> Locality:
    """Zone and region are of one probe: together they name a place."""
    placed = next((each for each in found if each.zone or each.region), Locality())
    group = next((each.network_group for each in found if each.network_group), "")
    return replace(placed, network_group=group)


def _add(known: dict[str, T], found: Sequence[tuple[str, T]], *, at_most: int) -> None:
    """The first one of a name is believed."""
    for name, value in found:
        if len(known) < at_most:
            known.setdefault(name, value)


def devices_of(facts: WorkerFacts) -> tuple[tuple[str, ...], ...]:
    """Which devices there are and whether they work, without what always changes about them, and who is on them."""
    return tuple(
        sorted((device.uuid, device.kind, str(device.state is DeviceState.UNHEALTHY)) for device in facts.devices)
    )


def capabilities_of(registry: Registry) -> tuple[str, ...]:
    """What the plugins add to what every worker can do."""
    found = {f"stager:{scheme}" for scheme in registry.stagers}
    found |= {f"launcher:{name}" for name in registry.launchers if name != DEFAULT_LAUNCHER}
    found |= {f"environment:{name}" for name in registry.environments if name != DEFAULT_ENVIRONMENT}
    return tuple(sorted(found)[:_MAX_CAPABILITIES])
