"""What this machine offers: the findings of all probes, and of framework checks, as one set of facts.

A probe that fails, takes too long or says what can't be true costs nothing but news: what it found last stands, of an
outside one also what it found in an earlier life of the worker, and nothing of it where it never answered. It is asked
again soon. One that was late at a start is waited for at the next starts for a moment only, for an hour: it has its
time all the same, and what it finds then follows as news.

A probe is asked by one at a time: who wants a look while one is on its way shares its answer. Before a start each of
ours is asked that has one of its devices, and an outside one that tells of processes, has just failed, or whose devices
go by number. Where one that is asked then gives no answer, nothing starts on its devices until it does. One that says
itself that its driver is silent is asked again as soon as one that failed.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from gpulayer.clock import Clock
from gpulayer.errors import PluginFault
from gpulayer.net.interfaces import own_first
from gpulayer.plugins.builtin import LOOK_FOR
from gpulayer.plugins.contracts.probe import PROBE_DEADLINE_S, Findings, Probe, ProbeSite, ProcessOnDevice
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.plugins.results import instance_of
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT, DEFAULT_LAUNCHER
from gpulayer.spec.labels import located
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality, WorkerFacts
from gpulayer.spec.plain import plain_line
from gpulayer.whole import write_whole
from gpulayer.worker.devices import is_masked_by_number
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
from gpulayer.worker.kept_devices import KeptDevices
from gpulayer.worker.known_devices import KnownDevices
from gpulayer.worker.occupancy import Lent, Occupancy

__all__ = ["KnownFacts", "Probing", "capabilities_of", "combine", "devices_of"]

_log: Final = logging.getLogger(__name__)
_DISK_STEP: Final = 10**9  # free space always changes; equal machines shall share their facts
_MAX_CAPABILITIES: Final = 256
_MAX_PATH: Final = 4096
_MAX_REASON: Final = 1000
_LATE_FOR_MS: Final = 3_600_000
_MOMENT_S: Final = 2.0
_WATCH_S: Final = 2.0
_MEMORY_STEP: Final = 256 * 2**20
_READINGS_MS: Final = 600_000  # between reports for their sake alone
_SILENT: Final = "its driver does not answer"
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
        self.clock = clock
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
        self._faults: dict[int, str] = {}  # the last of each
        self._looks: dict[int, asyncio.Task[bool]] = {}  # on their way
        self._inside: set[int] = set()  # whose code runs, be it that nobody waits for it any more
        self._silent: set[int] = set()  # when a start depended on them, and since
        self._is_missed = False
        self._devices = KnownDevices()
        self._kept_devices = KeptDevices(
            site.work_dir / "known-devices.json",
            clock,
            environment=site.environment,
            host=socket.gethostname(),
            probes={probe.plugin for probe in host.registry.probes},
        )
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
        self._devices = await asyncio.to_thread(self._kept_devices.read)
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
        tasks = (*self._going_on, *self._looks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> WorkerFacts:
        """Ask every probe, side by side, each for ``PROBE_DEADLINE_S`` at most."""
        probes = self._host.registry.probes
        await asyncio.gather(*(self._look(number, probe) for number, probe in enumerate(probes)))
        await self._write()
        return await self._facts()

    @property
    def processes(self) -> tuple[ProcessOnDevice, ...] | None:
        """Who was on the devices at the last look; None where no probe knows."""
        told = [found.processes for found in self._last.values() if found.processes is not None]
        return tuple(process for processes in told for process in processes) if told else None

    @property
    def retry_in_s(self) -> float | None:
        """When ``retry`` is due, of a probe that has failed just now, or whose driver is silent; None where nothing is
        to be asked so soon."""
        waits = [_AGAIN_S[failures - 1] for failures in self._failures.values() if failures <= len(_AGAIN_S)]
        return min(waits, default=None)

    async def retry(self) -> WorkerFacts:
        """Ask those alone again for whose sake it is due."""
        probes = self._host.registry.probes
        due = [number for number, failures in self._failures.items() if failures <= len(_AGAIN_S)]
        await asyncio.gather(*(self._look(number, probes[number]) for number in due))
        await self._write()
        return await self._facts()

    async def look_at(self, devices: Collection[str]) -> WorkerFacts:
        """Of the probes that have these devices, now; of outside ones those alone that know what runs on them, or what
        number they have. Where one gives no answer its devices are unhealthy from then on, until it does."""
        probes = self._host.registry.probes
        asked = [number for number in self._last if self._is_asked_before_start(number, devices)]
        failed_before = self._failures.keys() & asked
        answered = await asyncio.gather(*(self._look(number, probes[number]) for number in asked))
        silent = {number for number, is_answer in zip(asked, answered, strict=True) if not is_answer} - self._silent
        self._silent |= silent
        self._is_missed = self._is_missed or bool(silent) or bool((self._failures.keys() & asked) - failed_before)
        return await self._facts()

    def _is_asked_before_start(self, number: int, devices: Collection[str]) -> bool:
        found = self._last[number]
        concerned = [device for device in found.devices if device.uuid in devices]
        return bool(concerned) and (
            self._host.registry.probes[number].plugin in self._own
            or found.processes is not None
            or number in self._failures
            or any(is_masked_by_number(device) for device in concerned)
        )

    async def until_left(self) -> None:
        """Until somebody who made a device busy has gone, see ``Occupancy``, or a start has met a probe that gives no
        answer."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._is_missed:
                self._is_missed = False
                return
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
        probes = self._host.registry.probes
        found = [self._last.get(number) or self._unfound(number, probe) for number, probe in enumerate(probes)]
        self._note_doubles(found)
        facts = combine(found, version=self._version, labels=self._labels)
        silent = {device.uuid for number in self._silent for device in found[number].devices}
        devices = [_unanswered(device) if device.uuid in silent else device for device in facts.devices]
        has_all = self._last.keys() >= set(range(len(found)))
        known = self._devices.settle(devices, dict(facts.missing), is_whole=has_all)
        said = {(str(device.kind), device.reason) for device in known}
        # What devices say themselves is not told a second time.
        facts = replace(facts, devices=known, missing=tuple(pair for pair in facts.missing if pair not in said))
        await asyncio.to_thread(self._kept_devices.write, self._devices)
        if self._occupancy is not None and facts.devices:
            processes = [process for finding in found for process in finding.processes or ()]
            judge = partial(self._occupancy.judge, facts.devices, processes, lent=self.lent())
            facts = replace(facts, devices=await asyncio.to_thread(judge))
        return replace(facts, capabilities=capabilities_of(self._host.registry))

    def _unfound(self, number: int, probe: Registered[Probe]) -> Findings:
        """Of one that has not answered yet: where it is one of ours and has failed, why there is none of its kind."""
        kind = LOOK_FOR.get(probe.plugin) if probe.plugin in self._own else None
        if kind is None or number not in self._faults:
            return Findings()
        return Findings(missing=((kind, plain_line(f"looking for it failed: {self._faults[number]}", _MAX_REASON)),))

    async def _first_look(self, number: int, probe: Registered[Probe], key: str) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._look(number, probe)
        self._late.note(key, is_late=loop.time() - began_s >= self._deadline_s)

    async def _look(self, number: int, probe: Registered[Probe]) -> bool:
        """Whether it has answered: now, or those who had asked already."""
        task = self._looks.get(number)
        if task is None:
            task = self._looks[number] = asyncio.create_task(self._ask(number, probe), name=f"look of {probe.plugin}")
            task.add_done_callback(lambda _: self._looks.pop(number, None))
        return await asyncio.shield(task)  # others may wait for it, too

    async def _ask(self, number: int, probe: Registered[Probe]) -> bool:
        def look(thing: Probe) -> Findings:
            self._inside.add(number)
            try:
                return checked_findings(thing.look(self._site))
            finally:
                self._inside.discard(number)

        try:
            # Ours end what they wait for, so one that has outlived its time will be back; others may be lost for good.
            if number in self._inside and probe.plugin in self._own:
                raise PluginFault(f"plugin {probe.plugin}: its last look has not ended yet")
            found = await self._host.acall(probe, "Probe.look", look, deadline_s=self._deadline_s)
        except PluginFault as fault:
            _log.warning("%s", fault.message)
            self._failures[number] = self._failures.get(number, 0) + 1
            self._faults[number] = fault.message
            return False
        self._last[number] = found
        if found.is_silent:
            self._failures[number] = self._failures.get(number, 0) + 1
        else:
            self._failures.pop(number, None)
        self._silent.discard(number)
        if probe.plugin not in self._own:
            self._kept.keep(_kept_as(probe), found)
        return True

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


def _unanswered(device: Device) -> Device:
    if device.state is DeviceState.UNHEALTHY:
        return device
    return replace(device, state=DeviceState.UNHEALTHY, reason=_SILENT)


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
                str(key): wall_ms
                for key, wall_ms in said.items()
                if 0 <= now_ms - instance_of(int, wall_ms) < _LATE_FOR_MS
            }
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
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
    checks found.

    facts: to be told to others. What always moves is no news, and makes no facts of their own for a machine that is
    like others: of how warm a device is and how much it is used nothing is told; its free memory, in steps, goes with
    what is news, and by itself every ten minutes at most. seen: with all that.
    """

    def __init__(
        self,
        facts: WorkerFacts,
        probing: Probing,
        frameworks: Sequence[Framework] = (),
        *,
        python: str = "",
        python_version: str = "",
    ) -> None:
        """facts: as probed. python: whose frameworks these are."""
        self._probing = probing
        self._probed = facts.frameworks
        self._checked = tuple(frameworks)
        self._own = ""
        self.seen = replace(
            facts, frameworks=self._frameworks(), python=_fitting(python), python_version=_fitting(python_version)
        )
        self.facts = _told(self.seen)
        self._told_ms = probing.clock.monotonic_ms()

    def set_addresses(self, found: Sequence[str], *, own: str) -> bool:
        """own: from which the control plane was reached last. True where the addresses are new."""
        self._own = own or self._own
        return self._set(replace(self.seen, addresses=tuple(own_first(self._own, found))[:MAX_ADDRESSES]))

    def set_enforced(self, enforces: Sequence[str]) -> bool:
        """What a spawner says of itself when the worker attaches to it; True where that is new."""
        return self._set(replace(self.seen, enforces=tuple(sorted(enforces))))

    def set_frameworks(self, found: Sequence[Framework], *, python: str = "", python_version: str = "") -> bool:
        """What the checks found, with which Python of the jobs; True where that is new."""
        self._checked = tuple(found)
        python, python_version = _fitting(python), _fitting(python_version)
        frameworks = self._frameworks()
        return self._set(replace(self.seen, frameworks=frameworks, python=python, python_version=python_version))

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

    def why_unusable(self, devices: Collection[str]) -> str:
        """Of the first of these that somebody else is on, or that is unhealthy; empty where there is none."""
        for device in self.facts.devices:
            if device.uuid in devices and device.state is not DeviceState.USABLE:
                return f"device {device.index} ({device.uuid}) is {device.state}: {device.reason}"
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
        return self._set(replace(kept, python=self.facts.python, python_version=self.facts.python_version))

    def _frameworks(self) -> tuple[Framework, ...]:
        """What was computed is believed before what was only found."""
        known: dict[tuple[str, str], Framework] = {}
        for framework in (*self._checked, *self._probed):
            known.setdefault((framework.name, framework.accelerator), framework)
        return tuple(known.values())[:MAX_FRAMEWORKS]

    def _set(self, facts: WorkerFacts) -> bool:
        self.seen = facts
        told = _told(facts)
        now_ms = self._probing.clock.monotonic_ms()
        is_like_told = told.without_readings() == self.facts.without_readings()
        if told == self.facts or (is_like_told and now_ms - self._told_ms < _READINGS_MS):
            return False
        self.facts, self._told_ms = told, now_ms
        return True


def _fitting(text: str) -> str:
    """As a report can carry it; a path that is no text, or too long, is left out."""
    return text if text.isprintable() and len(text) <= _MAX_PATH else ""


def _told(facts: WorkerFacts) -> WorkerFacts:
    return replace(facts, devices=tuple(_told_device(device) for device in facts.devices))


def _told_device(device: Device) -> Device:
    free = device.memory_free_bytes
    return replace(
        device.without_readings(), memory_free_bytes=None if free is None else free // _MEMORY_STEP * _MEMORY_STEP
    )


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
