"""The last lines of a log, without reading the whole of it."""

from dataclasses import dataclass
from typing import Final

from gpulayer.client import calls
from gpulayer.client.transport import StreamBroken, Transport
from gpulayer.errors import Unreachable

__all__ = ["Tail", "last_lines", "read_tail"]

_FIRST_BYTES: Final = 16 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Tail:
    """end: the offset after the last byte, where following goes on."""

    content: bytes
    end: int


def read_tail(transport: Transport, ref: str, *, attempt: int, lines: int) -> Tail:
    """The last ``lines`` lines (of the last 64 MiB at most). Blocks."""
    size = max(_FIRST_BYTES, lines * 128)
    while True:
        content, start = _read(transport, ref, attempt, size)
        if start == 0 or content.count(b"\n") > lines or size >= _MOST_BYTES:
            return Tail(last_lines(content, lines), start + len(content))
        size *= 8


def last_lines(content: bytes, lines: int) -> bytes:
    """Pure. A last line without its newline is a line."""
    if lines <= 0:
        return b""
    position = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _ in range(lines):
        position = content.rfind(b"\n", 0, position)
        if position < 0:
            return content
    return content[position + 1 :]


def _read(transport: Transport, ref: str, attempt: int, size: int) -> tuple[bytes, int]:
    for _ in range(_TRIES):
        try:
            with transport.stream(calls.read_logs(ref, attempt=attempt, tail_bytes=size)) as stream:
                return b"".join(stream.chunks), stream.start
        except StreamBroken:
            continue
    raise Unreachable(f"the connection to {transport.url} broke {_TRIES} times", hint="try again later")
