"""What a dead spawner left: its processes are ended, and what became of each job is written down.

Used by the watchdog right after its spawner died, which reaps the exit codes, and by the next spawner at its start,
which can't, when both were killed. Until this is done no new work is taken.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpulayer.spawner import tree
from gpulayer.spawner.cgroups import end_below, remove_below
from gpulayer.spawner.messages import ExitRecord
from gpulayer.spawner.saying import say
from gpulayer.spawner.spool import beside_bytes, join_tail
from gpulayer.spawner.state import JobEntry, StateDir, read_exit_record, write_exit_record

__all__ = ["end_leftovers", "record_what_became", "recover"]

_PATIENCE_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.004
_DIED: Final = "the spawner or the host died while it ran"
_NOT_HERE: Final = "it is not known how it ended: this machine was restarted, or its folder is a copy of another one's"


def recover(state: StateDir, *, spare: frozenset[int], wall_ms: Callable[[], int]) -> list[tuple[JobEntry, ExitRecord]]:
    """End what former spawners of ``state`` left running; every job in the table, with its exit record."""
    entries = state.load()
    open_entries = [entry for entry in entries if read_exit_record(entry.exit_path) is None]
    bases = state.read_groups()
    left = end_leftovers(open_entries, spare=spare, bases=bases)
    for base in bases:
        remove_below(base)
    return record_what_became(entries, statuses={}, left=left, wall_ms=wall_ms, why=state.take_why())


def end_leftovers(entries: Iterable[JobEntry], *, spare: frozenset[int], bases: Sequence[str] = ()) -> set[int]:
    """SIGKILL everything that carries the marker, or is the main process, of an entry, or is in a group below one of
    the bases, which are the dead spawner's alone; what survived that."""
    booted = tree.boot_id()
    here = [entry for entry in entries if entry.boot_id == booted]
    markers = {entry.marker for entry in here if entry.marker is not None}
    deadline = time.monotonic() + _PATIENCE_S
    empty_looks = 0
    left: set[int] = set()
    while (here or bases) and empty_looks < 2 and time.monotonic() < deadline:
        grouped = {pid for base in bases for pid in end_below(base, spare=spare)}
        if not here and not grouped:
            return set()
        seen = tree.processes()
        roots = {entry.pid for entry in here if entry.pid and _is_same(seen.get(entry.pid), entry)}
        left = tree.members(seen, roots=roots, markers=markers, spare=spare)
        tree.send_signal([seen[pid] for pid in left], signal.SIGKILL)
        left |= grouped
        empty_looks = 0 if left else empty_looks + 1
        if left:
            time.sleep(_LOOK_AGAIN_S)
    return left


def record_what_became(
    entries: Iterable[JobEntry],
    *,
    statuses: Mapping[int, int],
    left: set[int],
    wall_ms: Callable[[], int],
    why: str = "",
    complete: Collection[str] = (),
) -> list[tuple[JobEntry, ExitRecord]]:
    """Write the exit record of each entry that has none; all entries with their records.

    statuses: wait statuses by PID, of main processes that ended by themselves. why: what became of their spawner, where
    that is known. complete: keys of those whose log is whole. A record that can't be written is still returned, and
    will be made again by the next start.
    """
    result, booted = [], tree.boot_id()
    for entry in entries:
        record = read_exit_record(entry.exit_path)
        if record is None:
            is_complete = entry.key in complete and not left
            told = _NOT_HERE if entry.boot_id != booted else why or _DIED
            record = _record(entry, statuses.get(entry.pid), left, wall_ms(), told, is_complete=is_complete)
            try:
                write_exit_record(entry.exit_path, record)
            except OSError as error:
                say(f"exit record of {entry.key} can't be written: {error}")
        result.append((entry, record))
    return result


def _record(
    entry: JobEntry, status: int | None, left: set[int], now_wall_ms: int, why: str, *, is_complete: bool
) -> ExitRecord:
    code = None if status is None else os.waitstatus_to_exitcode(status)
    reason = "spawner_lost" if code is None else "exited" if code >= 0 else "signaled"
    logs = [_end_log(path) for path in (entry.log_path, entry.err_path) if path is not None]
    return ExitRecord(
        key=entry.key,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        reason=reason,
        message=why if code is None else "" if is_complete else "the spawner died before its log ended",
        ended_at_wall_ms=now_wall_ms,
        log_bytes=logs[0].size,
        log_complete=is_complete and not any(log.left_out for log in logs),
        tree_clean=not left,
        survivors=tuple(sorted(left)),
        err_bytes=sum(log.size for log in logs[1:]),
        left_out_bytes=sum(log.left_out for log in logs),
        unwritten_bytes=tuple(log.unwritten for log in logs),
    )


@dataclass(frozen=True, slots=True)
class _Log:
    size: int
    left_out: int
    unwritten: int


def _end_log(path: str) -> _Log:
    """Join the end of a log on that outgrew its limit; on a full disk say how much that would have been."""
    unwritten = 0
    try:
        left_out = join_tail(path)
    except OSError as error:
        say(f"the end of {path} can't be written: {error}")
        left_out = unwritten = beside_bytes(path)
    try:
        size = os.stat(path).st_size
    except OSError:  # it never began
        size = 0
    return _Log(size, left_out, unwritten)


def _is_same(seen: tree.Process | None, entry: JobEntry) -> bool:
    return seen is not None and seen.started_ticks == entry.started_ticks
