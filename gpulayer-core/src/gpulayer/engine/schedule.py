"""Who gets what: waiting tasks to free capacity, over all classes in the order of ``queue``.

A class whose head fits nowhere is blocked until a worker that could take it gains capacity, so a long queue costs
nothing while nothing is free. Gangs start all or none, near each other (``groups``); what is wide is not overtaken for
ever (``reservations``). What a scorer
refuses is no candidate, and what scorers mark comes before packing (``opinions``).
"""

import heapq
from typing import Final

from gpulayer.engine import elements, opinions, queue, reservations, rooms, shares
from gpulayer.engine.effects import Assign, Notify
from gpulayer.engine.rooms import is_eligible_for, takes_work
from gpulayer.engine.state import Attempt, Job, Node, QueuePlace, RequestClass, State, Task, Worker
from gpulayer.engine.turn import Turn
from gpulayer.ids import Epoch, WorkerId
from gpulayer.placement.capacity import allocate, why_devices
from gpulayer.placement.choose import Candidate, Rank, ranked
from gpulayer.placement.eligibility import awaits_checks, can_compute_now
from gpulayer.placement.groups import Nearest, nearest
from gpulayer.spec.considered import MAX_KEPT, Considered, Place
from gpulayer.spec.job import JobState
from gpulayer.spec.request import Request
from gpulayer.spec.verdict import ReasonCode
from gpulayer.spec.worker import WorkerState

__all__ = [
    "HOPES",
    "begin",
    "capacity_gained",
    "doubt",
    "fits_nowhere",
    "has_other_place",
    "is_eligible_for",
    "is_unsure",
    "run",
    "takes_work",
    "trust",
    "workers_changed",
]


_BACKFILLED: Final = 32  # so many that stand behind one that is kept off are looked at

HOPES: Final = str(ReasonCode.FRAMEWORK_UNCHECKED)
"""The reason of a job that waits for checks to say whether any worker could ever run it."""


def run(turn: Turn) -> None:
    """Place what can be placed. Does nothing, quickly, where every class with waiting tasks is blocked."""
    if turn.state.reservations:
        reservations.tidy(turn.state)
    while _run(turn):
        pass  # what was kept off may go on now


def _run(turn: Turn) -> bool:
    """All once, in order. Returns whether some of them may be looked at again."""
    state = turn.state
    heads: list[tuple[QueuePlace, int, RequestClass]] = []
    for key in [key for key, known in state.classes.items() if not known.is_blocked]:
        known = state.classes[key]
        place = queue.peek(state, known)
        if place is None:
            del state.classes[key]
        else:
            heads.append((place, len(heads), known))
    heapq.heapify(heads)
    turn.has_freed = False
    while heads:
        place, number, known = heads[0]
        if any(known.queues.values()) and not rooms.has_enough(state, known):  # one before it has taken what was there
            heapq.heappop(heads)
            known.is_kept_off = False
            _block(turn, known)
            continue
        now = queue.peek(state, known)
        if now is None:
            heapq.heappop(heads)
            state.classes.pop((known.request, known.nodes), None)
        elif now != place:  # one before it is gone, or its owner has got more meanwhile: places only get worse here
            heapq.heapreplace(heads, (now, number, known))
        elif _place_at(turn, known, place):
            turn.has_freed |= reservations.release(state, known)
        elif not (known.is_kept_off and _backfill(turn, known, place)):
            heapq.heappop(heads)
            _block(turn, known)
    return turn.has_freed


def _block(turn: Turn, known: RequestClass) -> None:
    """Until a worker that could take it gains capacity; for the one that stands first something may be kept."""
    state = turn.state
    known.is_blocked = True
    if not reservations.may_be_made(state, known):
        return
    first = queue.peek(state, known)
    if first is not None:
        job = state.jobs[first[3]]
        could = (one for one in state.workers.values() if takes_work(one) and is_eligible_for(known, one))
        turn.has_freed |= reservations.consider(state, known, job, job.tasks[first[4]], could)


def _backfill(turn: Turn, known: RequestClass, first: QueuePlace) -> bool:
    """The one that stands first is kept off by a reservation: whether any behind it, with a shorter limit, is not."""
    state = turn.state
    shortest_ms = state.jobs[first[3]].entry.longest_ms
    for place in queue.behind(state, known, first, most=_BACKFILLED):
        limit_ms = state.jobs[place[3]].entry.longest_ms
        if limit_ms is None or (shortest_ms is not None and limit_ms >= shortest_ms):
            continue
        shortest_ms = limit_ms
        if _place_at(turn, known, place):
            known.is_kept_off = True  # who stands first still is
            return True
    known.is_kept_off = True
    return False


def _place_at(turn: Turn, known: RequestClass, place: QueuePlace) -> bool:
    """The task that stands there. Returns whether it could be placed."""
    state = turn.state
    job = state.jobs[place[3]]
    task = job.tasks[place[4]]
    if not _place(turn, known, job, task, place):
        return False
    queue.withdraw(state, job, task)
    elements.advance(state, job)
    trust(turn, known)  # it does fit somewhere
    return True


def capacity_gained(state: State, worker: Worker) -> None:
    """Unblock the classes that this worker could take now."""
    for known in rooms.gained(state, worker):
        if opinions.may_take(state, known, worker):
            known.is_blocked = False


def workers_changed(turn: Turn) -> None:
    """The set of workers or their facts changed: every class is worth another look. Whoever was accepted in the hope of
    checks stays accepted once enough workers are sure, whatever becomes of those."""
    turn.state.fleet = None
    reservations.forget(turn.state)
    for known in turn.state.classes.values():
        known.is_blocked = False
        rooms.forget(known)
        if known.unsure and not is_unsure(turn.state, known):
            trust(turn, known)


def doubt(turn: Turn, known: RequestClass, job: Job) -> None:
    """It is accepted in the hope of checks that go on, and its row says so."""
    known.unsure[job.entry.id] = None
    job.reason_code, job.reason_message = HOPES, "it was taken before the frameworks that it asks for were checked"
    turn.jobs[job.entry.id] = job


def trust(turn: Turn, known: RequestClass) -> None:
    """Whoever was accepted in the hope of checks stays accepted, whatever becomes of those."""
    for job_id in known.unsure:
        job = turn.state.jobs.get(job_id)
        if job is not None and job.reason_code == HOPES:
            job.reason_code = job.reason_message = ""
            turn.jobs[job_id] = job
    known.unsure.clear()


def fits_nowhere(state: State, request: Request, nodes: int) -> bool:
    """True when workers are known, and fewer than ``nodes`` of them could ever run the request, also when all that is
    broken there works again, and all is checked."""
    if not state.workers:
        return False
    known = state.classes.get((request, nodes)) or RequestClass(request, nodes)
    fitting = 0
    for worker in state.workers.values():
        fitting += is_eligible_for(known, worker)
        if fitting >= nodes:
            return False
    return True


def is_unsure(state: State, known: RequestClass) -> bool:
    """True when checks that go on decide whether enough workers could ever run such a request. To be asked where it
    fits somewhere."""
    if not known.request.frameworks or not state.workers:
        return False
    sure = 0
    for worker in state.workers.values():
        sure += is_eligible_for(known, worker) and not awaits_checks(known.request, worker.facts)
        if sure >= known.nodes:
            return False
    return True


def has_other_place(state: State, request: Request, nodes: int, excluded: frozenset[WorkerId]) -> bool:
    """Could enough workers besides these run the request, now or once they are free?"""
    known = state.classes.get((request, nodes)) or RequestClass(request, nodes)
    return nodes <= sum(
        worker.state in (WorkerState.JOINING, WorkerState.READY)
        and is_eligible_for(known, worker)
        and can_compute_now(request, worker.facts)
        for worker in state.workers.values()
        if worker.id not in excluded
    )


def _place(turn: Turn, known: RequestClass, job: Job, task: Task, place: QueuePlace) -> bool:
    state, limit_ms = turn.state, job.entry.longest_ms
    known.is_kept_off = False
    if not opinions.is_open(state, known):
        return False
    candidates: list[Candidate] = []
    passed: list[Worker] = []
    for worker in rooms.looked_at(state, known):
        if not opinions.may_take(state, known, worker):
            passed.append(worker)
            continue
        share = allocate(known.request, worker.id, worker.facts, worker.free)
        if share is None:
            raise AssertionError(f"worker {worker.name} was to have room for {known.request.summary()}")
        if reservations.keeps_off(state, worker, share, place, limit_ms=limit_ms):
            known.is_kept_off = True
            continue
        mark = opinions.mark(state, known, worker)
        candidates.append(Candidate(worker.id, worker.name, worker.facts, worker.free, share, mark))
    fitting = len(candidates)
    if task.full and has_other_place(state, known.request, known.nodes, task.full):
        candidates = [candidate for candidate in candidates if candidate.worker not in task.full]
    placed = ranked(known.request, candidates, avoid=task.avoid)
    found = nearest(placed, known.nodes)
    if found is None:
        return False
    chosen = [candidate for _, candidate in found.chosen]
    away, ineligible = rooms.left_out(state, known)
    refused = len(passed) + fitting - len(candidates)
    busy = len(state.workers) - away - ineligible - len(passed) - fitting
    places = tuple(_place_of(one, candidate) for one, candidate in placed[:MAX_KEPT])
    considered = Considered(away, ineligible, busy, refused, len(candidates), places)
    nodes = [Node(candidate.allocation, candidate.name) for candidate in chosen]
    attempt = begin(turn, job, task, nodes, _why(state, known, found, placed, passed=passed))
    attempt.considered = considered
    attempt.is_kept_off = known.is_kept_off
    if state.reserved:
        turn.has_freed |= reservations.taken(state, [candidate.worker for candidate in chosen])
    job.state, job.reason_code, job.reason_message = elements.shown(job, task, JobState.STAGING), "", ""
    turn.effects.append(Notify(job.entry.id, job.state))
    turn.jobs[job.entry.id] = job
    return True


def begin(turn: Turn, job: Job, task: Task, nodes: list[Node], placement: str) -> Attempt:
    """Lend these shares to a new attempt of the task, under an epoch of its own, and tell their workers."""
    state = turn.state
    epoch = Epoch(state.next_epoch)
    state.next_epoch += 1
    task.attempts += 1
    task.epoch = epoch
    if job.is_array and task.index == job.begun:
        job.begun += 1
        turn.jobs[job.entry.id] = job
    attempt = Attempt(
        epoch=epoch,
        job_id=job.entry.id,
        task_index=task.index,
        number=task.attempts,
        nodes=nodes,
        placement=placement,
        lease_ttl_ms=state.policy.lease_ttl_ms,
        lent_ms=state.now_ms,
    )
    state.attempts[epoch] = attempt
    for index, node in enumerate(nodes):
        shares.count(state, job.entry.owner, node)
        worker = state.workers[node.allocation.worker]
        worker.leases[epoch] = index
        if not node.is_ahead:
            worker.free = worker.free.less(node.allocation)
        turn.effects.append(Assign(worker.id, epoch, index, job.entry.id))
    turn.tasks[job.entry.id, task.index] = task
    turn.attempts[epoch] = attempt
    return attempt


def _place_of(standing: Rank, candidate: Candidate) -> Place:
    return Place(
        candidate.name,
        standing.is_avoided,
        standing.preference,
        standing.mark_lost,
        standing.devices_left,
        standing.cpus_left,
    )


def _why(
    state: State,
    known: RequestClass,
    found: Nearest,
    placed: list[tuple[Rank, Candidate]],
    *,
    passed: list[Worker],
) -> str:
    """One sentence for people: what decided. placed: all that could have it, the best first. passed: workers with room
    that scorers keep the task from."""
    chosen = [candidate for _, candidate in found.chosen]
    if len(chosen) > 1:
        return _why_together(found, placed)
    worker = _why_workers(state, known, chosen, placed, passed=passed)
    (one,) = chosen
    devices = why_devices(known.request, one.facts, one.free, one.allocation)
    return f"{worker}; {devices}" if devices else worker


def _why_together(found: Nearest, placed: list[tuple[Rank, Candidate]]) -> str:
    """Of the devices of thousands of nodes it would be a book."""
    names = ", ".join(candidate.name for _, candidate in found.chosen)
    of_all = "all that are free" if len(placed) == len(found.chosen) else f"of {len(placed)} that fit and are free"
    if found.level is None:
        return f"{names}: {of_all}; no region has room for all {len(found.chosen)}"
    return f"{names}: {of_all}; all in {found.level} {found.place}, the nearest with room for {len(found.chosen)}"


def _why_workers(
    state: State,
    known: RequestClass,
    chosen: list[Candidate],
    placed: list[tuple[Rank, Candidate]],
    *,
    passed: list[Worker],
) -> str:
    names = ", ".join(candidate.name for candidate in chosen)
    if len(placed) == len(chosen):
        refused = any(opinions.refuses(state, known, worker) for worker in passed)
        unless = ", of those that no scorer refuses" if refused else ""
        if len(chosen) == 1:
            return f"{names}: the only worker that fits and is free{unless}"
        return f"{names}: all that are free{unless}"
    first, (next_best, next_one) = placed[0][0], placed[len(chosen)]
    if first.is_avoided != next_best.is_avoided:
        why = "the task has not failed there"
    elif first.preference != next_best.preference:
        why = "it has the accelerator that was named first"
    elif first.mark_lost != next_best.mark_lost:
        digests = state.workers[chosen[0].worker].facts_digest, state.workers[next_one.worker].facts_digest
        why = f"scorer {opinions.marked_by(state, known, *digests)} marks it highest"
    elif first.devices_left != next_best.devices_left:
        why = "it leaves the fewest devices free"
    elif first.cpus_left != next_best.cpus_left:
        why = "it leaves the fewest cpus free"
    else:
        why = "equal otherwise, first by name"
    return f"{names}: of {len(placed)} that fit and are free, {why}"
