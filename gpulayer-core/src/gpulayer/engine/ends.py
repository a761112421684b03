"""What an end means: the job's last state, and the words for people. Pure; the table in docs/ends.md says the same.

The first cause is told: a program that exits because it was cancelled was cancelled. Of a worker's evidence nothing is
left out; who or what ended it comes first.
"""

from typing import assert_never

from gpulayer.engine.state import Job
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import EndedBy, Outcome, signal_text

__all__ = ["below", "end_text", "final_state", "stop_text"]


def final_state(outcome: Outcome) -> JobState:
    """The state of a job that does not run again."""
    match outcome.ended_by:
        case EndedBy.PROGRAM if outcome.exit_code == 0:
            return JobState.SUCCEEDED
        case EndedBy.CANCEL:
            return JobState.CANCELLED
        case EndedBy.TIMEOUT:
            return JobState.TIMED_OUT
        case EndedBy.WORKER_LOST | EndedBy.WORKER_STOPPED | EndedBy.PREEMPTED | EndedBy.CLIENT_LOST:
            return JobState.LOST
        case (
            EndedBy.PROGRAM
            | EndedBy.SIGNAL
            | EndedBy.OUT_OF_MEMORY
            | EndedBy.STAGING
            | EndedBy.ENVIRONMENT
            | EndedBy.DISK_FULL
            | EndedBy.DRIFT
        ):
            return JobState.FAILED
        case _:
            assert_never(outcome.ended_by)


def end_text(outcome: Outcome) -> str:
    """Who or what ended it, on the first line; below it what else was seen."""
    match outcome.ended_by:
        case EndedBy.PROGRAM if outcome.exit_code is not None:
            return below(f"exit code {outcome.exit_code}", outcome.evidence)
        case EndedBy.SIGNAL if outcome.signal is not None:
            return below(f"killed by signal {signal_text(outcome.signal)}", outcome.evidence)
        case _:
            return outcome.evidence or _usual_text(outcome.ended_by)


def stop_text(job: Job) -> str:
    """Who asked for its end: ``cancelled by laptop (gpulayer/0.1.0)``."""
    return f"cancelled by {job.stop_by}" if job.stop_by else "cancelled"


def below(first: str, rest: str) -> str:
    """``rest`` on the lines after ``first``; ``first`` alone where there is none."""
    return f"{first}\n{rest}" if rest else first


def _usual_text(ended_by: EndedBy) -> str:
    match ended_by:
        case EndedBy.WORKER_STOPPED:
            return "its worker was stopped"
        case EndedBy.WORKER_LOST:
            return "its worker was lost"
        case EndedBy.PREEMPTED:
            return "its worker was taken away"
        case EndedBy.TIMEOUT:
            return "it ran for longer than its --timeout"
        case EndedBy.OUT_OF_MEMORY:
            return "it ran out of memory"
        case EndedBy.DISK_FULL:
            return "the disk was full"
        case other:
            return f"ended by {other.replace('_', ' ')}"
