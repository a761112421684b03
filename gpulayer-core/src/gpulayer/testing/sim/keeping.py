"""What the control plane keeps for a wide job is given to nobody behind it who would delay it."""

from collections.abc import Iterable, Mapping

from gpulayer.engine import State
from gpulayer.engine.effects import Assign, Effect
from gpulayer.engine.events import Event, JobSubmitted
from gpulayer.engine.queue import stands
from gpulayer.engine.state import Attempt, Job, Reservation, Worker
from gpulayer.placement.capacity import allocate, usable_capacity
from gpulayer.spec.request import Request
from gpulayer.testing.sim.rules import Violation

__all__ = ["check_kept"]


def check_kept(
    state: State, before: Mapping[tuple[Request, int], Reservation], event: Event, effects: Iterable[Effect]
) -> None:
    """before: what was kept before the event. Only of jobs of one owner, whose order nothing changes, and where nothing
    is known anew of workers nor anything else begins: then all may be worked out again."""
    lent = [effect for effect in effects if isinstance(effect, Assign)]
    if not isinstance(event, JobSubmitted) or len(lent) != 1 or state.attempts[lent[0].epoch].is_ahead:
        return
    for key, kept in before.items():
        if lent[0].worker in kept.workers and kept.starts_ms >= state.now_ms:
            _check(state, key, kept, lent[0])


def _check(state: State, key: tuple[Request, int], kept: Reservation, lent: Assign) -> None:
    now = state.reservations.get(key)
    if now is not None and lent.worker not in now.workers:
        return
    job, first = state.jobs[lent.job_id], _waiting(state, kept)
    if first is None or first is job or not _is_behind(job, first):
        return
    limit_ms = job.entry.longest_ms
    if limit_ms is not None and state.now_ms + limit_ms <= kept.starts_ms:
        return
    worker = state.workers[lent.worker]
    if not _has_room(state, key[0], worker, by_ms=kept.starts_ms):
        lent_to = f"job {lent.job_id} is lent {worker.name}, which is kept for job {kept.job}"
        raise Violation(f"{lent_to}, and would not be out of its way in time", promise=13)


def _waiting(state: State, kept: Reservation) -> Job | None:
    job = state.jobs.get(kept.job)
    task = job.tasks.get(kept.task) if job is not None else None
    return job if job is not None and task is not None and stands(state, job, task) else None


def _is_behind(job: Job, first: Job) -> bool:
    if job.entry.owner != first.entry.owner:
        return False
    return (-job.entry.priority, job.seq) > (-first.entry.priority, first.seq)


def _has_room(state: State, request: Request, worker: Worker, *, by_ms: int) -> bool:
    free = usable_capacity(worker.facts)
    for epoch, index in worker.leases.items():
        attempt = state.attempts[epoch]
        if attempt.nodes[index].is_ahead:
            continue
        ends_ms = _ends_ms(state.jobs[attempt.job_id], attempt)
        if ends_ms is None or ends_ms > by_ms:
            free = free.less(attempt.nodes[index].allocation)
    return allocate(request, worker.id, worker.facts, free) is not None


def _ends_ms(job: Job, attempt: Attempt) -> int | None:
    limit_ms = job.entry.longest_ms
    return None if limit_ms is None or attempt.is_unreachable else attempt.lent_ms + limit_ms
