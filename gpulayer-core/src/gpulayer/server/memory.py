"""What keeps the memory of a control plane level, that serves for months: cycles of garbage are looked for neither too
often nor too seldom, threads share two heaps, and what those have free goes back.
"""

import asyncio
import ctypes
import gc
import itertools
from contextlib import suppress
from typing import Final

__all__ = ["collect_seldom", "keep_collecting", "share_heaps"]

_COLLECT: Final = (50_000, 20, 100)  # a batch of 10,000 jobs makes no garbage cycles; looking for them doubled its time
_COLLECT_S: Final = 10.0
_MIDDLE_EVERY: Final = 30  # of these: 5 minutes
_ALL_EVERY: Final = 60  # ten minutes; it takes 50 ms or so where 100,000 jobs wait
_TRIM_EVERY: Final = 6  # a minute
_M_ARENA_MAX: Final = -8  # of <malloc.h>
_ARENAS: Final = 2


def share_heaps() -> None:
    """Before there are threads: glibc gives each a heap of its own, and keeps what each has free, which adds up where
    they mostly wait. Another C library has nothing to be told."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def collect_seldom() -> None:
    """What there is now stays for good: it is not looked at again."""
    gc.freeze()
    gc.set_threshold(*_COLLECT)
    gc.enable()


async def keep_collecting(*, every_s: float = _COLLECT_S) -> None:
    """Each connection that has ended is a garbage cycle (asyncio's transports hold a bound method of their own). A
    plane that is not very busy makes so little else that ``_COLLECT`` alone would keep hours of them: 10 MiB and more.
    """
    for count in itertools.count(1):
        await asyncio.sleep(every_s)
        gc.collect(2 if count % _ALL_EVERY == 0 else 1 if count % _MIDDLE_EVERY == 0 else 0)
        if count % _TRIM_EVERY == 0:
            _give_back()


def _give_back() -> None:
    """Whole pages that are free amid a heap, which glibc keeps by itself."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
