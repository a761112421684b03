"""The scorer: a mark that falls with the price, and a refusal above a maximum."""

from collections.abc import Mapping, Sequence
from typing import Final

from gpulayer.plugins import Mark, Refusal, ScoreBatch, WorkerFacts
from gpulayer_cheapest_hour.prices import Tariff, usd_an_hour

__all__ = ["CheapestHour"]

_LIFETIME_S: Final = 300.0  # so that a new hour of the tariff is noticed soon


class CheapestHour:
    """Free machines get the mark 1, those of a dollar an hour 0.5, of three 0.25; of unknown prices, no opinion.

    A mark says nothing of the other machines in the batch: it is kept, and compared with marks of other batches.
    """

    def __init__(
        self, *, prices: Mapping[str, float] | None = None, tariff: Tariff | None = None, most: float | None = None
    ) -> None:
        self._prices = dict(prices or {})
        self._tariff = tariff or Tariff()
        self._most = most

    @property
    def name(self) -> str:
        return "cheapest-hour"

    @property
    def lifetime_s(self) -> float:
        return _LIFETIME_S

    def score(self, batch: ScoreBatch) -> Sequence[Mark | Refusal | None]:
        # The request does not matter here, so each machine is looked at once, however many requests there are.
        opinions = [self._opinion(machine, batch.wall_ms) for machine in batch.machines]
        return [opinions[pair.machine] for pair in batch.pairs]

    def _opinion(self, machine: WorkerFacts, wall_ms: int) -> Mark | Refusal | None:
        price = usd_an_hour(machine, self._prices)
        if price is None:
            return None
        now = price * self._tariff.factor(wall_ms)
        if self._most is not None and now > self._most:
            return Refusal(f"costs ${now:.2f} an hour now, more than ${self._most:.2f}")
        return Mark(1 / (1 + now))
