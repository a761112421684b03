"""A tree written out as the folder a job works in, and the record by which its outputs are found later.

Nothing is written outside: files and folders are created exclusively and relative to descriptors, and links come
last, when nothing else will be opened. Modes are set by descriptor, so no umask takes an executable bit away. Files
get one time in the past, so that whatever a job writes later differs, even within the clock's last tick.
"""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

from gpulayer.errors import BadRequest, Conflict, DigestMismatch, GpulayerError, NotFound, ProtocolError
from gpulayer.faults import here
from gpulayer.ids import Digest
from gpulayer.spec.tree import Entry, EntryKind, Tree, folded
from gpulayer.staging.beneath import Beneath, Found, Path, check_local, found_from, shown
from gpulayer.staging.blobs import BlobFolder, storage_error
from gpulayer.staging.limits import DEFAULT_LIMITS, TreeLimits
from gpulayer.staging.trees import load_tree

__all__ = ["Baseline", "BaselineEntry", "materialise"]

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FICLONE: Final = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_NO_REFLINK: Final = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.EINVAL, errno.EPERM, errno.ENOSYS)
_CHUNK: Final = 1024 * 1024
_BASELINE_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """One name as it was when the job began. ``signature`` as in Found; empty for links and folders."""

    kind: EntryKind
    signature: tuple[int, ...] = ()
    digest: Digest = Digest("")
    target: str = ""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a work folder held before the job. Kept as bytes, so that a restarted worker finds the same outputs."""

    entries: Mapping[Path, BaselineEntry]

    def to_bytes(self) -> bytes:
        """JSON with a version, to be kept in a file; it outlives the agent."""
        rows = [
            ["/".join(path), entry.kind, list(entry.signature), entry.digest, entry.target]
            for path, entry in self.entries.items()
        ]
        return json.dumps({"v": _BASELINE_SCHEMA, "entries": rows}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Baseline":
        """Raises ProtocolError for what ``to_bytes`` of this version did not write."""
        try:
            document = json.loads(content)
            if document["v"] != _BASELINE_SCHEMA:
                raise ValueError(f"schema {document['v']!r}")
            return cls(
                {
                    tuple(name.split("/")): BaselineEntry(EntryKind(kind), tuple(signature), Digest(digest), target)
                    for name, kind, signature, digest, target in document["entries"]
                }
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"the baseline of a work folder can't be read: {error}") from None


def materialise(
    root_digest: Digest,
    blobs: BlobFolder,
    destination: FilePath,
    *,
    limits: TreeLimits = DEFAULT_LIMITS,
    verify: bool = True,
) -> Baseline:
    """Write a tree, whose objects and blobs are in ``blobs``, into an existing, empty folder.

    ``verify``: each content is hashed on its way; a damaged blob is removed from ``blobs``. Raises what
    ``load_tree`` raises, NotFound (blob), DigestMismatch, DiskFull, StorageUnavailable, and Conflict when two names
    are one on this file system. After an error the folder is to be thrown away.
    """
    tree = load_tree(root_digest, blobs.read, limits=limits, what="the source")
    if next(iter(destination.iterdir()), None) is not None:
        raise Conflict(f"{destination} is not empty")
    try:
        with Beneath(destination) as beneath:
            writer = _Writer(beneath, blobs, verify, destination.stat().st_mtime_ns - 1_000_000_000)
            writer.write((), tree.trees[root_digest], tree.trees)
            for path, entry in writer.links:
                writer.link(path, entry)
            writer.finish_folders()
    except OSError as error:
        raise storage_error(error, destination) from error
    return Baseline(writer.baseline)


class _Writer:
    def __init__(self, beneath: Beneath, blobs: BlobFolder, verify: bool, mtime_ns: int) -> None:
        self.beneath = beneath
        self.blobs = blobs
        self.verify = verify
        self.mtime_ns = mtime_ns
        self.links: list[tuple[Path, Entry]] = []
        self.folders: list[tuple[Path, int]] = []
        self.baseline: dict[Path, BaselineEntry] = {}
        self._can_reflink = sys.platform.startswith("linux")

    def write(self, base: Path, tree: Tree, trees: Mapping[Digest, Tree]) -> None:
        """Depth is bounded by the limits the tree was checked against."""
        for entry in tree.entries:
            path = (*base, entry.name)
            check_local(entry.name)
            match entry.kind:
                case EntryKind.FILE:
                    found = self._file(path, entry)
                    self.baseline[path] = BaselineEntry(EntryKind.FILE, found.signature, entry.digest)
                case EntryKind.DIRECTORY:
                    try:
                        os.mkdir(entry.name, 0o700, dir_fd=self.beneath.folder(base))
                    except FileExistsError:
                        raise self._clash(path) from None
                    self.folders.append((path, entry.mode | 0o700))
                    self.baseline[path] = BaselineEntry(EntryKind.DIRECTORY)
                    self.write(path, trees[entry.digest], trees)
                case EntryKind.SYMLINK:
                    self.links.append((path, entry))

    def link(self, path: Path, entry: Entry) -> None:
        try:
            os.symlink(entry.target, entry.name, dir_fd=self.beneath.folder(path[:-1]))
        except FileExistsError:
            raise self._clash(path) from None
        self.baseline[path] = BaselineEntry(EntryKind.SYMLINK, target=entry.target)

    def finish_folders(self) -> None:
        # Last and deepest first: a folder must stay writable until all is in it.
        for path, mode in reversed(self.folders):
            os.chmod(path[-1], mode, dir_fd=self.beneath.folder(path[:-1]))

    def _file(self, path: Path, entry: Entry) -> Found:
        try:
            descriptor = os.open(entry.name, _CREATE, 0o600, dir_fd=self.beneath.folder(path[:-1]))
        except FileExistsError:
            raise self._clash(path) from None
        try:
            if self.baseline:
                here("agent.in_source")
            if entry.size:  # the empty blob need not even be there
                self._copy(entry, descriptor)
            size = os.fstat(descriptor).st_size
            if size != entry.size:
                raise BadRequest(f"{shown(path)!r} says it has {entry.size} bytes; its blob has {size}")
            os.fchmod(descriptor, entry.mode | 0o400)
            os.utime(descriptor, ns=(self.mtime_ns, self.mtime_ns))
            return found_from(path, os.fstat(descriptor))
        except OSError as error:
            raise _named(storage_error(error, shown(path)), path) from error
        except (NotFound, DigestMismatch) as error:
            raise _named(error, path) from None
        finally:
            os.close(descriptor)

    def _copy(self, entry: Entry, target: int) -> None:
        if self.verify and (entry.size <= _CHUNK or not self._can_reflink):
            _write_all(target, self.blobs.chunks(entry.digest))
            return
        with self.blobs.open(entry.digest) as source:
            if self._reflink(source.fileno(), target):
                if self.verify:
                    self._check_copy(entry.digest, source.fileno())
                return
        if self.verify:
            _write_all(target, self.blobs.chunks(entry.digest))
        else:
            with self.blobs.open(entry.digest) as source:
                while piece := source.read(_CHUNK):
                    _write_all(target, [piece])

    def _check_copy(self, digest: Digest, source: int) -> None:
        hasher = hashlib.sha256()
        while piece := os.read(source, _CHUNK):
            hasher.update(piece)
        if hasher.hexdigest() != digest:
            self.blobs.read(digest)  # removes the damaged blob, and raises

    def _reflink(self, source: int, target: int) -> bool:
        if not self._can_reflink:
            return False
        import fcntl  # noqa: PLC0415 - not on every platform

        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NO_REFLINK:
                raise
            self._can_reflink = False  # asked once a folder, not once a file
            return False
        return True

    def _clash(self, path: Path) -> Conflict:
        siblings = [known for known in self.baseline if known[:-1] == path[:-1] and known[-1] != path[-1]]
        other = next((known for known in siblings if folded(known[-1]) == folded(path[-1])), None)
        if other is None:
            return Conflict(f"{shown(path)} is already there", hint="the work folder must be empty and ours alone")
        return Conflict(
            f"{shown(other)} and {shown(path)} are one name on this worker's file system",
            hint="rename one, or choose a worker whose file system tells upper from lower case",
        )


def _write_all(descriptor: int, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(descriptor, view) :]


def _named(error: GpulayerError, path: Path) -> GpulayerError:
    return type(error)(f"{shown(path)}: {error.message}", hint=error.hint, details=error.details)
