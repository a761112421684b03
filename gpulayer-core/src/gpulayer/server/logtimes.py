"""When the bytes of a log came: a small file beside it, ``<log>.times``, of pairs (wall clock in ms, offset).

A pair says that the byte at ``offset`` came at that time, and that all up to the next pair came less than
``spacing_ms`` later. So "what came since T" starts at most that much too early and never too late. There are at most
ten pairs a second, one where the log grows slowly, one a minute once there are many; a day's progress bar costs 1 MB.
Times are those of the control plane's wall clock, never falling; they serve readers, and nothing depends on them.
Everything blocks.
"""

import os
import struct
from bisect import bisect_left
from collections import OrderedDict
from pathlib import Path
from typing import Final

__all__ = ["LogTimes", "offset_since", "spacing_ms"]

_PAIR: Final = struct.Struct("<QQ")
_DENSEST_MS: Final = 100
_DENSE_BYTES: Final = 64 * 1024
_MANY: Final = 65_536
_REMEMBERED: Final = 1024


def spacing_ms(number: int) -> int:
    """How long the bytes that belong to pair ``number`` may take to come."""
    return 1_000 if number < _MANY else 60_000


class LogTimes:
    """Writes the pairs. Whoever calls holds the lock of that log."""

    def __init__(self) -> None:
        self._last: OrderedDict[Path, tuple[int, int, int]] = OrderedDict()  # how many pairs, and the last of them

    def note(self, path: Path, offset: int, wall_ms: int) -> None:
        """Bytes from ``offset`` on came at ``wall_ms``. Raises OSError; the log itself is not harmed by it."""
        count, last_ms, last_offset = self._last.get(path) or _read_last(path, offset)
        wall_ms = max(wall_ms, last_ms)
        passed_ms = wall_ms - last_ms
        is_due = passed_ms >= spacing_ms(count) or (
            passed_ms >= _DENSEST_MS and offset - last_offset >= _DENSE_BYTES and count < _MANY
        )
        if not count or is_due:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, count * _PAIR.size)  # a torn pair, and those of bytes that a crash took
                os.pwrite(descriptor, _PAIR.pack(wall_ms, offset), count * _PAIR.size)
            finally:
                os.close(descriptor)
            count, last_ms, last_offset = count + 1, wall_ms, offset
        self._last[path] = (count, last_ms, last_offset)
        self._last.move_to_end(path)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)


def offset_since(path: Path, wall_ms: int, size: int) -> int | None:
    """Where what came at ``wall_ms`` or later begins in a log of ``size`` bytes; None where no times are known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        count = os.fstat(descriptor).st_size // _PAIR.size
        if not count:
            return None
        first = bisect_left(range(count), True, key=lambda n: _read(descriptor, n)[0] + spacing_ms(n + 1) > wall_ms)
        if first == count:
            return size
        time_ms, offset = _read(descriptor, first)
        # What lies before the first pair came before its time, nobody knows when.
        return 0 if not first and wall_ms <= time_ms else min(offset, size)
    finally:
        os.close(descriptor)


def _read_last(path: Path, offset: int) -> tuple[int, int, int]:
    """The last whole pair of a byte that is there; after a crash there may be others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0, 0, 0
    try:
        count = os.fstat(descriptor).st_size // _PAIR.size
        while count:
            time_ms, at = _read(descriptor, count - 1)
            if at < offset or not at:
                return count, time_ms, at
            count -= 1
        return 0, 0, 0
    finally:
        os.close(descriptor)


def _read(descriptor: int, number: int) -> tuple[int, int]:
    time_ms, offset = _PAIR.unpack(os.pread(descriptor, _PAIR.size, number * _PAIR.size))
    return time_ms, offset
