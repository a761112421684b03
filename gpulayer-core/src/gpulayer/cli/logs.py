"""Logs on this program's streams: which part of them, which lines, and stderr beside stdout where a job was split."""

import re
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpulayer.cli.console import say
from gpulayer.cli.raw import RawOutput
from gpulayer.client.following import FINAL_STATES, FollowEvents, LogCursor, follow_logs, read_logs
from gpulayer.client.transport import Transport

if TYPE_CHECKING:
    from gpulayer.wire.jobs import JobRecord

__all__ = ["LogChoice", "SideStream", "say_gap", "show_logs"]


@dataclass(frozen=True, slots=True)
class LogChoice:
    """What ``job logs`` was asked for. tail: only the last lines, of those that ``grep`` is found in where it is given.
    attempt: that one alone; None: the latest, and with ``follow`` all that come."""

    follow: bool = False
    tail: int | None = None
    since_ms: int | None = None
    rank: int = 0
    grep: re.Pattern[str] | None = None
    attempt: int | None = None


def show_logs(transport: Transport, record: "JobRecord", choice: LogChoice) -> None:
    """Write them to stdout; of a split job its stderr to stderr: with ``follow`` side by side, else after it.

    Raises NotFound for an attempt or rank that is not there and for a log that was removed, Unreachable,
    BrokenPipeError.
    """
    number = max(1, len(record["attempts"]))
    if choice.follow and choice.tail is None and record["state"] in FINAL_STATES:
        number = 1
    cursor = LogCursor(
        choice.attempt or number, rank=choice.rank, since_ms=choice.since_ms, is_single=choice.attempt is not None
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
