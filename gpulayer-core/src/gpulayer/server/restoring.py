"""A backup becomes a state folder: beside the place where it is to be, whole, and then by one rename.

The store that comes back is an older one, and the world has gone on: workers run what it never knew, and hold leases
under epochs that it would give out again. So it begins a new generation (``generations``), all its live attempts are
lost, and the audit trail says so. Blocks. Nothing is written into a folder that holds anything.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpulayer.clock import Clock, Instant
from gpulayer.engine import Policy, rebuild, step
from gpulayer.engine.events import PlaneRestored
from gpulayer.errors import Conflict, StorageUnavailable, UsageError
from gpulayer.ids import new_id
from gpulayer.server import archive
from gpulayer.server.audit import SYSTEM, entry
from gpulayer.server.generations import first_of_generation
from gpulayer.server.history import History
from gpulayer.server.settings import Layout
from gpulayer.server.store import Batch, Live, Side, Store
from gpulayer.server.store.health import check_pages, read_only
from gpulayer.server.store.reads import RESTORED
from gpulayer.spec.worker import WorkerState
from gpulayer.staging.blobs import storage_error
from gpulayer.syncing import Syncs

__all__ = ["Restored", "check_empty", "restore"]

_MAKING: Final = ".restore-"


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back. lost: attempts that were live in the backup; queued: jobs that are waiting or run again."""

    head: archive.Head
    members: int
    lost: int
    queued: int
    workers: int


def check_empty(root: Path) -> None:
    """Raises Conflict unless the folder is empty or missing."""
    try:
        held = sorted(path.name for path in root.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageUnavailable(f"state folder {root} can't be used: {error.strerror}") from None
    if held:
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        raise Conflict(
            f"state folder {root} is not empty: {', '.join(held[:3])}{more}",
            hint=f"end its control plane (gpulayer down) and move it away: mv {root} {root}.old; or --state DIR",
        )


def restore(backup: Path, root: Path, *, clock: Clock) -> Restored:
    """Make ``root`` (missing or empty) of ``backup``. Raises Conflict for a folder that is not empty, for a damaged
    backup and for one of a newer version, UsageError for a file that is none, DiskFull, StorageUnavailable; then
    nothing is left of it."""
    check_empty(root)
    parent = root.absolute().parent
    making = parent / f"{_MAKING}{root.name}-{new_id()}"
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        making.mkdir(mode=0o700)
    except OSError as error:
        raise storage_error(error, making) from error
    try:
        head, members = _unpack(backup, making)
        restored = _begin(Layout(making), head, members, clock=clock)
        Syncs().everything()  # thousands of files with one call, and all of them before the folder has its name
        try:
            os.rename(making, root)
            Syncs().path(parent)
        except OSError as error:
            check_empty(root)
            raise storage_error(error, root) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return restored


def _unpack(backup: Path, making: Path) -> tuple[archive.Head, int]:
    count = 0

    def take(name: str, size: int, mtime_s: int, pieces: Iterator[bytes]) -> None:
        nonlocal count
        path = making / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
        if name.endswith(".removed"):
            os.utime(path, (mtime_s, mtime_s))  # its time is what it says
        count += 1

    try:
        with open(backup, "rb") as file:
            head = archive.read(file, take, what=str(backup))
    except OSError as error:
        if error.filename == str(backup):
            raise UsageError(f"{backup} can't be read: {error.strerror}", hint="check its name and mode") from None
        raise storage_error(error, making) from error
    for needed in ("store.db", "pepper"):
        if not (making / needed).exists():
            raise Conflict(f"{backup} has no {needed}", hint="use another backup; nothing was restored")
    return head, count


def _begin(layout: Layout, head: archive.Head, members: int, *, clock: Clock) -> Restored:
    """The first steps of the new generation, in the store that nobody has seen yet."""
    with closing(read_only(layout.store)) as connection:
        check_pages(connection, layout.store, is_full=True)
    store = Store(str(layout.store))
    with closing(store):
        live = store.load_live()
        wall_ms = clock.wall_ms()
        first = first_of_generation(
            highest=store.highest(), wall_ms=wall_ms, made_wall_ms=head.made_wall_ms, below=secrets.randbelow
        )
        event = PlaneRestored(Instant(live.counters.now_ms, wall_ms), first)
        batch = _batch(live, event)
        batch.sides.append(
            Side(
                audit=(
                    entry(
                        *(wall_ms, SYSTEM, RESTORED, head.incarnation),
                        made_wall_ms=head.made_wall_ms,
                        first=first,
                        lost=len(live.attempts),
                    ),
                )
            )
        )
        store.begin_generation(first=first, marker=batch.events.pop(0))
        store.commit(batch)
        again = store.load_live()
    for leftover in layout.root.glob("store.db.schema-*"):
        with suppress(OSError):
            leftover.unlink()  # the backup itself is that copy
    workers = sum(worker.state is not WorkerState.GONE for worker in again.workers)
    return Restored(
        head, members, lost=len(live.attempts), queued=len(again.jobs) + len(again.waiting), workers=workers
    )


def _batch(live: Live, event: PlaneRestored) -> Batch:
    """What the event changes, and its rows of the log: its own first."""
    state = rebuild(
        Policy(),
        live.counters,
        jobs=live.jobs,
        waiting=live.waiting,
        tasks=live.tasks,
        attempts=live.attempts,
        workers=live.workers,
        facts=live.facts,
    )
    history = History()
    history.restart((image for _, image in live.jobs), live.attempts)
    made = step(state, event)
    return Batch(records=list(made.records), events=history.rows(event, made.records))
