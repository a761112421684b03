"""The place of a waiting task in the queue, for people. Costs a look at all that waits: nothing of placement asks."""

from gpulayer.engine.state import Job, QueueEntry, State
from gpulayer.ids import JobId

__all__ = ["ahead_of", "would_be_ahead"]


def ahead_of(state: State, job: Job) -> tuple[int, JobId | None]:
    """How many other jobs stand before its first waiting task, and the one that stands first of all. Jobs that wait for
    others or are held stand nowhere."""
    waiting = [index for index, task in job.tasks.items() if task.epoch is None and not task.is_done]
    entry = (-job.entry.priority, job.seq, job.entry.id, min(waiting, default=0))
    return _before(state, entry)


def would_be_ahead(state: State, *, priority: int) -> tuple[int, JobId | None]:
    """The same for a job that was submitted now."""
    return _before(state, (-priority, state.next_seq, JobId(""), 0))


def _before(state: State, entry: QueueEntry) -> tuple[int, JobId | None]:
    first: QueueEntry | None = None
    jobs: set[JobId] = set()
    for known in state.classes.values():
        for other in known.queue:
            if other < entry and other[2] != entry[2] and _waits(state, other):
                jobs.add(other[2])
                first = other if first is None or other < first else first
    return len(jobs), first[2] if first else None


def _waits(state: State, entry: QueueEntry) -> bool:
    """Entries are removed lazily."""
    job = state.jobs.get(entry[2])
    if job is None:
        return False
    task = job.tasks.get(entry[3])
    return task is not None and task.epoch is None and not task.is_done
