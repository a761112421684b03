"""Virtual time: a heap of things to happen, and one source of randomness for a run."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Clockwork"]


@dataclass(slots=True)
class Clockwork:
    """Nothing happens but what was asked for, in order of time, then of asking."""

    seed: int
    now_ms: int = 0
    rng: random.Random = field(init=False)
    steps: int = 0
    trace: list[str] = field(default_factory=list)
    is_tracing: bool = False
    _heap: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311 - reproducible, not secret

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

    def say(self, text: str) -> None:
        """One line of the trace; costs nothing while that is off."""
        if self.is_tracing:
            self.trace.append(f"{self.now_ms / 1000:10.3f}s  {text}")

    def chance(self, probability: float) -> bool:
        """Draws from the run's own numbers, so the same seed decides the same."""
        return self.rng.random() < probability

    def spread_ms(self, mean_ms: float) -> int:
        """An exponentially spread time: mostly short, sometimes long."""
        return 1 + int(self.rng.expovariate(1 / mean_ms))
