"""Folders to trees, and trees that someone else made.

``build_tree`` hashes what a scan found and gives the tree objects and where each blob's content lies. ``load_tree``
reads a tree from an untrusted maker: every object is verified and read once, and sums are kept per sub-tree, so a
tree that names one folder 2^100 times is refused after reading a hundred small objects.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Final

from gpulayer.errors import BadRequest, DigestMismatch, NotFound, TooLarge, UsageError
from gpulayer.ids import Digest
from gpulayer.spec.tree import Entry, EntryKind, SourceRef, Tree, decode_tree, digest_of, encode_tree, symlink_climb
from gpulayer.spec.units import format_bytes
from gpulayer.staging.beneath import Beneath, Found, Path, found_from, shown
from gpulayer.staging.limits import DEFAULT_LIMITS, TreeLimits

__all__ = [
    "BuiltTree",
    "Content",
    "LoadedTree",
    "TreeTotals",
    "assemble",
    "build_tree",
    "check_tree",
    "hash_file",
    "load_tree",
    "walk_tree",
]

_READS: Final = 5  # how often a file that keeps changing is read before giving up
_CHUNK: Final = 1024 * 1024
_EMPTY: Final = digest_of(b"")


@dataclass(frozen=True, slots=True)
class Content:
    """Where a blob's content lies, and how many bytes it has."""

    path: FilePath
    size: int


@dataclass(frozen=True, slots=True)
class BuiltTree:
    """A tree ready to be sent: its objects and, by digest, a file that holds each content."""

    digest: Digest
    objects: Mapping[Digest, bytes]
    files: Mapping[Digest, Content]
    source: SourceRef
    warnings: tuple[str, ...] = ()

    def digests(self) -> list[Digest]:
        """All that a receiver must have: objects first, in a stable order."""
        return [*self.objects, *(digest for digest in self.files if digest not in self.objects)]


@dataclass(frozen=True, slots=True)
class TreeTotals:
    """files: files and links, each name counted. size_bytes: likewise. blobs: size by digest. objects: of folders."""

    files: int
    size_bytes: int
    entries: int
    blobs: Mapping[Digest, int]
    objects: frozenset[Digest]

    @property
    def digests(self) -> frozenset[Digest]:
        """All that must be there for the tree to be whole: tree objects and contents."""
        return self.objects | self.blobs.keys()


@dataclass(frozen=True, slots=True)
class LoadedTree:
    """A tree that was checked whole; walking it can't fail any more."""

    digest: Digest
    trees: Mapping[Digest, Tree]
    totals: TreeTotals

    def walk(self) -> Iterator[tuple[Path, Entry]]:
        """Every entry with its path, each folder before what lies in it."""
        pending: list[tuple[Path, Iterator[Entry]]] = [((), iter(self.trees[self.digest].entries))]
        while pending:
            base, entries = pending[-1]
            entry = next(entries, None)
            if entry is None:
                pending.pop()
                continue
            path = (*base, entry.name)
            yield path, entry
            if entry.kind is EntryKind.DIRECTORY:
                pending.append((path, iter(self.trees[entry.digest].entries)))


def build_tree(
    root: str | os.PathLike[str],
    entries: Iterable[Found],
    *,
    commit: str = "",
    dirty: bool = False,
    threads: int = 1,
) -> BuiltTree:
    """Hash ``entries`` (of a scan, folders listed) below ``root``. ``threads`` hash large files in parallel.

    Raises UsageError that names a file which can't be read, is gone, or changes each time it is read.
    """
    found = list(entries)
    files = [entry for entry in found if entry.kind is EntryKind.FILE]
    hashed: dict[Path, tuple[Found, Digest]] = {}

    def hash_share(share: list[Found]) -> list[tuple[Found, Digest]]:
        with Beneath(root) as beneath:
            return [hash_file(beneath, entry) for entry in share]

    if threads > 1 and len(files) > 1:
        shares = [files[index::threads] for index in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            for share in pool.map(hash_share, shares):
                hashed.update((entry.path, (entry, digest)) for entry, digest in share)
    else:
        hashed.update((entry.path, (entry, digest)) for entry, digest in hash_share(files))

    nodes: dict[Path, Entry] = {}
    contents: dict[Digest, Content] = {}
    for entry in found:
        match entry.kind:
            case EntryKind.FILE:
                read, digest = hashed[entry.path]
                nodes[entry.path] = Entry(entry.path[-1], EntryKind.FILE, read.mode, read.size, digest)
                contents.setdefault(digest, Content(FilePath(root, *entry.path), read.size))
            case EntryKind.SYMLINK:
                nodes[entry.path] = Entry(entry.path[-1], EntryKind.SYMLINK, 0o777, target=entry.target)
            case EntryKind.DIRECTORY:
                nodes[entry.path] = Entry(entry.path[-1], EntryKind.DIRECTORY, entry.mode)
            case None:
                raise ValueError(f"{entry} is a special file; scans leave them out")
    return assemble(nodes, contents, commit=commit, dirty=dirty)


def assemble(
    nodes: Mapping[Path, Entry],
    contents: Mapping[Digest, Content],
    *,
    commit: str = "",
    dirty: bool = False,
    warnings: tuple[str, ...] = (),
) -> BuiltTree:
    """Tree objects from entries by path. Digests of folders are filled in; folders only implied get mode 755."""
    children: dict[Path, dict[str, Entry]] = {(): {}}
    for path, entry in nodes.items():
        if entry.kind is EntryKind.DIRECTORY:
            children.setdefault(path, {})
    for path, entry in nodes.items():
        children.setdefault(path[:-1], {})[path[-1]] = entry
    for path in list(children):
        for length in range(len(path) - 1, -1, -1):
            parent, name = path[:length], path[length]
            known = children.setdefault(parent, {})
            if name in known:
                break
            known[name] = Entry(name, EntryKind.DIRECTORY, 0o755)
    objects: dict[Digest, bytes] = {}
    digests: dict[Path, Digest] = {}
    for path in sorted(children, key=len, reverse=True):
        entries = [
            Entry(entry.name, entry.kind, entry.mode, 0, digests[(*path, name)])
            if entry.kind is EntryKind.DIRECTORY
            else entry
            for name, entry in children[path].items()
        ]
        content = encode_tree(entries)
        digests[path] = digest_of(content)
        objects[digests[path]] = content
    plain = [entry for entry in nodes.values() if entry.kind is not EntryKind.DIRECTORY]
    source = SourceRef(digests[()], len(plain), sum(entry.size for entry in plain), commit, dirty)
    return BuiltTree(digests[()], objects, dict(contents), source, warnings)


def hash_file(beneath: Beneath, entry: Found) -> tuple[Found, Digest]:
    """The file as it is now and its digest: one state of it, never a mixture as far as its times tell.

    Raises UsageError that names it.
    """
    for _ in range(_READS):
        try:
            descriptor = beneath.open_file(entry.path)
        except OSError as error:
            raise _unreadable(entry, error) from error
        try:
            before = found_from(entry.path, os.fstat(descriptor))
            if before.kind is not EntryKind.FILE:
                raise UsageError(f"{entry} was replaced by something that is no file while it was being read")
            hasher = hashlib.sha256()
            size = 0
            while size <= before.size and (piece := os.read(descriptor, _CHUNK)):  # one that grows has no end
                hasher.update(piece)
                size += len(piece)
            after = found_from(entry.path, os.fstat(descriptor))
        except OSError as error:
            raise _unreadable(entry, error) from error
        finally:
            os.close(descriptor)
        if before.signature == after.signature and size == after.size:
            return after, Digest(hasher.hexdigest())
    raise UsageError(
        f"{entry} changed each of {_READS} times it was read",
        hint="submit when nothing writes to it, or leave it out with --exclude",
    )


def load_tree(
    root: Digest, read: Callable[[Digest], bytes], *, limits: TreeLimits = DEFAULT_LIMITS, what: str = "the tree"
) -> LoadedTree:
    """Read and check a whole tree. ``read`` gives a tree object's bytes and raises NotFound when it has none.

    Raises BadRequest (missing or malformed objects, links that leave the tree, sizes that contradict each other),
    DigestMismatch, TooLarge.
    """
    loader = _Loader(read, limits, what)
    sums = loader.load(root)
    if sums.climb > 0:
        raise BadRequest(f"symlink {sums.climber!r} leaves the folder")
    totals = TreeTotals(sums.files, sums.size_bytes, sums.entries, loader.blobs, frozenset(loader.trees))
    return LoadedTree(root, loader.trees, totals)


def walk_tree(
    root: Digest, read: Callable[[Digest], bytes], *, limits: TreeLimits = DEFAULT_LIMITS
) -> Iterator[tuple[Path, Entry]]:
    """Every entry of a tree, which is checked whole before the first one is given. Raises like ``load_tree``."""
    return load_tree(root, read, limits=limits).walk()


def check_tree(root: Digest, read: Callable[[Digest], bytes], *, limits: TreeLimits = DEFAULT_LIMITS) -> TreeTotals:
    """What a tree amounts to. Raises like ``load_tree``."""
    return load_tree(root, read, limits=limits).totals


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of one sub-tree. climb: folders above its root that its links reach; height, path_bytes: of its longest path."""

    files: int = 0
    size_bytes: int = 0
    entries: int = 0
    height: int = 0
    path_bytes: int = 0
    climb: int = 0
    climber: str = ""


@dataclass(slots=True)
class _Frame:
    digest: Digest
    tree: Tree
    position: int = 0


@dataclass(slots=True)
class _Loader:
    read: Callable[[Digest], bytes]
    limits: TreeLimits
    what: str
    trees: dict[Digest, Tree] = field(default_factory=dict)
    blobs: dict[Digest, int] = field(default_factory=dict)
    sums: dict[Digest, _Sums] = field(default_factory=dict)
    distinct_entries: int = 0

    def load(self, root: Digest) -> _Sums:
        """Post-order with a stack of our own: recursion must not depend on what the sender nests."""
        stack = [self._open(root, ())]
        while stack:
            frame = stack[-1]
            below = self._next_folder(frame)
            if below is None:
                self.sums[frame.digest] = self._sum(frame.tree)
                stack.pop()
                continue
            if len(stack) > self.limits.depth:
                raise self._too_deep()
            stack.append(self._open(below.digest, tuple(f.tree.entries[f.position].name for f in stack)))
        return self.sums[root]

    def _next_folder(self, frame: _Frame) -> Entry | None:
        for position in range(frame.position, len(frame.tree.entries)):
            entry = frame.tree.entries[position]
            if entry.kind is EntryKind.DIRECTORY and entry.digest not in self.sums:
                frame.position = position
                return entry
        return None

    def _open(self, digest: Digest, path: Path) -> _Frame:
        where = f"folder {shown(path)!r}" if path else "the root"
        try:
            content = self.read(digest)
        except NotFound:
            raise BadRequest(f"{self.what} can't be used: no tree object {digest} ({where})") from None
        if len(content) > self.limits.object_bytes:
            raise TooLarge(
                f"{self.what}: the tree object of {where} has {format_bytes(len(content))}; "
                f"the limit is {format_bytes(self.limits.object_bytes)}"
            )
        found = digest_of(content)
        if found != digest:
            raise DigestMismatch(f"{self.what}: tree object {digest[:12]}… ({where}) has digest {found[:12]}…")
        try:
            tree = decode_tree(content, max_entries=self.limits.entries - self.distinct_entries)
        except (BadRequest, TooLarge) as error:
            raise type(error)(f"{self.what}, {where}: {error.message}", hint=error.hint) from None
        self.trees[digest] = tree
        self.distinct_entries += len(tree.entries)
        for entry in tree.entries:
            if entry.kind is EntryKind.FILE and (entry.size == 0) != (entry.digest == _EMPTY):
                raise BadRequest(f"{self.what}: {shown((*path, entry.name))!r} has {entry.size} bytes, its digest not")
            if entry.kind is EntryKind.FILE and self.blobs.setdefault(entry.digest, entry.size) != entry.size:
                raise BadRequest(
                    f"{self.what}: {shown((*path, entry.name))!r} says blob {entry.digest[:12]}… has {entry.size} "
                    f"bytes, another entry says {self.blobs[entry.digest]}"
                )
        return _Frame(digest, tree)

    def _sum(self, tree: Tree) -> _Sums:
        files = size_bytes = entries = height = path_bytes = climb = 0
        climber = ""
        for entry in tree.entries:
            entries += 1
            name_bytes = len(os.fsencode(entry.name))
            height = max(height, 1)
            path_bytes = max(path_bytes, name_bytes)
            match entry.kind:
                case EntryKind.DIRECTORY:
                    below = self.sums[entry.digest]
                    files += below.files
                    size_bytes += below.size_bytes
                    entries += below.entries
                    height = max(height, 1 + below.height)
                    path_bytes = max(path_bytes, name_bytes + 1 + below.path_bytes)
                    if below.climb - 1 > climb:
                        climb, climber = below.climb - 1, f"{entry.name}/{below.climber}"
                case EntryKind.FILE:
                    files += 1
                    size_bytes += entry.size
                case EntryKind.SYMLINK:
                    files += 1
                    up = symlink_climb(entry.target, entry.name)
                    if up > climb:
                        climb, climber = up, entry.name
        # Checked for each sub-tree, so that the numbers stay small whatever is multiplied with whatever.
        self._check_entries(entries)
        self.limits.check(files, size_bytes, self.what)
        if height > self.limits.depth + 1:
            raise self._too_deep()
        if path_bytes > self.limits.path_bytes:
            raise TooLarge(f"{self.what} has a path of {path_bytes} bytes; the limit is {self.limits.path_bytes}")
        return _Sums(files, size_bytes, entries, height, path_bytes, climb, climber)

    def _check_entries(self, entries: int) -> None:
        if entries > self.limits.entries:
            raise TooLarge(f"{self.what} has {entries:,} entries or more; the limit is {self.limits.entries:,}")

    def _too_deep(self) -> TooLarge:
        return TooLarge(f"{self.what} nests folders deeper than {self.limits.depth}")


def _unreadable(entry: Found, error: OSError) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{entry} vanished while the folder was being read", hint="submit again")
    return UsageError(
        f"{entry} can't be read: {error.strerror}", hint="make it readable, or leave it out with --exclude"
    )
