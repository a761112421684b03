"""How a process ends that plugins have run in: at once, with its exit code, whatever they have left in it.

Python waits at its end for threads that are no daemons, for what was registered with ``atexit`` and for finalizers.
None of ours needs that; a plugin's may never return, and would keep a lock and a port that the next start wants.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

__all__ = ["end_with", "told_to_end"]

_SAY_S: Final = 2.0
_FAILED: Final = 1
_INTERRUPTED: Final = 130


def end_with(run: Callable[[], int]) -> NoReturn:
    """Call ``run``, which closes all that it has opened, and end this process with the code that it returns.

    What it raises is told as Python would tell it, and has the code that Python gives it.
    """
    error: BaseException | None = None
    try:
        code = run()
    except BaseException as raised:
        code, error = _code_of(raised), raised
    try:
        # In a thread: another one may hold a stream's lock for ever.
        last_words = threading.Thread(target=_say_and_flush, args=(error,), daemon=True)
        last_words.start()
        last_words.join(_SAY_S)
    finally:  # whatever comes in between, Ctrl-C or that no thread is to be had
        os._exit(code & 0xFF)


@contextmanager
def told_to_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is inside as Ctrl-C does, so that it takes away what it has begun; the exit code is
    that of the signal."""
    told: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        told.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):  # that of an event loop cancels its task, wherever it is: no child is lost in its start
            interrupt(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    before = {}
    try:
        with suppress(ValueError):  # in a thread, which no signal reaches
            for number in (signal.SIGTERM, signal.SIGHUP):
                before[number] = signal.signal(number, leave)
        yield
    except KeyboardInterrupt:
        if told:
            raise SystemExit(128 + told[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _code_of(raised: BaseException) -> int:
    match raised:
        case SystemExit(code=None):
            return 0
        case SystemExit(code=int() as code):
            return code
        case KeyboardInterrupt():
            return _INTERRUPTED
        case _:
            return _FAILED


def _say_and_flush(error: BaseException | None) -> None:
    if isinstance(error, SystemExit):
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
    elif error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a closed pipe, or a stream that a plugin has put there
            stream.flush()
