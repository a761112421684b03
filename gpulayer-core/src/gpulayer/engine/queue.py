"""Who waits: one heap for each owner of each request class, ordered by priority, then age; between owners of equal
priority the one with the least share of the fleet stands first (``shares``), then age again.

A job that waits for others (``after``) is in none, nor is a task that is held, nor the head of an array that has as
many elements under way as it may (``elements``). Entries are removed lazily: an entry
counts only while its task is waiting, which ``peek`` checks. A retry goes back under the job's old number, so that
failing does not cost a place in the queue.
"""

import heapq
from collections.abc import Iterable, Iterator

from gpulayer.engine import shares
from gpulayer.engine.state import Job, QueueEntry, QueuePlace, RequestClass, State, Task

__all__ = ["behind", "class_of", "entries", "fill", "forget", "peek", "place_of", "push", "stands", "withdraw"]


def class_of(state: State, job: Job) -> RequestClass:
    """The job's class, made if this is the first job that waits for such a request."""
    known = state.classes.get(job.class_key)
    if known is None:
        request, nodes = job.class_key
        known = state.classes[job.class_key] = RequestClass(request, nodes)
    return known


def push(state: State, job: Job, task: Task) -> bool:
    """Put a waiting task into its class; True when it is now its head. A new head makes a blocked class worth another
    look only if it is alone, or if the old head keeps away from a full disk: what else blocked that (no capacity for
    this very request) blocks the new one as well.
    """
    known = class_of(state, job)
    before = peek(state, known)
    owned = known.queues.get(job.entry.owner)
    if owned is None:
        owned = known.queues[job.entry.owner] = []
    heapq.heappush(owned, _entry(job, task))
    if known.is_kept_off and job.entry.longest_ms is not None:
        known.is_blocked = False  # it may be short enough to go before those
    is_head = peek(state, known) == place_of(state, job, task)
    if is_head and before is not None and state.jobs[before[3]].tasks[before[4]].full:
        known.is_blocked = False
    return is_head


def place_of(state: State, job: Job, task: Task) -> QueuePlace:
    """Where it stands as things are now, or would."""
    share = shares.of_owner(state, job.entry.owner)
    return -job.entry.priority, share, job.seq, job.entry.id, task.index


def fill(state: State, jobs: Iterable[Job]) -> None:
    """``push`` for all waiting tasks of these jobs, for a start with very many."""
    known: RequestClass | None = None
    for job in jobs:
        # Jobs that were read together share their request; hashing it again for each would take half of the time.
        if known is None or job.class_key[0] is not known.request or job.class_key[1] != known.nodes:
            known = class_of(state, job)
        for task in job.tasks.values():
            if stands(state, job, task):
                known.queues.setdefault(job.entry.owner, []).append(_entry(job, task))
    for each in state.classes.values():
        for owned in each.queues.values():
            heapq.heapify(owned)


def peek(state: State, request_class: RequestClass) -> QueuePlace | None:
    """Where the first that waits stands, or None; drops what no longer waits."""
    first: QueuePlace | None = None
    gone: list[str] = []
    for owner, owned in request_class.queues.items():
        head = _head(state, owned)
        if head is None:
            gone.append(owner)
            continue
        if first is not None and head[0] > first[0]:
            continue
        share = shares.of_owner(state, owner)
        if first is None or (head[0], share, head[1]) < first[:3]:
            first = (head[0], share, head[1], head[2], head[3])
    for owner in gone:
        del request_class.queues[owner]
    return first


def entries(request_class: RequestClass) -> Iterator[tuple[str, QueueEntry]]:
    """All of them with their owners, also what no longer waits."""
    for owner, owned in request_class.queues.items():
        for entry in owned:
            yield owner, entry


def stands(state: State, job: Job, task: Task) -> bool:
    """Whether the task waits for nothing but its turn: then it is in the queue, and else not."""
    if task.epoch is not None or task.is_done or job.unmet or job.is_kept_back(task):
        return False
    if state.met and job.entry.id in state.met:
        return False
    return not state.held or (job.entry.id, task.index) not in state.held


def behind(state: State, request_class: RequestClass, first: QueuePlace, *, most: int) -> list[QueuePlace]:
    """Where the next stand of the same class, in order; ``most`` of each owner at most."""
    found: list[QueuePlace] = []
    for owner, owned in request_class.queues.items():
        share = shares.of_owner(state, owner)
        for entry in heapq.nsmallest(most, owned):
            job = state.jobs.get(entry[2])
            if job is not None and (task := job.tasks.get(entry[3])) is not None and stands(state, job, task):
                found.append((entry[0], share, *entry[1:]))
    return sorted(place for place in found if place > first)


def withdraw(state: State, job: Job, task: Task) -> None:
    """Take a waiting task out; ``push`` puts it back in its place."""
    known = state.classes.get(job.class_key)
    owned = known.queues.get(job.entry.owner) if known is not None else None
    if owned and owned[0] == _entry(job, task):
        heapq.heappop(owned)
    elif owned is not None:
        owned[:] = [entry for entry in owned if (entry[2], entry[3]) != (job.entry.id, task.index)]
        heapq.heapify(owned)


def forget(state: State, job: Job) -> None:
    """Take a job out of the state; its queue entries die by themselves."""
    state.jobs.pop(job.entry.id, None)
    state.met.pop(job.entry.id, None)
    for index in job.tasks if state.held else ():
        state.held.pop((job.entry.id, index), None)
    request_class = state.classes.get(job.class_key)
    if request_class is not None and peek(state, request_class) is None:
        del state.classes[job.class_key]


def _entry(job: Job, task: Task) -> QueueEntry:
    return -job.entry.priority, job.seq, job.entry.id, task.index


def _head(state: State, owned: list[QueueEntry]) -> QueueEntry | None:
    while owned:
        job = state.jobs.get(owned[0][2])
        if job is not None:
            task = job.tasks.get(owned[0][3])
            if task is not None and task.epoch is None and not task.is_done:
                return owned[0]
        heapq.heappop(owned)
    return None
