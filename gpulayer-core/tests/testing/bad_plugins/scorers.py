"""Scorers."""

import itertools
import time

from bad_plugins.caught import for_ever, given, hanging
from gpulayer.plugins import Mark, Refusal
from gpulayer.testing import ScorerContract


def scorer(test):
    return given(ScorerContract, "scorer", test)


@given(ScorerContract, "scorer")
class GoodScorer:
    name = "good"
    lifetime_s = 60.0

    def score(self, batch):
        return [Mark(0.5) for _ in batch.pairs]


@scorer("plain_name")
class ScorerOfNoName(GoodScorer):
    name = "-"


@scorer("not_for_ever")
class ScorerForEver(GoodScorer):
    lifetime_s = float("inf")


@scorer("every_pair")
class ScorerOfMachines(GoodScorer):
    def score(self, batch):
        return [Mark(0.5) for _ in batch.machines]


@scorer("every_pair")
class ScorerOfNumbers(GoodScorer):
    def score(self, batch):
        return [0.5 for _ in batch.pairs]


@scorer("every_pair")
class ScorerThatRefusesSilently(GoodScorer):
    def score(self, batch):
        return [Refusal("") for _ in batch.pairs]


@scorer("empty_batch")
class ScorerOfMost(GoodScorer):
    def score(self, batch):
        return [Mark(1 / len(batch.pairs)) for _ in batch.pairs] if batch.pairs else [Mark(1 / len(batch.pairs or "x"))]


@scorer("of_the_pair")
class ScorerByPlace(GoodScorer):
    def score(self, batch):
        return [Mark(place / len(batch.pairs)) for place in range(len(batch.pairs))]


@scorer("asked_about_alone")
class ScorerOfTheBest(GoodScorer):
    """Turned, the batch has the same best one."""

    def score(self, batch):
        most = max((machine.cpus for machine in batch.machines), default=1)
        return [Mark(batch.machines[pair.machine].cpus / most) for pair in batch.pairs]


@given(ScorerContract, "scorer")
class ScorerThatRounds(GoodScorer):
    def score(self, batch):
        return [Mark(0.5 + 1e-12 * len(batch.pairs)) for _ in batch.pairs]


@hanging(ScorerContract, "scorer", "not_for_ever")
class ScorerThatNeverAnswers(GoodScorer):
    score = for_ever


@scorer("same_answer")
class ScorerByChance(GoodScorer):
    count = itertools.count()

    def score(self, batch):
        return [Mark(next(self.count) % 7 / 7) for _ in batch.pairs]


@scorer("any_hour")
class ScorerOfTheMorning(GoodScorer):
    def score(self, batch):
        hour = batch.wall_ms // 3_600_000 % 24
        return [Mark((12 - hour) / 12) for _ in batch.pairs]


@scorer("thousand_machines")
class ScorerThatAsksEach(GoodScorer):
    def score(self, batch):
        time.sleep(len(batch.pairs) / 1000)
        return super().score(batch)


@scorer("every_pair")
class ScorerOfDevices(GoodScorer):
    def score(self, batch):
        return [Mark(0.5 if batch.machines[pair.machine].devices[0] else 0) for pair in batch.pairs]
