"""One machine's devices, drivers, links and frameworks, as lines for people. Pure.

For what looks at this machine and for what a worker reported: both show the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpulayer.cli.console import columns
from gpulayer.spec.machine import Device, DeviceState, Framework
from gpulayer.spec.plain import plain_line, spans
from gpulayer.spec.request import Accelerator
from gpulayer.spec.topology import drawn, islands
from gpulayer.spec.units import format_bytes

if TYPE_CHECKING:
    from gpulayer.wire.workers import DeviceFields, FrameworkFields, WorkerRecord

__all__ = [
    "Seen",
    "called",
    "device_lines",
    "devices_from",
    "drivers_text",
    "framework_lines",
    "frameworks_from",
    "link_lines",
    "memory_text",
    "missing_lines",
    "near_lines",
    "python_text",
    "said_of",
    "said_to_be",
    "seen_from",
    "short_model",
    "short_reason",
]

_INDENT: Final = "  "
_MODEL: Final = 40  # characters of a device's name: longer ones would push all else off the screen
_REASON: Final = 300  # of a reason: some are a driver's whole page, and --json has all of it
_CORES: Final = 60
_MAKERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"cuda": ("NVIDIA ",), "rocm": ("AMD ",), "xpu": ("Intel(R) ", "Intel "), "mps": ("Apple ",)}
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A device, and what it is called where it was told of: a newer worker may know kinds and states that are not known
    here. job: which has it; empty: none."""

    device: Device
    kind: str
    state: str
    job: str = ""

    @classmethod
    def of(cls, device: Device) -> "Seen":
        """Of one that this program has found itself."""
        return cls(device, str(device.kind), str(device.state))

    @property
    def state_now(self) -> str:
        """What is in a job's hands is usable, but not free."""
        return "in use" if self.job and self.state == DeviceState.USABLE else self.state

    @property
    def title(self) -> str:
        """``cuda L40S``."""
        return f"{self.kind} {short_model(self.device)}".rstrip()


def device_lines(seen: Sequence[Seen], *, has_uuids: bool = False) -> list[str]:
    """One row a device; the reason of what can't be used stands below its row, or once below several. has_uuids: of
    all; else of slices alone, which share the number of their card. No devices: no lines."""
    if not seen:
        return []
    heads = ["", "device", "memory", "capability", "used", "state", "job", "uuid"]
    has_uuids = has_uuids or any(one.device.parent for one in seen)
    rows = [[*_cells(one), one.job, one.device.uuid if has_uuids else ""] for one in seen]
    following: list[Seen | None] = [*seen[1:], None]
    head, *shown = columns(_without_empty([heads, *rows]))
    lines = [head]
    alike: list[Device] = []
    for one, after, line in zip(seen, following, shown, strict=True):
        device = one.device
        lines.append(line)
        alike.append(device)
        if after is not None and (after.kind, after.device.reason) == (one.kind, device.reason):
            continue
        if device.reason:
            which = f"{said_of(alike)}: " if len(alike) > 1 else ""
            lines.append(f"{_INDENT * 2}{which}{short_reason(device.reason)}")
        alike = []
    return lines


def drivers_text(devices: Iterable[Device]) -> str:
    """``cuda 550.90.07 (up to 12.4)``: driver, and the newest runtime that it supports, of each kind."""
    said = [
        f"{device.kind} {device.driver}" + (f" (up to {device.runtime})" if device.runtime else "")
        for device in devices
        if device.driver
    ]
    return ", ".join(dict.fromkeys(said))


def near_lines(devices: Sequence[Device]) -> list[str]:
    """``devices 0-3: NUMA node 0, cores 0-31``, which are nearest to them: the same once, without what nobody knows."""
    groups: dict[str, list[Device]] = {}
    for device in devices:
        node = "" if device.numa_node is None else f"NUMA node {device.numa_node}"
        cores = f"cores {plain_line(device.cores, _CORES)}" if device.cores else ""
        where = ", ".join(filter(None, (node, cores)))
        if where:
            groups.setdefault(where, []).append(device)
    lines: list[str] = []
    for where, near in groups.items():
        which = "all devices" if len(near) == len(devices) > 1 else _named(near, devices)
        lines.append(f"{which}: {where}")
    return lines


def link_lines(devices: Sequence[Device]) -> list[str]:
    """A matrix of links, what its words mean, and which devices are an island. Nothing where no link is known."""
    matrix = drawn(devices)
    return [*matrix, *_islands(devices)] if matrix else []


def missing_lines(missing: Iterable[tuple[str, str]], seen: Sequence[Seen]) -> list[str]:
    """Kinds of which there is no device, or not every one, and why: without what is said of devices already."""
    told = {(one.kind, one.device.reason) for one in seen}
    there = {one.kind for one in seen}
    return [
        f"{'' if kind in there else 'no '}{kind}: {short_reason(reason)}"
        for kind, reason in missing
        if (kind, reason) not in told
    ]


def framework_lines(frameworks: Sequence[Framework], devices: Sequence[Device], missing: Iterable[str]) -> list[str]:
    """A row a framework and what is said of it, with the accelerators: what computed first. Of accelerators that the
    machine neither has nor should have (missing) nothing, unless nothing else is known of a framework."""
    frameworks = _of_machine(frameworks, {str(device.kind) for device in devices} | set(missing))
    frameworks = [replace(one, reason=_pending(one)) if one.is_pending else one for one in frameworks]
    alike: dict[tuple[str, str, str], list[str]] = {}
    unknown: dict[str, list[str]] = {}  # of what could not even say its version, by the reason
    for one in frameworks:
        if not (one.version or one.usable) and one.name not in unknown.setdefault(one.reason, []):
            unknown[one.reason].append(one.name)
    several = {reason: names for reason, names in unknown.items() if len(names) > 1}
    for one in sorted(frameworks, key=lambda one: (one.name, not one.usable)):
        if one.name in several.get(one.reason, ()):
            continue
        words = "computes" if one.usable else short_reason(one.reason or "does not compute")
        if one.usable and one.failed_on:
            failed = (f"{called(uuid, devices)}: {why or 'not checked yet'}" for uuid, why in one.failed_on)
            words += ", but not on " + short_reason("; ".join(failed))
        version = f"{one.version} ({one.build})" if one.build else one.version
        alike.setdefault((one.name, version, words), []).append(str(one.accelerator))
    rows = [[name, version, ", ".join(on), words] for (name, version, words), on in alike.items()]
    lines = columns(_without_repeats(rows)) if rows else []
    return lines + [f"{', '.join(sorted(names))}: {short_reason(reason)}" for reason, names in several.items()]


def _pending(framework: Framework) -> str:
    return "not checked yet" + (f": {framework.reason}" if framework.reason else "")


def _of_machine(frameworks: Sequence[Framework], kinds: set[str]) -> list[Framework]:
    known = kinds | {Accelerator.CPU} | ({Accelerator.MLX} if Accelerator.MPS in kinds else set())
    here = {one.name for one in frameworks if one.accelerator in known}
    return [one for one in frameworks if one.accelerator in known or one.name not in here]


def python_text(path: str, version: str) -> str:
    """``/usr/bin/python3 (3.12.4)``."""
    return f"{path} ({version})" if path and version else path


def called(uuid: str, devices: Sequence[Device]) -> str:
    """As tables of devices number it; slices, which share a number, and what is not there by its uuid."""
    device = next((device for device in devices if device.uuid == uuid), None)
    return uuid if device is None or device.parent else _named([device], devices)


def said_of(devices: Sequence[Device]) -> str:
    """``device 3``, or ``devices 0-3, 7``."""
    numbers = {device.index for device in devices}
    return f"devices {spans(numbers)}" if len(numbers) > 1 else f"device {spans(numbers)}"


def said_to_be(devices: Sequence[Device], state: str, reason: str, *, kind: str = "") -> str:
    """``device 3 is unhealthy: it is not found any more``, or ``each of devices 0-2 is …``: a reason is of one. kind:
    of the devices, where it has to be said."""
    which = f"{kind} {said_of(devices)}".lstrip()
    is_one = len({device.index for device in devices}) == 1
    return f"{which if is_one else f'each of {which}'} is {state}: {reason}"


def memory_text(device: Device) -> str:
    """``79.2/80 GB``: free, and in all; as far as that is known."""
    free, total = device.memory_free_bytes, device.memory_bytes
    if total is None:
        return "the machine's" if device.is_memory_shared else "unknown"
    if free is None:
        return f"?/{format_bytes(total)}"
    has, of = format_bytes(free), format_bytes(total)
    unit = of.rpartition(" ")[2]
    return f"{has.removesuffix(' ' + unit)}/{of}"


def short_model(device: Device) -> str:
    """As much of it as a table has room for; without its maker, whom its kind tells."""
    model = plain_line(device.model, _MODEL)
    for maker in _MAKERS.get(device.kind, ()):
        model = model.removeprefix(maker)
    return model


def short_reason(reason: str) -> str:
    """As much of it as people read."""
    return plain_line(reason, _REASON)


def seen_from(record: "WorkerRecord") -> list[Seen]:
    """A worker's devices, with the jobs that have them."""
    jobs = record.get("device_jobs", {})
    return [
        Seen(_device(fields), fields["kind"], fields["state"], jobs.get(fields["uuid"], ""))
        for fields in record["devices"]
    ]


def devices_from(records: "Iterable[DeviceFields]") -> list[Device]:
    """What a newer worker calls by a name that is not known here is of any kind, and can't be used."""
    return [_device(fields) for fields in records]


def frameworks_from(records: "Iterable[FrameworkFields]") -> list[Framework]:
    """As ``devices_from``."""
    return [
        Framework(
            fields["name"],
            fields["version"],
            _accelerator(fields["accelerator"]),
            usable=fields["usable"],
            reason=fields["reason"],
            build=fields.get("build", ""),
            is_pending=fields.get("pending", False),
            failed_on=tuple(fields.get("failed_on", {}).items()),
        )
        for fields in records
    ]


def _device(fields: "DeviceFields") -> Device:
    state = fields["state"]
    return Device(
        fields["uuid"],
        fields["index"],
        _accelerator(fields["kind"]),
        fields["model"],
        memory_bytes=fields["memory_bytes"],
        memory_free_bytes=fields["memory_free_bytes"],
        compute_capability=fields["compute_capability"],
        state=DeviceState(state) if state in list(DeviceState) else DeviceState.UNHEALTHY,
        reason=fields["reason"],
        links=tuple(fields["links"].items()),
        pci_address=fields.get("pci_address", ""),
        driver=fields.get("driver", ""),
        runtime=fields.get("runtime", ""),
        parent=fields.get("parent", ""),
        is_memory_shared=fields.get("is_memory_shared", False),
        compute_mode=fields.get("compute_mode", ""),
        numa_node=fields.get("numa_node"),
        cores=fields.get("cores", ""),
    )


def _accelerator(kind: str) -> Accelerator:
    return Accelerator(kind) if kind in list(Accelerator) else Accelerator.ANY


def _cells(seen: Seen) -> list[str]:
    device = seen.device
    use = [
        "" if device.use_percent is None else f"{device.use_percent} %",
        "" if device.temperature_c is None else f"{device.temperature_c} °C",
    ]
    state = seen.state_now
    if device.compute_mode not in ("", "default") and device.state is DeviceState.USABLE:
        state += f", {device.compute_mode.replace('_', ' ')}"
    return [
        str(device.index),
        seen.title + (" (slice)" if device.parent else ""),
        _memory(device),
        device.compute_capability,
        " ".join(filter(None, use)),
        state,
    ]


def _memory(device: Device) -> str:
    """``79.2/80 GB free``; what is the machine's own memory is said to be that."""
    if device.memory_bytes is None:
        return memory_text(device)
    is_known = device.memory_free_bytes is not None
    text = f"{memory_text(device)} free" if is_known else format_bytes(device.memory_bytes)
    return f"{text}, the machine's" if device.is_memory_shared else text


def _named(some: Sequence[Device], devices: Sequence[Device]) -> str:
    """With their kind where the machine has several."""
    is_one_kind = len({device.kind for device in devices}) == 1
    of_kind: dict[Accelerator, list[Device]] = {}
    for device in some:
        of_kind.setdefault(device.kind, []).append(device)
    if is_one_kind:
        return said_of(some)
    return " and ".join(f"{kind} {said_of(ones)}" for kind, ones in of_kind.items())


def _islands(devices: Sequence[Device]) -> Iterator[str]:
    """One line for each kind. Where there is none, only if all links are known."""
    kinds = list(dict.fromkeys(device.kind for device in devices if device.links))
    for kind in kinds:
        ones = [device for device in devices if device.kind is kind]
        found = islands(ones)
        head = "islands" if len(kinds) == 1 else f"{kind} islands"
        if len(found) == 1 and len(found[0]) == len(ones):
            yield f"{head}: one, all {len(ones)} of them"
        elif found:
            yield f"{head}: {' | '.join(' '.join(str(device.index) for device in island) for island in found)}"
        elif _is_all_known(ones):
            yield f"{head}: none, no NVLink or XGMI joins any"


def _is_all_known(devices: Sequence[Device]) -> bool:
    told = {frozenset((device.uuid, peer)) for device in devices for peer, link in device.links if link}
    return all(frozenset((one.uuid, other.uuid)) in told for one, other in combinations(devices, 2))


def _without_empty(rows: list[list[str]]) -> list[list[str]]:
    """Without columns that are empty but for their head."""
    kept = [at for at in range(len(rows[0])) if at == 0 or any(row[at] for row in rows[1:])]
    return [[row[at] for at in kept] for row in rows]


def _without_repeats(rows: list[list[str]]) -> list[list[str]]:
    """The name and version of a framework once."""
    shown: list[list[str]] = []
    for before, row in zip([[], *rows], rows, strict=False):
        shown.append(["", "", *row[2:]] if before[:2] == row[:2] else row)
    return shown
