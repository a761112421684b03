"""What the store asks of a disk beside SQLite: files that are private, names that are durable, and who is told when
what was written may be gone.
"""

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpulayer.errors import StorageUnavailable
from gpulayer.faults import here
from gpulayer.server.store import health
from gpulayer.server.store.mark import LOG_HEADER, MARK_BYTES, check_log, check_newest, count_of, mark_text
from gpulayer.syncing import Syncs

__all__ = ["StoreDisk", "examine", "sync_error"]

_PIECE: Final = 1024 * 1024
_SYNC_ERRORS: Final = ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC")


class StoreDisk:
    """The machine's own. ``vfs``: of SQLite, by name; empty: its default."""

    vfs: str = ""

    def __init__(self, syncs: Syncs | None = None) -> None:
        self._syncs = syncs or Syncs()
        self._mark = -1  # a descriptor
        self._folder: os.stat_result | None = None
        self._files: dict[str, os.stat_result] = {}

    def check(self, path: str) -> bool:
        """Whether there is a store. Raises StorageUnavailable for what is none, or has lost its log (``health``,
        ``mark``)."""
        if not health.check_file(path):
            return False
        if os.path.exists(f"{path}-open"):
            check_log(path, self._beginning(f"{path}-wal", LOG_HEADER))
        return True

    def noted(self, path: str) -> int:
        """How many commits were acknowledged for certain; 0: not known. Raises StorageUnavailable."""
        return count_of(self._beginning(f"{path}-open", MARK_BYTES))

    def _beginning(self, path: str, size: int) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read(size)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageUnavailable(
                f"{path} can't be read: {error.strerror}", hint="see its mode and owner, and the disk"
            ) from None

    def begin(self, making: str) -> None:
        """An empty file, for a store that is to be made; what an earlier try has left is gone. Raises
        StorageUnavailable."""
        try:
            for each in (making, f"{making}-wal", f"{making}-shm", f"{making}-journal"):
                with suppress(FileNotFoundError):
                    os.unlink(each)
            os.close(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise _unmade(making, error) from None

    def give_name(self, making: str, path: str) -> None:
        """What was made has its name, which is durable. Raises StorageUnavailable."""
        if self._has_log(making):
            raise StorageUnavailable(
                f"the control plane's store {path} can't be made now: its log was not written back"
            )
        try:
            os.rename(making, path)
            self._syncs.path(_folder(path))
        except OSError as error:
            raise _unmade(path, error) from None

    def _has_log(self, path: str) -> bool:
        """Whether something of it may lie beside it still."""
        return os.path.exists(f"{path}-wal") and os.stat(f"{path}-wal").st_size > 0

    def prepare(self, path: str) -> bool:
        """Close the files to others; returns whether whoever had them last did not close the store. Raises
        StorageUnavailable."""
        try:
            # SQLite gives the files beside it the store's own mode, when it makes them.
            for each in (path, f"{path}-wal", f"{path}-shm"):
                if os.path.exists(each) and os.stat(each).st_mode & 0o077:
                    os.chmod(each, 0o600)
            return os.path.exists(f"{path}-wal")
        except OSError as error:
            raise StorageUnavailable(
                f"the control plane's store can't be used now: {error.strerror}",
                hint=f"see the mode and owner of {path}",
            ) from None

    def check_start(self, path: str) -> str:
        """Whether SQLite can read it, and its pages are whole; its schema. Raises StorageUnavailable."""
        return health.check_start(path, connect=self.read_only)

    def read_only(self, path: Path) -> sqlite3.Connection:
        """A connection that changes nothing."""
        return health.read_only(path)

    def copy_before_migration(self, path: str, *, schema: str) -> None:
        """For who has to go back. Raises DiskFull, StorageUnavailable."""
        health.copy_before_migration(path, schema=schema)

    def note(self, path: str, count: int) -> None:
        """So many commits are durable; called after each, before it is answered. From the first on a store without its
        log is refused. Raises nothing: a full disk must not end a control plane, and it is a safeguard."""
        with suppress(OSError, StorageUnavailable):
            if self._mark >= 0:
                os.pwrite(self._mark, mark_text(count), 0)
                return
            self._mark = os.open(f"{path}-open", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._mark, mark_text(count), 0)
            self._syncs.file(self._mark, f"{path}-open")
            self.sync_names(path)

    def unmark(self, path: str) -> None:
        """Before the last connection takes the log away, all of which is in the store by now; durable, or a power cut
        could leave the mark alone. Raises nothing: where the mark stays, the log was there as well."""
        self.let_go()
        with suppress(OSError):
            os.unlink(f"{path}-open")
        with suppress(StorageUnavailable, FileNotFoundError):
            self.sync_names(path)

    def let_go(self) -> None:
        """The mark stays as it is."""
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1

    def has_log(self, path: str) -> bool:
        return os.path.exists(f"{path}-wal")

    def remember(self, path: str) -> None:
        """Which files are open now, for ``misses``."""
        with suppress(OSError):
            self._folder = os.stat(_folder(path))
            self._files = {each: os.stat(each) for each in (path, f"{path}-wal")}

    def misses(self, path: str) -> str:
        """Which of the open files has not its name any more: what is written to it is lost when the last one who has it
        open ends. Empty for none, and where the whole folder was moved, which is for others to notice."""
        for each, was in self._files.items():
            try:
                if os.path.samestat(was, os.stat(each)):
                    continue
            except FileNotFoundError:
                pass
            except OSError:
                return ""  # it can't be told now
            with suppress(OSError):
                if self._folder is not None and os.path.samestat(self._folder, os.stat(_folder(path))):
                    return each
            return ""
        return ""

    def make_rescue(self, path: str) -> str:
        """An empty file beside the store, for a copy of what it held. Raises OSError."""
        for number in range(1, 100):
            made = f"{path}.rescued-{number}"
            with suppress(FileExistsError):
                os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                return made
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def save_log(self, path: str) -> None:
        """Write SQLite's log anew, as it is read, and sync it, before SQLite looks at it. Raises StorageUnavailable.

        If a sync of its last owner's failed, parts of the log may be in the cache alone and count as written. Who went
        on behind them would lose all that follows to a power cut, and who wrote them back into the store would have
        an older log replayed over it.
        """
        try:
            self.rewrite(f"{path}-wal")
        except OSError as error:
            raise StorageUnavailable(
                f"what the last control plane left can't be taken over: {path}-wal: {error.strerror}",
                hint="free space or repair the disk, then start again; that file holds what was answered last",
            ) from None

    def rewrite(self, path: str) -> None:
        """Each byte of a file by itself, then a sync. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            offset = 0
            while piece := os.pread(descriptor, _PIECE, offset):
                offset += os.pwrite(descriptor, piece, offset)
            self._syncs.file(descriptor, path)
        finally:
            os.close(descriptor)

    def sync_names(self, path: str) -> None:
        """The names of the store's files are durable: SQLite syncs the folder for its log, and does not look whether
        that worked. Raises StorageUnavailable."""
        try:
            self._syncs.path(_folder(path))
        except OSError as error:
            raise StorageUnavailable(f"the folder of the control plane's store can't be synced: {error}") from None

    def reach_sync(self, path: str) -> None:
        """Where a test makes a sync of SQLite's fail. Raises OSError."""
        try:
            here("plane.in_store_sync")
        except OSError as error:
            self.failed(path, error)
            raise

    def failed(self, path: str, error: OSError) -> None:
        """SQLite could not sync: see ``gpulayer.syncing``."""
        self._syncs.failed(path, error)


def examine(path: Path, *, made_after: Path) -> str | None:
    """As ``health.examine``, and whether what was acknowledged is there."""
    disk = StoreDisk()
    noted = disk.noted(str(path))  # before the store is read, whose control plane may go on
    schema = health.examine(path, made_after=made_after)
    if schema is not None and disk.check(str(path)):
        check_newest(str(path), noted=noted, connect=health.read_only)
    return schema


def _folder(path: str) -> str:
    return os.path.dirname(path) or "."


def _unmade(path: str, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"the control plane's store can't be made now: {error.strerror}", hint=f"see the folder and disk of {path}"
    )


def sync_error(error: BaseException | None) -> OSError | None:
    """What a sync of SQLite's failed with; None for any other error."""
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorname", "") in _SYNC_ERRORS:
        return OSError(errno.EIO, f"{error} ({error.sqlite_errorname})")
    return None
