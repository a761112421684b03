"""A ``Scorer`` has opinions on which machines requests should go to: it refuses a pair, or gives it a mark.

It is asked for whole batches, never per job: opinions are kept for the pair of a class of equal requests and a kind of
equal machines, as long as they are said to last, and placement uses what is there. Silence is no opinion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.opinion import Mark, Refusal
from gpulayer.spec.request import Request

__all__ = ["MAX_LIFETIME_S", "SCORER_DEADLINE_S", "Mark", "Pair", "Refusal", "ScoreBatch", "Scorer"]

SCORER_DEADLINE_S: Final = 2.0
MAX_LIFETIME_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Indices into ``ScoreBatch.requests`` and ``ScoreBatch.machines``."""

    request: int
    machine: int


@dataclass(frozen=True, slots=True)
class ScoreBatch:
    """``pairs``: those that are asked about; each of them fits by the facts. ``wall_ms``: the time now, Unix, for
    prices that depend on the hour."""

    requests: tuple[Request, ...]
    machines: tuple[WorkerFacts, ...]
    pairs: tuple[Pair, ...]
    wall_ms: int


@runtime_checkable
class Scorer(Protocol):
    """``score`` gives an opinion a pair, in the order of ``batch.pairs``, None for no opinion.

    It may take ``SCORER_DEADLINE_S`` a batch; requests wait for it no longer than that. It is asked for pairs that are
    new and for those whose opinions have outlived ``lifetime_s`` (1 s to ``MAX_LIFETIME_S``) while somebody waits for
    them. An answer of another length, late, or not of these types is a fault of the plugin, and no opinion. ``name``
    and ``lifetime_s`` are read once. ``score`` may be called from two threads at a time: one for who waits, one for who
    only wants to know (``gpulayer explain``).

    A ``Mark`` is from 0 (worst) to 1 (best); no opinion counts 0.5, and those of several scorers are averaged. A
    refusal by one keeps requests of that class off such machines while it lasts: they wait, and say why.
    """

    @property
    def name(self) -> str: ...

    @property
    def lifetime_s(self) -> float: ...

    def score(self, batch: ScoreBatch) -> Sequence[Mark | Refusal | None]: ...
