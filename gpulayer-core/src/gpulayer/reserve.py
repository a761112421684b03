"""A little of a disk that is kept back: a file that is really there, and is given up on the first write that finds no
room, so that what must be written at an end can be. Stdlib only.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

__all__ = ["FULL_ERRORS", "RENEW_ABOVE_BYTES", "RESERVE_BYTES", "Reserve", "free_bytes", "is_full_error"]

FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)
RESERVE_BYTES: Final = 1 << 20
RENEW_ABOVE_BYTES: Final = 8 << 20
_Result = TypeVar("_Result")


class Reserve:
    """The file ``reserve`` in a folder, of ``size_bytes``. Every call blocks for one small file at most, and none
    raises, but for ``write``, which raises what its operation raises.

    above_bytes: it is made where so much is free, so that it does not come and go at the edge.
    """

    def __init__(self, folder: Path, *, size_bytes: int = RESERVE_BYTES, above_bytes: int = RENEW_ABOVE_BYTES) -> None:
        self._path = folder / "reserve"
        self._size_bytes = size_bytes
        self._above_bytes = above_bytes

    @property
    def is_held(self) -> bool:
        return self._path.exists()

    def renew(self) -> None:
        """Keep a little back, where there is plenty."""
        try:
            if self._path.exists() or free_bytes(self._path.parent)[0] < self._above_bytes:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, self._size_bytes)
                else:
                    os.write(descriptor, bytes(self._size_bytes))
            finally:
                os.close(descriptor)
        except OSError:  # a file system that can't, or room that went just now: then there is no reserve
            self.release()

    def release(self) -> bool:
        """Give it up; True where there was one."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def write(self, operation: Callable[[], _Result]) -> _Result:
        """Run it, and once more with the reserve's room where it found none."""
        try:
            return operation()
        except OSError as error:
            if not is_full_error(error) or not self.release():
                raise
        return operation()


def is_full_error(error: BaseException | None) -> bool:
    """No room, or none within a quota."""
    return isinstance(error, OSError) and error.errno in FULL_ERRORS


def free_bytes(folder: Path) -> tuple[int, bool]:
    """Bytes that this user may still write there, and whether files can be made."""
    seen = os.statvfs(folder)
    is_root = os.geteuid() == 0
    blocks, files = (seen.f_bfree, seen.f_ffree) if is_root else (seen.f_bavail, seen.f_favail)
    # A file system that counts no files says 0 of 0.
    return blocks * seen.f_frsize, files > 0 or seen.f_files == 0
