"""Where the last lines of a log begin, found from its end; one piece in memory, however long the lines are."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpulayer.client import calls
from gpulayer.client.following import LogCursor, read_logs
from gpulayer.client.transport import StreamBroken, Transport
from gpulayer.errors import Unreachable

if TYPE_CHECKING:
    from gpulayer.client.lines import LineFilter

__all__ = ["TailScan", "find_tail"]

_FIRST_BYTES: Final = 16 * 1024
_BYTES_A_LINE: Final = 128
_GROWTH: Final = 8
_TRIES: Final = 5


class TailScan:
    """Pure: the last ``lines`` lines of what passes. ``start`` is the offset of the first byte that passes."""

    def __init__(self, lines: int, start: int) -> None:
        self._lines = lines
        self._offset = start
        self._is_ended = True  # by a newline, or by nothing having come yet
        self._starts: deque[int] = deque(maxlen=lines + 1)  # of lines whose beginning was seen
        self._count = 0

    def feed(self, chunk: bytes) -> None:
        if not chunk:
            return
        if self._is_ended:
            self._starts.append(self._offset)
            self._count += 1
        position = chunk.find(b"\n")
        last = len(chunk) - 1
        while 0 <= position < last:
            self._starts.append(self._offset + position + 1)
            self._count += 1
            position = chunk.find(b"\n", position + 1)
        self._is_ended = position == last
        self._offset += len(chunk)

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self._offset

    def begins(self, *, is_whole: bool) -> int | None:
        """Where the last lines begin; None where more before them is needed. is_whole: there is nothing before."""
        if not self._lines:
            return self._offset
        # Where the scan began inside of a line, its "first line" is a piece of one: one line more must have passed.
        if self._count > self._lines:
            return self._starts[-self._lines]
        if not is_whole:
            return None
        return self._starts[-min(self._lines, self._count)] if self._count else self._offset


def find_tail(
    transport: Transport, ref: str, cursor: LogCursor, *, lines: int, only: "LineFilter | None" = None
) -> int:
    """The offset at which the last ``lines`` lines begin of what ``cursor`` would read. Blocks.

    only: count the lines that pass it alone; everything is read for it. Raises Unreachable.
    """
    if only is not None:
        return _last_matches(read_logs(transport, ref, cursor=replace(cursor)), only, lines)
    size, before = max(_FIRST_BYTES, lines * _BYTES_A_LINE), -1
    while True:
        scan, start = _scan(transport, ref, cursor, lines, size)
        # A start that did not move is that of the log, or where ``since_ms`` lets it begin.
        found = scan.begins(is_whole=start in (0, before))
        if found is not None:
            return found
        size, before = size * _GROWTH, start


def _last_matches(chunks: Iterable[bytes], only: "LineFilter", lines: int) -> int:
    starts: deque[int] = deque(maxlen=lines)
    size = 0
    for chunk in chunks:
        only.feed(chunk, starts.append)
        size += len(chunk)
    only.end(starts.append)
    return starts[0] if starts else size


def _scan(transport: Transport, ref: str, cursor: LogCursor, lines: int, size: int) -> tuple[TailScan, int]:
    call = calls.read_logs(
        ref,
        attempt=cursor.attempt,
        node=cursor.rank,
        stream=cursor.stream,
        since_ms=cursor.since_ms,
        index=cursor.index,
        tail_bytes=size,
    )
    for _ in range(_TRIES):
        try:
            with transport.stream(call) as stream:
                scan = TailScan(lines, stream.start)
                for chunk in stream.chunks:
                    scan.feed(chunk)
                return scan, stream.start
        except StreamBroken:
            continue
    raise Unreachable(f"the connection to {transport.url} broke {_TRIES} times", hint="try again later")
