"""A log's bytes on this program's own streams: untouched, counted, and never torn by an interrupt."""

import copy
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TextIO

from gpulayer.client.following import LogCursor

__all__ = ["ElementsOutput", "RawOutput"]

_LOOK_UP_S: Final = 0.5


class RawOutput:
    """Bytes to a stream as they are, with interrupts held back while they are written.

    at: the log up to where it is out; ``cursor`` begins there. is_terminated: SIGTERM came, so there is nobody to ask.
    """

    def __init__(self, stream: TextIO, cursor: LogCursor) -> None:
        self._stream = stream
        self.at = cursor
        self.is_terminated = False
        self._is_writing = False
        self._is_pending = False

    def cursor(self) -> LogCursor:
        """A new one, which goes on where this output stands."""
        return copy.copy(self.at)

    def write(self, piece: bytes, cursor: LogCursor) -> None:
        """Write all of it, then remember that the log is out up to ``cursor``. Raises BrokenPipeError."""
        self._is_writing = True
        try:
            self._write(piece)
            self.at = copy.copy(cursor)
        finally:
            self._is_writing = False
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def _write(self, piece: bytes) -> None:
        self._write_bytes(piece)

    def _write_bytes(self, piece: bytes) -> None:
        # Straight to the descriptor: a buffer would copy, and a thread that dies with the program would hold its lock.
        self._stream.flush()
        left = memoryview(piece)
        while left:
            left = left[os.write(self._stream.fileno(), left) :]

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM raise KeyboardInterrupt, but not within a write (unless repeated: a stuck reader).

        What somebody ignores on purpose (nohup, a background job of a shell) stays ignored.
        """
        taken = {
            number: before
            for number in (signal.SIGINT, signal.SIGTERM)
            if (before := signal.getsignal(number)) in (signal.default_int_handler, signal.SIG_DFL)
        }
        for number in taken:
            signal.signal(number, self._on_interrupt)
        try:
            with _looks_up():
                yield
        finally:
            for number, before in taken.items():
                signal.signal(number, before)

    def _on_interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.is_terminated = self.is_terminated or number == signal.SIGTERM
        if self._is_writing and not self._is_pending:
            self._is_pending = True
            return
        self._is_pending = False
        raise KeyboardInterrupt


class ElementsOutput(RawOutput):
    """The logs of an array's elements, one after the other: each line begins with the number of its element."""

    def __init__(self, stream: TextIO, cursor: LogCursor) -> None:
        super().__init__(stream, cursor)
        self._is_in_line = False

    def next_element(self) -> None:
        """What comes now is of the next one. A line that has no end gets one."""
        if self._is_in_line:
            self._write_bytes(b"\n")
            self._is_in_line = False
        at = self.at
        self.at = LogCursor(stream=at.stream, rank=at.rank, since_ms=at.since_ms, index=(at.index or 0) + 1)

    def _write(self, piece: bytes) -> None:
        if not piece:
            return
        prefix = b"[%d] " % (self.at.index or 0)
        shown = prefix.join(line for line in re.split(rb"(?<=\n)", piece) if line)
        self._write_bytes(shown if self._is_in_line else prefix + shown)
        self._is_in_line = not piece.endswith(b"\n")


@contextmanager
def _looks_up() -> Iterator[None]:
    """Come out of every long wait twice a second: an interrupt that falls between Python's last look for one and the
    system call that waits is only noticed when that call returns, and a quiet log may be waited for all day."""
    if not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, lambda _number, _frame: None)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_UP_S, _LOOK_UP_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
