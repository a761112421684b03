"""The place of a waiting task in the queue, for people. Costs a look at all that waits: nothing of placement asks."""

from dataclasses import dataclass

from gpulayer.engine import queue, shares
from gpulayer.engine.state import Job, QueueEntry, QueuePlace, State
from gpulayer.ids import JobId

__all__ = ["Standing", "place_of", "place_of_new", "stands_now", "would_stand"]


@dataclass(frozen=True, slots=True)
class Standing:
    """ahead: how many other jobs stand before it as shares are now; those that wait for others or are held stand
    nowhere. first: the one that stands first of all, whose it is, and how much of the fleet that owner has, 0 to 1;
    None: nobody does. is_by_share: that is another owner, of equal priority."""

    owner: str
    share: float
    ahead: int = 0
    first: JobId | None = None
    first_owner: str = ""
    first_share: float = 0.0
    is_by_share: bool = False


def place_of(state: State, job: Job) -> QueuePlace:
    """Of its first waiting task."""
    waiting = [task for task in job.tasks.values() if task.epoch is None and not task.is_done]
    task = min(waiting, key=lambda task: task.index, default=job.tasks[min(job.tasks)])
    return queue.place_of(state, job, task)


def place_of_new(state: State, *, owner: str, priority: int) -> QueuePlace:
    """Of a job that would be submitted now."""
    return -priority, shares.of_owner(state, owner), state.next_seq, JobId(""), 0


def stands_now(state: State, job: Job) -> Standing:
    """Where its first waiting task stands."""
    return _standing(state, job.entry.owner, place_of(state, job))


def would_stand(state: State, *, owner: str, priority: int) -> Standing:
    """Where a job would stand that was submitted now."""
    return _standing(state, owner, place_of_new(state, owner=owner, priority=priority))


def _standing(state: State, owner: str, place: QueuePlace) -> Standing:
    first: tuple[QueuePlace, str] | None = None
    jobs: set[JobId] = set()
    for known in state.classes.values():
        for whose, entry in queue.entries(known):
            if entry[2] == place[3] or not _waits(state, entry):
                continue
            other = (entry[0], shares.of_owner(state, whose), *entry[1:])
            if other < place:
                jobs.add(entry[2])
                first = (other, whose) if first is None or other < first[0] else first
    if first is None:
        return Standing(owner, place[1] / shares.WHOLE)
    there, whose = first
    is_by_share = there[0] == place[0] and whose != owner
    return Standing(
        owner, place[1] / shares.WHOLE, len(jobs), there[3], whose, there[1] / shares.WHOLE, is_by_share=is_by_share
    )


def _waits(state: State, entry: QueueEntry) -> bool:
    """Entries are removed lazily."""
    job = state.jobs.get(entry[2])
    if job is None:
        return False
    task = job.tasks.get(entry[3])
    return task is not None and task.epoch is None and not task.is_done
