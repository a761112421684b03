"""What a machine offers, as lines for people: itself, its devices, their links, its frameworks, and what is wrong."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpulayer.cli.console import columns
from gpulayer.cli.offers import said_of, shown_model
from gpulayer.spec.machine import Device, DeviceState, Framework, WorkerFacts
from gpulayer.spec.topology import drawn, islands
from gpulayer.spec.units import format_bytes

if TYPE_CHECKING:
    from gpulayer.worker.detecting import Detected

__all__ = ["detected_lines"]

_INDENT: Final = "  "


def detected_lines(found: "Detected") -> list[str]:
    """Parts with an empty line between them; a part that has nothing to say is left out. Pure."""
    facts = found.facts
    parts = [
        columns(_machine(facts)),
        _devices(facts),
        _links(facts.devices),
        _frameworks(facts, found.checked, found.python),
        [f"{_INDENT}{fault}" for fault in found.faults],
    ]
    headings = ["", "", "links", "", "plugins that failed"]
    lines: list[str] = []
    for heading, part in zip(headings, parts, strict=True):
        if part:
            lines += [""] * bool(lines) + [heading] * bool(heading) + part
    return lines


def _machine(facts: WorkerFacts) -> list[list[str]]:
    cpu = f"{facts.cpus} {'core' if facts.cpus == 1 else 'cores'} for jobs"
    disk = "" if facts.disk_bytes is None else f"{format_bytes(facts.disk_bytes)} free"
    place = facts.locality
    where = [("zone", place.zone), ("region", place.region), ("network group", place.network_group)]
    rows = [
        ["machine", facts.platform],
        ["processor", f"{facts.cpu_model}, {cpu}" if facts.cpu_model else cpu],
        ["memory", format_bytes(facts.memory_bytes)],
        ["disk", disk],
        ["drivers", ", ".join(dict.fromkeys(filter(None, map(_driver, facts.devices))))],
        ["place", ", ".join(f"{name} {value}" for name, value in where if value)],
        ["addresses", " ".join(facts.addresses)],
        ["labels", " ".join(f"{name}={value}" for name, value in facts.labels)],
        ["resources", " ".join(f"{name}={count}" for name, count in facts.resources)],
    ]
    return [row for row in rows if row[1]]


def _driver(device: Device) -> str:
    if not device.driver:
        return ""
    return f"{device.kind} {device.driver}" + (f" (up to {device.runtime})" if device.runtime else "")


def _devices(facts: WorkerFacts) -> list[str]:
    """One row a device; the reason of what can't be used stands below its row, or once below several."""
    lines: list[str] = []
    if facts.devices:
        heads = ["", "device", "memory", "capability", "used", "state", "uuid"]
        # Slices share the number of their card: only their uuids tell one from another.
        has_slices = any(device.parent for device in facts.devices)
        uuids = [device.uuid if has_slices else "" for device in facts.devices]
        found = [_device(device, facts.memory_bytes) for device in facts.devices]
        rows = [heads, *([*row, uuid] for row, uuid in zip(found, uuids, strict=True))]
        following: list[Device | None] = [*facts.devices[1:], None]
        head, *shown = columns(_without_empty(rows))
        lines.append(head)
        alike: list[Device] = []
        for device, after, line in zip(facts.devices, following, shown, strict=True):
            lines.append(line)
            alike.append(device)
            if after is not None and (after.kind, after.reason) == (device.kind, device.reason):
                continue
            if device.reason:
                which = f"{said_of([one.index for one in alike])}: " if len(alike) > 1 else ""
                lines.append(f"{_INDENT * 2}{which}{device.reason}")
            alike = []
    else:
        lines.append("no device that jobs could compute on")
    told = {(device.kind, device.reason) for device in facts.devices}
    lines += [f"{_INDENT}no {kind}: {reason}" for kind, reason in facts.missing if (kind, reason) not in told]
    return lines


def _device(device: Device, ram_bytes: int) -> list[str]:
    kind = f"{device.kind} {shown_model(device.model)}".strip() + (" (slice)" if device.parent else "")
    use = [
        "" if device.use_percent is None else f"{device.use_percent} %",
        "" if device.temperature_c is None else f"{device.temperature_c} °C",
    ]
    state = str(device.state)
    if device.compute_mode not in ("", "default") and device.state is DeviceState.USABLE:
        state += f", {device.compute_mode.replace('_', ' ')}"
    return [
        str(device.index),
        kind,
        _memory(device, ram_bytes),
        device.compute_capability,
        " ".join(filter(None, use)),
        state,
    ]


def _memory(device: Device, ram_bytes: int) -> str:
    """``80 GB (79.2 GB free)``; what is the machine's own memory is said to be that."""
    notes = [] if device.memory_free_bytes is None else [f"{format_bytes(device.memory_free_bytes)} free"]
    if device.is_memory_shared:
        notes.append(f"shared with the machine's {format_bytes(ram_bytes)}")
    text = "unknown" if device.memory_bytes is None else format_bytes(device.memory_bytes)
    return f"{text} ({', '.join(notes)})" if notes else text


def _links(devices: Sequence[Device]) -> list[str]:
    """Nothing where there is nothing to choose between."""
    if not any(device.links for device in devices):
        return []
    return [f"{_INDENT}{line}" for line in [*drawn(devices), *_islands(devices)]]


def _islands(devices: Sequence[Device]) -> list[str]:
    """One line, where NVLinks or XGMI join some and not all of a kind."""
    found = islands(devices)
    joined = " | ".join(" ".join(str(device.index) for device in island) for island in found)
    is_whole = any(len(island) == sum(device.kind is island[0].kind for device in devices) for island in found)
    return [f"islands: {joined}"] if found and not is_whole else []


def _frameworks(facts: WorkerFacts, checked: Iterable[str], python: str) -> list[str]:
    """A row a framework and what is said of it, with the accelerators: what computed first."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    indices = {device.uuid: device.index for device in facts.devices}
    frameworks = [
        replace(one, reason="not checked yet" + (f": {one.reason}" if one.reason else "")) if one.is_pending else one
        for one in facts.frameworks
    ]
    unknown: dict[str, list[str]] = {}  # of what could not even say its version, by the reason
    for one in frameworks:
        if not (one.version or one.usable) and one.name not in unknown.setdefault(one.reason, []):
            unknown[one.reason].append(one.name)
    several = {reason: names for reason, names in unknown.items() if len(names) > 1}
    for one in sorted(frameworks, key=lambda one: (one.name, not one.usable)):
        if one.name in several.get(one.reason, ()):
            continue
        words = _words(one, indices)
        alike.setdefault((one.name, one.version, words), []).append(str(one.accelerator))
    rows = [[f"{_INDENT}{name}", version, ", ".join(on), words] for (name, version, words), on in alike.items()]
    absent = sorted(set(checked) - {one.name for one in frameworks})
    lines = columns(_without_repeats(rows)) if rows else []
    lines += [f"{_INDENT}{', '.join(sorted(names))}: {reason}" for reason, names in several.items()]
    if absent:
        lines.append(f"{_INDENT}not installed: {', '.join(absent)}")
    return [f"frameworks of {python}", *lines] if lines else []


def _words(one: Framework, indices: Mapping[str, int]) -> str:
    if not one.usable:
        return one.reason or "does not compute"
    failed = "; ".join(f"device {indices.get(uuid, uuid)}: {reason}" for uuid, reason in one.failed_on)
    return "computes" + (f", but not on {failed}" if failed else "")


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
