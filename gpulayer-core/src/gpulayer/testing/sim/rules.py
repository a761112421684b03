"""What must be true of the control plane's side of the world, whatever happens to it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpulayer.engine import State
from gpulayer.engine.effects import Effect, Notify
from gpulayer.engine.records import AttemptImage, JobImage, Record
from gpulayer.engine.turn import attempt_image, job_image, task_image, worker_image
from gpulayer.ids import JobId, WorkerId

__all__ = ["Ledger", "Stuck", "Violation", "check_terminal", "durable_view"]


class Violation(AssertionError):
    """A promise was broken; the message says which, the run's report carries the seed."""


class Stuck(Violation):
    """Nothing went wrong any more, and something did not come to its end all the same."""


def check_terminal(before: JobImage | None, after: JobImage) -> None:
    """Terminal is final."""
    if before is not None and before.state.is_final and before != after:
        raise Violation(f"job {after.id} was {before.state} and became {after.state}")


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
                    raise Violation(f"job {effect.job_id} ended twice")
                self._told_final.add(effect.job_id)

    def wrote(self, kind: str, worker: WorkerId, epoch: int, *, is_accepted: bool) -> None:
        """A worker's bytes for an attempt: none count of one that has ended, or that another took the place of."""
        if not is_accepted:
            self.refused[kind] += 1
            return
        self.accepted[kind] += 1
        known = self._attempts.get(epoch)
        if known is None:
            raise Violation(f"{kind} of attempt {epoch} was accepted, which was never lent")
        if known.outcome is not None or self._newest[known.job_id, known.task_index] != epoch:
            raise Violation(f"{kind} of stale attempt {epoch} was accepted from {worker}")
        if all(node.worker != worker for node in known.nodes):
            raise Violation(f"{kind} of attempt {epoch} was accepted from {worker}, which it is not lent to")

    def _take(self, record: AttemptImage) -> None:
        task, known = (record.job_id, record.task_index), self._attempts.get(record.epoch)
        if known is not None:
            if known.outcome is not None and known != record:
                raise Violation(f"attempt {record.epoch} had ended and was changed: {known} became {record}")
            if (known.job_id, known.task_index) != task:
                raise Violation(f"epoch {record.epoch} was used twice")
        newest = self._newest.get(task, 0)
        if record.epoch < newest and (known is None or known.outcome is None):
            raise Violation(f"attempt {record.epoch} lives beside attempt {newest} of the same task")
        if record.epoch > newest:
            before = self._attempts.get(newest)
            if before is not None and before.outcome is None:
                raise Violation(f"attempt {record.epoch} began while attempt {newest} of the same task had not ended")
            self._newest[task] = record.epoch
        self._attempts[record.epoch] = record


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
