"""Which of the workers that fit gets a task: packing, so that large requests find whole machines.

Order: the accelerator the request prefers, then the mark that scorers give, then the fewest devices left free (best
fit), then the fewest cores left free, then the name. Workers to be avoided (the task failed there) come last, and are
taken when nothing else fits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from gpulayer.ids import WorkerId
from gpulayer.placement.capacity import Allocation, Free
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.opinion import NO_OPINION
from gpulayer.spec.request import Request

__all__ = ["Candidate", "Rank", "choose", "rank", "ranked"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker on which the request fits now, the share it would get, and what scorers think of that: 0..1."""

    worker: WorkerId
    name: str
    facts: WorkerFacts
    free: Free
    allocation: Allocation
    mark: float = NO_OPINION


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Smaller is better; compared field by field."""

    is_avoided: bool
    preference: int
    mark_lost: float
    devices_left: int
    cpus_left: int
    name: str

    @property
    def score(self) -> float:
        """0..1 for people, higher is better; the order decides, not this figure."""
        return round(
            1 / (1 + self.is_avoided * 100 + self.preference * 10 + self.devices_left + self.cpus_left / 100), 3
        )


def rank(request: Request, candidate: Candidate, *, avoid: frozenset[WorkerId] = frozenset()) -> Rank:
    """Smaller is better. ``candidate`` must fit: its allocation is taken from its facts and what is free."""
    preference = 0
    if candidate.allocation.devices and len(request.accelerators) > 1:
        first = candidate.allocation.devices[0]
        kind = next(device.kind for device in candidate.facts.devices if device.uuid == first)
        preference = request.accelerators.index(kind) if kind in request.accelerators else len(request.accelerators)
    return Rank(
        is_avoided=candidate.worker in avoid,
        preference=preference,
        mark_lost=1 - candidate.mark,
        devices_left=len(candidate.free.devices) - len(candidate.allocation.devices),
        cpus_left=candidate.free.cpus - candidate.allocation.cpus,
        name=candidate.name,
    )


def choose(
    request: Request, candidates: Iterable[Candidate], nodes: int, *, avoid: frozenset[WorkerId] = frozenset()
) -> list[Candidate]:
    """The ``nodes`` best candidates on distinct workers, or none at all: a gang starts whole or not."""
    ordered = ranked(request, candidates, avoid=avoid)
    return [candidate for _, candidate in ordered[:nodes]] if len(ordered) >= nodes else []


def ranked(
    request: Request, candidates: Iterable[Candidate], *, avoid: frozenset[WorkerId] = frozenset()
) -> list[tuple[Rank, Candidate]]:
    """All of them with their ranks, the best first."""
    with_ranks = [(rank(request, candidate, avoid=avoid), candidate) for candidate in candidates]
    with_ranks.sort(key=itemgetter(0))
    return with_ranks
