"""What a machine offers, as lines for people: itself, its devices, their links, its frameworks, and what is wrong."""

from typing import TYPE_CHECKING, Final

from gpulayer.cli.console import columns
from gpulayer.cli.machine import (
    Seen,
    device_lines,
    drivers_text,
    framework_lines,
    link_lines,
    missing_lines,
    near_lines,
    python_text,
)
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.units import format_bytes

if TYPE_CHECKING:
    from gpulayer.worker.detecting import Detected

__all__ = ["detected_lines"]

_INDENT: Final = "  "


def detected_lines(found: "Detected") -> list[str]:
    """Parts with an empty line between them; a part that has nothing to say is left out. Pure."""
    facts = found.facts
    parts = [
        ("", columns(_machine(facts))),
        ("", _devices(facts)),
        ("nearest", _indented(near_lines(facts.devices))),
        ("links", _indented(link_lines(facts.devices))),
        (f"frameworks of {python_text(found.python, facts.python_version)}", _indented(_frameworks(found))),
        ("plugins that failed", _indented([*found.faults])),
    ]
    lines: list[str] = []
    for heading, part in parts:
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
        ["drivers", drivers_text(facts.devices)],
        ["place", ", ".join(f"{name} {value}" for name, value in where if value)],
        ["addresses", " ".join(facts.addresses)],
        ["labels", " ".join(f"{name}={value}" for name, value in facts.labels)],
        ["resources", " ".join(f"{name}={count}" for name, count in facts.resources)],
    ]
    return [row for row in rows if row[1]]


def _devices(facts: WorkerFacts) -> list[str]:
    seen = [Seen.of(device) for device in facts.devices]
    return [
        *(device_lines(seen) or ["no device that jobs could compute on"]),
        *_indented(missing_lines(facts.missing, seen)),
    ]


def _frameworks(found: "Detected") -> list[str]:
    absent = sorted(set(found.checked) - {one.name for one in found.facts.frameworks})
    facts = found.facts
    lines = framework_lines(facts.frameworks, facts.devices, dict(facts.missing))
    return lines + [f"not installed: {', '.join(absent)}"] * bool(absent)


def _indented(lines: list[str]) -> list[str]:
    return [f"{_INDENT}{line}" for line in lines]
