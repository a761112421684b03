"""Simulated scorers: slow, silent, refusing, contradicting themselves, and wrong about how long their word holds."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gpulayer.engine.effects import AskScorer
from gpulayer.ids import Digest
from gpulayer.spec.opinion import Mark, Opinion, Refusal
from gpulayer.testing.sim.clockwork import Clockwork

__all__ = ["SimScorers"]

Said = tuple[tuple[Digest, Opinion | None], ...]


@dataclass(slots=True)
class SimScorers:
    """``is_honest``: from now on they answer soon, refuse nothing, and say what is so."""

    clock: Clockwork
    names: tuple[str, ...] = ()
    is_honest: bool = False
    refusals: int = 0

    def ask(self, asked: AskScorer, give: Callable[[int, Said], None]) -> None:
        """``give`` gets a lifetime and opinions: later, twice, or never."""
        rng = self.clock.numbers("scorer", asked.scorer)
        said = tuple((digest, self._opinion(rng)) for digest in asked.digests)
        lifetime_ms = rng.choice([1_000, 5_000, 60_000, 60_000, 600_000])
        delay_ms, times = 1 + int(rng.expovariate(1 / 200)), 1
        kind = 1.0 if self.is_honest else rng.random()
        if kind < 0.1:
            self.clock.fault("scorer_silent", asked.scorer)
            times = 0
        elif kind < 0.2:
            self.clock.fault("scorer_slow", asked.scorer)
            delay_ms += rng.randrange(20_000)
        elif kind < 0.25:
            self.clock.fault("scorer_lies", asked.scorer)
            lifetime_ms = rng.choice([-(10**9), 0, 10**15])
        elif kind < 0.3:
            self.clock.fault("scorer_repeats", asked.scorer)
            times = 2
        for number in range(times):
            self.clock.after(delay_ms * (number + 1), lambda: give(lifetime_ms, said))

    def _opinion(self, rng: Random) -> Opinion | None:
        kind = rng.random()
        if kind < 0.3 and not self.is_honest:
            self.refusals += 1
            return Refusal("too dear")
        return Mark(round(rng.random(), 1)) if kind < 0.8 else None
