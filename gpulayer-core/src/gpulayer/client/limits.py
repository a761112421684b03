"""How long an answer may take, and how large it may be: one set of limits, kept by both shells. Does no IO.

Only time spent waiting for bytes counts, so a reader that is slow itself is never taken for a slow line.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["LIMITS", "Limits", "Pace"]


@dataclass(frozen=True, slots=True)
class Limits:
    """answer_s: for an answer's head as a whole, beyond the time it may be held back on purpose, and for its body
    beside what ``bytes_a_second`` grants. quiet_s: of a followed log without a byte; then it is asked for anew, for
    nobody may be there any more. head_bytes: of a head, and what little of the body came with it. whole_bytes: of an
    answer that is read as a whole, into memory.
    """

    answer_s: float = 60.0
    quiet_s: float = 60.0
    head_bytes: int = 512 * 1024
    whole_bytes: int = 64 * 2**20
    bytes_a_second: int = 1024


LIMITS: Final = Limits()


class Pace:
    """What the next bytes may take. Told what was waited for and what came; ``left_s`` raises TimeoutError."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most_bytes: int | None = None
        self._allowed_s, self._waited_s, self._came, self._rate, self._is_each = 0.0, 0.0, 0, 0, False
        self._rest_s: float | None = None
        self.body()

    def within(self, left_s: float | None) -> None:
        """The whole of the next answer, its head and its body, may take so long at most. None: as its parts may."""
        self._rest_s = left_s

    def head(self, hold_s: float) -> None:
        """An answer's head is next. hold_s: how long it may be held back on purpose."""
        self._begin(self._limits.answer_s + hold_s)
        self._most_bytes = self._limits.head_bytes

    def body(self) -> None:
        """A body is next, which must move."""
        self._begin(self._limits.answer_s)
        self._rate = self._limits.bytes_a_second

    def followed(self) -> None:
        """A body is next that has no end of its own: each wait stands for itself."""
        self._begin(self._limits.quiet_s)
        self._is_each = True

    def left_s(self) -> float:
        """How long to wait for the next piece. Raises TimeoutError where nothing is left."""
        if self._most_bytes is not None and self._came > self._most_bytes:
            raise TimeoutError("a head without an end")
        left_s = self._allowed_s
        if not self._is_each:
            left_s += (self._came / self._rate if self._rate else 0.0) - self._waited_s
        if self._rest_s is not None:
            left_s = min(left_s, self._rest_s)
        if left_s <= 0:
            raise TimeoutError("too slow")
        return left_s

    def came(self, count: int, *, waited_s: float) -> None:
        """A piece came, after that long."""
        self._came += count
        self._waited_s += waited_s
        if self._rest_s is not None:
            self._rest_s -= waited_s

    def _begin(self, allowed_s: float) -> None:
        self._allowed_s, self._waited_s, self._came = allowed_s, 0.0, 0
        self._rate, self._most_bytes, self._is_each = 0, None, False
