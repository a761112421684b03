"""Arrays: one job of many tasks, its elements, which begin in the order of their numbers.

Of the elements a job has in memory those that are under way (lent, or waiting to be lent again) and the *head*, the
next that has never been lent. So an array of 10,000 that waits costs what a single job costs; ``Job.begun`` says where
the head stands, and what became of elements that are done stands in the store. The head is in the queue unless as many
are under way as the array may have at once.

The array's state is what most of it is at: it runs while any element does. It has failed when an element has that will
not run again; all others still run to their end. It ends as the first of its elements, by number, that did not succeed.
"""

from typing import Final

from gpulayer.engine import queue
from gpulayer.engine.events import NodePhase
from gpulayer.engine.state import Attempt, Job, State, Task
from gpulayer.ids import Digest
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import Outcome

__all__ = ["advance", "cut", "done", "fill", "node_state", "shown", "summed_up"]


def advance(state: State, job: Job) -> bool:
    """The head has been lent: the next element is the head. Returns whether that is the head of its queue, too."""
    if not job.is_array or job.begun >= job.count or job.begun in job.tasks:
        return False
    head = job.tasks[job.begun] = Task(job.begun)
    return queue.stands(state, job, head) and queue.push(state, job, head)


def cut(job: Job) -> None:
    """No element is begun any more: the head counts as one under way, that is to be ended by the caller."""
    if job.is_array:
        job.begun = job.count


def done(state: State, job: Job, task: Task, outcome: Outcome, outputs: Digest | None) -> bool:
    """An element will not run again. Returns whether the head may be lent now, which had to wait for that."""
    head = job.tasks.get(job.begun)
    had_to_wait = head is not None and not queue.stands(state, job, head)
    task.outcome, task.outputs = outcome, outputs
    _count(job, task, JobState.QUEUED)
    del job.tasks[task.index]
    state.held.pop((job.entry.id, task.index), None)
    if not outcome.is_success and (job.failed is None or task.index < job.failed[0]):
        job.failed = (task.index, outcome)
    if head is None or not had_to_wait or not queue.stands(state, job, head):
        return False
    known = queue.class_of(state, job)
    is_alone = queue.peek(state, known) is None
    queue.push(state, job, head)
    if is_alone:
        known.is_blocked = False
    return True


def shown(job: Job, task: Task, own: JobState) -> JobState:
    """Its task is at ``own`` now. Returns the job's state: the same for a job of one task, for an array what most of it
    is at."""
    if not job.is_array:
        return own
    _count(job, task, own)
    return summed_up(job)


def summed_up(job: Job) -> JobState:
    """What most of an array is at."""
    if job.stop is not None:
        return JobState.ENDING
    at = job.at or {}
    return next((state for state in _FIRST if at.get(state)), JobState.QUEUED)


def fill(state: State) -> None:
    """Where elements are, from their attempts, for a start."""
    for job in state.jobs.values():
        for task in job.tasks.values() if job.is_array else ():
            if task.epoch is not None:
                _count(job, task, node_state(state.attempts[task.epoch]))


def _count(job: Job, task: Task, at: JobState) -> None:
    """Those that wait are not counted: mostly they are many, and ``len`` knows."""
    if task.at is at:
        return
    if job.at is None:
        job.at = {}
    if task.at is not JobState.QUEUED:
        job.at[task.at] -= 1
    if at is not JobState.QUEUED:
        job.at[at] = job.at.get(at, 0) + 1
    task.at = at


def node_state(attempt: Attempt) -> JobState:
    """What its task is at."""
    if attempt.is_unreachable:
        return JobState.UNREACHABLE
    if attempt.is_ahead and attempt.phase is not NodePhase.ENDING:
        return JobState.QUEUED
    match attempt.phase:
        case NodePhase.ASSIGNED | NodePhase.STAGING:
            return JobState.STAGING
        case NodePhase.RUNNING:
            return JobState.RUNNING
        case NodePhase.ENDING | NodePhase.ENDED:
            return JobState.ENDING


_FIRST: Final = (JobState.RUNNING, JobState.ENDING, JobState.STAGING, JobState.UNREACHABLE)
