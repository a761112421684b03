"""What happened: the only input of the engine.

Events are past tense and carry everything that ``step`` may know, above all the time. A plugin's answer, a
provider's result and the passing of a deadline are events too. ``due`` derives the last kind from the state, so
that they stand in the log and a replay needs no heartbeats.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpulayer.clock import Instant
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.job import JobEntry, JobState
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.opinion import Opinion
from gpulayer.spec.outcome import Outcome
from gpulayer.spec.request import Request

__all__ = [
    "AfterMet",
    "AheadWaitPassed",
    "CancelRequested",
    "DrainRequested",
    "Event",
    "HoldPassed",
    "JobSubmitted",
    "KeepForPassed",
    "LeaseExpired",
    "NodePhase",
    "NodeReport",
    "OpinionsGiven",
    "OpinionsLapsed",
    "PlaneRestored",
    "ScorersRegistered",
    "WorkerJoined",
    "WorkerRemoved",
    "WorkerReported",
    "WorkerResumed",
    "WorkerWentSilent",
]


class NodePhase(StrEnum):
    """Where one node of an attempt is; only ever moves down this list."""

    ASSIGNED = "assigned"
    STAGING = "staging"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A worker's word on one node. ``outcome``, ``outputs`` and ``started_ago_ms`` come with ENDED alone; the last
    where its start was not reported: how long before the report that was."""

    epoch: Epoch
    node: int
    phase: NodePhase
    outcome: Outcome | None = None
    outputs: Digest | None = None
    started_ago_ms: int | None = None


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job that has been checked and whose id is new. ends: how those ended that it comes after and that are live no
    more."""

    at: Instant
    job: JobEntry
    ends: tuple[tuple[JobId, JobState], ...] = ()


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked for the end of a job. grace_ms: None for the job's own. by: who, for people."""

    at: Instant
    job_id: JobId
    grace_ms: int | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker enrolled. ``facts_digest`` names the facts, so that equal machines share them."""

    at: Instant
    worker: WorkerId
    name: str
    facts: WorkerFacts
    facts_digest: Digest


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """One report of an agent; see ``wire.workers.ReportBody`` for boot, seq, holding, recovered, unstarted
    and unsure. untold: of an unsure one: what was lent to this worker and never told to any start of its agent."""

    at: Instant
    worker: WorkerId
    boot: int
    seq: int
    holding: tuple[Epoch, ...] = ()
    recovered: tuple[Epoch, ...] | None = None
    items: tuple[NodeReport, ...] = ()
    facts: WorkerFacts | None = None
    facts_digest: Digest | None = None
    stopping: bool = False
    leaving: bool = False
    unstarted: tuple[Epoch, ...] = ()
    unsure: bool = False
    untold: frozenset[Epoch] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkerWentSilent:
    """No report for ``lease_ttl`` × 1.1."""

    at: Instant
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """A node's worker has been silent past the lease: the control plane may act."""

    at: Instant
    epoch: Epoch
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class KeepForPassed:
    """The silent worker has ended the attempt by itself by now."""

    at: Instant
    epoch: Epoch
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class HoldPassed:
    """What of an exclusive job's earlier attempt may still have run has been ended by its worker by now."""

    at: Instant
    job_id: JobId
    task_index: int


@dataclass(frozen=True, slots=True)
class AfterMet:
    """What some jobs come after has ended as they want it: the next of them may be placed."""

    at: Instant


@dataclass(frozen=True, slots=True)
class AheadWaitPassed:
    """What was lent ahead has waited for too long at its worker."""

    at: Instant
    epoch: Epoch
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class OpinionsGiven:
    """A scorer was asked about the request on machines with these facts, and this came of it; None: no opinion, be it
    that it has none or that it failed. All of it is believed for ``lifetime_ms``, then asked for again."""

    at: Instant
    scorer: str
    request: Request
    lifetime_ms: int
    said: tuple[tuple[Digest, Opinion | None], ...]


@dataclass(frozen=True, slots=True)
class OpinionsLapsed:
    """Time has passed for opinions on a class of requests for which somebody waits: they have outlived themselves, or
    have been waited for long enough, or were never asked for."""

    at: Instant
    request: Request
    nodes: int


@dataclass(frozen=True, slots=True)
class ScorersRegistered:
    """These are asked from now on, and no others."""

    at: Instant
    scorers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlaneRestored:
    """This state is that of a backup, and what came after it is unknown: what was lent then may run, and numbers were
    given out that are not in it. ``first``: above all of these; epochs and places in the queue go on from there."""

    at: Instant
    first: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The worker is to finish what it runs and gets nothing new."""

    at: Instant
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerResumed:
    """The worker may take work again; nothing where it does not drain."""

    at: Instant
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerRemoved:
    """A person said that this worker is gone for good; whatever it held is lost."""

    at: Instant
    worker: WorkerId


Event = (
    JobSubmitted
    | CancelRequested
    | WorkerJoined
    | WorkerReported
    | WorkerWentSilent
    | LeaseExpired
    | KeepForPassed
    | HoldPassed
    | AfterMet
    | AheadWaitPassed
    | OpinionsGiven
    | OpinionsLapsed
    | ScorersRegistered
    | PlaneRestored
    | DrainRequested
    | WorkerResumed
    | WorkerRemoved
)
