"""A job's limits: what the spawner is asked to hold it to, what came of it, and what to tell of that. Pure."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from gpulayer.protocol.messages import ProcessExited
from gpulayer.spawner.messages import ExitRecord, SpawnLimits
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.limits import Limits
from gpulayer.spec.units import format_bytes

__all__ = ["judge_end", "spawn_limits", "unenforced"]

_SIGKILL: Final = 9


def spawn_limits(assignment: Assignment, *, log_bytes: int) -> SpawnLimits:
    """In the spawner's words; log_bytes: as planned. The weight on a contended processor follows the cores that
    placement counted."""
    limits = assignment.limits
    return SpawnLimits(
        cpus=limits.cpus,
        cpu_weight=max(1, assignment.cpus),
        memory_bytes=limits.memory_bytes,
        pids=limits.pids,
        pin_cores=max(1, limits.cpus) if limits.pin_cores else 0,
        log_bytes=log_bytes,
    )


def unenforced(limits: Limits, enforces: Collection[str]) -> list[str]:
    """A line for each limit that was asked for and that the worker's host has no means to hold a job to."""
    lines: list[str] = []
    if limits.memory_bytes and "memory" not in enforces:
        lines.append(f"--memory {format_bytes(limits.memory_bytes)} was not enforced: {_lacks('memory')}")
    if limits.cpus and "cpus" not in enforces:
        lines.append(f"--cpus {limits.cpus} was not enforced: {_lacks('cpu')}")
    if limits.pids and "pids" not in enforces:
        lines.append(f"--pids {limits.pids} was not enforced: {_lacks('pids')}")
    if limits.pin_cores and "cores" not in enforces:
        lines.append("--pin-cores was not done: its worker's system can't pin a process to cores")
    return lines


def judge_end(end: ProcessExited, record: ExitRecord, limits: Limits, enforces: Collection[str]) -> ProcessExited:
    """The end, with what the kernel says of memory, and with what was asked for in vain.

    Out of memory is what failed after the kernel had killed some of it for want of memory. Its exit code or signal
    alone proves nothing: a program may exit with 137, and anybody may send it SIGKILL.
    """
    kills = record.oom_kills or 0
    has_failed = end.signal == _SIGKILL or end.exit_code not in (0, None)
    is_out_of_memory = kills > 0 and has_failed
    lines = [_memory_text(record, limits, is_cause=is_out_of_memory)] if kills else []
    lines += [*unenforced(limits, enforces), end.evidence]
    return replace(end, is_out_of_memory=is_out_of_memory, evidence="\n".join(filter(None, lines)))


def _memory_text(record: ExitRecord, limits: Limits, *, is_cause: bool) -> str:
    count = record.oom_kills or 0
    text = f"{count} process{'es' if count != 1 else ''} killed by the kernel (oom_kill)"
    if limits.memory_bytes:
        text += f", limit {format_bytes(limits.memory_bytes)}"
    if record.memory_peak_bytes is not None:
        text += f", peak {format_bytes(record.memory_peak_bytes)}"
    return f"out of memory: {text}" if is_cause else f"it went on without memory that it wanted: {text}"


def _lacks(controller: str) -> str:
    return f"its worker has no {controller} control group"
