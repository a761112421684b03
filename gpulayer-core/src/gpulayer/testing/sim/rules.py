"""What must be true of the whole world, whatever happens to it."""

from typing import Any

from gpulayer.engine import State
from gpulayer.engine.records import JobImage
from gpulayer.engine.turn import attempt_image, job_image, task_image, worker_image

__all__ = ["Violation", "check_terminal", "durable_view"]


class Violation(AssertionError):
    """A promise was broken; the message says which, the run's report carries the seed."""


def check_terminal(before: JobImage | None, after: JobImage) -> None:
    """Terminal is final."""
    if before is not None and before.state.is_final and before != after:
        raise Violation(f"job {after.id} was {before.state} and became {after.state}")


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
