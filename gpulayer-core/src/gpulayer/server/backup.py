"""What goes into a backup of a state folder: all that makes the same control plane of an empty one.

The store as of one moment (a copy that SQLite makes while the control plane goes on), the pepper, the sealing key and
the certificate, without which tokens, secrets and pins would be worth nothing, the port, and unless they are left out
the blobs and the logs of the jobs in that store. Blobs come before the jobs that name them and are read after the
store, so none is missing. Not in it: this machine's own worker, which joins the restored one anew.

Functions here block.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from gpulayer import __version__
from gpulayer.errors import Conflict, DiskFull, StorageUnavailable
from gpulayer.ids import JobId, new_id
from gpulayer.server.archive import ALLOWED, Head, Member, length_of, pieces_of
from gpulayer.server.settings import Layout
from gpulayer.server.store.health import check_pages, read_only
from gpulayer.staging.blobs import storage_error

__all__ = ["Backup", "open_backup"]

_COPY: Final = "backup-"  # of the store, in the state folder while a backup is made
_LEFT_S: Final = 86_400


class Backup:
    """One backup, as it will be written. ``size``: of all of it, in bytes."""

    def __init__(self, head: Head, members: list[Member]) -> None:
        self.head = head
        self.members = members
        self.size = length_of(head, members)

    def pieces(self) -> Iterator[bytes]:
        """Raises StorageUnavailable."""
        return pieces_of(self.head, self.members)


@contextmanager
def open_backup(
    layout: Layout, *, made_wall_ms: int, incarnation: str = "", blobs: bool = True, logs: bool = True
) -> Iterator[Backup]:
    """A backup of this folder as of now; its copy of the store is there until this is left.

    The caller has the folder's lock, or is the control plane that has. Raises Conflict where there is no store or it is
    damaged (a damaged one must not take the place of a good backup), DiskFull, StorageUnavailable.
    """
    if not layout.store.exists():
        raise Conflict(f"{layout.root} holds no store: there is nothing to back up", hint="--state DIR names another")
    _sweep(layout, now_s=made_wall_ms / 1000)
    copy = layout.root / f"{_COPY}{new_id()}.db"
    try:
        schema, jobs = _copy_store(layout.store, copy)
        holds = tuple(name for name, is_wanted in (("blobs", blobs), ("logs", logs)) if is_wanted)
        head = Head(__version__, schema, made_wall_ms, incarnation, holds)
        yield Backup(head, list(_members(layout, copy, jobs, blobs=blobs, logs=logs)))
    finally:
        with suppress(OSError):
            copy.unlink(missing_ok=True)


def _copy_store(store: Path, copy: Path) -> tuple[str, frozenset[JobId]]:
    """Makes the copy (mode 0600), and gives its schema and its jobs. The original is read whole and checked first."""
    try:
        os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(read_only(store)) as connection:
            check_pages(connection, store, is_full=True)
            connection.execute("VACUUM INTO ?", (str(copy),))
        with closing(read_only(copy)) as connection:
            (schema,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            jobs = frozenset(JobId(row[0]) for row in connection.execute("SELECT id FROM jobs"))
    except OSError as error:
        raise storage_error(error, copy) from error
    except sqlite3.Error as error:
        if "full" in str(error):
            raise DiskFull(f"there is no room for a copy of the store in {copy.parent}") from error
        raise StorageUnavailable(f"{store} can't be copied: {error}", hint="gpulayer doctor looks at it") from error
    return str(schema), jobs


def _members(layout: Layout, copy: Path, jobs: frozenset[JobId], *, blobs: bool, logs: bool) -> Iterator[Member]:
    yield from _one("store.db", copy)
    for path in (layout.pepper, layout.secrets_key, layout.own_port, layout.tls / "cert.pem", layout.tls / "key.pem"):
        yield from _one(str(path.relative_to(layout.root)), path)
    if blobs:
        for folder in _entries(layout.blobs):
            for entry in _entries(folder):
                yield from _one(f"blobs/{folder.name}/{entry.name}", entry)
    if logs:
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
    for path in layout.root.glob(f"{_COPY}*.db*"):
        with suppress(OSError):
            if path.stat().st_mtime < now_s - _LEFT_S:
                path.unlink()
