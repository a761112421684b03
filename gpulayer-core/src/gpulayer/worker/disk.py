"""The worker's disk when it runs full: how that is noticed, the little that is kept back, and what a job uses of it.

The reserve is a file of a megabyte that is really there. On the first write that finds no room it is given up, so that
what must be said at an end (journal lines, exit records, the last words of a log) can be; ``renew`` makes it again.
Whatever still finds no room is for the caller to bear: nothing here ends a worker.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from gpulayer.spec.units import format_bytes

__all__ = [
    "FULL_BELOW_BYTES",
    "RESERVE_BYTES",
    "Reserve",
    "full_text",
    "is_full",
    "is_full_error",
    "room_text",
    "used_bytes",
]

RESERVE_BYTES: Final = 1 << 20
FULL_BELOW_BYTES: Final = 1 << 20
_RENEW_ABOVE_BYTES: Final = 8 << 20  # so that it does not come and go at the edge
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_Result = TypeVar("_Result")


class Reserve:
    """The file ``reserve`` in a worker's folder. Every call blocks for one small file at most, and none raises, but
    for ``write``, which raises what its operation raises."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "reserve"

    @property
    def is_held(self) -> bool:
        return self._path.exists()

    def renew(self) -> None:
        """Keep a little back, where there is plenty."""
        try:
            if self._path.exists() or _free(self._path.parent)[0] < _RENEW_ABOVE_BYTES:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
                else:
                    os.write(descriptor, bytes(RESERVE_BYTES))
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
    return isinstance(error, OSError) and error.errno in _FULL


def is_full(folder: Path) -> bool:
    """Less than a megabyte, or no file, is left to this user on the file system of ``folder``."""
    try:
        free_bytes, has_files = _free(folder)
    except OSError:
        return False
    return free_bytes < FULL_BELOW_BYTES or not has_files


def room_text(folder: Path) -> str:
    """For people: how much this user may still write there; empty where it is full, or can't be asked."""
    try:
        free_bytes, has_files = _free(folder)
    except OSError:
        return ""
    return format_bytes(free_bytes) if has_files and free_bytes >= FULL_BELOW_BYTES else ""


def full_text(worker: str, folder: Path, *, number: int = errno.ENOSPC) -> str:
    """For people: whose disk, and where. number: what the failed write said."""
    if number not in _FULL:
        return f"the disk of worker {worker} can't be written: {os.strerror(number)} ({folder})"
    try:
        free_bytes, has_files = _free(folder)
    except OSError:
        return f"the disk of worker {worker} is full ({folder})"
    quota = ", and its user's quota is used up" if number == errno.EDQUOT else ""
    files = "" if has_files else ", and no file can be made"
    return f"the disk of worker {worker} is full ({format_bytes(free_bytes)} free in {folder}{quota}{files})"


def used_bytes(folders: Iterable[Path], *, limit_bytes: int, entries: int = 1_000_000) -> int:
    """Disk taken by everything below: allocated blocks, each file once, links and mounts not followed.

    Blocks for as long as it takes to look at up to ``entries`` names; stops early once there is more than
    ``limit_bytes``. What goes while it is looked at counts as nothing.
    """
    total = 0
    seen: set[tuple[int, int]] = set()
    for top in folders:
        try:
            device = top.lstat().st_dev
        except OSError:
            continue
        waiting = [os.fspath(top)]
        while waiting:
            try:
                found = list(os.scandir(waiting.pop()))
            except OSError:
                continue
            for entry in found:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if status.st_dev != device:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
                elif status.st_nlink > 1:
                    if (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
                entries -= 1
                if total > limit_bytes or entries <= 0:
                    return total
    return total


def _free(folder: Path) -> tuple[int, bool]:
    """Bytes that this user may still write there, and whether files can be made."""
    seen = os.statvfs(folder)
    is_root = os.geteuid() == 0
    blocks, files = (seen.f_bfree, seen.f_ffree) if is_root else (seen.f_bavail, seen.f_favail)
    # A file system that counts no files says 0 of 0.
    return blocks * seen.f_frsize, files > 0 or seen.f_files == 0
