"""Virtual time: a heap of things to happen, the clocks that machines read, and a source of numbers for each thing."""

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final
from zlib import crc32

from gpulayer.testing.sim.scenario import numbers
from gpulayer.testing.sim.story import Story

__all__ = ["WALL_MS", "Clockwork", "Dice", "Timepiece", "spread_ms"]

WALL_MS: Final = 1_700_000_000_000


_MASK: Final = (1 << 64) - 1
_BUCKET_MS: Final = 1_000
CALM_MS: Final = 40_000  # what went wrong before that has no consequences any more


class Dice:
    """A few numbers for one thing at one time (splitmix64): what is asked for elsewhere, or earlier, changes nothing of
    them, and to make one costs next to nothing."""

    __slots__ = ("_state",)

    def __init__(self, *about: int) -> None:
        self._state = hash(about) & _MASK  # of a tuple of integers: the same in every process

    def random(self) -> float:
        """From [0, 1)."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) / (1 << 53)

    def spread_ms(self, mean_ms: float) -> int:
        """See the function of this name."""
        return 1 + int(-math.log(1 - self.random()) * mean_ms)


@dataclass(slots=True)
class Clockwork:
    """Nothing happens but what was asked for, in order of time, then of asking. ``now_ms`` is true time, which nobody
    in the world can read.

    faults: by kind. troubled_ms: by entity (a host, ``plane``), until when what was wrong with it may have
    consequences.
    """

    seed: int
    now_ms: int = 0
    steps: int = 0
    story: Story | None = None
    faults: Counter[str] = field(default_factory=Counter)
    troubled_ms: dict[str, int] = field(default_factory=dict)
    _heap: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    _numbers: dict[tuple[str, object], Random] = field(default_factory=dict)
    _thrown: dict[str, tuple[int, int]] = field(default_factory=dict)

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Equal times run in the order of the calls. A negative delay is none."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_ms + max(delay_ms, 0), self._count, what))

    def run_next(self) -> bool:
        """Let the next thing happen; False when nothing is left to happen."""
        if not self._heap:
            return False
        self.now_ms, _, what = heapq.heappop(self._heap)
        self.steps += 1
        what()
        return True

    def numbers(self, purpose: str, entity: object = "") -> Random:
        """Those of one thing: what others draw changes nothing of them."""
        known = self._numbers.get((purpose, entity))
        if known is None:
            known = self._numbers[purpose, entity] = numbers(self.seed, purpose, entity)
        return known

    def dice(self, entity: str) -> Dice:
        """For the next thing of a kind that happens again and again: by the second, and how many there were in it. So a
        message that is not sent any more changes little of what becomes of later ones."""
        second = self.now_ms // _BUCKET_MS
        last, count = self._thrown.get(entity, (-1, 0))
        count = count + 1 if last == second else 0
        self._thrown[entity] = (second, count)
        return Dice(self.seed, crc32(entity.encode()), second, count)

    def say(self, text: str) -> None:
        """One sentence of the story, if somebody wants to read it."""
        if self.story is not None:
            self.story.say(self.now_ms, text)

    def went_wrong(self, what: str, of: str) -> None:
        """Its end is to be told, by ``over``."""
        if self.story is not None:
            self.story.went_wrong(what, of)

    def over(self, what: str, of: str, text: str) -> None:
        """One sentence of the story, where this was wrong."""
        if self.story is not None:
            self.story.over(self.now_ms, what, of, text)

    def fault(self, kind: str, entity: str, *, lasts_ms: int = 0, after_ms: int = CALM_MS) -> None:
        """Count it, and remember that all is not well with the entity so long, and for what it brings about after it;
        with 0 for both, nothing is late by it."""
        self.faults[kind] += 1
        self.trouble(entity, lasts_ms + after_ms)

    def trouble(self, entity: str, lasts_ms: int) -> None:
        """All is not well with it, though nothing has gone wrong."""
        self.troubled_ms[entity] = max(self.troubled_ms.get(entity, 0), self.now_ms + lasts_ms)


@dataclass(slots=True)
class Timepiece:
    """The clock of one machine, which counts from its start and goes ``rate`` times as fast as true time. wall_ms: how
    far its wall clock is off."""

    clock: Clockwork
    rate: float = 1.0
    wall_ms: int = 0
    _origin_ms: int = 0

    @property
    def now_ms(self) -> int:
        """Runs through suspend, and begins anew with the machine."""
        return int((self.clock.now_ms - self._origin_ms) * self.rate)

    @property
    def wall_now_ms(self) -> int:
        """What people would read there."""
        return WALL_MS + self.clock.now_ms + self.wall_ms

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        """By this clock."""
        self.clock.after(math.ceil(delay_ms / self.rate), what)

    def restart(self) -> None:
        """The machine starts (again)."""
        self._origin_ms = self.clock.now_ms


def spread_ms(rng: Random, mean_ms: float) -> int:
    """An exponentially spread time: mostly short, sometimes long."""
    return 1 + int(rng.expovariate(1 / mean_ms))
