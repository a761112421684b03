"""A job's log from first byte to last, over several attempts, restarts of the control plane and lost connections.

``LogCursor`` and ``Following`` are the pure part: which bytes come next, and what a break or an end means.
``follow_logs`` and ``read_logs``, and their async twins, only send and read. Where bytes are missing they hand out a
line that says so, in its place.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from gpulayer.client import calls
from gpulayer.client.calls import Call
from gpulayer.client.transport import StreamBroken, StreamQuiet, Transport
from gpulayer.errors import Unreachable
from gpulayer.spec.logs import gap_line

if TYPE_CHECKING:
    from gpulayer.client.async_transport import AsyncTransport
    from gpulayer.wire.jobs import JobRecord

__all__ = [
    "FINAL_STATES",
    "FRUITLESS",
    "LOST_FOR_S",
    "FollowEvents",
    "Following",
    "LogCursor",
    "Next",
    "follow_logs",
    "follow_logs_async",
    "read_logs",
    "read_logs_async",
]

# The names of spec.job.FINAL_STATES; a command that only reads records need not import the domain types.
FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled", "timed_out", "lost", "rejected"})
_HOLD_S: Final = 1.0
LOST_FOR_S: Final = 60.0  # a job goes on meanwhile, so whoever follows it, or awaits its end, is more patient
FRUITLESS: Final = 30  # connections in a row that broke before a single byte came


class Next(Enum):
    """What to do now that a stream has ended."""

    READ = "read"
    HOLD = "hold"  # nothing new yet: look again in a moment
    DONE = "done"


@dataclass(slots=True)
class LogCursor:
    """The next byte: ``offset`` in the log of ``attempt`` (None: of the latest, until an answer has said which).

    rank: the node. since_ms: where each attempt's log begins. is_single: the end is that of this attempt.
    last: what was handed out last, up to one byte, so that a gap's line gets a line of its own. index: of an array, the
    element.
    is_early: the last answer was that there is no such attempt yet; is_late: it was over when that was looked up.
    """

    attempt: int | None = 1
    offset: int = 0
    stream: str = "stdout"
    rank: int = 0
    since_ms: int | None = None
    is_single: bool = False
    is_begun: bool = False
    is_early: bool = False
    is_late: bool = False
    last: bytes = b""
    index: int | None = None

    def call(self, ref: str, *, follow: bool = True) -> Call[bytes]:
        """Reads from the next byte on; to be made anew for each try."""
        return calls.read_logs(
            ref,
            offset=self.offset,
            attempt=self.attempt,
            node=self.rank,
            stream=self.stream,
            since_ms=None if self.is_begun else self.since_ms,
            follow=follow,
            index=self.index,
        )

    def look(self, ref: str, *, wait_s: float = 0.0) -> "Call[JobRecord]":
        """At the record of what the log is of."""
        return calls.get_job(ref, wait_s=wait_s, index=self.index)

    def opened(self, start: int, attempt: int | None = None) -> int:
        """The answer begins at ``start``. Returns how many bytes that should come first are missing. attempt: as in
        ``ByteStream``; where it is 0 there was no log yet, so nothing has begun."""
        self.is_early = attempt == 0
        if self.is_early:
            return 0
        is_sought = self.since_ms is not None and not self.is_begun
        gap = 0 if is_sought else max(0, start - self.offset)
        self.offset, self.is_begun = max(start, self.offset), True
        self.attempt = self.attempt or attempt or None
        return gap

    def took(self, chunk: bytes) -> None:
        """These bytes of the log were handed out."""
        self.offset, self.is_begun = self.offset + len(chunk), True
        self.last = chunk[-1:]

    def ended(self, record: "JobRecord") -> Next:
        """The stream came to its end; ``record`` was read after that. Moves on to the next attempt where there is one.

        A stream also ends when the control plane goes down in order, so its end alone proves nothing.
        """
        attempts, number = record["attempts"], self.attempt or 1
        is_over = len(attempts) > number or (len(attempts) == number and attempts[-1]["ended_at"] is not None)
        is_final = record["state"] in FINAL_STATES
        if self.is_early and is_over and not self.is_late:
            # It began and ended between the answer that there is none and the record: its log was not read yet.
            self.is_late = True
            return Next.READ
        if (is_final and len(attempts) <= number) or (is_over and self.is_single):
            return Next.DONE
        if not is_over:
            return Next.HOLD
        self.attempt, self.offset, self.is_begun, self.is_late = number + 1, 0, False, False
        return Next.READ


@dataclass(frozen=True, slots=True)
class FollowEvents:
    """Who wants to hear what happens on the way. ``ended``: (record, number) when an attempt ended and the job goes on.

    ``lost``: the connection broke and is tried again. ``dropped``: bytes that the log no longer holds. ``untimed``:
    the control plane does not know when the bytes came, so all of them follow.
    """

    ended: "Callable[[JobRecord, int], None]" = lambda _record, _number: None
    lost: Callable[[str], None] = lambda _why: None
    dropped: Callable[[int], None] = lambda _bytes: None
    untimed: Callable[[], None] = lambda: None


class Following:
    """One log on its way to a reader, without the reading: told what happened, it says what is next."""

    def __init__(self, cursor: LogCursor, events: FollowEvents, url: str) -> None:
        self._cursor = cursor
        self._events = events
        self._url = url
        self._before: tuple[int | None, int] = (0, 0)
        self._fruitless = 0
        self._is_told = False

    def opening(self) -> None:
        """A connection is about to be made."""
        self._before = (self._cursor.attempt, self._cursor.offset)

    def opened(self, *, start: int, attempt: int | None, is_timed: bool) -> bytes:
        """The answer's head is here. Returns the line to hand out for bytes that are missing, or nothing."""
        gap = self._cursor.opened(start, attempt)
        if not is_timed:
            self._events.untimed()
        if not gap:
            return b""
        self._events.dropped(gap)
        line = gap_line(gap, after=self._cursor.last)
        self._cursor.last = line[-1:]
        return line

    def broke(self, why: StreamBroken) -> Next:
        """READ or HOLD. Raises Unreachable after ``FRUITLESS`` connections in a row that broke before a byte came.

        A stream that was merely quiet is opened anew without a word; whether anybody is there, that opening tells.
        """
        if isinstance(why, StreamQuiet):
            self._fruitless = 0
            return Next.READ
        is_fruitless = (self._cursor.attempt, self._cursor.offset) == self._before
        self._fruitless = self._fruitless + 1 if is_fruitless else 0
        if self._fruitless == FRUITLESS:
            raise Unreachable(f"{self._url} broke {FRUITLESS} connections in a row: {why}", hint="see its log")
        if not self._is_told or not is_fruitless:
            self._events.lost(str(why))
            self._is_told = True
        return Next.HOLD if self._fruitless > 1 else Next.READ

    def ended(self, record: "JobRecord") -> Next:
        """The stream came to its end, and the record was read after it."""
        self._fruitless, self._is_told = 0, False
        number = self._cursor.attempt or 1
        found = self._cursor.ended(record)
        if found is Next.READ and self._cursor.attempt not in (None, number):
            self._events.ended(record, number)
        return found


def follow_logs(
    transport: Transport,
    ref: str,
    *,
    lost_for_s: float = LOST_FOR_S,
    events: FollowEvents = FollowEvents(),
    cursor: LogCursor | None = None,
) -> "Iterator[bytes | JobRecord]":
    """Yield the log's bytes as they come and, last of all, the record: final, or of the attempt's end if ``is_single``.

    Raises Unreachable when nothing answers for ``lost_for_s``; ``cursor`` then says where to go on.
    """
    cursor = cursor or LogCursor()
    following = Following(cursor, events, transport.url)
    while True:
        following.opening()
        try:
            with transport.stream(cursor.call(ref), retry_for_s=lost_for_s) as stream:
                if line := following.opened(start=stream.start, attempt=stream.attempt, is_timed=stream.is_timed):
                    yield line
                for chunk in stream.chunks:
                    cursor.took(chunk)
                    yield chunk
        except StreamBroken as broken:
            if following.broke(broken) is Next.HOLD:
                transport.send(cursor.look(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)
            continue
        record = transport.send(cursor.look(ref), retry_for_s=lost_for_s)
        match following.ended(record):
            case Next.DONE:
                yield record
                return
            case Next.HOLD:
                transport.send(cursor.look(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)


def read_logs(
    transport: Transport, ref: str, *, events: FollowEvents = FollowEvents(), cursor: LogCursor | None = None
) -> Iterator[bytes]:
    """Yield what there is now of one attempt's log, by default the latest's. Raises Unreachable."""
    cursor = cursor or LogCursor(None)
    following = Following(cursor, events, transport.url)
    while True:
        following.opening()
        try:
            with transport.stream(cursor.call(ref, follow=False)) as stream:
                if line := following.opened(start=stream.start, attempt=stream.attempt, is_timed=stream.is_timed):
                    yield line
                for chunk in stream.chunks:
                    cursor.took(chunk)
                    yield chunk
            return
        except StreamBroken as broken:
            following.broke(broken)


async def follow_logs_async(
    transport: "AsyncTransport",
    ref: str,
    *,
    lost_for_s: float = LOST_FOR_S,
    events: FollowEvents = FollowEvents(),
    cursor: LogCursor | None = None,
) -> "AsyncIterator[bytes | JobRecord]":
    """The twin of ``follow_logs``."""
    cursor = cursor or LogCursor()
    following = Following(cursor, events, transport.url)
    while True:
        following.opening()
        try:
            async with transport.stream(cursor.call(ref), retry_for_s=lost_for_s) as stream:
                if line := following.opened(start=stream.start, attempt=stream.attempt, is_timed=stream.is_timed):
                    yield line
                async for chunk in stream.chunks:
                    cursor.took(chunk)
                    yield chunk
        except StreamBroken as broken:
            if following.broke(broken) is Next.HOLD:
                await transport.send(cursor.look(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)
            continue
        record = await transport.send(cursor.look(ref), retry_for_s=lost_for_s)
        match following.ended(record):
            case Next.DONE:
                yield record
                return
            case Next.HOLD:
                await transport.send(cursor.look(ref, wait_s=_HOLD_S), retry_for_s=lost_for_s)


async def read_logs_async(
    transport: "AsyncTransport", ref: str, *, events: FollowEvents = FollowEvents(), cursor: LogCursor | None = None
) -> AsyncIterator[bytes]:
    """The twin of ``read_logs``."""
    cursor = cursor or LogCursor(None)
    following = Following(cursor, events, transport.url)
    while True:
        following.opening()
        try:
            async with transport.stream(cursor.call(ref, follow=False)) as stream:
                if line := following.opened(start=stream.start, attempt=stream.attempt, is_timed=stream.is_timed):
                    yield line
                async for chunk in stream.chunks:
                    cursor.took(chunk)
                    yield chunk
            return
        except StreamBroken as broken:
            following.broke(broken)
