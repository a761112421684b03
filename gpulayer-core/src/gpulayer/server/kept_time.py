"""The wall clock as far as it may decide that something is deleted for good.

Logs, events, tokens and keys of submissions go when their time is over, by the wall clock; and a machine whose battery
is empty starts years ahead, until somebody sets it right. So a clock that is more than a week ahead of where this
control plane knows it to have been is not believed at first: what is deleted meanwhile is what was due by the time that
was known, which goes on with the monotonic clock. After a day ahead, of its own counting and over any number of starts,
it is believed: then the control plane had only not run for long.

What is known lies in ``wall-clock`` in the state folder; where that is missing, in the newest event. Nothing else asks
for it: who may do what, and what runs, is told by other clocks or undone by the right time.
"""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpulayer.clock import Clock
from gpulayer.spec.units import format_duration
from gpulayer.whole import write_whole

__all__ = ["BELIEVED_AFTER_MS", "JUMP_MS", "KeptTime"]

JUMP_MS: Final = 7 * 86_400_000
BELIEVED_AFTER_MS: Final = 86_400_000
_LATEST_MS: Final = 2**53

_log = logging.getLogger(__name__)


class KeptTime:
    """``newest_ms``: the wall time of the newest event; None: nothing is known, and the clock is right. Not safe for
    several threads."""

    def __init__(self, path: Path, *, clock: Clock, newest_ms: int | None) -> None:
        self._path = path
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        known = _read(path)
        if known is not None:
            self._known_ms, self._ahead_since_ms = known
        else:
            self._known_ms, self._ahead_since_ms = clock.wall_ms() if newest_ms is None else newest_ms, None
        self._is_told = False

    def now_ms(self) -> int:
        """What is older than this by so much as it is kept for may be deleted."""
        wall_ms = self._clock.wall_ms()
        passed_ms = self._clock.monotonic_ms() - self._began_ms
        expected_ms = self._known_ms + passed_ms
        if wall_ms <= expected_ms + JUMP_MS:
            self._ahead_since_ms = None
            self._known_ms = max(self._known_ms, wall_ms - passed_ms)
            return wall_ms
        if self._ahead_since_ms is None or wall_ms < self._ahead_since_ms:
            self._ahead_since_ms = wall_ms
        if wall_ms - self._ahead_since_ms >= BELIEVED_AFTER_MS:
            self._ahead_since_ms = None
            self._known_ms = wall_ms - passed_ms
            return wall_ms
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "the clock is %s ahead of when this control plane ran last; until it has been for a day nothing is"
                " deleted by it. If it is wrong, set it",
                format_duration((wall_ms - expected_ms) // 3_600_000 * 3_600_000),
            )
        return expected_ms

    def save(self) -> None:
        """For the next start. Blocks. What can't be written costs it only that."""
        passed_ms = self._clock.monotonic_ms() - self._began_ms
        since = "" if self._ahead_since_ms is None else f" {self._ahead_since_ms}"
        with suppress(OSError):
            write_whole(self._path, f"{self._known_ms + passed_ms}{since}\n".encode())


def _read(path: Path) -> tuple[int, int | None] | None:
    try:
        numbers = [int(part) for part in path.read_bytes().split()]
    except (OSError, ValueError):
        return None
    if len(numbers) not in (1, 2) or not all(0 <= number < _LATEST_MS for number in numbers):
        return None
    return numbers[0], numbers[1] if len(numbers) == 2 else None
