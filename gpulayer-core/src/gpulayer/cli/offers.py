"""What ``gpulayer resources`` shows of all workers: the devices of each in few rows; below the table frameworks that
compute, how devices are linked, and what can't be used and why."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gpulayer.cli.machine import (
    Seen,
    called,
    devices_from,
    link_lines,
    memory_text,
    missing_lines,
    said_of,
    said_to_be,
    seen_from,
    short_reason,
)
from gpulayer.cli.records import resources_text
from gpulayer.spec.machine import Device
from gpulayer.spec.plain import spans
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
    alike: dict[tuple[str, str, str], list[Device]] = {}
    for one in seen_from(worker):
        alike.setdefault((one.title, memory_text(one.device), one.state_now), []).append(one.device)
    rows: list[list[str]] = []
    for (title, memory, state), devices in alike.items():
        numbers = {device.index for device in devices}
        slices = f" × {len(devices)}" if len(devices) > len(numbers) else ""
        rows.append([f"{spans(numbers)} {title}{slices}", memory, state])
    return rows or [["no device", "", ""]]


def lines_below(workers: "Sequence[WorkerRecord]") -> list[str]:
    """Parts with an empty line before each; a part that has nothing to say is left out."""
    computing = [f"  {names}: {said}" for (said,), names in _alike(workers, _computing)]
    lines = ["", "frameworks", *computing] if computing else []
    for matrix, names in _alike(workers, lambda worker: link_lines(devices_from(worker["devices"]))):
        lines += ["", f"links of {names}", *(f"  {line}" for line in matrix)]
    used = [f"  {worker['name']}: {said}" for worker in workers for said in _used(worker)]
    lines += ["", "in use", *used] if used else []
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


def _kinds(seen: Sequence[Seen]) -> list[str]:
    return list(dict.fromkeys(one.kind for one in seen))


def _used(worker: "WorkerRecord") -> Iterator[str]:
    """``devices 0-1 by job 5f3a…``, a line for each job that has any."""
    seen = seen_from(worker)
    by_job: dict[tuple[str, str], list[Device]] = {}
    for one in seen:
        if one.job:
            by_job.setdefault((one.job, one.kind if len(_kinds(seen)) > 1 else ""), []).append(one.device)
    for (job, kind), devices in by_job.items():
        yield f"{kind} {said_of(devices)}".lstrip() + f" by job {job}"


def _unusable(worker: "WorkerRecord") -> Iterator[str]:
    """Devices and kinds of them, and frameworks of what there are devices for; the same words once."""
    seen = seen_from(worker)
    kinds = _kinds(seen)
    by_words: dict[tuple[str, str, str], list[Device]] = {}
    for device in seen:
        if device.device.reason:
            key = (device.kind, device.state, short_reason(device.device.reason))
            by_words.setdefault(key, []).append(device.device)
    for (kind, state, reason), ones in by_words.items():
        yield said_to_be(ones, state, reason, kind=kind if len(kinds) > 1 else "")
    yield from missing_lines(worker.get("missing", {}).items(), seen)
    devices = [one.device for one in seen]
    there = {device.uuid for device in devices}
    on: dict[tuple[str, str], list[str]] = {}
    for one in worker["frameworks"]:
        for uuid, reason in one.get("failed_on", {}).items():
            if uuid in there:
                on.setdefault((one["name"], reason or "not checked yet"), []).append(called(uuid, devices))
        is_known = not (one["usable"] or one.get("pending"))
        if is_known and one["accelerator"] in kinds and one["reason"]:
            on.setdefault((one["name"], one["reason"]), []).append(one["accelerator"])
    for (name, reason), accelerators in on.items():
        yield f"{name} on {', '.join(accelerators)}: {short_reason(reason)}"
