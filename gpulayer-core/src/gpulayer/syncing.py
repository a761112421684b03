"""Making files durable: every sync goes through here, and so does the word that one has failed.

A sync that fails is no error like others. On Linux the pages that could not be written count as clean from then on:
the next sync succeeds and saves nothing, and what was written may be read for as long as the cache keeps it. So nobody
may try again, and nothing that the process believes of its files is sure. What follows is for whoever owns the
process to decide: ``failed`` is told before anybody else (the control plane's ends the process there and then).

Stdlib only. Everything blocks.
"""

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["SYNC_FAILED_EXIT", "SyncFailed", "Syncs"]

SYNC_FAILED_EXIT: Final = 74
"""EX_IOERR: what a control plane ends with after a failed sync."""

SyncFailed = Callable[[str, OSError], None]
"""Told of the path and the error. It may end the process; where it returns, the error is raised."""

_NOT_SYNCABLE: Final = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Not EROFS: a file system that met an error is read-only from then on, and what it had to write is lost."""

_TELLS: Final = (5, 8)
"""Since this Linux ``syncfs`` says whether anything could not be written."""


def _leave(_path: str, _error: OSError) -> None:
    """Whoever called gets the error, and nobody else."""


class Syncs:
    """``failed``: see ``SyncFailed``. ``reach``: called before each sync; its OSError counts as the sync's."""

    __slots__ = ("_reach", "failed")

    def __init__(self, *, failed: SyncFailed = _leave, reach: Callable[[], None] = lambda: None) -> None:
        self.failed = failed
        self._reach = reach

    def file(self, descriptor: int, path: str | os.PathLike[str]) -> None:
        """The file's content is durable. Raises OSError."""
        try:
            self._reach()
            os.fsync(descriptor)
        except OSError as error:
            self._say(path, error)
            raise

    def path(self, path: str | os.PathLike[str]) -> None:
        """The same, of a file or folder (its names) that nobody has open. Raises OSError."""
        if sys.platform == "win32" and os.path.isdir(path):
            return  # folders can't be opened there; NTFS journals the rename
        descriptor = os.open(path, os.O_RDONLY if sys.platform != "win32" else os.O_RDWR)
        try:
            self.file(descriptor, path)
        finally:
            os.close(descriptor)

    def file_system(self, folder: str | os.PathLike[str]) -> bool:
        """One sync of all that the folder's file system holds; False where there is no call that does it and says
        whether it could. Raises OSError."""
        if not sys.platform.startswith("linux") or _version(os.uname().release) < _TELLS:
            return False
        import ctypes  # noqa: PLC0415 - half a megabyte, and only this needs it

        call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if call is None:
            return False
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            self._reach()
            if call(descriptor) != 0:
                number = ctypes.get_errno()
                if number == errno.ENOSYS:
                    return False
                raise OSError(number, os.strerror(number), os.fspath(folder))
        except OSError as error:
            self._say(folder, error)
            raise
        finally:
            os.close(descriptor)
        return True

    def everything(self) -> None:
        """All file systems; of an error nobody is told. Where there is nothing better."""
        os.sync()

    def _say(self, path: str | os.PathLike[str], error: OSError) -> None:
        if error.errno not in _NOT_SYNCABLE:  # of those nothing was lost: such a file is never synced
            self.failed(os.fspath(path), error)


def _version(release: str) -> tuple[int, ...]:
    """Of a kernel: its first two numbers."""
    numbers = [int(part) if part.isdigit() else 0 for part in release.replace("-", ".").split(".")[:2]]
    return (*numbers, 0, 0)[:2]
