"""A folder for each place that takes what an enemy may have made, and a canary beside them, which nothing may touch."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from gpulayer.ids import Digest
from gpulayer.spec.tree import digest_of
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.limits import TreeLimits

__all__ = ["EMPTY", "LIMITS", "SECRET", "Arena", "X", "a_file"]

LIMITS = TreeLimits(files=40, size_bytes=200_000, entries=80, depth=12, path_bytes=1000, object_bytes=100_000)
SECRET = b"the canary's own words"
X = digest_of(b"x")
EMPTY = digest_of(b"")


class Arena:
    """A folder for each place, and the canary beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.canary = root / "canary"
        self.canary.mkdir()
        (self.canary / "file").write_bytes(SECRET)
        (self.canary / "folder").mkdir()
        (self.canary / "folder" / "inner").write_bytes(SECRET)
        (self.canary / "link").symlink_to("file")
        self.work, self.out, self.home = root / "work", root / "out", root / "home"
        for folder in (self.work, self.out, self.home):
            folder.mkdir()
        self.blobs = BlobFolder(root / "blobs", durable=False)
        self.blob(b"x")
        self.blob(b"")
        self.before = self.seen()

    def blob(self, content: bytes) -> Digest:
        digest = digest_of(content)
        self.blobs.put_bytes(digest, content)
        return digest

    def tree(self, *rows: Any, **fields: Any) -> Digest:
        """Any rows, checked by nobody."""
        return self.blob(json.dumps({"v": 1, "entries": list(rows), **fields}, ensure_ascii=True).encode())

    def seen(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for path in (self.canary, *sorted(self.canary.rglob("*"))):
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            target = str(path.readlink()) if path.is_symlink() else ""
            found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, status.st_ino, content, target)
        return found

    def check(self, *written: Path) -> None:
        """The canary is as it was, and what was written stays in its folder and within its limits."""
        assert self.seen() == self.before
        assert {path.name for path in self.root.iterdir()} <= {"canary", "work", "out", "home", "blobs", "socket"}
        for folder in written:
            count, size = 0, 0
            for base, folders, files in os.walk(os.fsencode(folder)):
                for name in (*folders, *files):
                    path = os.path.join(base, name)
                    status = os.lstat(path)
                    assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX), path
                    assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)
                    if stat.S_ISLNK(status.st_mode) and not _is_loop(path):
                        lead = os.path.realpath(path)
                        assert lead == os.fsencode(folder) or lead.startswith(os.fsencode(folder) + b"/"), path
                    elif stat.S_ISREG(status.st_mode):
                        count, size = count + 1, size + status.st_size
            assert count <= LIMITS.files
            assert size <= LIMITS.size_bytes


def _is_loop(path: bytes) -> bool:
    """Then it leads nowhere, and ``realpath`` of "loop//a" is "/a", which is not what the system says."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def a_file(name: str = "a", mode: Any = 0o644, size: Any = 1, digest: Any = X) -> list[Any]:
    return ["f", name, mode, size, digest]
