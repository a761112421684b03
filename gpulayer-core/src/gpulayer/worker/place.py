"""What names a worker's folder in the time since the host started, so that a copy of it has another name.

No number is enough alone. An inode is one of its file system, and that of a root is the same on all of one kind; a
removed folder's is given to the next. A device number is given to the next file system that is mounted. A file system's
id is copied with its blocks. What is left: blocks that are mounted in place of those that they were copied from, on the
same device, and a folder whose files alone were put back.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["place_id"]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_GET_GENERATION: Final = 0x8008_7601  # Linux, FS_IOC_GETVERSION: which of those that had the inode, one after another
_WORD: Final = 8


def place_id(folder: Path) -> str:
    """The same for each process that asks, and after a rename. Without what the system does not tell: the time since it
    started, the generation of an inode. Raises OSError where the folder is gone."""
    boot_id, generation = "", b""
    with suppress(OSError):
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found, system = os.fstat(descriptor), os.fstatvfs(descriptor)
        with suppress(OSError):
            generation = fcntl.ioctl(descriptor, _GET_GENERATION, bytes(_WORD))
    finally:
        os.close(descriptor)
    return f"{boot_id}.{found.st_dev:x}.{system.f_fsid:x}.{found.st_ino}.{generation.hex()}"
