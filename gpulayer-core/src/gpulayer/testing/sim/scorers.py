"""Simulated scorers: slow, silent, refusing, contradicting themselves, and wrong about how long their word holds."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gpulayer.engine.effects import AskScorer
from gpulayer.ids import Digest
from gpulayer.spec.opinion import Mark, Opinion, Refusal
from gpulayer.testing.sim.clockwork import Clockwork

__all__ = ["SimScorers"]

Said = tuple[tuple[Digest, Opinion | None], ...]


@dataclass(slots=True)
class SimScorers:
    """Of one run; about a third of all runs have any. They draw from numbers of their own, so that runs without them
    are what they were. ``is_honest``: from now on they answer soon, refuse nothing, and say what is so."""

    clock: Clockwork
    names: tuple[str, ...] = field(init=False)
    is_honest: bool = False
    faults: int = 0
    refusals: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"scores {self.clock.seed}")  # noqa: S311 - reproducible, not secret
        self.names = ("cheap", "near")[: self._rng.choice([0, 0, 0, 0, 1, 2])]

    def ask(self, asked: AskScorer, give: Callable[[int, Said], None]) -> None:
        """``give`` gets a lifetime and opinions: later, twice, or never."""
        rng = self._rng
        said = tuple((digest, self._opinion()) for digest in asked.digests)
        lifetime_ms = rng.choice([1_000, 5_000, 60_000, 60_000, 600_000])
        delay_ms, times = 1 + int(rng.expovariate(1 / 200)), 1
        if not self.is_honest:
            kind = rng.random()
            if kind < 0.3:
                self.faults += 1
            if kind < 0.1:
                times = 0
            elif kind < 0.2:
                delay_ms += rng.randrange(20_000)
            elif kind < 0.25:
                lifetime_ms = rng.choice([-(10**9), 0, 10**15])
            elif kind < 0.3:
                times = 2
        for number in range(times):
            self.clock.after(delay_ms * (number + 1), lambda: give(lifetime_ms, said))

    def _opinion(self) -> Opinion | None:
        kind = self._rng.random()
        if kind < 0.3 and not self.is_honest:
            self.refusals += 1
            return Refusal("too dear")
        return Mark(round(self._rng.random(), 1)) if kind < 0.8 else None
