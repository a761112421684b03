"""How a worker's lines look: plain at a terminal, with a time in front in its log; and how ``up`` shows that log.

A control plane's own worker is a process in the background even when the control plane is not, so that it outlives
it. What it says stands in its log, which ``up`` reads on from where it ended.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpulayer.cli.console import say

__all__ = ["shown_log", "tell_in_log", "tell_plainly"]

_TIME: Final = "%Y-%m-%d %H:%M:%S"
_TIME_WIDTH: Final = len("2026-11-30 05:00:00 ")
_LOOK_S: Final = 0.2


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record))
        except OSError:
            pass  # nobody looks any more (the terminal is gone): its jobs go on


def tell_plainly() -> None:
    """This process's own worker, in the foreground: its lines on stderr."""
    _tell(_Saying(), logging.Formatter("%(message)s"))


def tell_in_log() -> None:
    """A worker in the background, whose stderr is its log."""
    _tell(logging.StreamHandler(), logging.Formatter("%(asctime)s %(message)s", _TIME))


@contextmanager
def shown_log(log: Path) -> Iterator[None]:
    """While inside, what is added to ``log`` is shown on stderr without its times."""
    ended = threading.Event()
    start = log.stat().st_size if log.exists() else 0
    thread = threading.Thread(target=_show, args=(log, start, ended), name="gpulayer-worker-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("gpulayer").setLevel(logging.INFO)


def _show(log: Path, start: int, ended: threading.Event) -> None:
    position, rest = start, b""
    while True:
        is_last = ended.wait(_LOOK_S)
        try:
            with open(log, "rb") as file:
                file.seek(position)
                piece = file.read()
        except FileNotFoundError:
            piece = b""
        position += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            say(_without_time(line.decode("utf-8", "replace")))
        if is_last:
            return


def _without_time(line: str) -> str:
    stamp = line[:_TIME_WIDTH]
    is_stamp = len(stamp) == _TIME_WIDTH and stamp[4] == stamp[7] == "-" and stamp[-1] == " " and stamp[:4].isdigit()
    return line[_TIME_WIDTH:] if is_stamp else line
