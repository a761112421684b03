"""What spawner and watchdog say in their log. A full disk takes their words, never their lives."""

import os
import sys
import traceback

__all__ = ["say", "say_fault"]


def say(text: str) -> None:
    """One line to standard output, which is the log."""
    _write(1, f"{text}\n")


def say_fault() -> None:
    """The traceback of the exception that is being handled."""
    _write(2, traceback.format_exc())


def _write(fd: int, text: str) -> None:
    # Past Python's own streams: what one of those could not write it would try again, and raise, at the end.
    stream = sys.stdout if fd == 1 else sys.stderr
    try:
        stream.flush()
        os.write(fd, text.encode(errors="backslashreplace"))
    except OSError:
        pass  # there is no other place to say it
