"""Lending ahead: short work waits at its worker for a slot, so that no slot waits for a round trip.

An attempt that is lent *ahead* has a lease and an epoch like any other, but its allocation counts against nothing until
it is promoted: when something on its worker ends, or when the worker says that it has started. The worker starts what
it was lent in the order of the epochs, as its own cores and memory allow. Until it has started it can be revoked: the
worker gives it back, which costs no retry, or has started it meanwhile and runs on.

How much is lent ahead is learnt from each worker's pace: as many attempts as should end there within half a second, and
never more than ended there since it last was slow. It is the worker's pace and not that of a class of requests, since
an attempt waits for whatever runs there, its own kind or not. A worker that has ended nothing for half a second gets
nothing ahead, so a surprise costs what waits behind it one second at most: then it is revoked.

Never lent ahead: what has devices or resources, several nodes, ``exclusive`` or ``--no-wait``; and what has no retry
left, because it could not be lent again were its worker lost. Nor is anything lent ahead to where a scorer refuses it;
what marks scorers give does not count here.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpulayer.engine import elements, opinions, queue, rooms, schedule
from gpulayer.engine.effects import Revoke
from gpulayer.engine.events import NodePhase
from gpulayer.engine.state import Attempt, Job, Node, Pace, QueuePlace, RequestClass, State, Task, Worker
from gpulayer.engine.turn import Turn
from gpulayer.ids import Digest, Epoch, WorkerId
from gpulayer.placement.capacity import Allocation, Free, allocate, usable_capacity
from gpulayer.placement.eligibility import can_compute_now
from gpulayer.spec.request import Request
from gpulayer.spec.worker import WorkerState

__all__ = [
    "AHEAD_LIMIT",
    "can_be_lent",
    "count",
    "forget",
    "hand_over",
    "learn",
    "lend",
    "promote",
    "push_back",
    "revoke",
    "revoke_all",
    "waits",
]

AHEAD_LIMIT: Final = 256  # a worker; as many as go into one answer
_A_SLOT: Final = 32
_HORIZON_MS: Final = 500
_PATIENCE_MS: Final = 1_000
_UNSTARTED: Final = (NodePhase.ASSIGNED, NodePhase.STAGING)


def learn(state: State, worker: Worker, ended: list[int]) -> None:
    """Attempts that were lent at these times have ended on the worker, all told in one report."""
    if not ended:
        return
    now_ms, count = state.now_ms, len(ended)
    pace = state.paces.get(worker.id)
    since_ms = min(ended) if pace is None else max(pace.last_ms, min(ended))  # it may have had nothing to do before
    gap_ms = (now_ms - since_ms) / count
    if pace is None:
        state.paces[worker.id] = Pace(gap_ms, now_ms, count)
        return
    pace.gap_ms += (gap_ms - pace.gap_ms) * count / (count + 3)
    pace.ends = 0 if gap_ms > _HORIZON_MS else min(pace.ends + count, AHEAD_LIMIT)
    pace.last_ms = now_ms


def can_be_lent(job: Job, task: Task) -> bool:
    """Whether an attempt of this may wait at a worker."""
    entry, (request, nodes) = job.entry, job.class_key
    if nodes != 1 or request.devices or request.resources:
        return False
    if entry.exclusive or not entry.wait or job.stop is not None:
        return False
    return task.failures < entry.retries


def promote(turn: Turn) -> list[Attempt]:
    """Count what fits now on the workers that gained room, oldest first; returns the attempts concerned."""
    state = turn.state
    promoted: list[Attempt] = []
    for worker in turn.gained.values() if state.ahead else ():
        for epoch in sorted(state.ahead.get(worker.id, ())):
            attempt = state.attempts[epoch]
            if not attempt.nodes[0].is_revoked and _fits(worker.free, attempt.nodes[0].allocation):
                count(state, worker, attempt)
                promoted.append(attempt)
    return promoted


def count(state: State, worker: Worker, attempt: Attempt) -> None:
    """From now on it uses up what it was lent. It may have started already: then it is not wanted back either."""
    node = attempt.nodes[0]
    forget(state, worker.id, attempt.epoch)
    node.is_ahead = False
    node.is_revoked = node.is_revoked and node.phase in _UNSTARTED
    worker.free = worker.free.less(node.allocation)


def push_back(state: State, worker: Worker) -> list[Attempt]:
    """The worker has started others first (their files came sooner): what it has not started makes room in the books,
    newest first. Returns the attempts concerned."""
    pushed: list[Attempt] = []
    for epoch in sorted(worker.leases, reverse=True):
        if _fits(worker.free, _NOTHING):
            break
        attempt = state.attempts[epoch]
        node, job = attempt.nodes[0], state.jobs[attempt.job_id]
        if node.is_ahead or node.phase not in _UNSTARTED or not can_be_lent(job, job.tasks[attempt.task_index]):
            continue
        node.is_ahead = True
        state.ahead.setdefault(worker.id, {})[epoch] = None
        share = node.allocation
        worker.free = replace(
            worker.free,
            cpus=worker.free.cpus + share.cpus,
            memory_bytes=worker.free.memory_bytes + share.memory_bytes,
        )
        pushed.append(attempt)
    if pushed:
        rooms.gained(state, worker)
    return pushed


def forget(state: State, worker_id: WorkerId, epoch: Epoch) -> None:
    """It is not ahead any more. May be repeated."""
    known = state.ahead.get(worker_id)
    if known is not None:
        known.pop(epoch, None)
        if not known:
            del state.ahead[worker_id]


def lend(turn: Turn) -> None:
    """Lend waiting tasks ahead, in the order of ``queue``. A task that must wait for a free slot keeps the
    workers on which it could run from what comes after it: else that would take every slot before the task got one.
    Where it waits for a device or a resource that is in use, a slot is no help to it, and it keeps nobody off.
    """
    state = turn.state
    for worker_id in state.reserved if state.ahead else ():
        for epoch in state.ahead.get(worker_id, ()):
            revoke(turn, state.attempts[epoch])  # it keeps to no time that was promised
    is_all = bool(turn.gained) or turn.has_new_head
    if not state.paces or not (is_all or turn.opened):
        return
    # Where opinions alone have come, all others were tried before: they only keep what they keep.
    opened = [known for known in turn.opened if opinions.is_open(state, known)]
    may_come = state.paces if is_all else _where_any_may_go(state, opened)
    quick = [id_ for id_ in may_come if state.paces[id_].gap_ms <= _HORIZON_MS]
    # What is lent ahead keeps to no time that was promised to others.
    room = {id_: left for id_ in quick if id_ not in state.reserved and (left := _room(state, id_)) > 0}
    makes_way = turn.has_new_head or bool(opened)
    if not room and not (makes_way and state.ahead):
        return
    digests = _digests(state, room)
    heap: list[tuple[QueuePlace, int, RequestClass]] = []
    for known in state.classes.values():
        place = queue.peek(state, known)
        if place is not None:
            heap.append((place, len(heap), known))
    heapq.heapify(heap)
    while heap and (room or makes_way) and (is_all or opened):
        place, number, known = heapq.heappop(heap)
        now = queue.peek(state, known)
        if now is not None and now != place:  # its owner has got more meanwhile
            heapq.heappush(heap, (now, number, known))
            continue
        job = state.jobs[place[3]]
        task = job.tasks[place[4]]
        is_opened = any(known is one for one in opened)
        has_place = bool(room) and opinions.is_open(state, known, digests)
        chosen = _choose(state, known, job, task, room) if has_place and (is_all or is_opened) else None
        if chosen is None:
            if has_place:
                for worker_id in [id_ for id_ in room if _waits_for_a_slot(state, known, state.workers[id_])]:
                    del room[worker_id]
                digests = _digests(state, room)
            # What needs more than a slot may have waited for that until now.
            if turn.has_new_head or is_opened or (is_all and _needs_more_than_a_slot(known.request)):
                _make_way(turn, known, job)
            if is_opened:
                opened = [one for one in opened if one is not known]
            continue
        queue.withdraw(state, job, task)
        _lend(turn, chosen, known, job, task)
        elements.advance(state, job)
        if task.full and known.is_blocked:  # it kept away from a full disk; what comes after it may go there at once
            known.is_blocked = False
            schedule.run(turn)
        room[chosen.id] = min(room[chosen.id] - 1, _window(state, chosen, known.request) - len(state.ahead[chosen.id]))
        if room[chosen.id] <= 0:
            del room[chosen.id]
        following = queue.peek(state, known)
        if following is not None:
            heapq.heappush(heap, (following, number, known))
        else:
            opened = [one for one in opened if one is not known]
            state.classes.pop((known.request, known.nodes), None)


def hand_over(turn: Turn) -> None:
    """Want back what a worker with room to spare could run now, newest first; no more than it could take."""
    state = turn.state
    for worker in turn.gained.values():
        if not schedule.takes_work(worker) or not any(id_ != worker.id for id_ in state.ahead):
            continue
        free = worker.free
        for holder, epochs in state.ahead.items():
            for epoch in sorted(epochs, reverse=True) if holder != worker.id else ():
                attempt = state.attempts[epoch]
                node = attempt.nodes[0]
                request = state.jobs[attempt.job_id].class_key[0]
                if not _fits(free, node.allocation) or not _may_go(state, _class(state, request), worker):
                    continue
                free = free.less(node.allocation)  # also for one that is wanted back already: it comes here
                revoke(turn, attempt)


def revoke_all(turn: Turn, worker: Worker) -> None:
    """The worker takes no more work: want back everything that waits there."""
    for epoch in turn.state.ahead.get(worker.id, ()):
        revoke(turn, turn.state.attempts[epoch])


def revoke(turn: Turn, attempt: Attempt) -> None:
    """Want it back. Once; the worker is told again from the state where it did not hear of it."""
    node = attempt.nodes[0]
    if node.is_ahead and not node.is_revoked:
        node.is_revoked = True
        turn.attempts[attempt.epoch] = attempt
        turn.effects.append(Revoke(node.allocation.worker, attempt.epoch))


def waits(state: State) -> Iterator[tuple[WorkerId, Epoch, int]]:
    """What waits ahead and is not wanted back yet, and the engine time at which it will be."""
    for worker_id, epochs in state.ahead.items():
        for epoch in epochs:
            attempt = state.attempts[epoch]
            if not attempt.nodes[0].is_revoked:
                yield worker_id, epoch, attempt.lent_ms + _PATIENCE_MS


_NOTHING: Final = Allocation(WorkerId(""), (), 0, 0)


def _fits(free: Free, share: Allocation) -> bool:
    return share.cpus <= free.cpus and share.memory_bytes <= free.memory_bytes


def _room(state: State, worker_id: WorkerId) -> int:
    """For how many more, whatever they ask for; ``_window`` knows better once the request is known."""
    worker = state.workers.get(worker_id)
    if worker is None or worker.state is not WorkerState.READY or not worker.is_heard:
        return 0
    return _expected(state, worker) - len(state.ahead.get(worker_id, ()))


def _expected(state: State, worker: Worker) -> int:
    """How many attempts should end there within the horizon."""
    pace = state.paces[worker.id]
    if pace.gap_ms > _HORIZON_MS:
        return 0  # without a look at what runs there
    running = [attempt.lent_ms for epoch in worker.leases if not (attempt := state.attempts[epoch]).is_ahead]
    quiet_ms = state.now_ms - max(pace.last_ms, min(running, default=state.now_ms))
    return min(pace.ends, AHEAD_LIMIT, int(_HORIZON_MS / max(pace.gap_ms, quiet_ms, 1.0)))


def _window(state: State, worker: Worker, request: Request) -> int:
    whole = usable_capacity(worker.facts)
    slots = AHEAD_LIMIT
    if request.cpus:
        slots = min(slots, whole.cpus // request.cpus)
    if request.memory_bytes:
        slots = min(slots, whole.memory_bytes // request.memory_bytes)
    return min(_expected(state, worker), _A_SLOT * slots)


def _where_any_may_go(state: State, opened: list[RequestClass]) -> list[WorkerId]:
    return [
        id_
        for id_ in state.paces
        if (worker := state.workers.get(id_)) is not None and any(_may_go(state, known, worker) for known in opened)
    ]


def _digests(state: State, room: Iterable[WorkerId]) -> set[Digest]:
    """Of the facts of these workers: only where scorers speak of them."""
    return {state.workers[id_].facts_digest for id_ in room} if state.policy.scorers else set()


def _choose(state: State, known: RequestClass, job: Job, task: Task, room: dict[WorkerId, int]) -> Worker | None:
    """The worker with the most room for it, the first to join among equals."""
    if not can_be_lent(job, task):
        return None
    best: Worker | None = None
    best_left = 0
    for worker_id in room:
        worker = state.workers[worker_id]
        if worker_id in task.avoid or worker_id in task.full or not _may_go(state, known, worker):
            continue
        left = _window(state, worker, known.request) - len(state.ahead.get(worker_id, ()))
        if left > best_left:
            best, best_left = worker, left
    return best


def _lend(turn: Turn, worker: Worker, known: RequestClass, job: Job, task: Task) -> None:
    state, request = turn.state, known.request
    node = Node(Allocation(worker.id, (), request.cpus, request.memory_bytes), worker.name, is_ahead=True)
    why = f"{worker.name}: lent ahead, to start there when a slot is free"
    attempt = schedule.begin(turn, job, task, [node], why)
    for epoch in list(state.ahead.get(worker.id, ())):  # the worker starts the oldest epoch first
        earlier = state.attempts[epoch]
        if state.jobs[earlier.job_id].entry.priority < job.entry.priority:
            revoke(turn, earlier)
    state.ahead.setdefault(worker.id, {})[attempt.epoch] = None


def _make_way(turn: Turn, known: RequestClass, job: Job) -> None:
    """A waiting task gets its slot before what is of lower priority and has not started."""
    state = turn.state
    if not opinions.is_open(state, known):
        return
    for worker_id, epochs in state.ahead.items():
        if _waits_for_a_slot(state, known, state.workers[worker_id]):
            for epoch in epochs:
                attempt = state.attempts[epoch]
                if state.jobs[attempt.job_id].entry.priority < job.entry.priority:
                    revoke(turn, attempt)


def _waits_for_a_slot(state: State, known: RequestClass, worker: Worker) -> bool:
    """Whether a head that could not be placed would start there, were cores and memory enough free."""
    if not _may_go(state, known, worker):
        return False
    if not _needs_more_than_a_slot(known.request):
        return True
    free = replace(worker.free, cpus=worker.facts.cpus, memory_bytes=worker.facts.memory_bytes)
    return allocate(known.request, worker.id, worker.facts, free) is not None


def _needs_more_than_a_slot(request: Request) -> bool:
    return bool(request.devices or request.resources)


def _may_go(state: State, known: RequestClass, worker: Worker) -> bool:
    return (
        schedule.is_eligible_for(known, worker)
        and can_compute_now(known.request, worker.facts)
        and opinions.may_take(state, known, worker)
    )


def _class(state: State, request: Request) -> RequestClass:
    return state.classes.get((request, 1)) or RequestClass(request, 1)
