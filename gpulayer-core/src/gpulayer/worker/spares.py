"""Attempt folders used again: making and deleting three folders takes a tiny job longer than its program.

A folder is kept only where its job left nothing behind: nothing unknown beside the journal's own files, these plain
files as they were made (the next job's journal is written into them: a link would lead it elsewhere, a pipe would hold
it up for ever), ``work`` and ``out`` empty, the worker's own, closed to others and on the same file system as before.
What was kept counts as thrown away: an earlier agent's are deleted.
"""

import os
import shutil
import stat
from typing import Final

__all__ = ["Spares"]

KEPT: Final = 64
_FOLDERS: Final = ("work", "out")
_USED_AGAIN: Final = frozenset({"assign.json", "phase"})  # written over before they count
_LOG: Final = "log"
_REMOVED: Final = frozenset({_LOG, "log.err", "exit.json"})


class Spares:
    """Kept below ``root``, which is theirs alone."""

    def __init__(self, root: str) -> None:
        self._root = root
        shutil.rmtree(root, ignore_errors=True)
        self._free: list[str] = []
        self._count = 0

    def take(self, folder: str) -> bool:
        """Put a kept folder there; False where there is none, or one is there already."""
        while self._free:
            try:
                os.rename(self._free.pop(), folder)
            except FileNotFoundError:
                continue
            except OSError:
                return False
            return True
        return False

    def keep(self, folder: str) -> bool:
        """Take the folder away for later; False where it must be deleted instead, and nothing but files that are
        known was removed from it."""
        names = _tidy_names(folder) if len(self._free) < KEPT else None
        if names is None:
            return False
        self._count += 1
        spare = f"{self._root}/{self._count}"
        try:
            if self._count == 1:
                os.makedirs(self._root, mode=0o700, exist_ok=True)
            os.rename(folder, spare)
            for name in _REMOVED.intersection(names):
                path = f"{spare}/{name}"
                if name != _LOG or os.lstat(path).st_size:  # an empty one is as good as none
                    os.unlink(path)
        except OSError:
            return False
        self._free.append(spare)
        return True


def _tidy_names(folder: str) -> list[str] | None:
    """What the folder holds, where that is nothing of the job's; else None."""
    try:
        device = os.lstat(folder).st_dev
        names = os.listdir(folder)
        if not {*_USED_AGAIN, *_REMOVED, *_FOLDERS}.issuperset(names):
            return None
        for name in _USED_AGAIN.intersection(names):
            found = os.lstat(f"{folder}/{name}")
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                return None
        for name in _FOLDERS:
            found = os.lstat(f"{folder}/{name}")
            if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != 0o700:
                return None
            if found.st_dev != device or found.st_uid != os.geteuid() or os.listdir(f"{folder}/{name}"):
                return None
    except OSError:
        return None
    return names
