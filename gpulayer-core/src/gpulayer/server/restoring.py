"""A backup becomes a state folder: in a folder of its own inside it, whole and synced, and then by a rename for each
part, the store's last. So it needs no other disk, and the folder may be a link or the place where a disk is mounted;
and as long as there is no store, what lies there is no control plane and goes with the next try.

The store that comes back is an older one, and the world has gone on: workers run what it never knew, and hold leases
under epochs that it would give out again. So it begins a new generation (``generations``), all its live attempts are
lost, and the audit trail says so. Blocks. Nothing is written into a folder that holds anything.
"""

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from gpulayer.clock import Clock, Instant
from gpulayer.engine import Policy, rebuild, step
from gpulayer.engine.events import PlaneRestored
from gpulayer.errors import Conflict, StorageUnavailable, UsageError
from gpulayer.ids import new_id
from gpulayer.server import archive
from gpulayer.server.audit import SYSTEM, entry
from gpulayer.server.folder import OF_PEOPLE, locked, unusable
from gpulayer.server.generations import first_of_generation
from gpulayer.server.history import History
from gpulayer.server.keeping import check_keys
from gpulayer.server.settings import Layout
from gpulayer.server.store import Batch, Live, Side, Store
from gpulayer.server.store.health import check_all, check_file, read_only
from gpulayer.server.store.reads import RESTORED
from gpulayer.spec.worker import WorkerState
from gpulayer.staging.blobs import storage_error
from gpulayer.syncing import Syncs

__all__ = ["Restored", "check_empty", "restore"]

_MAKING: Final = ".restore-"
_STORE: Final = "store.db"
_PARTS: Final = frozenset({"pepper", "secrets.key", "own-port", "tls", "blobs", "logs", "restored"})
# Of a control plane that has gone, or that did not come up; of a file system's root.
_IGNORED: Final = frozenset({"plane.lock", "plane.log", "own-port", "lost+found"})


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back. lost: attempts that were live in the backup; queued: jobs that are waiting or run again.
    damaged_blobs: left out, since nobody could read them."""

    head: archive.Head
    members: int
    lost: int
    queued: int
    workers: int
    damaged_blobs: int = 0


def check_empty(root: Path) -> None:
    """Raises Conflict unless the folder is empty or missing; what a restore that was killed has left counts as
    nothing."""
    try:
        held = sorted(path.name for path in root.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in OF_PEOPLE:
            raise UsageError(
                f"state folder {root} can't be used: {error.strerror}", hint="choose another with --state DIR"
            ) from None
        raise unusable(root, error) from None
    held = [name for name in held if name not in _IGNORED]
    if any(name.startswith(_MAKING) for name in held) and all(_is_of_restore(name) for name in held):
        return
    if held:
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        raise Conflict(
            f"state folder {root} is not empty: {', '.join(held[:3])}{more}",
            hint=f"end its control plane (gpulayer down --state {root}) and move it away: mv {root} {root}.old; or give"
            " another --state DIR",
        )


def restore(backup: Path, root: Path, *, clock: Clock) -> Restored:
    """Make ``root`` (missing or empty) of ``backup``. Raises Conflict for a folder that is not empty, for a damaged
    backup and for one of a newer version, UsageError for a file that is none, DiskFull, StorageUnavailable; then
    nothing is left of it."""
    check_empty(root)
    layout, was_there = Layout(root), root.exists()
    try:
        with _opened(backup) as file:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(layout, doing="gpulayer restore"):
                check_empty(root)
                _sweep(root)
                return _restore(backup, file, layout, clock=clock)
    except OSError as error:
        raise storage_error(error, root) from error
    finally:
        if not was_there and not layout.store.exists():
            with suppress(OSError):
                root.rmdir()


def _restore(backup: Path, file: BinaryIO, layout: Layout, *, clock: Clock) -> Restored:
    root = layout.root
    making = root / f"{_MAKING}{new_id()}"
    try:
        making.mkdir(mode=0o700)
        head, members, damaged = _unpack(backup, file, making)
        check_keys(Layout(making), what=f"what {backup} holds", hint="use an older backup; nothing was restored")
        restored = _begin(Layout(making), head, members, backup, clock=clock)
        Layout(making).restored.touch(0o600)
        _sync_all(making)
        _give_names(making, root)
    except BaseException:
        _sweep(root)
        layout.lock.unlink(missing_ok=True)
        raise
    return replace(restored, damaged_blobs=damaged)


def _is_of_restore(name: str) -> bool:
    return name in _PARTS or name.startswith(_MAKING)


def _sweep(root: Path) -> None:
    """What was begun here. Only while there is no store under its name. Raises nothing."""
    if os.path.lexists(root / _STORE):
        return
    for path in list(root.iterdir()):
        if path.name.startswith(_MAKING) or (path.is_dir() and not path.is_symlink() and path.name in _PARTS):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name in _PARTS:
            path.unlink(missing_ok=True)


def _sync_all(making: Path) -> None:
    """Thousands of files with one call, and all of them before any has its name. Raises OSError."""
    syncs = Syncs()
    if syncs.file_system(making):
        return
    for folder, _, names in os.walk(making):
        for name in names:
            syncs.path(Path(folder, name))
        syncs.path(folder)


def _give_names(making: Path, root: Path) -> None:
    """The store comes last: with it there is a control plane. Raises OSError, and then there is none."""
    syncs = Syncs()
    os.chmod(root, 0o700)
    for name in sorted((path.name for path in making.iterdir()), key=lambda name: name == _STORE):
        if name == _STORE:
            syncs.path(root)
        os.rename(making / name, root / name)
    try:
        syncs.path(root)
    except OSError:
        os.rename(root / _STORE, making / _STORE)
        raise
    with suppress(OSError):
        making.rmdir()


@contextmanager
def _opened(backup: Path) -> Iterator[BinaryIO]:
    """Before anything is made for it. Raises UsageError."""
    try:
        # Without waiting: of a pipe nobody may ever write.
        descriptor = os.open(backup, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{backup} can't be read: {error.strerror}", hint="check its name and mode") from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{backup} is no plain file", hint="name the file that gpulayer backup made")
        yield file


def _unpack(backup: Path, file: BinaryIO, making: Path) -> tuple[archive.Head, int, int]:
    """Also how many blobs were damaged already when the backup was made; they are left out."""
    count = 0
    damaged: list[str] = []

    def take(name: str, size: int, mtime_s: int, pieces: Iterator[bytes]) -> None:
        nonlocal count
        is_blob = name.startswith("blobs/")
        path = making / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as unpacked:
            hasher = hashlib.sha256()
            for piece in pieces:
                unpacked.write(piece)
                if is_blob:
                    hasher.update(piece)
        if is_blob and name.replace("/", "") != f"blobs{hasher.hexdigest()}":
            path.unlink()  # as whoever reads it would: it is missing from then on, and a client can send it again
            damaged.append(name)
            return
        if name.endswith(".removed"):
            os.utime(path, (mtime_s, mtime_s))  # its time is what it says
        count += 1

    try:
        head = archive.read(file, take, what=str(backup))
    except OSError as error:
        raise storage_error(error, making) from error
    for needed in ("store.db", "pepper"):
        if not (making / needed).exists():
            raise Conflict(f"{backup} has no {needed}", hint="use another backup; nothing was restored")
    return head, count, len(damaged)


def _begin(layout: Layout, head: archive.Head, members: int, backup: Path, *, clock: Clock) -> Restored:
    """The first steps of the new generation, in the store that nobody has seen yet."""
    try:
        check_file(str(layout.store))
        with closing(read_only(layout.store)) as connection:
            check_all(connection, layout.store)
    except StorageUnavailable as error:
        why = error.message.replace(str(layout.store), _STORE)
        raise Conflict(
            f"{backup} is whole, and what it holds is not: {why}", hint="use an older backup; nothing was restored"
        ) from error
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
        store.settle()
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
