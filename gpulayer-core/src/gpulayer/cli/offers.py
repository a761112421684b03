"""What ``gpulayer resources`` shows of all workers: the devices of each in few rows; below the table frameworks that
compute, how devices are linked, and what can't be used and why."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gpulayer.cli.machine import (
    devices_from,
    link_lines,
    memory_text,
    said_of,
    short_model,
    short_reason,
    spans,
)
from gpulayer.cli.records import resources_text
from gpulayer.spec.machine import Device
from gpulayer.spec.units import format_bytes

if TYPE_CHECKING:
    from gpulayer.wire.workers import WorkerRecord

__all__ = ["device_rows", "lines_below", "worker_table"]

_NAMED: Final = 8  # of workers of which the same is said


def worker_table(workers: "Sequence[WorkerRecord]") -> tuple[list[str], list[list[str]]]:
    """Headers and rows: of each worker what it has and what is free, in the first of its rows, and its devices."""
    is_counted = any(map(resources_text, workers))  # few have any, and a screen has little room
    rows: list[list[str]] = []
    for worker in workers:
        own = [
            worker["name"],
            worker["state"],
            f"{worker['cpus_free']}/{worker['cpus']}",
            format_bytes(worker["memory_bytes"]),
            *([resources_text(worker)] if is_counted else []),
        ]
        first, *more = device_rows(worker)
        rows += [own + first, *([""] * len(own) + row for row in more)]
    headers = ["worker", "state", "cpus free", "memory", *["resources"] * is_counted]
    return [*headers, "device", "memory free", "state"], rows


def device_rows(worker: "WorkerRecord") -> list[list[str]]:
    """Device, its free memory and its state; those of which all of that is the same in one row."""
    alike: dict[tuple[str, str, str, str], list[Device]] = {}
    for device, fields in zip(devices_from(worker["devices"]), worker["devices"], strict=True):
        key = (fields["kind"], short_model(device), memory_text(device), fields["state"])
        alike.setdefault(key, []).append(device)
    rows: list[list[str]] = []
    for (kind, model, memory, state), devices in alike.items():
        numbers = {device.index for device in devices}
        slices = f" × {len(devices)}" if len(devices) > len(numbers) else ""
        rows.append([f"{spans(numbers)} {kind} {model}".rstrip() + slices, memory, state])
    return rows or [["no device", "", ""]]


def lines_below(workers: "Sequence[WorkerRecord]") -> list[str]:
    """Parts with an empty line before each; a part that has nothing to say is left out."""
    computing = [f"  {names}: {said}" for (said,), names in _alike(workers, _computing)]
    lines = ["", "frameworks", *computing] if computing else []
    for matrix, names in _alike(workers, lambda worker: link_lines(devices_from(worker["devices"]))):
        lines += ["", f"links of {names}", *(f"  {line}" for line in matrix)]
    unusable = [f"  {worker['name']}: {said}" for worker in workers for said in _unusable(worker)]
    lines += ["", "can't be used", *unusable] if unusable else []
    pending = [f"  {worker['name']}: {said}" for worker in workers for said in _pending(worker)]
    return lines + (["", "not checked yet", *pending] if pending else [])


def _alike(
    workers: "Sequence[WorkerRecord]", said: "Callable[[WorkerRecord], Sequence[str]]"
) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is said of any, once, with the names of all of which it is."""
    names: dict[tuple[str, ...], list[str]] = {}
    for worker in workers:
        if lines := tuple(said(worker)):
            names.setdefault(lines, []).append(worker["name"])
    for lines, of in names.items():
        more = f" and {len(of) - _NAMED} more" if len(of) > _NAMED else ""
        yield lines, ", ".join(of[:_NAMED]) + more


def _computing(worker: "WorkerRecord") -> list[str]:
    """``torch 2.9.0 on cuda, cpu; jax 0.10.2 on cpu``, as one line; none: nothing computes."""
    on: dict[str, list[str]] = {}
    for one in worker["frameworks"]:
        if one["usable"]:
            on.setdefault(f"{one['name']} {one['version']}", []).append(one["accelerator"])
    said = "; ".join(f"{framework} on {', '.join(kinds)}" for framework, kinds in on.items())
    return [said] if said else []


def _pending(worker: "WorkerRecord") -> Iterator[str]:
    """Frameworks whose checks have not ended, with what they wait for."""
    names: dict[str, dict[str, None]] = {}
    for one in worker["frameworks"]:
        if one.get("pending"):
            names.setdefault(one["reason"] or "the checks are under way", {})[one["name"]] = None
    for words, ones in names.items():
        yield f"{', '.join(ones)}: {short_reason(words)}"


def _unusable(worker: "WorkerRecord") -> Iterator[str]:
    """Devices and kinds of them, and frameworks of what there are devices for; the same words once."""
    devices = devices_from(worker["devices"])
    kinds = list(dict.fromkeys(fields["kind"] for fields in worker["devices"]))
    told: set[tuple[str, str]] = set()
    by_words: dict[tuple[str, str], list[Device]] = {}
    for device, fields in zip(devices, worker["devices"], strict=True):
        if fields["reason"]:
            told.add((fields["kind"], fields["reason"]))
            words = f"{fields['state']}: {short_reason(fields['reason'])}"
            by_words.setdefault((fields["kind"], words), []).append(device)
    for (kind, words), ones in by_words.items():
        which = said_of(ones) if len(kinds) == 1 else f"{kind} {said_of(ones)}"
        yield f"{which} {'are' if 'devices ' in which else 'is'} {words}"
    for kind, reason in worker.get("missing", {}).items():
        if (kind, reason) not in told:
            yield f"no {kind}: {short_reason(reason)}"
    numbers = {fields["uuid"]: f"{fields['kind']} {fields['index']}" for fields in worker["devices"]}
    on: dict[tuple[str, str], list[str]] = {}
    for one in worker["frameworks"]:
        for uuid, reason in one.get("failed_on", {}).items():
            if uuid in numbers:
                on.setdefault((one["name"], reason), []).append(numbers[uuid])
        is_known = not (one["usable"] or one.get("pending"))
        if is_known and one["accelerator"] in kinds and one["reason"]:
            on.setdefault((one["name"], one["reason"]), []).append(one["accelerator"])
    for (name, reason), accelerators in on.items():
        yield f"{name} on {', '.join(accelerators)}: {short_reason(reason)}"
