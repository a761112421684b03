"""A job's log from first byte to last, over several attempts, restarts of the control plane and lost connections.

``LogCursor`` is the pure part: which bytes come next. ``follow_logs`` and ``follow_logs_async`` do the reading.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from gpulayer.client import calls
from gpulayer.client.calls import Call
from gpulayer.client.transport import StreamBroken, Transport
from gpulayer.errors import Unreachable

if TYPE_CHECKING:
    from gpulayer.client.async_transport import AsyncTransport
    from gpulayer.wire.jobs import JobRecord

__all__ = [
    "FINAL_STATES",
    "FRUITLESS",
    "FollowEvents",
    "LogCursor",
    "Next",
    "broken_again_and_again",
    "follow_logs",
    "follow_logs_async",
]

# The names of spec.job.FINAL_STATES; a command that only reads records need not import the domain types.
FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled", "timed_out", "lost", "rejected"})
_HOLD_S: Final = 1.0
FRUITLESS: Final = 30  # connections in a row that broke before a single byte came


class Next(Enum):
    READ = "read"
    HOLD = "hold"  # nothing new yet: look again in a moment
    DONE = "done"


@dataclass(slots=True)
class LogCursor:
    """The next byte: ``offset`` in the log of ``attempt``."""

    attempt: int = 1
    offset: int = 0

    def call(self, ref: str) -> Call[bytes]:
        """Follows from the next byte on; to be made anew for each try."""
        return calls.read_logs(ref, offset=self.offset, attempt=self.attempt, follow=True)

    def opened(self, start: int) -> int:
        """The answer begins at ``start``. Returns how many bytes were dropped before it (a log over its limit)."""
        gap = max(0, start - self.offset)
        self.offset += gap
        return gap

    def ended(self, record: "JobRecord") -> Next:
        """The stream came to its end; ``record`` was read after that. Moves on to the next attempt where there is one.

        A stream also ends when the control plane goes down in order, so its end alone proves nothing.
        """
        attempts = record["attempts"]
        is_final = record["state"] in FINAL_STATES
        if len(attempts) > self.attempt:
            self.attempt, self.offset = self.attempt + 1, 0
            return Next.READ
        if is_final:
            return Next.DONE
        if len(attempts) == self.attempt and attempts[-1]["ended_at"] is not None:
            self.attempt, self.offset = self.attempt + 1, 0
            return Next.READ
        return Next.HOLD


@dataclass(frozen=True, slots=True)
class FollowEvents:
    """Who wants to hear what happens on the way. ``ended``: (record, number) when an attempt ended and the job goes on.

    ``lost``: the connection broke and is tried again. ``dropped``: bytes that the log no longer holds.
    """

    ended: "Callable[[JobRecord, int], None]" = lambda _record, _number: None
    lost: Callable[[str], None] = lambda _why: None
    dropped: Callable[[int], None] = lambda _bytes: None


def follow_logs(
    transport: Transport,
    ref: str,
    *,
    lost_for_s: float = 60.0,
    events: FollowEvents = FollowEvents(),
    cursor: LogCursor | None = None,
) -> "Iterator[bytes | JobRecord]":
    """Yield the log's bytes as they come and, last of all, the final record.

    Raises Unreachable when nothing answers for ``lost_for_s``; ``cursor`` then says where to go on.
    """
    cursor = cursor or LogCursor()
    fruitless, is_told = 0, False
    while True:
        number, before = cursor.attempt, cursor.offset
        try:
            with transport.stream(cursor.call(ref), retry_for_s=lost_for_s) as stream:
                _report_gap(cursor, stream.start, events)
                for chunk in stream.chunks:
                    cursor.offset += len(chunk)
                    yield chunk
        except StreamBroken as broken:
            fruitless = fruitless + 1 if cursor.offset == before else 0
            if fruitless == FRUITLESS:
                raise broken_again_and_again(transport.url, broken) from None
            if not is_told or not fruitless:
                events.lost(str(broken))
                is_told = True
            if fruitless > 1:
                transport.send(calls.get_job(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)
            continue
        fruitless, is_told = 0, False
        record = transport.send(calls.get_job(ref), retry_for_s=lost_for_s)
        match cursor.ended(record):
            case Next.DONE:
                yield record
                return
            case Next.READ:
                events.ended(record, number)
            case Next.HOLD:
                transport.send(calls.get_job(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)


async def follow_logs_async(
    transport: "AsyncTransport",
    ref: str,
    *,
    lost_for_s: float = 60.0,
    events: FollowEvents = FollowEvents(),
    cursor: LogCursor | None = None,
) -> "AsyncIterator[bytes | JobRecord]":
    """The twin of ``follow_logs``."""
    cursor = cursor or LogCursor()
    fruitless, is_told = 0, False
    while True:
        number, before = cursor.attempt, cursor.offset
        try:
            async with transport.stream(cursor.call(ref), retry_for_s=lost_for_s) as stream:
                _report_gap(cursor, stream.start, events)
                async for chunk in stream.chunks:
                    cursor.offset += len(chunk)
                    yield chunk
        except StreamBroken as broken:
            fruitless = fruitless + 1 if cursor.offset == before else 0
            if fruitless == FRUITLESS:
                raise broken_again_and_again(transport.url, broken) from None
            if not is_told or not fruitless:
                events.lost(str(broken))
                is_told = True
            if fruitless > 1:
                await transport.send(calls.get_job(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)
            continue
        fruitless, is_told = 0, False
        record = await transport.send(calls.get_job(ref), retry_for_s=lost_for_s)
        match cursor.ended(record):
            case Next.DONE:
                yield record
                return
            case Next.READ:
                events.ended(record, number)
            case Next.HOLD:
                await transport.send(calls.get_job(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)


def broken_again_and_again(url: str, why: StreamBroken) -> Unreachable:
    """The error after ``FRUITLESS`` connections in a row that broke before a byte came."""
    return Unreachable(f"{url} broke {FRUITLESS} connections in a row: {why}", hint="see its log")


def _report_gap(cursor: LogCursor, start: int, events: FollowEvents) -> None:
    gap = cursor.opened(start)
    if gap:
        events.dropped(gap)
