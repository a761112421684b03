"""Reservations (EASY backfilling): a wide task that does not fit now is not overtaken for ever by small ones.

For the tasks that stand first and need more than a core or a device, a few at a time, it is worked out on which workers
they could begin first, and when at the latest: by the time limits of what runs there. Until then who stands behind may
have of those workers what is given back in time, or what the wide task would not need. Where what runs has no time
limit nobody knows when, and nothing is reserved.

All of it follows from the rest of the state and the time, and is safe to forget. Times are engine time.
"""

from collections.abc import Iterable
from typing import Final

from gpulayer.engine import opinions, queue
from gpulayer.engine.state import Attempt, Job, QueuePlace, RequestClass, Reservation, State, Task, Worker
from gpulayer.ids import WorkerId
from gpulayer.placement.capacity import Allocation
from gpulayer.placement.eligibility import can_compute_now
from gpulayer.placement.ends import Held
from gpulayer.placement.reserve import leaves_room, plan
from gpulayer.spec.request import Request

__all__ = ["consider", "forget", "keeps_off", "may_be_made", "release", "taken", "tidy"]

_MOST: Final = 4
_LOOKED_AT: Final = 64  # workers, those with most room first
_PAUSE_MS: Final = 1_000  # before the same class is looked at again


def may_be_made(state: State, known: RequestClass) -> bool:
    """Quick: whether it is wide, time to look at it again, and not too much reserved already."""
    if not _is_wide(known.request, known.nodes) or state.now_ms < known.plans_ms:
        return False
    return len(state.reservations) < _MOST or (known.request, known.nodes) in state.reservations


def consider(state: State, known: RequestClass, job: Job, task: Task, workers: Iterable[Worker]) -> bool:
    """The task stands first of its class, and could not be placed. workers: those that could run it once they are free.
    Returns whether others may go on now that were kept off before. To be asked where one ``may_be_made``."""
    key = (known.request, known.nodes)
    before = state.reservations.get(key)
    known.plans_ms = state.now_ms + _PAUSE_MS
    there = [
        worker
        for worker in workers
        if worker.id not in task.full
        and state.reserved.get(worker.id, key) == key
        and can_compute_now(known.request, worker.facts)
        and opinions.may_take(state, known, worker)
    ]
    there.sort(key=lambda worker: (-len(worker.free.devices) if known.request.devices else 0, -worker.free.cpus))
    looked_at = [(one.id, one.facts, _held(state, one)) for one in there[: max(_LOOKED_AT, 2 * known.nodes)]]
    found = plan(known.request, known.nodes, looked_at, now_ms=state.now_ms)
    made = Reservation(job.entry.id, task.index, *found) if found is not None else None
    if made == before:
        return False
    has_freed = _drop(state, key)
    if made is not None:
        state.reservations[key] = made
        state.reserved.update(dict.fromkeys(made.workers, key))
    return has_freed


def keeps_off(
    state: State, worker: Worker, share: Allocation, place: QueuePlace, *, limit_ms: int | None
) -> Reservation | None:
    """The reservation because of which a task that stands at ``place`` may not have this share now. limit_ms: how long
    it runs at the longest, its grace time included."""
    key = state.reserved.get(worker.id)
    if key is None:
        return None
    reservation = state.reservations[key]
    kept_for = _waiting(state, reservation)
    if kept_for is None or place <= kept_for:
        return None
    by_ms = reservation.starts_ms
    if limit_ms is not None and state.now_ms + limit_ms <= by_ms:
        return None
    has_room = leaves_room(key[0], worker.id, worker.facts, _held(state, worker), share, by_ms=by_ms)
    return None if has_room else reservation


def release(state: State, known: RequestClass) -> bool:
    """What it was made for has begun. Returns whether others may go on now that it kept off."""
    return _drop(state, (known.request, known.nodes))


def taken(state: State, workers: Iterable[WorkerId]) -> bool:
    """Something was lent there. Where that stood before what is reserved, the time may not be kept: it is worked out
    anew. Returns whether it is."""
    is_any = False
    for worker_id in workers:
        key = state.reserved.get(worker_id)
        if key is None:
            continue
        worker, by_ms = state.workers[worker_id], state.reservations[key].starts_ms
        if not leaves_room(key[0], worker_id, worker.facts, _held(state, worker), None, by_ms=by_ms):
            _drop(state, key)
            is_any = True
            known = state.classes.get(key)
            if known is not None:
                known.is_blocked, known.plans_ms = False, 0
    return is_any


def tidy(state: State) -> None:
    """Those whose time is over although their task has not begun are made anew when it is looked at; those whose task
    waits no longer are not."""
    for key, reservation in list(state.reservations.items()):
        if _waiting(state, reservation) is None or state.now_ms > reservation.starts_ms:
            _drop(state, key)
            known = state.classes.get(key)
            if known is not None:
                known.is_blocked, known.plans_ms = False, 0


def forget(state: State) -> None:
    """The workers are not what they were: all is worked out anew."""
    for key in list(state.reservations):
        _drop(state, key)
    for known in state.classes.values():
        known.plans_ms = 0


def _ends_ms(state: State, attempt: Attempt) -> int | None:
    """When it has ended at the latest, if it keeps to its limit; None: nobody knows."""
    entry = state.jobs[attempt.job_id].entry
    if entry.timeout_ms is None or attempt.is_unreachable:
        return None
    began_ms = state.now_ms if attempt.began_ms is None else attempt.began_ms
    return max(state.now_ms, began_ms + entry.timeout_ms + entry.grace_ms)


def _held(state: State, worker: Worker) -> list[Held]:
    found = []
    for epoch, index in worker.leases.items():
        attempt = state.attempts[epoch]
        node = attempt.nodes[index]
        if not node.is_ahead:
            found.append(Held(attempt.job_id, node.allocation, _ends_ms(state, attempt)))
    return found


def _waiting(state: State, reservation: Reservation) -> QueuePlace | None:
    """Where its task stands, if it does still."""
    job = state.jobs.get(reservation.job)
    task = job.tasks.get(reservation.task) if job is not None else None
    if job is None or task is None or not queue.stands(state, job, task):
        return None
    return queue.place_of(state, job, task)


def _is_wide(request: Request, nodes: int) -> bool:
    return nodes > 1 or request.devices > 1 or request.cpus > 1


def _drop(state: State, key: tuple[Request, int]) -> bool:
    reservation = state.reservations.pop(key, None)
    if reservation is None:
        return False
    for worker_id in reservation.workers:
        del state.reserved[worker_id]
    has_freed = False
    for known in state.classes.values():
        if known.is_kept_off:
            known.is_kept_off = known.is_blocked = False
            has_freed = True
    return has_freed
