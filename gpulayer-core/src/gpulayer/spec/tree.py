"""Directory trees by content: the form in which sources go out and outputs come home.

A directory is a tree object: its entries, each with one path *component* as name. A file's content and a
sub-directory's tree object are named by digest, so a tree is a Merkle tree whose root digest names everything
below it, and equal directories are stored and sent once. Because a name is a single component, a path that is
absolute or climbs can't even be written; everything else that could leave a folder is refused here.

Tree objects are canonical JSON (sorted by name, no white space, UTF-8 with surrogate escapes for byte names):
the same directory always has the same digest. Pure: no IO.
"""

import hashlib
import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpulayer.errors import BadRequest
from gpulayer.ids import Digest, is_digest

__all__ = [
    "EMPTY_TREE",
    "TREE_SCHEMA",
    "Entry",
    "EntryKind",
    "SourceRef",
    "Tree",
    "check_name",
    "check_symlink",
    "decode_tree",
    "digest_of",
    "encode_tree",
    "folded",
]

TREE_SCHEMA: Final = 1
MAX_NAME_BYTES: Final = 255


class EntryKind(StrEnum):
    FILE = "f"
    DIRECTORY = "d"
    SYMLINK = "l"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory.

    FILE: digest and size (bytes) of its content, ``mode`` its permission bits (0o777 at most).
    DIRECTORY: digest of its tree object, ``size`` 0. SYMLINK: ``target``, and no digest.
    """

    name: str
    kind: EntryKind
    mode: int = 0o644
    size: int = 0
    digest: Digest = Digest("")
    target: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """The entries of one directory, sorted by name."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class SourceRef:
    """A whole tree by its root, with what people want to know of it."""

    digest: Digest
    files: int
    size_bytes: int
    commit: str = ""
    dirty: bool = False


def digest_of(content: bytes) -> Digest:
    return Digest(hashlib.sha256(content).hexdigest())


def encode_tree(entries: Iterable[Entry]) -> bytes:
    """The canonical bytes of a tree object. Raises BadRequest for a name or entry that no folder may hold."""
    ordered = sorted(entries, key=lambda entry: entry.name.encode("utf-8", "surrogateescape"))
    _check_entries(ordered)
    rows: list[list[str | int]] = []
    for entry in ordered:
        match entry.kind:
            case EntryKind.FILE:
                rows.append([entry.kind, entry.name, entry.mode, entry.size, entry.digest])
            case EntryKind.DIRECTORY:
                rows.append([entry.kind, entry.name, entry.mode, entry.digest])
            case EntryKind.SYMLINK:
                rows.append([entry.kind, entry.name, entry.target])
    # ensure_ascii keeps surrogate escapes (byte names) representable in any transport.
    return json.dumps({"v": TREE_SCHEMA, "entries": rows}, separators=(",", ":"), ensure_ascii=True).encode()


def decode_tree(content: bytes) -> Tree:
    """Read a tree object from an untrusted source. Raises BadRequest that names what is wrong with it."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"a tree object is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("a tree object must be a JSON object")
    if document.get("v") != TREE_SCHEMA:
        raise BadRequest(
            f"tree schema {document.get('v')!r} is unknown here (this version reads {TREE_SCHEMA})",
            hint="upgrade the older side",
        )
    rows = document.get("entries")
    if not isinstance(rows, list):
        raise BadRequest("a tree object needs a list of entries")
    entries = [_decode_entry(row) for row in rows]
    _check_entries(entries)
    return Tree(tuple(entries))


def check_name(name: str) -> None:
    """Refuse what is not exactly one path component. Raises BadRequest."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise BadRequest(f"{name!r} can't name a file: it must be one path component without / or NUL")
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadRequest(f"{name!r} can't name a file: it holds a lone surrogate") from None
    if len(raw) > MAX_NAME_BYTES:
        raise BadRequest(f"{name[:40]!r}… can't name a file: {len(raw)} bytes, the limit is {MAX_NAME_BYTES}")


def check_symlink(path: tuple[str, ...], target: str) -> None:
    """Refuse a link that leaves the tree. ``path``: the link's own components. Raises BadRequest."""
    if target == "" or "\0" in target or target.startswith("/"):
        raise BadRequest(f"symlink {'/'.join(path)} → {target!r}: must be relative and stay inside the folder")
    depth = len(path) - 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            raise BadRequest(f"symlink {'/'.join(path)} → {target!r} leaves the folder")


def folded(name: str) -> str:
    """The form in which two names clash on file systems that ignore case or normalise Unicode."""
    return unicodedata.normalize("NFC", name).casefold()


def _decode_entry(row: object) -> Entry:
    match row:
        case ["f", str(name), int(mode), int(size), str(digest)] if is_digest(digest):
            if not 0 <= mode <= 0o777 or size < 0 or isinstance(size, bool) or isinstance(mode, bool):
                raise BadRequest(f"tree entry {name!r}: mode {mode!r} or size {size!r} is out of range")
            return Entry(name, EntryKind.FILE, mode, size, Digest(digest))
        case ["d", str(name), int(mode), str(digest)] if is_digest(digest):
            if not 0 <= mode <= 0o777:
                raise BadRequest(f"tree entry {name!r}: mode {mode!r} is out of range")
            return Entry(name, EntryKind.DIRECTORY, mode, 0, Digest(digest))
        case ["l", str(name), str(target)]:
            return Entry(name, EntryKind.SYMLINK, 0o777, target=target)
        case _:
            raise BadRequest(f"a tree entry can't be read: {str(row)[:80]}")


def _check_entries(entries: Iterable[Entry]) -> None:
    before = ""
    first = True
    for entry in entries:
        check_name(entry.name)
        key = entry.name.encode("utf-8", "surrogateescape")
        if not first and key <= before.encode("utf-8", "surrogateescape"):
            problem = "twice" if entry.name == before else "out of order"
            raise BadRequest(f"{entry.name!r} stands {problem} in one directory")
        before, first = entry.name, False


EMPTY_TREE: Final = digest_of(encode_tree(()))
