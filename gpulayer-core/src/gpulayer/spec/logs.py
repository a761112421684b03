"""The words of logs that several parts of the program share."""

from enum import StrEnum
from typing import Final

__all__ = ["LogStream", "gap_line", "not_whole", "streams_not_whole"]


class LogStream(StrEnum):
    """Of a job that was not split, ``stdout`` is the one log with both in it, in the order in which they came."""

    STDOUT = "stdout"
    STDERR = "stderr"


_NOT_WHOLE: Final = {
    LogStream.STDOUT: "its log did not come home whole",
    LogStream.STDERR: "its stderr did not come home whole",
}


def not_whole(why: str, *, stream: LogStream = LogStream.STDOUT) -> str:
    """The line of evidence for a log whose end never reached the control plane."""
    return f"{_NOT_WHOLE[stream]}: {why}"


def streams_not_whole(evidence: str) -> tuple[LogStream, ...]:
    """The streams of which an attempt's evidence says so."""
    lines = evidence.splitlines()
    return tuple(stream for stream, text in _NOT_WHOLE.items() if any(line.startswith(text) for line in lines))


def gap_line(missing: int | None, *, after: bytes = b"") -> bytes:
    """The line that stands where bytes of a log are missing, on a line of its own ``after`` what came before it.

    None: it is the end that is missing, and nobody knows how much.
    """
    what = "the rest of the log is missing" if missing is None else f"{missing} bytes of the log are missing here"
    return (b"" if not after or after.endswith(b"\n") else b"\n") + f"[gpulayer: {what}]\n".encode()
