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
_OLDER_EVERY: Final = 6  # of these: a minute
_ALL_SHARE: Final = 1 / 12_000  # of the time, at most: where 100,000 jobs wait it takes 50 ms, so every ten minutes
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

    All there is, is looked at each minute where that is cheap. Only then Python lets go of the tuples, lists and
    dictionaries that it keeps to make new ones of: 40,000 tuples at most, spread all over its memory.
    """
    clock = asyncio.get_running_loop().time
    rests_until = clock()
    for count in itertools.count(1):
        await asyncio.sleep(every_s)
        if count % _OLDER_EVERY:
            gc.collect(0)
            continue
        began = clock()
        if began < rests_until:
            gc.collect(1)
        else:
            gc.collect()
            rests_until = began + (clock() - began) / _ALL_SHARE
        _give_back()


def _give_back() -> None:
    """Whole pages that are free amid a heap, which glibc keeps by itself."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
