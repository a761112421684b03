"""Open files and folders strictly below one folder, whatever others plant there meanwhile.

Each component is opened relative to the descriptor of its parent and without following links, so a folder that is
swapped for a link can't lead outside. Descriptors of the current path stay open, which makes walking in order
cheap and paths longer than PATH_MAX possible. Not for several threads at once.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from gpulayer.errors import BadRequest
from gpulayer.spec.tree import EntryKind

__all__ = ["Beneath", "Found", "Path", "shown"]

Path = tuple[str, ...]

_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_READ: Final = (
    # O_NONBLOCK: opening a FIFO that replaced a file since it was listed must not wait for a writer.
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True, slots=True)
class Found:
    """One name as lstat saw it. ``kind`` is None for sockets, FIFOs and devices."""

    path: Path
    kind: EntryKind | None
    mode: int = 0o644
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    target: str = ""

    @property
    def signature(self) -> tuple[int, int, int, int, int]:
        """Differs when content or mode were written, as far as the file system tells."""
        return (self.size, self.mtime_ns, self.ctime_ns, self.inode, self.mode)

    def __str__(self) -> str:
        return shown(self.path)


def shown(path: Path) -> str:
    """A path for messages: readable, and without control characters or undecodable bytes."""
    text = "/".join(path)
    return text if text.isprintable() else ascii(text)[1:-1]


class Beneath:
    """A folder as the root of everything that is opened. ``root`` may be reached through links, and be one itself
    unless ``follow`` is False: then it raises OSError."""

    def __init__(self, root: str | os.PathLike[str], *, follow: bool = True) -> None:
        self._root = os.fspath(root)
        flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
        self._descriptors = [os.open(self._root, flags if follow else _DIRECTORY)]
        self._path: Path = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all descriptors. May be repeated."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def folder(self, path: Path) -> int:
        """A descriptor of the folder; valid until the next call. OSError when a component is a link or no folder."""
        common = 0
        for ours, theirs in zip(self._path, path, strict=False):
            if ours != theirs:
                break
            common += 1
        while len(self._path) > common:
            os.close(self._descriptors.pop())
            self._path = self._path[:-1]
        for name in path[common:]:
            check_local(name)
            self._descriptors.append(os.open(name, _DIRECTORY, dir_fd=self._descriptors[-1]))
            self._path = (*self._path, name)
        return self._descriptors[-1]

    def open_file(self, path: Path) -> int:
        """A descriptor for reading; never blocks and never follows. OSError when it is a link."""
        parent = self.folder(path[:-1])
        check_local(path[-1])
        return os.open(path[-1], _READ, dir_fd=parent)

    def listing(self, path: Path) -> list[Found]:
        """What the folder holds, sorted by bytes. Names that vanish meanwhile are left out."""
        descriptor = self.folder(path)
        with os.scandir(descriptor) as entries:
            found = [entry for entry in (look(descriptor, (*path, entry.name)) for entry in entries) if entry]
        found.sort(key=lambda entry: os.fsencode(entry.path[-1]))
        return found

    def walk(
        self,
        *,
        start: Path = (),
        enter: Callable[[Found], bool] = lambda found: True,
        unreadable: Callable[[Path, OSError], None] | None = None,
    ) -> Iterator[Found]:
        """Everything below ``start``, parents first. Folders that ``enter`` declines are yielded, but not entered.

        A folder that can't be listed is told to ``unreadable``; without it the OSError comes out.
        """
        pending: list[Iterator[Found]] = [iter(self._list(start, unreadable))]
        while pending:
            found = next(pending[-1], None)
            if found is None:
                pending.pop()
                continue
            yield found
            if found.kind is EntryKind.DIRECTORY and enter(found):
                pending.append(iter(self._list(found.path, unreadable)))

    def _list(self, path: Path, unreadable: Callable[[Path, OSError], None] | None) -> list[Found]:
        try:
            return self.listing(path)
        except OSError as error:
            if unreadable is None:
                raise
            unreadable(path, error)
            return []


def look(parent: int, path: Path) -> Found | None:
    """lstat below an open folder; None when it is gone."""
    try:
        status = os.stat(path[-1], dir_fd=parent, follow_symlinks=False)
        target = os.readlink(path[-1], dir_fd=parent) if stat.S_ISLNK(status.st_mode) else ""
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):  # gone, or a link no longer
            return None
        raise
    return found_from(path, status, target)


def found_from(path: Path, status: os.stat_result, target: str = "") -> Found:
    """``kind`` is None for what a tree can't hold (devices, sockets, pipes). size: of files alone, in bytes."""
    if stat.S_ISREG(status.st_mode):
        kind: EntryKind | None = EntryKind.FILE
    elif stat.S_ISDIR(status.st_mode):
        kind = EntryKind.DIRECTORY
    elif stat.S_ISLNK(status.st_mode):
        kind = EntryKind.SYMLINK
    else:
        kind = None
    return Found(
        path=path,
        kind=kind,
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        size=status.st_size if kind is EntryKind.FILE else 0,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        target=target,
    )


def check_local(name: str) -> None:
    """Refuse a component that this system would read as more than one; matters where / is not the separator."""
    if os.sep != "/" and (os.sep in name or ":" in name):
        raise BadRequest(f"{name!r} can't be written on this system: it holds {os.sep} or a colon")
