"""Where a class may find room, so that nobody looks at a whole fleet for each task.

A class that has been looked at knows its *room*: workers among which all are that could take its request now. Others
get into it only as they gain capacity (``gained``), and a change of the workers themselves makes it unknown
(``forget``), after which all are looked at once. Whoever is in it may have lost it since, so ``fits`` is asked again.
What it says follows from facts and from what is free: exactly where ``allocate`` finds a share.
"""

from collections.abc import Iterable
from typing import Final

from gpulayer.engine.state import RequestClass, State, Worker
from gpulayer.placement.eligibility import can_compute_now, is_eligible, matching_devices
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Request
from gpulayer.spec.worker import WorkerState

__all__ = [
    "fits",
    "forget",
    "free_devices",
    "gained",
    "has_enough",
    "is_eligible_for",
    "left_out",
    "looked_at",
    "takes_work",
]


_FEW: Final = 8


def takes_work(worker: Worker) -> bool:
    """Ready, and heard of since this control plane started."""
    return worker.state is WorkerState.READY and worker.is_heard


def is_eligible_for(known: RequestClass, worker: Worker) -> bool:
    """Eligibility depends on facts alone, but for a request that names a worker; so it is asked once per facts."""
    if known.request.worker:
        return is_eligible(known.request, worker.facts, name=worker.name)
    answer = known.eligible.get(worker.facts_digest)
    if answer is None:
        answer = known.eligible[worker.facts_digest] = is_eligible(known.request, worker.facts)
    return answer


def free_devices(worker: Worker) -> int:
    """As bits, in the order of its facts."""
    free, bits = worker.free.devices, 0
    if free:
        for place, device in enumerate(worker.facts.devices):
            if device.uuid in free:
                bits |= 1 << place
    return bits


def fits(known: RequestClass, worker: Worker, free: int) -> bool:
    """Whether an eligible request finds its share there now. free: ``free_devices`` of the worker."""
    request, left = known.request, worker.free
    if request.cpus > left.cpus or request.memory_bytes > left.memory_bytes:
        return False
    for name, count in request.resources:
        if count > left.count_of(name):
            return False
    groups = known.groups.get(worker.facts_digest)
    if groups is None:
        is_eligible_there = is_eligible_for(known, worker)
        if not is_eligible_there and request.worker:
            return False  # another one with these facts may be the one that is named
        groups = _groups(request, worker.facts) if is_eligible_there else ()
        groups = known.groups[worker.facts_digest] = known.shapes.setdefault(groups, groups)
    elif request.worker and not is_eligible_for(known, worker):
        return False
    wanted = request.devices
    return any((group & free).bit_count() >= wanted for group in groups)


def gained(state: State, worker: Worker) -> Iterable[RequestClass]:
    """The worker may have more room than before. Returns the classes that may be placed now, as far as capacity goes,
    of those that are blocked."""
    opened: list[RequestClass] = []
    if not takes_work(worker):
        return opened
    free = free_devices(worker)
    for known in state.classes.values():
        room = known.room
        if (room is None and not known.is_blocked) or not fits(known, worker, free):
            continue
        if room is not None:
            room[worker.id] = None
            if len(room) < known.nodes:
                continue
        if known.is_blocked:
            opened.append(known)
    return opened


def looked_at(state: State, known: RequestClass) -> list[Worker]:
    """All workers on which it fits now, which are its room from here on."""
    room = known.room
    among = state.workers.values() if room is None else [state.workers[id_] for id_ in room]
    fitting = [worker for worker in among if takes_work(worker) and fits(known, worker, free_devices(worker))]
    if room is None or len(fitting) < len(room):
        known.room = {worker.id: None for worker in fitting}
    return fitting


def has_enough(state: State, known: RequestClass) -> bool:
    """False where fewer workers than it has nodes have room for it. Costs a look at few: where nothing is known of its
    room, or it is large, the answer is True."""
    room = known.room
    if room is None or len(room) > _FEW:
        return True
    return len(looked_at(state, known)) >= known.nodes


def left_out(state: State, known: RequestClass) -> tuple[int, int]:
    """How many workers take no work, and how many of the others are not eligible."""
    if known.left_out is None:
        there = [worker for worker in state.workers.values() if takes_work(worker)]
        ineligible = sum(not is_eligible_for(known, worker) for worker in there)
        known.left_out = len(state.workers) - len(there), ineligible
    return known.left_out


def forget(known: RequestClass) -> None:
    """Workers have come, gone or changed."""
    known.room = known.left_out = None


def _groups(request: Request, facts: WorkerFacts) -> tuple[int, ...]:
    """The devices that match, as bits: by accelerator, in order. Where none is wanted, whether it computes there."""
    if not request.devices:
        return (0,) if can_compute_now(request, facts) else ()
    places = {device.uuid: 1 << place for place, device in enumerate(facts.devices)}
    return tuple(sum(places[device.uuid] for device in group) for group in matching_devices(request, facts))
