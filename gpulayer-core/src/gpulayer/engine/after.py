"""Jobs that come after others: what each still waits for, and what an end means to those behind it.

A job that waits for another is in no queue and costs nothing there. The step that ends a job also settles whoever waits
for it: what it was the last for may be placed from then on, and what needed its success and does not get it ends as
cancelled, with all that needs *its* success. So nobody waits for what can't come, and all of it is derived: an unmet
dependency is one whose job is live. A start needs the jobs alone.
"""

from collections.abc import Mapping
from typing import Final

from gpulayer.engine.state import Job, State
from gpulayer.ids import JobId
from gpulayer.spec.after import After
from gpulayer.spec.job import JobState

__all__ = ["UNMET", "WAITS", "ended", "fill", "follow", "why_never"]

WAITS: Final = "after"
"""The reason for which such a job waits; what for is told from the state."""
UNMET: Final = "after_failed"
"""The reason for which it ended: it was to run after a success that did not come."""


def follow(state: State, job: Job, ends: Mapping[JobId, JobState]) -> str:
    """Note what a new job waits for. ends: of those that are not live. Returns why it will never run, or nothing."""
    waits: list[After] = []
    for after in job.entry.after:
        if after.job in state.jobs:
            waits.append(after)
        elif not _is_met(after, ends[after.job]):
            return why_never(after, ends[after.job])
    _link(state, job, tuple(waits))
    return ""


def ended(state: State, gone: Job) -> tuple[list[Job], list[tuple[Job, After]]]:
    """A job has ended and left the state. Returns who waits for nothing any more, and who has waited in vain, with
    what for; in the order in which they came."""
    for after in gone.unmet:
        _unlink(state, after.job, gone)
    met: list[Job] = []
    vain: list[tuple[Job, After]] = []
    for job_id in state.followers.pop(gone.entry.id, ()):
        job = state.jobs.get(job_id)
        if job is None:
            continue  # it has ended in this step, too
        failed = None
        for after in job.unmet:
            if after.job == gone.entry.id and not _is_met(after, gone.state):
                failed = after
        job.unmet = tuple(after for after in job.unmet if after.job != gone.entry.id)
        if failed is not None:
            vain.append((job, failed))
        elif not job.unmet:
            met.append(job)
    return met, vain


def why_never(after: After, state: JobState, reason: str = "") -> str:
    """For people. reason: why that one ended so."""
    first = reason.partition("\n")[0]
    return f"it was to run after the success of job {after.job}, which {_WORDS[state]}{f': {first}' if first else ''}"


def fill(state: State) -> None:
    """From the jobs, for a start."""
    for job in state.jobs.values():
        if job.entry.after:
            _link(state, job, tuple(after for after in job.entry.after if after.job in state.jobs))


def _is_met(after: After, state: JobState) -> bool:
    return after.is_any or state is JobState.SUCCEEDED


def _link(state: State, job: Job, waits: tuple[After, ...]) -> None:
    job.unmet = waits
    for after in waits:
        state.followers.setdefault(after.job, {})[job.entry.id] = None


def _unlink(state: State, job_id: JobId, job: Job) -> None:
    known = state.followers.get(job_id)
    if known is not None:
        known.pop(job.entry.id, None)
        if not known:
            del state.followers[job_id]


_WORDS: Final = {
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMED_OUT: "timed out",
    JobState.LOST: "was lost",
    JobState.REJECTED: "was rejected",
}
