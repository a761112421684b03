"""Until when a worker that is full stays so, as far as that is known: by the time limits of what runs there. Pure.

A moment is told only where it is sure that nothing else has to happen: what has no limit, or has not begun, is taken to
stay for ever.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import Allocation, allocate, usable_capacity
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Request

__all__ = ["Held", "free_by"]


@dataclass(frozen=True, slots=True)
class Held:
    """What a job has of a worker, and when its time limit and its grace time are over; None: nobody knows."""

    job: JobId
    allocation: Allocation
    ends_ms: int | None


def free_by(request: Request, worker: WorkerId, facts: WorkerFacts, held: Sequence[Held]) -> tuple[int, JobId] | None:
    """The earliest moment at which enough of it has ended for the request to fit, and the job that ends last by then.
    None where what has no known end is in the way."""
    ending = sorted((each for each in held if each.ends_ms is not None), key=lambda each: each.ends_ms or 0)
    staying = [each for each in held if each.ends_ms is None]

    def fits_after(count: int) -> bool:
        free = usable_capacity(facts)
        for each in (*staying, *ending[count:]):
            free = free.less(each.allocation)
        return allocate(request, worker, facts, free) is not None

    first = bisect_left(range(len(ending) + 1), True, key=fits_after)  # the more have ended, the more is free
    if not 0 < first <= len(ending):
        return None
    last = ending[first - 1]
    return last.ends_ms or 0, last.job
