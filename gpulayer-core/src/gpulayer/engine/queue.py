"""Who waits: one heap a request class, ordered by priority, then age.

A job that waits for others (``after``) is in none, nor is a task that is held, nor the head of an array that has as
many elements under way as it may (``elements``). Entries are removed lazily: an entry
counts only while its task is waiting, which ``peek`` checks. A retry goes back under the job's old number, so that
failing does not cost a place in the queue.
"""

import heapq
from collections.abc import Iterable

from gpulayer.engine.state import Job, QueueEntry, RequestClass, State, Task

__all__ = ["class_of", "fill", "forget", "peek", "pop", "push", "stands", "withdraw"]


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
    entry = (-job.entry.priority, job.seq, job.entry.id, task.index)
    heapq.heappush(known.queue, entry)
    is_head = peek(state, known) == entry
    if is_head and before is not None and state.jobs[before[2]].tasks[before[3]].full:
        known.is_blocked = False
    return is_head


def fill(state: State, jobs: Iterable[Job]) -> None:
    """``push`` for all waiting tasks of these jobs, for a start with very many."""
    known: RequestClass | None = None
    for job in jobs:
        # Jobs that were read together share their request; hashing it again for each would take half of the time.
        if known is None or job.class_key[0] is not known.request or job.class_key[1] != known.nodes:
            known = class_of(state, job)
        for task in job.tasks.values():
            if stands(state, job, task):
                known.queue.append((-job.entry.priority, job.seq, job.entry.id, task.index))
    for each in state.classes.values():
        heapq.heapify(each.queue)


def peek(state: State, request_class: RequestClass) -> QueueEntry | None:
    """The first waiting entry, or None; drops what no longer waits."""
    entries = request_class.queue
    while entries:
        job = state.jobs.get(entries[0][2])
        if job is not None:
            task = job.tasks.get(entries[0][3])
            if task is not None and task.epoch is None and not task.is_done:
                return entries[0]
        heapq.heappop(entries)
    return None


def stands(state: State, job: Job, task: Task) -> bool:
    """Whether the task waits for nothing but its turn: then it is in the queue, and else not."""
    if task.epoch is not None or task.is_done or job.unmet or job.is_kept_back(task):
        return False
    if state.met and job.entry.id in state.met:
        return False
    return not state.held or (job.entry.id, task.index) not in state.held


def withdraw(state: State, job: Job, task: Task) -> None:
    """Take a waiting task out; ``push`` puts it back in its place."""
    known = state.classes.get(job.class_key)
    if known is not None:
        known.queue[:] = [entry for entry in known.queue if (entry[2], entry[3]) != (job.entry.id, task.index)]
        heapq.heapify(known.queue)


def pop(request_class: RequestClass) -> QueueEntry:
    """Take the head, waiting or not: ``peek`` first, which says whether there is one."""
    return heapq.heappop(request_class.queue)


def forget(state: State, job: Job) -> None:
    """Take a job out of the state; its queue entries die by themselves."""
    state.jobs.pop(job.entry.id, None)
    state.met.pop(job.entry.id, None)
    for index in job.tasks if state.held else ():
        state.held.pop((job.entry.id, index), None)
    request_class = state.classes.get(job.class_key)
    if request_class is not None and peek(state, request_class) is None:
        del state.classes[job.class_key]
