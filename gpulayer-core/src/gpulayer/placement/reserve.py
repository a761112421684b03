"""When a task that does not fit now could begin at the latest, and what may run until then without delaying it. Pure.

Known is only what time limits say: what has none is taken to stay for ever.
"""

from collections.abc import Iterable, Sequence

from gpulayer.ids import WorkerId
from gpulayer.placement.capacity import Allocation, allocate, usable_capacity
from gpulayer.placement.ends import Held, free_by
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Request

__all__ = ["leaves_room", "plan"]


def plan(
    request: Request,
    nodes: int,
    workers: Iterable[tuple[WorkerId, WorkerFacts, Sequence[Held]]],
    *,
    now_ms: int,
) -> tuple[frozenset[WorkerId], int] | None:
    """The workers on which it could begin first, and when that is; None where nobody knows. In the order of ``workers``
    among equals. Times are those of ``Held``."""
    moments: list[tuple[int, int, WorkerId]] = []
    for number, (worker, facts, held) in enumerate(workers):
        if leaves_room(request, worker, facts, held, None, by_ms=now_ms):
            moments.append((now_ms, number, worker))
        elif (found := free_by(request, worker, facts, held)) is not None:
            moments.append((found[0], number, worker))
    if len(moments) < nodes:
        return None
    first = sorted(moments)[:nodes]
    return frozenset(worker for _, _, worker in first), first[-1][0]


def leaves_room(
    request: Request,
    worker: WorkerId,
    facts: WorkerFacts,
    held: Iterable[Held],
    more: Allocation | None,
    *,
    by_ms: int,
) -> bool:
    """Whether the request fits there at that time, beside what has not ended by then, and ``more``."""
    free = usable_capacity(facts)
    for each in held:
        if each.ends_ms is None or each.ends_ms > by_ms:
            free = free.less(each.allocation)
    if more is not None:
        free = free.less(more)
    return allocate(request, worker, facts, free) is not None
