"""What file system a folder lies on, from the kernel's own table. Pure but for ``file_system_of``; Linux alone."""

import os
import re
from pathlib import Path
from typing import Final

__all__ = ["NETWORKED", "file_system_of", "find_type"]

NETWORKED: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "gpfs"}
    | {"lustre", "ncpfs", "nfs", "nfs4", "orangefs", "panfs", "smb3", "smbfs", "wekafs"}
)
"""Types that other machines share. On these the memory that SQLite's readers and writer share, and the locks of files,
hold within one machine, or not at all."""

_TABLE: Final = Path("/proc/self/mountinfo")


def file_system_of(folder: Path) -> str:
    """Its type, as ``ext4``; empty where that can't be told. Never raises."""
    try:
        number = os.stat(folder).st_dev
        return find_type(_TABLE.read_text(errors="replace"), f"{os.major(number)}:{os.minor(number)}", folder.resolve())
    except OSError:
        return ""


def find_type(table: str, device: str, folder: Path) -> str:
    """By the device's number; where it is not in the table (each volume of btrfs has one of its own), by the longest
    path that the folder lies below. Of the format: proc(5)."""
    by_path, longest = "", -1
    for line in table.splitlines():
        mount, _, what = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 6 or not what:
            continue
        kind = what.split(" ")[0]
        if fields[2] == device:
            return kind
        point = Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields[4]))
        if folder.is_relative_to(point) and len(point.parts) > longest:
            by_path, longest = kind, len(point.parts)
    return by_path
