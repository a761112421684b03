"""Virtual time: a heap of things to happen, the clocks that machines read, and a source of numbers for each thing."""

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gpulayer.testing.sim.scenario import numbers

__all__ = ["WALL_MS", "Clockwork", "Timepiece", "spread_ms"]

WALL_MS: Final = 1_700_000_000_000


@dataclass(slots=True)
class Clockwork:
    """Nothing happens but what was asked for, in order of time, then of asking. ``now_ms`` is true time, which nobody
    in the world can read.

    faults: by kind. troubled_ms: by entity (a host, ``plane``), until when something was wrong with it.
    """

    seed: int
    now_ms: int = 0
    steps: int = 0
    trace: list[str] = field(default_factory=list)
    is_tracing: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    troubled_ms: dict[str, int] = field(default_factory=dict)
    _heap: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    _numbers: dict[tuple[str, object], Random] = field(default_factory=dict)

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

    def say(self, text: str) -> None:
        """One line of the trace. Whoever says much looks at ``is_tracing`` first."""
        if self.is_tracing:
            self.trace.append(f"{self.now_ms / 1000:10.3f}s  {text}")

    def fault(self, kind: str, entity: str, *, lasts_ms: int = 0) -> None:
        """Count it, and remember that all is not well with the entity so long."""
        self.faults[kind] += 1
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
