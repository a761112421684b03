"""From which number a restored control plane counts on. Pure.

What was given out after the backup is not in it: epochs of attempts, places in the queue, numbers of events, counters
of signatures. None of these may ever mean something else. All of them therefore go on from one number that lies above
all that can have been given out: 64 for each millisecond since the beginning of 2026, many more than any control plane
makes. So the later of two restores of one backup counts above the earlier, too, and nobody has to write down how often
a backup was restored. The clock decides about no lease here: where it can't be right, chance takes its place.
"""

from collections.abc import Callable
from typing import Final

from gpulayer.errors import Conflict

__all__ = ["HIGHEST", "first_of_generation"]

HIGHEST: Final = 2**47
"""Tokens of jobs have 48 bits for an epoch, and JSON in a browser 53."""

_EPOCH_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z
_EACH_MS: Final = 64
_LEAST_JUMP: Final = 2**32
_RANDOM_JUMP: Final = 2**40


def first_of_generation(*, highest: int, wall_ms: int, made_wall_ms: int, below: Callable[[int], int]) -> int:
    """highest: that the backup has given out. wall_ms: now; made_wall_ms: when the backup was made. below: a random
    number from 0 to one less than its argument, for a clock that is wrong: behind the backup, or far ahead. Raises
    Conflict where no numbers are left.
    """
    by_clock = (wall_ms - _EPOCH_MS) * _EACH_MS
    if wall_ms > made_wall_ms and highest < by_clock < HIGHEST:
        return by_clock
    room = HIGHEST - highest - _LEAST_JUMP
    if room <= _LEAST_JUMP:
        raise Conflict(f"the store counts at {highest}: no numbers are left above that", hint="use an older backup")
    return highest + _LEAST_JUMP + below(min(_RANDOM_JUMP, room - 1))
