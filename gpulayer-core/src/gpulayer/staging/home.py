"""Outputs on the submitter's machine: under ``gpulayer_runs/<id>/``, whole or not there, never outside.

A tree lands in a hidden folder beside its destination and is renamed when complete; a second call goes on where a
broken one stopped. Where the destination exists already, each file is replaced on its own. Links that stand in the
destination are never followed, and content is verified before it gets its name.
"""

import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Final

from gpulayer.errors import Conflict, DigestMismatch
from gpulayer.faults import here
from gpulayer.ids import Digest
from gpulayer.spec.tree import Entry, EntryKind, folded
from gpulayer.staging.beneath import Beneath, Found, Path, check_local, look, shown
from gpulayer.staging.blobs import BlobReader, storage_error
from gpulayer.staging.limits import DEFAULT_LIMITS, TreeLimits
from gpulayer.staging.scan import RUNS_FOLDER, named
from gpulayer.staging.trees import LoadedTree, hash_file, load_tree

__all__ = ["Landed", "write_home"]

_TEMPORARY: Final = re.compile(r"\.gpulayer-[0-9a-f]{32}")
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Landed:
    """files: written or replaced. kept: those that were there with the same content already."""

    destination: FilePath
    files: int
    kept: int
    size_bytes: int
    warnings: tuple[str, ...]


def write_home(
    root_digest: Digest, blobs: BlobReader, destination: FilePath, *, limits: TreeLimits = DEFAULT_LIMITS
) -> Landed:
    """Write a tree below ``destination``, whose parents are made. May be repeated; equal files are left alone.

    Directly under ``gpulayer_runs`` that folder also gets a ``.gitignore``. A ``.git`` in a tree is left out: git
    runs what its configuration says. Raises what ``load_tree`` raises, NotFound, DigestMismatch, DiskFull,
    StorageUnavailable; Conflict where a link, or a folder for a file, stands in the way.
    """
    tree = load_tree(root_digest, blobs.read, limits=limits, what="the output")
    destination = destination.absolute()
    try:
        _prepare(destination.parent)
        with Beneath(destination.parent) as beneath:
            landing = _Landing(beneath, blobs, tree)
            if os.path.lexists(destination):
                landing.write_into((destination.name,))
            else:
                with _partial_folder(destination, root_digest) as partial:
                    landing.write_into((partial,))
                    parent = beneath.folder(())
                    try:
                        os.rename(partial, destination.name, src_dir_fd=parent, dst_dir_fd=parent)
                    except OSError:
                        if not destination.is_dir():
                            raise
                        landing = _Landing(beneath, blobs, tree)  # another download was faster
                        landing.write_into((destination.name,))
    except (ConnectionError, TimeoutError):
        raise  # the reader's network, not our disk
    except OSError as error:
        raise storage_error(error, destination) from error
    warnings: tuple[str, ...] = ()
    if landing.left_out:
        warnings = (f"left out {named(map(shown, landing.left_out))}: a job's .git does not come home",)
    return Landed(destination, landing.files, landing.kept, landing.size_bytes, warnings)


@dataclass(slots=True)
class _Landing:
    beneath: Beneath
    blobs: BlobReader
    tree: LoadedTree
    files: int = 0
    kept: int = 0
    size_bytes: int = 0
    left_out: list[Path] = field(default_factory=list)
    taken: dict[tuple[Path, str], Path] = field(default_factory=dict)

    def write_into(self, base: Path) -> None:
        try:
            self.beneath.folder(base)
        except OSError:
            raise Conflict(
                f"{base[-1]} is no folder, or a link to one; outputs are not written through links",
                hint="move it away, or choose another folder with --dest",
            ) from None
        links: list[tuple[Path, Entry]] = []
        folders: list[tuple[Path, int]] = []
        for below, entry in self.tree.walk():
            path = (*base, *below)
            check_local(entry.name)
            if ".git" in (folded(part) for part in below):
                if below[:-1] == () or ".git" not in (folded(part) for part in below[:-1]):
                    self.left_out.append(below)
                continue
            match entry.kind:
                case EntryKind.DIRECTORY:
                    self._check_clash(path)
                    self._folder(path)
                    folders.append((path, (entry.mode & ~0o022) | 0o700))
                case EntryKind.FILE:
                    self._check_clash(path)
                    self._file(path, entry)
                case EntryKind.SYMLINK:
                    links.append((path, entry))
        for path, entry in links:
            self._check_clash(path)
            self._link(path, entry)
        for path, mode in reversed(folders):
            os.chmod(path[-1], mode, dir_fd=self.beneath.folder(path[:-1]))

    def _folder(self, path: Path) -> None:
        with suppress(FileExistsError):
            os.mkdir(path[-1], 0o700, dir_fd=self.beneath.folder(path[:-1]))
        try:
            self.beneath.folder(path)
        except OSError:
            raise self._in_the_way(path) from None

    def _file(self, path: Path, entry: Entry) -> None:
        parent = self.beneath.folder(path[:-1])
        there = look(parent, path)
        if there is not None and there.kind is EntryKind.DIRECTORY:
            raise self._in_the_way(path)
        if there is not None and there.kind is EntryKind.FILE and self._is_equal(there, entry):
            self.kept += 1
            return
        parent = self.beneath.folder(path[:-1])
        with _temporary(parent) as name:
            descriptor = os.open(name, _CREATE, 0o600, dir_fd=parent)
            try:
                here("client.before_file")
                hasher = hashlib.sha256()
                size = 0
                for piece in self.blobs.chunks(entry.digest) if entry.size else ():
                    hasher.update(piece)
                    size += len(piece)
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(descriptor, view) :]
                if hasher.hexdigest() != entry.digest or size != entry.size:
                    raise DigestMismatch(
                        f"{shown(path[1:])}: {size} bytes came with digest {hasher.hexdigest()[:12]}…, "
                        f"not {entry.size} with {entry.digest[:12]}…",
                        hint="download it again",
                    )
                # A worker's umask is not ours: no file becomes writable for others by coming home.
                os.fchmod(descriptor, (entry.mode & ~0o022) | 0o400)
            finally:
                os.close(descriptor)
            here("client.in_home")
            os.replace(name, path[-1], src_dir_fd=parent, dst_dir_fd=parent)
        self.files += 1
        self.size_bytes += entry.size

    def _is_equal(self, there: Found, entry: Entry) -> bool:
        return there.size == entry.size and hash_file(self.beneath, there)[1] == entry.digest

    def _link(self, path: Path, entry: Entry) -> None:
        parent = self.beneath.folder(path[:-1])
        there = look(parent, path)
        if there is not None and there.kind is EntryKind.DIRECTORY:
            raise self._in_the_way(path)
        if there is not None and there.kind is EntryKind.SYMLINK and there.target == entry.target:
            self.kept += 1
            return
        with _temporary(parent) as name:
            os.symlink(entry.target, name, dir_fd=parent)
            os.replace(name, path[-1], src_dir_fd=parent, dst_dir_fd=parent)
        self.files += 1

    def _check_clash(self, path: Path) -> None:
        """Two names of the tree that this file system takes for one would overwrite each other."""
        key = (path[:-1], folded(path[-1]))
        other = self.taken.setdefault(key, path)
        if other == path:
            return
        parent = self.beneath.folder(path[:-1])
        ours, theirs = look(parent, path), look(parent, other)
        if ours is not None and theirs is not None and ours.inode == theirs.inode:
            raise Conflict(
                f"{shown(other[1:])} and {shown(path[1:])} are one name on this file system",
                hint="download to a file system that tells upper from lower case",
            )

    def _in_the_way(self, path: Path) -> Conflict:
        return Conflict(
            f"something else stands at {shown(path)}; it was left as it is",
            hint="move it away, or choose another folder with --dest",
        )


def _prepare(parent: FilePath) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    if parent.name == RUNS_FOLDER:
        with suppress(FileExistsError):
            with open(os.open(parent / ".gitignore", _CREATE, 0o644), "w", encoding="utf-8") as file:
                file.write("# Results of gpulayer; they neither ship nor belong into a repository.\n*\n")


@contextmanager
def _partial_folder(destination: FilePath, root_digest: Digest) -> Iterator[str]:
    """The hidden folder in which the tree lands, held under a lock; what a killed download left is used again."""
    name = f".{destination.name[:100]}.{root_digest[:16]}.partial"
    path = destination.parent / name
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    lock = _lock(path)
    if lock is None:
        name = f"{name}-{secrets.token_hex(8)}"
        path = destination.parent / name
        path.mkdir(mode=0o700)
    try:
        with Beneath(path) as beneath:
            for found in beneath.walk():
                if _TEMPORARY.fullmatch(found.path[-1]) and found.kind is not EntryKind.DIRECTORY:
                    os.unlink(found.path[-1], dir_fd=beneath.folder(found.path[:-1]))
        yield name
        shutil.rmtree(path, ignore_errors=True)  # still there only when another download was faster
    finally:
        if lock is not None:
            os.close(lock)


def _lock(path: FilePath) -> int | None:
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415 - not on every platform

    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it before may have landed and renamed it in between: then this lock is on a finished result.
        if not os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(path)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _temporary(parent: int) -> Iterator[str]:
    name = f".gpulayer-{secrets.token_hex(16)}"
    try:
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
