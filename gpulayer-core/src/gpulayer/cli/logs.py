"""Logs on this program's streams: which part of them, which lines, and stderr beside stdout where a job was split."""

import re
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpulayer.cli.console import say
from gpulayer.cli.raw import ElementsOutput, RawOutput
from gpulayer.client import calls
from gpulayer.client.following import FINAL_STATES, FollowEvents, LogCursor, follow_logs, read_logs
from gpulayer.client.transport import Transport
from gpulayer.errors import UsageError

if TYPE_CHECKING:
    from gpulayer.wire.jobs import JobRecord

__all__ = ["LogChoice", "SideStream", "follow_elements", "say_gap", "show_logs"]

_LOOK_AHEAD: Final = 1_000


@dataclass(frozen=True, slots=True)
class LogChoice:
    """What ``job logs`` was asked for. tail: only the last lines, of those that ``grep`` is found in where it is given.
    attempt: that one alone; None: the latest, and with ``follow`` all that come. index: of an array, that element
    alone; None: all of them, one after the other."""

    follow: bool = False
    tail: int | None = None
    since_ms: int | None = None
    rank: int = 0
    grep: re.Pattern[str] | None = None
    attempt: int | None = None
    index: int | None = None


def show_logs(transport: Transport, record: "JobRecord", choice: LogChoice) -> None:
    """Write them to stdout; of a split job its stderr to stderr: with ``follow`` side by side, else after it.

    Raises NotFound for an attempt or rank that is not there and for a log that was removed, Unreachable,
    BrokenPipeError.
    """
    if "array" in record:
        _show_elements(transport, record, choice)
        return
    number = max(1, len(record["attempts"]))
    if choice.follow and choice.tail is None and record["state"] in FINAL_STATES:
        number = 1
    cursor = LogCursor(
        choice.attempt or number,
        rank=choice.rank,
        since_ms=choice.since_ms,
        is_single=choice.attempt is not None,
        index=choice.index,
    )
    stdout = _Shown(transport, record, choice, RawOutput(sys.stdout, cursor))
    if not record["split_streams"]:
        stdout.run()
        return
    errors = replace(cursor, stream="stderr")
    stderr = _Shown(transport, record, choice, RawOutput(sys.stderr, errors), is_aside=True)
    if not choice.follow:
        stdout.run()
        stderr.run()
        return
    side = SideStream(stderr.run)
    stdout.run()
    side.finish()


def follow_elements(
    transport: Transport,
    record: "JobRecord",
    output: ElementsOutput,
    *,
    events: FollowEvents | None = None,
    begun: Callable[[], None] = lambda: None,
    found: Callable[[], None] = lambda: None,
) -> None:
    """Each element's log from where ``output`` stands, to the end of the last; as they end, by their numbers. begun:
    called before anything is written. found: with each answer."""
    while (output.at.index or 0) < record["array"]["count"]:
        cursor = output.cursor()
        last: JobRecord | None = None
        for piece in follow_logs(transport, record["id"], cursor=cursor, events=events or FollowEvents()):
            found()
            if isinstance(piece, bytes):
                begun()
                output.write(piece, cursor)
            else:
                last = piece
        output.next_element()
        after = output.at.index or 0
        if last is not None and not last["attempts"] and after < record["array"]["count"]:
            # It was never begun, and will not be: mostly none of those behind it was, and they may be thousands.
            page = transport.send(calls.list_elements(record["id"], after=after, limit=_LOOK_AHEAD))
            if not any(element["attempts"] for element in page["elements"]):
                return


def _show_elements(transport: Transport, record: "JobRecord", choice: LogChoice) -> None:
    if choice.tail is not None or choice.attempt is not None or choice.grep is not None:
        raise UsageError(
            f"job {record['id']} is an array: --tail, --grep and --attempt are of one element's log",
            hint="say which, as in --index 0",
        )
    streams = [(sys.stdout, "stdout")] + ([(sys.stderr, "stderr")] if record["split_streams"] else [])
    for stream, name in streams:
        output = ElementsOutput(stream, LogCursor(stream=name, since_ms=choice.since_ms, index=0))
        if choice.follow:
            follow_elements(transport, record, output, events=FollowEvents(dropped=say_gap))
        else:
            _read_elements(transport, record["id"], output)


def _read_elements(transport: Transport, job_id: str, output: ElementsOutput) -> None:
    """What there is now, of each element's latest attempt."""
    after: int | None = 0
    while after is not None:
        page = transport.send(calls.list_elements(job_id, after=after))
        for element in page["elements"]:
            if element["attempts"]:
                cursor = output.cursor()
                cursor.attempt = None
                for piece in read_logs(transport, job_id, cursor=cursor):
                    output.write(piece, cursor)
            output.next_element()
        after = page["next"]


def say_gap(missing: int) -> None:
    """The line in the log says it too, but may go to a file that nobody looks at now."""
    say(f"note: {missing:,} bytes of the log are missing")


class SideStream:
    """A second log, written by a thread of its own while the first is followed."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._error: BaseException | None = None
        # A daemon: where the command ends before the log does, nobody waits for the rest.
        self._thread = threading.Thread(target=self._follow, name="gpulayer-stderr", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Block until it has ended, and raise what it raised. May be interrupted, and repeated."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _follow(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error


class _Shown:
    """One log from where it begins to its end."""

    def __init__(
        self,
        transport: Transport,
        record: "JobRecord",
        choice: LogChoice,
        output: RawOutput,
        *,
        is_aside: bool = False,
    ) -> None:
        self._transport = transport
        self._record = record
        self._choice = choice
        self._output = output
        self._is_aside = is_aside
        self._lines = None
        if choice.grep is not None:
            from gpulayer.client.lines import LineFilter  # noqa: PLC0415 - only with --grep

            self._lines = LineFilter(choice.grep)

    def run(self) -> None:
        cursor = self._output.cursor()
        self._seek(cursor)
        events = FollowEvents(ended=self._attempt_ended, dropped=say_gap, untimed=self._untimed)
        pieces: Iterable[bytes | JobRecord]
        if self._choice.follow:
            pieces = follow_logs(self._transport, self._record["id"], cursor=cursor, events=events)
        else:
            pieces = read_logs(self._transport, self._record["id"], cursor=cursor, events=events)
        for piece in pieces:
            if isinstance(piece, bytes):
                self._write(piece, cursor)
        self._flush(cursor)

    def _seek(self, cursor: LogCursor) -> None:
        lines = self._choice.tail
        if lines is None or not self._record["attempts"]:
            return
        from gpulayer.client.tail import find_tail  # noqa: PLC0415 - only with --tail

        only = None
        if self._choice.grep is not None:
            from gpulayer.client.lines import LineFilter  # noqa: PLC0415 - only with --grep

            only = LineFilter(self._choice.grep)
        cursor.offset = find_tail(self._transport, self._record["id"], cursor, lines=lines, only=only)
        cursor.is_begun = True

    def _write(self, piece: bytes, cursor: LogCursor) -> None:
        shown = piece if self._lines is None else self._lines.feed(piece)
        if shown:
            self._output.write(shown, cursor)

    def _flush(self, cursor: LogCursor) -> None:
        rest = b"" if self._lines is None else self._lines.end()
        if rest:
            self._output.write(rest, cursor)

    def _attempt_ended(self, _record: "JobRecord", _number: int) -> None:
        self._flush(self._output.cursor())

    def _untimed(self) -> None:
        if not self._is_aside:
            say("note: nobody noted when the bytes of this log came; all of them are shown")
