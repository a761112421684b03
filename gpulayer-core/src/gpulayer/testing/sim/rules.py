"""What must be true of the control plane's side of the world, whatever happens to it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpulayer.engine import State
from gpulayer.engine.effects import Assign, Effect, Notify
from gpulayer.engine.records import AttemptImage, JobImage, Record
from gpulayer.engine.schedule import is_eligible_for, takes_work
from gpulayer.engine.state import RequestClass, Worker
from gpulayer.engine.turn import attempt_image, job_image, task_image, worker_image
from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import allocate
from gpulayer.spec.job import JobState
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.testing.sim.words import job_name

__all__ = ["Ledger", "Shrunk", "Stuck", "Violation", "check_after", "check_detour", "check_terminal", "durable_view"]


class Violation(AssertionError):
    """A rule was broken; the message says by whom, the notes when. ``promise``: the one of PROMISES that says so; 0:
    none does in so many words."""

    def __init__(self, *told: object, promise: int = 0) -> None:
        super().__init__(*told)
        self.promise = promise


class Stuck(Violation):
    """Nothing went wrong any more, and something did not come to its end all the same."""

    def __init__(self, *told: object) -> None:
        super().__init__(*told, promise=13)


def check_terminal(before: JobImage | None, after: JobImage) -> None:
    """Terminal is final."""
    if before is not None and before.state.is_final and before != after:
        raise Violation(f"job {after.id} was {before.state} and became {after.state}", promise=4)


def check_after(state: State, job_id: JobId, end_of: Callable[[JobId], JobState | None]) -> None:
    """It begins once what it comes after has ended, and as it wants it."""
    for after in state.jobs[job_id].entry.after:
        if not after.is_any and end_of(after.job) is not JobState.SUCCEEDED:
            raise Violation(f"job {job_id} is lent, and was to run after the success of job {after.job}", promise=4)


def check_detour(state: State, last: AttemptImage | None, lent: Assign) -> None:
    """Who had no device for a task after all is not asked for one again at once, while another has it free. ``last``:
    the task's last attempt before this one."""
    if last is None or last.outcome is None or last.outcome.ended_by is not EndedBy.DRIFT:
        return
    if last.nodes[0].worker != lent.worker:
        return
    job = state.jobs[lent.job_id]
    task = job.tasks[state.attempts[lent.epoch].task_index]
    known, request = RequestClass(*job.class_key), job.entry.request
    for other in state.workers.values():
        if other.id == lent.worker or other.id in task.avoid | task.full or not takes_work(other):
            continue
        if state.attempts[lent.epoch].is_kept_off:
            continue  # it may be kept for others
        if is_eligible_for(known, other) and allocate(request, other.id, other.facts, other.free) is not None:
            raise Violation(
                f"job {lent.job_id} is lent to {lent.worker} again, which had no device for it, and {other.id} is free",
                promise=13,
            )


@dataclass(slots=True)
class Shrunk:
    """``workers``: of which something may have begun when they had more cores or memory than they have now."""

    workers: set[WorkerId] = field(default_factory=set)
    _most: dict[WorkerId, tuple[int, int]] = field(default_factory=dict)  # since it last had no leases

    def report(self, known: Worker, facts: WorkerFacts) -> None:
        """A worker reports these facts."""
        has = facts.cpus, facts.memory_bytes
        most = self._most.get(known.id, has) if known.leases else (known.facts.cpus, known.facts.memory_bytes)
        self._most[known.id] = max(has[0], most[0]), max(has[1], most[1])
        if has == self._most[known.id]:
            self.workers.discard(known.id)
        else:
            self.workers.add(known.id)


@dataclass(slots=True)
class Ledger:
    """What was ever committed, and what was ever accepted of whom: kept apart from the code that decides it.

    accepted, refused: writes of workers, by kind.
    """

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    _attempts: dict[int, AttemptImage] = field(default_factory=dict)
    _newest: dict[tuple[JobId, int], int] = field(default_factory=dict)
    _told_final: set[JobId] = field(default_factory=set)

    def committed(self, records: Iterable[Record], effects: Iterable[Effect]) -> None:
        """An attempt ends once, a task has one attempt at a time, and a job's end is told once."""
        for record in records:
            if isinstance(record, AttemptImage):
                self._take(record)
        for effect in effects:
            if isinstance(effect, Notify) and effect.state.is_final:
                if effect.job_id in self._told_final:
                    raise Violation(f"job {effect.job_id} ended twice", promise=4)
                self._told_final.add(effect.job_id)

    def last_of(self, task: tuple[JobId, int], records: Iterable[Record]) -> AttemptImage | None:
        """The newest attempt of a task that has ended. records: not committed yet."""
        known = self._attempts.get(self._newest.get(task, 0))
        for record in records:
            if isinstance(record, AttemptImage) and (record.job_id, record.task_index) == task and record.outcome:
                known = record
        return known

    def wrote(self, kind: str, worker: WorkerId, epoch: int, *, is_accepted: bool) -> None:
        """A worker's bytes for an attempt: none count of one that has ended, or that another took the place of."""
        if not is_accepted:
            self.refused[kind] += 1
            return
        self.accepted[kind] += 1
        known = self._attempts.get(epoch)
        if known is None:
            raise Violation(f"{kind} of the attempt of epoch {epoch} is taken, which was never lent", promise=3)
        if known.outcome is not None or self._newest[known.job_id, known.task_index] != epoch:
            raise Violation(f"{kind} of {_named(known)} is taken from {worker}, and is not current any more", promise=3)
        if all(node.worker != worker for node in known.nodes):
            raise Violation(f"{kind} of {_named(known)} is taken from {worker}, which it is not lent to", promise=3)

    def _take(self, record: AttemptImage) -> None:
        task, known = (record.job_id, record.task_index), self._attempts.get(record.epoch)
        if known is not None:
            if known.outcome is not None and known != record:
                raise Violation(f"{_named(known)} had ended and was changed: {known} became {record}", promise=4)
            if (known.job_id, known.task_index) != task:
                raise Violation(
                    f"epoch {record.epoch} was used twice: for {_named(known)}, and now for {_named(record)}", promise=3
                )
        newest = self._newest.get(task, 0)
        if record.epoch < newest and (known is None or known.outcome is None):
            raise Violation(f"{_named(record)} lives on beside a newer attempt of the same job", promise=3)
        if record.epoch > newest:
            before = self._attempts.get(newest)
            if before is not None and before.outcome is not None and before.outcome.is_success:
                raise Violation(f"{_named(record)} begins, and {_named(before)} has succeeded", promise=4)
            if before is not None and before.outcome is None:
                raise Violation(f"{_named(record)} begins while {_named(before)} has not ended", promise=3)
            self._newest[task] = record.epoch
        self._attempts[record.epoch] = record


def _named(image: AttemptImage) -> str:
    element = f"element {image.task_index} of " if image.task_index else ""
    return f"attempt {image.number} of {element}{job_name(image.job_id)}"


def durable_view(state: State) -> dict[str, Any]:
    """The part of the state that a restart must restore, in comparable form. Any: maps of several image types."""
    waiting = sorted(
        (job_id, task.index)
        for job_id, job in state.jobs.items()
        for task in job.tasks.values()
        if task.epoch is None and not task.is_done
    )
    return {
        "counters": (state.next_epoch, state.next_seq),
        "jobs": {job_id: job_image(job) for job_id, job in state.jobs.items()},
        "failed elements": {job_id: job.failed for job_id, job in state.jobs.items() if job.failed is not None},
        "tasks": {
            (job_id, task.index): task_image(job_id, task)
            for job_id, job in state.jobs.items()
            for task in job.tasks.values()
        },
        "attempts": {epoch: attempt_image(attempt) for epoch, attempt in state.attempts.items()},
        "workers": {
            worker.id: (worker_image(worker).state, worker.boot, worker.facts_digest, dict(worker.leases), worker.free)
            for worker in state.workers.values()
        },
        "waiting": waiting,
    }
