"""Folders with what others have made in them: removed whole, made anew, and written out to their disk. All block."""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from gpulayer.syncing import Syncs

__all__ = ["emptied", "remove", "write_out"]

_TRIES: Final = 5  # a call that nobody waits for any more may remove it, too, or still make something in it


def remove(folder: Path) -> None:
    """With all in it, also what was made read-only; nothing where there is none. Raises OSError where some stays."""
    if folder.is_symlink():
        folder.unlink()
        return
    for left in range(_TRIES - 1, -1, -1):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            if not os.path.lexists(folder):
                return
        except PermissionError:
            if not left:
                raise
            _open_up(folder)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not left:
                raise
        else:
            return


def emptied(folder: Path) -> Path:
    """The folder, made anew. Raises OSError."""
    remove(folder)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def write_out(folder: Path) -> None:
    """Returns when all that was written there would survive a loss of power. Raises OSError."""
    syncs = Syncs()
    if not syncs.file_system(folder):
        syncs.everything()


def _open_up(folder: Path) -> None:
    folder.chmod(0o700)
    for path, names, _ in os.walk(folder):  # from above: each is opened before it is looked into
        for name in names:
            below = Path(path, name)
            if not below.is_symlink():
                below.chmod(0o700)
