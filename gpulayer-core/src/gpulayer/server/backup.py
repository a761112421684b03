"""What goes into a backup of a state folder: all that makes the same control plane of an empty one.

The store as of one moment (a copy that SQLite makes while the control plane goes on), the pepper, the sealing key and
the certificate, without which tokens, secrets and pins would be worth nothing, the port, and unless they are left out
the blobs and the logs of the jobs in that store. Blobs come before the jobs that name them and are read after the
store, so none is missing. Not in it: this machine's own worker, which joins the restored one anew.

Functions here block.
"""

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from gpulayer import __version__
from gpulayer.errors import Conflict, DiskFull, StorageUnavailable
from gpulayer.ids import JobId
from gpulayer.server.archive import ALLOWED, Head, Member, length_of, pieces_of
from gpulayer.server.keeping import ELSEWHERE, check_keys, place_for, readable
from gpulayer.server.settings import Layout
from gpulayer.server.store.disk import StoreDisk
from gpulayer.server.store.health import check_all, check_lost, read_only
from gpulayer.server.store.mark import check_newest
from gpulayer.staging.blobs import storage_error

__all__ = ["Backup", "open_backup"]

_COPY: Final = "backup-"  # of the store, in the state folder while a backup is made
_COPIES: Final = re.compile(r"backup-[0-9a-f]{16}\.db(?:-journal|-wal|-shm)?")
_LEFT_S: Final = 86_400
_RECORD: Final = 39  # a blob of a folder, packed: 31 bytes of its digest and 8 of its size


class Backup:
    """One backup, as it will be written. ``size``: of all of it, in bytes."""

    def __init__(self, head: Head, members: Iterable[Member]) -> None:
        """members: may be gone through more than once."""
        self.head = head
        self.members = members
        self.size = length_of(head, members)

    def pieces(self) -> Iterator[bytes]:
        """Raises StorageUnavailable."""
        return pieces_of(self.head, self.members)


@contextmanager
def open_backup(
    layout: Layout,
    *,
    made_wall_ms: int,
    incarnation: str = "",
    blobs: bool = True,
    logs: bool = True,
    elsewhere: Sequence[Path] = ELSEWHERE,
) -> Iterator[Backup]:
    """A backup of this folder as of now; its copy of the store is there until this is left: in the folder, or
    ``elsewhere`` where that has no room.

    The caller has the folder's lock, or is the control plane that has, and removes nothing of it meanwhile. Raises
    Conflict where there is no store, StorageUnavailable for one that a start would refuse (a damaged one must not take
    the place of a good backup), DiskFull.
    """
    check_lost(layout.store, made_after=layout.pepper)
    if not layout.store.exists():
        raise Conflict(f"{layout.root} holds no store: there is nothing to back up", hint="--state DIR names another")
    _sweep(layout, now_s=made_wall_ms / 1000)
    with ExitStack() as stack:
        copy, schema, jobs = _copy_store(layout.store, stack, elsewhere)
        check_keys(layout, what=f"a backup of {layout.root}", hint="gpulayer doctor looks closer; nothing was kept")
        holds = tuple(name for name, is_wanted in (("blobs", blobs), ("logs", logs)) if is_wanted)
        head = Head(__version__, schema, made_wall_ms, incarnation, holds)
        yield Backup(head, _Members(layout, copy, jobs, blobs=blobs, logs=logs))


def _copy_store(store: Path, stack: ExitStack, elsewhere: Sequence[Path]) -> tuple[Path, str, frozenset[JobId]]:
    """Makes a copy (mode 0600) that is there until the stack is left, and gives it, its schema and its jobs. The
    original is read whole and checked first."""
    disk = StoreDisk()
    disk.check(str(store))
    noted = disk.noted(str(store))  # before the store is read, whose control plane may go on
    copy = store
    try:
        with readable(store, elsewhere) as connection:
            schema = check_all(connection, store)
            copy = place_for(store.parent, _size_of(connection), elsewhere)
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            stack.callback(_remove, copy)
            connection.execute("VACUUM INTO ?", (str(copy),))
        check_newest(str(store), noted=noted, connect=lambda _: read_only(copy))
        with closing(read_only(copy)) as connection:
            jobs = frozenset(JobId(row[0]) for row in connection.execute("SELECT id FROM jobs"))
    except OSError as error:
        raise storage_error(error, copy) from error
    except sqlite3.Error as error:
        if "full" in str(error):
            raise DiskFull(f"there is no room for a copy of the store in {copy.parent}") from error
        raise StorageUnavailable(f"{store} can't be copied: {error}", hint="gpulayer doctor looks at it") from error
    return copy, schema, jobs


def _remove(copy: Path) -> None:
    with suppress(OSError):
        copy.unlink(missing_ok=True)


def _size_of(connection: sqlite3.Connection) -> int:
    (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {of}").fetchone() for of in ("page_count", "page_size"))
    return int(pages * page_bytes)


class _Members:
    """As they were when this was made, the same each time that they are gone through. There may be a million blobs:
    each takes a few dozen bytes here."""

    def __init__(self, layout: Layout, copy: Path, jobs: frozenset[JobId], *, blobs: bool, logs: bool) -> None:
        self._blobs_root = layout.blobs
        self._first = list(_first(layout, copy))
        self._blobs = [(folder.name, _packed(folder)) for folder in _entries(layout.blobs)] if blobs else []
        self._logs = list(_logs(layout, jobs)) if logs else []

    def __iter__(self) -> Iterator[Member]:
        yield from self._first
        for name, packed in self._blobs:
            for start in range(0, len(packed), _RECORD):
                rest = packed[start : start + 31].hex()
                size = int.from_bytes(packed[start + 31 : start + _RECORD])
                yield Member(f"blobs/{name}/{rest}", self._blobs_root / name / rest, size)
        yield from self._logs


def _first(layout: Layout, copy: Path) -> Iterator[Member]:
    yield from _one("store.db", copy)
    for path in (layout.pepper, layout.secrets_key, layout.own_port, layout.tls / "cert.pem", layout.tls / "key.pem"):
        yield from _one(str(path.relative_to(layout.root)), path)


def _packed(folder: Path) -> bytes:
    """The blobs of one folder."""
    packed = bytearray()
    for entry in _entries(folder):
        for member in _one(f"blobs/{folder.name}/{entry.name}", entry):
            packed += bytes.fromhex(entry.name) + member.size.to_bytes(8)
    return bytes(packed)


def _logs(layout: Layout, jobs: frozenset[JobId]) -> Iterator[Member]:
    for entry in _entries(layout.logs):
        if JobId(entry.name.removesuffix(".removed")) not in jobs:
            continue  # a job of after the copy
        if entry.name.endswith(".removed"):
            yield from _one(f"logs/{entry.name}", entry)
            continue
        for log in _entries(entry):
            yield from _one(f"logs/{entry.name}/{log.name}", log)


def _one(name: str, path: Path) -> Iterator[Member]:
    """Nothing for a file that is not there, or is none of ours."""
    if not ALLOWED.fullmatch(name):
        return
    with suppress(FileNotFoundError):
        found = path.stat(follow_symlinks=False)
        yield Member(name, path, found.st_size, int(found.st_mtime))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageUnavailable(f"{folder} can't be read: {error.strerror}") from error


def _sweep(layout: Layout, *, now_s: float) -> None:
    """What a backup left that was killed. A day is longer than any takes: another may be made just now."""
    for path in layout.root.glob(f"{_COPY}*"):
        with suppress(OSError):
            if _COPIES.fullmatch(path.name) and path.stat().st_mtime < now_s - _LEFT_S:
                path.unlink()
