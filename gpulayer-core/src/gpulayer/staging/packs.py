"""How a set of blobs travels: small ones together in packs, large ones alone.

Content is read when its turn comes and must still be what was hashed; otherwise nothing of it is sent.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpulayer.errors import UsageError
from gpulayer.ids import Digest
from gpulayer.spec.tree import digest_of
from gpulayer.staging.trees import BuiltTree, Content
from gpulayer.wire.packs import MAX_PACKED_BLOB, PACK_TARGET, frame

__all__ = ["Pack", "Single", "blobs_of", "make_packs", "open_content"]


@dataclass(frozen=True, slots=True)
class Pack:
    """One body of frames."""

    body: bytes
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Single:
    """A blob that travels alone; the receiver verifies it."""

    digest: Digest
    content: Path | bytes
    size: int


def blobs_of(built: BuiltTree, missing: Iterable[Digest]) -> Iterator[tuple[Digest, Path | bytes, int]]:
    """What ``make_packs`` takes, for those digests of a built tree that the receiver lacks."""
    for digest in missing:
        content = built.objects.get(digest)
        if content is not None:
            yield digest, content, len(content)
        else:
            file: Content = built.files[digest]
            yield digest, file.path, file.size


def make_packs(
    items: Iterable[tuple[Digest, Path | bytes, int]], *, target_bytes: int = PACK_TARGET
) -> Iterator[Pack | Single]:
    """Group blobs into bodies of about ``target_bytes``. Lazy: at most one pack is held in memory.

    Raises UsageError that names a file whose content changed since it was hashed.
    """
    frames: list[bytes] = []
    digests: list[Digest] = []
    size = 0
    for digest, content, expected in items:
        if expected > MAX_PACKED_BLOB:
            yield Single(digest, content, expected)
            continue
        made = frame(digest, content if isinstance(content, bytes) else _read(digest, content, expected))
        if frames and size + len(made) > target_bytes:
            yield Pack(b"".join(frames), tuple(digests))
            frames, digests, size = [], [], 0
        frames.append(made)
        digests.append(digest)
        size += len(made)
    if frames:
        yield Pack(b"".join(frames), tuple(digests))


def open_content(path: Path) -> BinaryIO:
    """A file of a built tree for reading: never through a link, and never waiting for the writer of a pipe that stands
    in its place since. Raises UsageError that names it."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        file = open(os.open(path, flags), "rb")  # noqa: SIM115 - the caller's
    except OSError as error:
        raise UsageError(f"{path} can't be read any more: {error.strerror}", hint="submit again") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError(f"{path} is no file any more", hint="submit again")
    return file


def _read(digest: Digest, path: Path, expected: int) -> bytes:
    with open_content(path) as file:
        try:
            content = file.read(expected + 1)
        except OSError as error:
            raise UsageError(f"{path} can't be read any more: {error.strerror}", hint="submit again") from None
    if digest_of(content) != digest:
        raise UsageError(f"{path} changed while it was being sent", hint="submit again when nothing writes to it")
    return content
