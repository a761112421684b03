"""Many blobs in one body: a run of frames, each 32 bytes of SHA-256, 8 bytes of length (big-endian), content."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from gpulayer.errors import BadRequest, DigestMismatch
from gpulayer.ids import Digest

__all__ = ["FRAME_HEADER", "MAX_PACKED_BLOB", "PACK_TARGET", "frame", "read_frames"]

FRAME_HEADER: Final = 40
MAX_PACKED_BLOB: Final = 1024 * 1024  # a larger blob travels alone
PACK_TARGET: Final = 8 * 1024 * 1024  # a pack is sent when it has grown this large


def frame(digest: Digest, content: bytes) -> bytes:
    """One frame. The caller vouches for the digest; the reader checks it. ValueError: over MAX_PACKED_BLOB."""
    if len(content) > MAX_PACKED_BLOB:
        raise ValueError(f"a blob of {len(content)} bytes travels alone, not in a pack")
    return bytes.fromhex(digest) + len(content).to_bytes(8, "big") + content


def read_frames(chunks: Iterable[bytes]) -> Iterator[tuple[Digest, bytes]]:
    """Yield (digest, content) of each frame, verified, from a body that comes in chunks of any size.

    Raises BadRequest for a body that is cut short or a frame over the limit, DigestMismatch for false content.
    """
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= FRAME_HEADER:
            length = int.from_bytes(buffer[32:FRAME_HEADER], "big")
            if length > MAX_PACKED_BLOB:
                raise BadRequest(f"a packed blob says it has {length} bytes; the limit is {MAX_PACKED_BLOB}")
            end = FRAME_HEADER + length
            if len(buffer) < end:
                break
            digest, content = Digest(bytes(buffer[:32]).hex()), bytes(buffer[FRAME_HEADER:end])
            del buffer[:end]
            found = hashlib.sha256(content).hexdigest()
            if found != digest:
                raise DigestMismatch(f"a packed blob sent as {digest[:12]}… has digest {found[:12]}…")
            yield digest, content
    if buffer:
        raise BadRequest(f"a pack ends inside a frame ({len(buffer)} bytes left over)")
