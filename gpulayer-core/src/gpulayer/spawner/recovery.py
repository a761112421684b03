"""What a dead spawner left: its processes are ended, and what became of each job is written down.

Used by the watchdog right after its spawner died, which reaps the exit codes, and by the next spawner at its start,
which can't, when both were killed. Until this is done no new work is taken.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from gpulayer.spawner import tree
from gpulayer.spawner.messages import ExitRecord
from gpulayer.spawner.state import JobEntry, StateDir, read_exit_record, write_exit_record

__all__ = ["end_leftovers", "record_what_became", "recover"]

_PATIENCE_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.004
_DIED: Final = "the spawner or the host died while it ran"


def recover(state: StateDir, *, spare: frozenset[int], wall_ms: Callable[[], int]) -> list[tuple[JobEntry, ExitRecord]]:
    """End what former spawners of ``state`` left running; every job in the table, with its exit record."""
    entries = state.load()
    open_entries = [entry for entry in entries if read_exit_record(entry.exit_path) is None]
    left = end_leftovers(open_entries, spare=spare)
    return record_what_became(entries, statuses={}, left=left, wall_ms=wall_ms, why=state.take_why())


def end_leftovers(entries: Iterable[JobEntry], *, spare: frozenset[int]) -> set[int]:
    """SIGKILL everything that carries the marker, or is the main process, of an entry; what survived that."""
    booted = tree.boot_id()
    here = [entry for entry in entries if entry.boot_id == booted]
    markers = {entry.marker for entry in here if entry.marker is not None}
    deadline = time.monotonic() + _PATIENCE_S
    empty_looks = 0
    left: set[int] = set()
    while here and empty_looks < 2 and time.monotonic() < deadline:
        seen = tree.processes()
        roots = {entry.pid for entry in here if entry.pid and _is_same(seen.get(entry.pid), entry)}
        left = tree.members(seen, roots=roots, markers=markers, spare=spare)
        tree.send_signal([seen[pid] for pid in left], signal.SIGKILL)
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
    result = []
    for entry in entries:
        record = read_exit_record(entry.exit_path)
        if record is None:
            is_complete = entry.key in complete and not left
            record = _record(entry, statuses.get(entry.pid), left, wall_ms(), why or _DIED, is_complete=is_complete)
            try:
                write_exit_record(entry.exit_path, record)
            except OSError as error:
                print(f"exit record of {entry.key} can't be written: {error}", flush=True)  # noqa: T201 - the log
        result.append((entry, record))
    return result


def _record(
    entry: JobEntry, status: int | None, left: set[int], now_wall_ms: int, why: str, *, is_complete: bool
) -> ExitRecord:
    code = None if status is None else os.waitstatus_to_exitcode(status)
    reason = "spawner_lost" if code is None else "exited" if code >= 0 else "signaled"
    try:
        log_bytes = os.stat(entry.log_path).st_size
    except OSError:
        log_bytes = 0
    return ExitRecord(
        key=entry.key,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        reason=reason,
        message=why if code is None else "" if is_complete else "the spawner died before its log ended",
        ended_at_wall_ms=now_wall_ms,
        log_bytes=log_bytes,
        log_complete=is_complete,
        tree_clean=not left,
        survivors=tuple(sorted(left)),
    )


def _is_same(seen: tree.Process | None, entry: JobEntry) -> bool:
    return seen is not None and seen.started_ticks == entry.started_ticks
