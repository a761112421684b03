"""What is to be done once the step is durable. Effects are imperative; none is needed for correctness.

Whoever carries them out may lose them: ``outstanding`` derives Assign, Stop and Revoke from the state again, and
waiters look at the store when they arrive.
"""

from dataclasses import dataclass

from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.request import Request

__all__ = ["AskScorer", "Assign", "Effect", "Notify", "Provision", "Release", "Revoke", "Stop", "Void"]


@dataclass(frozen=True, slots=True)
class Assign:
    """Tell ``worker`` to run one node of the attempt."""

    worker: WorkerId
    epoch: Epoch
    node: int
    job_id: JobId


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell ``worker`` to end its part of the attempt: SIGTERM, the grace time, SIGKILL."""

    worker: WorkerId
    epoch: Epoch
    ended_by: EndedBy
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Ask ``worker`` to give the attempt back if its program has not started; else it runs on."""

    worker: WorkerId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Void:
    """Answer the report: these epochs are not this worker's any more."""

    worker: WorkerId
    epochs: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class Notify:
    """Wake whoever waits for this job."""

    job_id: JobId
    state: JobState


@dataclass(frozen=True, slots=True)
class Provision:
    """Ask a provider for a machine. ``request_id`` makes it idempotent: the same id never makes two."""

    request_id: str
    provider: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give a provided machine back; releasing what is gone succeeds."""

    request_id: str
    provider: str


@dataclass(frozen=True, slots=True)
class AskScorer:
    """Ask ``scorer`` what it thinks of the request on machines with these facts. The answer is ``OpinionsGiven``; where
    none comes, the engine asks again."""

    scorer: str
    request: Request
    digests: tuple[Digest, ...]


Effect = Assign | Stop | Revoke | Void | Notify | Provision | Release | AskScorer
