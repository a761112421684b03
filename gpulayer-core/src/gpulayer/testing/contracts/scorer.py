"""The contract of scorers, as tests."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

import pytest

from gpulayer.plugins.contracts.scorer import (
    MAX_LIFETIME_S,
    SCORER_DEADLINE_S,
    Mark,
    Pair,
    Refusal,
    ScoreBatch,
    Scorer,
)
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Accelerator, Request
from gpulayer.testing.contracts.contract import Ask, SharedContract, check_line, check_plain_name, within
from gpulayer.testing.values import UNICODE, cuda_devices, machine_facts, odd_machines

__all__ = ["ScorerContract"]

_NOON_MS: Final = 1_764_504_000_000  # 2025-11-30 12:00 UTC
_HOUR_MS: Final = 3_600_000
_MANY: Final = 1000
_ROUNDING: Final = 1e-6


class ScorerContract(SharedContract):
    """``class TestMine(ScorerContract)`` with a fixture ``scorer``, and ``machines`` of the kinds that it knows."""

    deadline_s: ClassVar[float] = SCORER_DEADLINE_S

    @pytest.fixture
    def scorer(self) -> Scorer:
        raise NotImplementedError("a fixture `scorer` gives the scorer to be tested")

    @pytest.fixture
    def machines(self) -> Sequence[WorkerFacts]:
        return (machine_facts(), machine_facts(devices=cuda_devices(8)))

    @pytest.fixture
    def batch(self, machines: Sequence[WorkerFacts]) -> ScoreBatch:
        return _batch_of((*machines, *odd_machines()))

    @pytest.fixture
    def ask(self, scorer: Scorer, batch: ScoreBatch) -> Ask:
        return lambda: scorer.score(batch)

    def test_it_is_a_scorer_with_a_plain_name(self, scorer: Scorer) -> None:
        assert isinstance(scorer, Scorer), "a scorer has a name, a lifetime_s and a method score"
        check_plain_name(scorer.name)

    def test_its_opinions_last_for_a_while_and_not_for_ever(self, scorer: Scorer) -> None:
        assert 1 <= scorer.lifetime_s <= MAX_LIFETIME_S

    def test_there_is_an_answer_for_every_pair(self, ask: Ask, batch: ScoreBatch) -> None:
        answers = within(self.deadline_s, ask)
        assert isinstance(answers, Sequence), f"score gave a {type(answers).__name__}"
        assert len(answers) == len(batch.pairs), "one answer a pair, in their order"
        for answer in answers:
            assert answer is None or isinstance(answer, Mark | Refusal), f"{answer!r} is no opinion"
            if isinstance(answer, Refusal):
                check_line(answer.reason, "the reason of a refusal")

    def test_an_empty_batch_has_an_empty_answer(self, scorer: Scorer, batch: ScoreBatch) -> None:
        for empty in (ScoreBatch((), (), (), _NOON_MS), replace(batch, pairs=())):
            assert self._answers(scorer, empty) == []

    def test_an_opinion_is_of_the_pair_and_not_of_its_place_in_the_batch(
        self, scorer: Scorer, ask: Ask, batch: ScoreBatch
    ) -> None:
        turned = replace(batch, pairs=batch.pairs[::-1])
        assert self._answers(scorer, turned)[::-1] == list(within(self.deadline_s, ask))

    def test_an_opinion_is_the_same_when_a_pair_is_asked_about_alone(
        self, scorer: Scorer, ask: Ask, batch: ScoreBatch
    ) -> None:
        """It is kept, and compared with opinions that were given in other batches."""
        for pair, among_others in zip(batch.pairs, within(self.deadline_s, ask), strict=True):
            request, machine = batch.requests[pair.request], batch.machines[pair.machine]
            (alone,) = self._answers(scorer, ScoreBatch((request,), (machine,), (Pair(0, 0),), batch.wall_ms))
            assert _is_same(alone, among_others), (
                f"{among_others} among others and {alone} alone, for {request} on {machine}"
            )

    def test_the_same_batch_has_the_same_answer(self, ask: Ask) -> None:
        assert list(within(self.deadline_s, ask)) == list(within(self.deadline_s, ask))

    @pytest.mark.parametrize("hour", [0, 6, 11, 12, 23])
    def test_any_hour_of_the_day_will_do(self, hour: int, scorer: Scorer, batch: ScoreBatch) -> None:
        at = replace(batch, wall_ms=_NOON_MS + hour * _HOUR_MS)
        assert len(self._answers(scorer, at)) == len(batch.pairs)

    def test_a_thousand_machines_are_no_hardship(self, scorer: Scorer, machines: Sequence[WorkerFacts]) -> None:
        batch = _batch_of([machines[number % len(machines)] for number in range(_MANY)])
        assert len(self._answers(scorer, batch)) == len(batch.pairs)

    def _answers(self, scorer: Scorer, batch: ScoreBatch) -> list[Mark | Refusal | None]:
        return list(within(self.deadline_s, lambda: scorer.score(batch)))


def _is_same(one: Mark | Refusal | None, other: Mark | Refusal | None) -> bool:
    """But for rounding: whoever computes whole batches may add up in another order."""
    if isinstance(one, Mark) and isinstance(other, Mark):
        return math.isclose(one.value, other.value, abs_tol=_ROUNDING)
    return one == other


def _batch_of(machines: Sequence[WorkerFacts]) -> ScoreBatch:
    requests = (
        Request(),
        Request(accelerators=(Accelerator.CUDA,), devices=2, device_models=("H100",)),
        Request(labels=(("ort", UNICODE),), zone=UNICODE),
    )
    pairs = tuple(Pair(request, machine) for machine in range(len(machines)) for request in range(len(requests)))
    return ScoreBatch(requests, tuple(machines), pairs, _NOON_MS)
