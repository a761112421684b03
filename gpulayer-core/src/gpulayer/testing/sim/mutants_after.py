"""Planted faults in what waits for other jobs, and in arrays."""

from dataclasses import replace
from typing import Any, Final

from gpulayer import engine
from gpulayer.engine import after, elements, queue
from gpulayer.engine.state import Job
from gpulayer.testing.sim.mutant import Mutant

__all__ = ["AFTER"]


def _begins_early(_: Any) -> Any:
    """A job does not wait for what it comes after."""
    return lambda state, job, waits: None


def _failure_unminded(_: Any) -> Any:
    """A job that needs another's success runs whatever that one's end."""
    return lambda after, state: True


def _followers_untold(_: Any) -> Any:
    """Who waits for a job is not told of its end."""
    return lambda state, gone: ([], [])


def _followers_forgotten(_: Any) -> Any:
    """After a restart nobody knows who waits for whom."""
    return lambda state: None


def _limit_unminded(_: Any) -> Any:
    """All elements of an array may be under way at once, whatever its limit."""
    return lambda self, task: False


def _head_forgotten(done: Any) -> Any:
    """The next element of an array is not begun when another one has made room for it."""

    def broken(state: Any, job: Any, task: Any, outcome: Any, outputs: Any) -> bool:
        head = job.tasks.get(job.begun)
        waited = head is not None and job.is_kept_back(head)
        done(state, job, task, outcome, outputs)
        if waited:
            queue.withdraw(state, job, head)
        return False

    return broken


def _first_failure_forgotten(rebuilt: Any) -> Any:
    """After a restart nobody knows that an element of an array has failed."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        state = rebuilt(*args, **kwargs)
        for job in state.jobs.values():
            job.failed = None
        return state

    return broken


def _elements_from_the_start(rebuilt: Any) -> Any:
    """After a restart an array begins again with its first element."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        jobs = kwargs.get("jobs", ())
        kwargs["jobs"] = [(entry, replace(image, begun=0)) for entry, image in jobs]
        return rebuilt(*args, **kwargs)

    return broken


AFTER: Final[dict[str, Mutant]] = {
    "begins_early": Mutant(4, after, "_link", _begins_early),
    "failure_unminded": Mutant(4, after, "_is_met", _failure_unminded),
    "followers_untold": Mutant(13, after, "ended", _followers_untold),
    "followers_forgotten": Mutant(4, after, "fill", _followers_forgotten),
    "limit_unminded": Mutant(4, Job, "is_kept_back", _limit_unminded),
    "head_forgotten": Mutant(13, elements, "done", _head_forgotten),
    "first_failure_forgotten": Mutant(4, engine, "rebuild", _first_failure_forgotten),
    "elements_from_the_start": Mutant(4, engine, "rebuild", _elements_from_the_start),
}
