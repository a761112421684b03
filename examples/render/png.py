"""PNG files with the standard library alone: one picture, or many as an animation (APNG, which browsers play).

https://www.w3.org/TR/png-3/
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def write_png(file: Path, width: int, height: int, rgb: bytes) -> None:
    """``rgb``: three bytes a pixel, row by row from the top."""
    rows = b"".join(b"\0" + rgb[start : start + 3 * width] for start in range(0, len(rgb), 3 * width))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    file.write_bytes(SIGNATURE + chunks)


def write_animation(file: Path, frames: Sequence[Path], *, per_second: int) -> None:
    """Frames of one size and kind, played without end. Raises ValueError."""
    pictures = [dict_of(frame) for frame in frames]
    header = pictures[0][b"IHDR"]
    if any(picture[b"IHDR"] != header for picture in pictures):
        raise ValueError("the frames are not all of one size and kind")
    width, height = struct.unpack(">II", header[:8])
    parts = [SIGNATURE, chunk(b"IHDR", header), chunk(b"acTL", struct.pack(">II", len(frames), 0))]
    number = 0
    for picture in pictures:
        control = struct.pack(">IIIIIHHBB", number, width, height, 0, 0, 1, per_second, 0, 0)
        parts.append(chunk(b"fcTL", control))
        number += 1
        if picture is pictures[0]:
            parts.append(chunk(b"IDAT", picture[b"IDAT"]))
        else:
            parts.append(chunk(b"fdAT", struct.pack(">I", number) + picture[b"IDAT"]))
            number += 1
    file.write_bytes(b"".join([*parts, chunk(b"IEND", b"")]))


def chunk(kind: bytes, content: bytes) -> bytes:
    """With its length and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def dict_of(file: Path) -> dict[bytes, bytes]:
    """The chunks of a picture by kind, those of one kind put together."""
    found: dict[bytes, bytes] = {}
    for kind, content in chunks_of(file.read_bytes()):
        found[kind] = found.get(kind, b"") + content
    return found


def chunks_of(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each. Raises ValueError."""
    if not content.startswith(SIGNATURE):
        raise ValueError("this is no PNG")
    at = len(SIGNATURE)
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        yield content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        at += length + 12
