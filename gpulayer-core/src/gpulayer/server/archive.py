"""The form of a backup: one tar file, written and read in one pass, whole or refused.

First comes ``gpulayer-backup.json``, which says what it is; then the members; last ``end.json``, with their number and
the SHA-256 of every byte before it. A file that was cut off has no end, and one that was changed has another digest.
Members are plain files whose names are of ``ALLOWED``, and nothing else is ever unpacked: no name of a backup decides
where something is written. Any ``tar`` lists it; nothing but ``read`` should unpack it.

Functions here block. Format: POSIX.1-1988 with GNU's large sizes, as of ``tarfile``.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from gpulayer.errors import Conflict, NotSupported, StorageUnavailable, UsageError

__all__ = ["ALLOWED", "Head", "Member", "check", "length_of", "pieces_of", "read"]

FORMAT: Final = 1
PIECE: Final = 1024 * 1024
_BLOCK: Final = 512
_HEAD: Final = "gpulayer-backup.json"
_END: Final = "end.json"
_END_BYTES: Final = 512
_LONGEST_HEAD: Final = 65_536
_LAST_WALL_MS: Final = 253_402_300_799_000  # of the year 9999, the last that a date can name
_TAIL: Final = bytes(2 * _BLOCK)

ALLOWED: Final = re.compile(
    r"store\.db|pepper|secrets\.key|own-port|tls/(?:cert|key)\.pem"
    r"|blobs/[0-9a-f]{2}/[0-9a-f]{62}"
    r"|logs/[0-9a-f]{16}/[0-9]{1,16}\.[0-9]{1,6}(?:\.err)?\.(?:log|times)|logs/[0-9a-f]{16}\.removed"
)
"""Of whole names."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a backup says of itself. gpulayer: the version that made it; store_schema: of ``store.db``; incarnation: of
    the control plane that ran then, empty for none; holds: of ``blobs`` and ``logs`` what is in it."""

    gpulayer: str
    store_schema: str
    made_wall_ms: int
    incarnation: str = ""
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A file as it goes in: the first ``size`` bytes of what ``path`` holds. It may have grown since."""

    name: str
    path: Path
    size: int
    mtime_s: int = 0


def length_of(head: Head, members: Iterable[Member]) -> int:
    """Of the whole file."""
    total = _BLOCK + _padded(len(_head_text(head))) + _BLOCK + _END_BYTES + len(_TAIL)
    return total + sum(_BLOCK + _padded(member.size) for member in members)


def pieces_of(head: Head, members: Iterable[Member]) -> Iterator[bytes]:
    """The file, piece by piece. Raises StorageUnavailable where a member can't be read, or has become shorter."""
    hasher = hashlib.sha256()
    count = 0
    for piece in _members(head, members):
        if piece is None:
            count += 1
            continue
        hasher.update(piece)
        yield piece
    end = json.dumps({"members": count, "sha256": hasher.hexdigest()}).encode().ljust(_END_BYTES)
    yield _header(_END, len(end), 0) + end + _TAIL


def _members(head: Head, members: Iterable[Member]) -> Iterator[bytes | None]:
    """None after each member."""
    text = _head_text(head)
    yield _header(_HEAD, len(text), 0) + text + bytes(_padded(len(text)) - len(text))
    for member in members:
        yield _header(member.name, member.size, member.mtime_s)
        left = member.size
        try:
            with open(member.path, "rb") as file:
                while left and (piece := file.read(min(left, PIECE))):
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise StorageUnavailable(f"{member.path} can't be read: {error.strerror}") from error
        if left:
            raise StorageUnavailable(
                f"{member.path} has become shorter while it was read", hint="make the backup again"
            )
        yield bytes(_padded(member.size) - member.size)
        yield None


def read(file: BinaryIO, take: Callable[[str, int, int, Iterator[bytes]], None], *, what: str) -> Head:
    """Read a backup to its end, and give each member to ``take``: name, size, mtime in seconds and its pieces, all of
    which it must use up.

    Only when this returns is what was taken known to be whole. Raises Conflict for a file that is damaged, cut off, or
    holds what no backup does, UsageError for one that is no backup, NotSupported for a newer format. what: names the
    file in messages.
    """
    reader = _Reader(file, what)
    head = _checked_head(reader, what)
    seen: set[str] = set()
    while True:
        before = reader.hasher.hexdigest()
        name, size, mtime_s = reader.header()
        if name == _END:
            _check_end(reader, size, members=len(seen), digest=before)
            _check_tail(reader)
            return head
        if not ALLOWED.fullmatch(name) or name in seen:
            raise _damaged(what, f"it holds {name[:80]!r}, which no backup does")
        seen.add(name)
        take(name, size, mtime_s, reader.pieces(size))


def check(file: BinaryIO, *, what: str) -> Head:
    """Read a backup to its end and keep nothing. Raises as ``read``."""

    def pass_over(_name: str, _size: int, _mtime_s: int, pieces: Iterator[bytes]) -> None:
        for _ in pieces:
            pass

    return read(file, pass_over, what=what)


class _Reader:
    def __init__(self, file: BinaryIO, what: str) -> None:
        self._file = file
        self.what = what
        self.hasher = hashlib.sha256()

    def exactly(self, count: int) -> bytes:
        try:
            found = self._file.read(count)
        except OSError as error:
            raise StorageUnavailable(f"{self.what} can't be read: {error.strerror}") from error
        self.hasher.update(found)
        if len(found) < count:
            raise _damaged(self.what, "it ends too early: it was cut off")
        return found

    def has_more(self) -> bool:
        """Whether anything follows."""
        try:
            return bool(self._file.read(1))
        except OSError as error:
            raise StorageUnavailable(f"{self.what} can't be read: {error.strerror}") from error

    def header(self) -> tuple[str, int, int]:
        block = self.exactly(_BLOCK)
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, ValueError):
            raise _damaged(self.what, "one of its headers can't be read") from None
        if info.type != tarfile.REGTYPE or info.size < 0:
            raise _damaged(self.what, f"{info.name[:80]!r} in it is no plain file")
        return info.name, info.size, int(info.mtime)

    def pieces(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self.exactly(min(left, PIECE))
            left -= len(piece)
            yield piece
        self.exactly(_padded(size) - size)


def _checked_head(reader: _Reader, what: str) -> Head:
    try:
        name, size, _ = reader.header()
    except Conflict:
        name, size = "", 0
    if name != _HEAD or size > _LONGEST_HEAD:
        raise UsageError(f"{what} is no backup of a control plane", hint="gpulayer backup FILE makes one")
    try:
        fields = json.loads(b"".join(reader.pieces(size)))
        if fields["format"] > FORMAT:
            raise NotSupported(
                f"{what} has format {fields['format']}, and this version of gpulayer knows {FORMAT} at most",
                hint=f"restore it with gpulayer {_plain(str(fields.get('gpulayer')))}, which made it",
            )
        made_wall_ms = int(fields["made_wall_ms"])
        if not 0 <= made_wall_ms <= _LAST_WALL_MS:
            raise ValueError(made_wall_ms)
        return Head(
            gpulayer=str(fields["gpulayer"]),
            store_schema=str(fields["store_schema"]),
            made_wall_ms=made_wall_ms,
            incarnation=str(fields["incarnation"]),
            holds=tuple(str(each) for each in fields["holds"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise _damaged(what, "what it says of itself can't be read") from None


def _check_end(reader: _Reader, size: int, *, members: int, digest: str) -> None:
    if size != _END_BYTES:
        raise _damaged(reader.what, "its end can't be read")
    try:
        end: Any = json.loads(reader.exactly(size))  # Any: JSON
        is_whole = end == {"members": members, "sha256": digest}
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        raise _damaged(reader.what, "its digest is another one than when it was made")


def _check_tail(reader: _Reader) -> None:
    if reader.exactly(len(_TAIL)) != _TAIL or reader.has_more():
        raise _damaged(reader.what, "something follows its end")


def _damaged(what: str, why: str) -> Conflict:
    return Conflict(f"{what} is damaged: {why}", hint="use another copy or an older backup; nothing was restored")


def _head_text(head: Head) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(head)}).encode()


def _header(name: str, size: int, mtime_s: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, mtime_s, 0o600
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


def _plain(text: str) -> str:
    """What a file says of itself, for a terminal."""
    return "".join(each for each in text[:40] if each.isascii() and each.isprintable())


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
