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

from gpulayer.errors import BadRequest, TooLarge
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
    "symlink_climb",
]

TREE_SCHEMA: Final = 1
MAX_NAME_BYTES: Final = 255
MAX_TARGET_BYTES: Final = 4095
MAX_SIZE: Final = 2**63 - 1


class EntryKind(StrEnum):
    """One letter, as it stands in a tree object."""

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
    """SHA-256 in lower-case hex."""
    return Digest(hashlib.sha256(content).hexdigest())


def encode_tree(entries: Iterable[Entry]) -> bytes:
    """The canonical bytes of a tree object. Raises BadRequest for a name or entry that no folder may hold."""
    ordered = sorted(entries, key=lambda entry: _check_name_bytes(entry.name))
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


def decode_tree(content: bytes, *, max_entries: int | None = None) -> Tree:
    """Read a tree object from an untrusted source. Raises BadRequest that names what is wrong with it.

    ``max_entries``: refuse more (TooLarge) before looking at any of them.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"a tree object is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("a tree object must be a JSON object")
    if type(document.get("v")) is not int or document["v"] != TREE_SCHEMA:
        raise BadRequest(
            f"tree schema {document.get('v')!r} is unknown here (this version reads {TREE_SCHEMA})",
            hint="upgrade the older side",
        )
    rows = document.get("entries")
    if not isinstance(rows, list):
        raise BadRequest("a tree object needs a list of entries")
    if max_entries is not None and len(rows) > max_entries:
        raise TooLarge(f"one directory has {len(rows):,} entries; the limit is {max_entries:,}")
    entries = [_decode_entry(row) for row in rows]
    _check_entries(entries)
    return Tree(tuple(entries))


def check_name(name: str) -> None:
    """Refuse what is not exactly one path component. Raises BadRequest."""
    _check_name_bytes(name)


def check_symlink(path: tuple[str, ...], target: str) -> None:
    """Refuse a link that leaves the tree. ``path``: the link's own components. Raises BadRequest.

    ``..`` may only stand at the start. Behind a name it would be resolved from wherever that name leads, and
    a name may itself be a link to a shallower folder: ``a/b/up → ../..`` and ``out → a/b/up/../x`` each look
    as if they stayed inside, and together they climb out.
    """
    climbs = symlink_climb(target, "/".join(path))
    if climbs > len(path) - 1:
        raise BadRequest(f"symlink {'/'.join(path)!r} → {target!r} leaves the folder")


def symlink_climb(target: str, shown: str) -> int:
    """How many folders above its own a link's target starts. ``shown`` names the link in errors. Raises BadRequest."""
    if target == "" or "\0" in target or target.startswith("/"):
        raise BadRequest(f"symlink {shown!r} → {target!r}: the target must be relative and stay inside the folder")
    try:
        raw = target.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadRequest(f"symlink {shown!r} → {target!r}: the target holds a lone surrogate") from None
    if len(raw) > MAX_TARGET_BYTES:
        raise BadRequest(f"symlink {shown!r}: a target of {len(raw)} bytes, the limit is {MAX_TARGET_BYTES}")
    climbs = 0
    named = False
    for part in target.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            named = True
        elif named:
            raise BadRequest(f"symlink {shown!r} → {target!r}: .. may only stand at the start of the target")
        else:
            climbs += 1
    return climbs


def folded(name: str) -> str:
    """The form in which two names clash on file systems that ignore case or normalise Unicode."""
    return unicodedata.normalize("NFC", name).casefold()


def _decode_entry(row: object) -> Entry:
    # type() and not isinstance: JSON's true would pass for the number 1.
    match row:
        case ["f", str(name), mode, size, str(digest)] if type(mode) is int and type(size) is int:
            return Entry(name, EntryKind.FILE, mode, size, Digest(digest))
        case ["d", str(name), mode, str(digest)] if type(mode) is int:
            return Entry(name, EntryKind.DIRECTORY, mode, 0, Digest(digest))
        case ["l", str(name), str(target)]:
            return Entry(name, EntryKind.SYMLINK, 0o777, target=target)
        case _:
            raise BadRequest(f"a tree entry can't be read: {str(row)[:80]}")


def _check_entries(entries: Iterable[Entry]) -> None:
    before: bytes | None = None
    for entry in entries:
        key = _check_name_bytes(entry.name)
        if before is not None and key <= before:
            problem = "twice" if key == before else "out of order"
            raise BadRequest(f"{entry.name!r} stands {problem} in one directory")
        before = key
        if entry.kind is EntryKind.SYMLINK:
            symlink_climb(entry.target, entry.name)
        elif not is_digest(entry.digest):
            raise BadRequest(f"tree entry {entry.name!r}: {entry.digest[:80]!r} is not a digest")
        elif not 0 <= entry.mode <= 0o777 or not 0 <= entry.size <= MAX_SIZE:
            raise BadRequest(f"tree entry {entry.name!r}: mode {entry.mode!r} or size {entry.size!r} is out of range")


def _check_name_bytes(name: str) -> bytes:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise BadRequest(f"{name!r} can't name a file: it must be one path component without / or NUL")
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadRequest(f"{name[:80]!r} can't name a file: it holds a lone surrogate") from None
    if len(raw) > MAX_NAME_BYTES:
        raise BadRequest(f"{name[:40]!r}… can't name a file: {len(raw)} bytes, the limit is {MAX_NAME_BYTES}")
    if not name.isascii() and raw.decode("utf-8", "surrogateescape") != name:
        raise BadRequest(f"{name!r} can't name a file: it spells valid UTF-8 in surrogate escapes")
    return raw


EMPTY_TREE: Final = digest_of(encode_tree(()))
