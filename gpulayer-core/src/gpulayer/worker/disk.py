"""The worker's disk when it runs full: how that is noticed, the little that is kept back, and what a job uses of it.

The reserve (``gpulayer.reserve``) is a megabyte, for what must be said at an end: journal lines, exit records, the last
words of a log. Whatever still finds no room is for the caller to bear: nothing here ends a worker.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpulayer.reserve import FULL_ERRORS, RENEW_ABOVE_BYTES, RESERVE_BYTES, Reserve, free_bytes, is_full_error
from gpulayer.spec.units import format_bytes

__all__ = [
    "FULL_BELOW_BYTES",
    "RENEW_ABOVE_BYTES",
    "RESERVE_BYTES",
    "Reserve",
    "full_text",
    "is_full",
    "is_full_error",
    "is_nearly_full",
    "room_text",
    "used_bytes",
]

FULL_BELOW_BYTES: Final = 1 << 20


def is_full(folder: Path) -> bool:
    """Less than a megabyte, or no file, is left to this user on the file system of ``folder``."""
    try:
        room_bytes, has_files = free_bytes(folder)
    except OSError:
        return False
    return room_bytes < FULL_BELOW_BYTES or not has_files


def is_nearly_full(folder: Path) -> bool:
    """Too little is left for a reserve, the control plane's on the same disk included."""
    try:
        room_bytes, has_files = free_bytes(folder)
    except OSError:
        return False
    return room_bytes < 2 * RENEW_ABOVE_BYTES or not has_files


def room_text(folder: Path) -> str:
    """For people: how much this user may still write there; empty where it is full, or can't be asked."""
    try:
        room_bytes, has_files = free_bytes(folder)
    except OSError:
        return ""
    return format_bytes(room_bytes) if has_files and room_bytes >= FULL_BELOW_BYTES else ""


def full_text(worker: str, folder: Path, *, number: int = errno.ENOSPC) -> str:
    """For people: whose disk, and where. number: what the failed write said."""
    if number not in FULL_ERRORS:
        return f"the disk of worker {worker} can't be written: {os.strerror(number)} ({folder})"
    try:
        room_bytes, has_files = free_bytes(folder)
    except OSError:
        return f"the disk of worker {worker} is full ({folder})"
    quota = ", and its user's quota is used up" if number == errno.EDQUOT else ""
    files = "" if has_files else ", and no file can be made"
    return f"the disk of worker {worker} is full ({format_bytes(room_bytes)} free in {folder}{quota}{files})"


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
