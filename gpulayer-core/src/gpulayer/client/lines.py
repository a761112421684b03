"""Lines of a log that match, out of bytes that come in pieces of any size. Pure; bounded however long a line is."""

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from gpulayer.errors import UsageError

__all__ = ["LineFilter", "compile_pattern"]

LONGEST: Final = 2**20


class _Mode(Enum):
    READING = "reading"
    PASSING = "passing"  # a line over the limit that matched: all of it goes out
    DROPPING = "dropping"  # one that did not


class LineFilter:
    """Lets through the lines that ``pattern`` is found in.

    Of a line that a carriage return wrote over, the last state counts and goes out. Bytes are read as UTF-8 with
    replacement, and go out as they came. Of a line over ``longest`` bytes its beginning is looked at.
    """

    def __init__(self, pattern: re.Pattern[str], *, longest: int = LONGEST) -> None:
        self._pattern = pattern
        self._longest = longest
        self._state = bytearray()
        self._mode = _Mode.READING
        self._offset = 0  # of the next byte to come
        self._line_start = 0

    def feed(self, chunk: bytes, found: Callable[[int], object] = lambda _start: None) -> bytes:
        """What goes out now. ``found`` is told where each line that matched began, counted in bytes fed."""
        out: list[bytes] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._take(chunk[start:end], out, found)
            self._close(b"\n", out, found)
            start = end + 1
            self._line_start = self._offset + start
        self._take(chunk[start:], out, found)
        self._offset += len(chunk)
        return b"".join(out)

    def end(self, found: Callable[[int], object] = lambda _start: None) -> bytes:
        """The log is at its end, perhaps within a line."""
        out: list[bytes] = []
        if self._state:
            self._close(b"", out, found)
        self._mode, self._line_start = _Mode.READING, self._offset
        return b"".join(out)

    def _take(self, part: bytes, out: list[bytes], found: Callable[[int], object]) -> None:
        """More of a line, without its newline."""
        if self._mode is _Mode.PASSING:
            out.append(part)
            return
        if self._mode is _Mode.DROPPING:
            rewritten = part.rfind(b"\r")
            if rewritten < 0:
                return
            part, self._mode = part[rewritten + 1 :], _Mode.READING
        self._state += part
        # A return at the very end may be half of a line end.
        rewritten = self._state.rfind(b"\r", 0, len(self._state) - 1) if part else -1
        if rewritten >= 0:
            del self._state[: rewritten + 1]
        if len(self._state) > self._longest:
            if self._matches(self._state[: self._longest]):
                found(self._line_start)
                out.append(bytes(self._state))
                self._mode = _Mode.PASSING
            else:
                self._mode = _Mode.DROPPING
            self._state.clear()

    def _close(self, newline: bytes, out: list[bytes], found: Callable[[int], object]) -> None:
        """The line is whole."""
        if self._mode is _Mode.PASSING:
            out.append(newline)
        elif self._mode is _Mode.READING:
            text = self._state.rstrip(b"\r")
            shown = text[text.rfind(b"\r") + 1 :]
            if self._matches(shown):
                found(self._line_start)
                out.append(bytes(shown) + bytes(self._state[len(text) :]) + newline)
        self._state.clear()
        self._mode = _Mode.READING

    def _matches(self, line: bytearray) -> bool:
        return self._pattern.search(line.decode("utf-8", "replace")) is not None


def compile_pattern(text: str, *, what: str = "pattern") -> re.Pattern[str]:
    """A Python regular expression. Raises UsageError that says what is wrong with it, and where."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            f"{what}: {text[:200]!r} is not a regular expression: {error}", hint="put a backslash before . * ( [ + ?"
        ) from None
