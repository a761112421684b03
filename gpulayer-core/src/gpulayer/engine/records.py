"""What is to be stored: whole row images of every entity that a step changed.

A record replaces the row of the same key, so storing one twice changes nothing, the last of a batch wins, and the
live state is rebuilt from the last image of every live entity (``rebuild``). Images hold plain values only.
"""

from dataclasses import dataclass

from gpulayer.engine.events import NodePhase
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.considered import Considered
from gpulayer.spec.job import DEFAULT_LEASE_TTL_MS, JobState
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.worker import WorkerState

__all__ = [
    "AttemptImage",
    "CounterImage",
    "FactsForgotten",
    "FactsImage",
    "JobImage",
    "NodeImage",
    "Record",
    "TaskImage",
    "WorkerImage",
]


@dataclass(frozen=True, slots=True)
class JobImage:
    """``seq`` orders the queue. ``stop``: a stop was asked for and by what; ``stop_by``: by whom. Wall times are for
    people. begun: of an array, how many of its elements have ever been lent."""

    id: JobId
    seq: int
    state: JobState
    reason_code: str
    reason_message: str
    stop: EndedBy | None
    stop_grace_ms: int
    started_wall_ms: int | None
    ended_wall_ms: int | None
    outcome: Outcome | None
    outputs: Digest | None
    stop_by: str = ""
    begun: int = 0


@dataclass(frozen=True, slots=True)
class TaskImage:
    """Written from a task's first attempt on; a task without an image is queued and untried.

    Attempts that used up a retry: ``failures`` through no fault of the program, ``program_failures`` of its own.
    ``avoid``: workers where it failed through no fault of its own. ``held_until_ms``: engine time before which it is
    lent to nobody, because what it was lent before may still run; 0: nothing may. With a live attempt: once that ends.
    outcome, outputs: how an array's element ended, and what it brought home; None for any other task, as the job's own
    image says it.
    """

    job_id: JobId
    index: int
    is_done: bool
    attempts: int
    failures: int
    avoid: tuple[WorkerId, ...]
    program_failures: int = 0
    held_until_ms: int = 0
    outcome: Outcome | None = None
    outputs: Digest | None = None


@dataclass(frozen=True, slots=True)
class NodeImage:
    """What of the worker is lent to it until ``outcome`` is there. outputs: root digest of its output tree."""

    worker: WorkerId
    worker_name: str
    devices: tuple[str, ...]
    cpus: int
    memory_bytes: int
    phase: NodePhase
    outcome: Outcome | None
    outputs: Digest | None
    is_ahead: bool = False
    is_revoked: bool = False
    resources: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptImage:
    """``number`` counts from 1 within the task. first_failure: index of the node that decides how the attempt ends.
    is_unreachable: its worker has been silent for longer than the lease, and no retry is left. lease_ttl_ms: what its
    worker goes by."""

    epoch: Epoch
    job_id: JobId
    task_index: int
    number: int
    phase: NodePhase
    nodes: tuple[NodeImage, ...]
    stop: EndedBy | None
    is_unreachable: bool
    first_failure: int | None
    started_wall_ms: int | None
    ended_wall_ms: int | None
    outcome: Outcome | None
    placement: str
    lease_ttl_ms: int = DEFAULT_LEASE_TTL_MS
    considered: Considered | None = None

    @property
    def is_shown(self) -> bool:
        """Not to people: what waits ahead at a worker, and what was given back from there. Such a job is queued, and
        its next attempt has the same number."""
        if self.outcome is None:
            return not self.nodes[0].is_ahead
        return not (self.nodes[0].is_revoked and self.outcome.ended_by is EndedBy.PREEMPTED)


@dataclass(frozen=True, slots=True)
class WorkerImage:
    """``boot`` is of the last report that counted; one of an earlier boot is stale."""

    id: WorkerId
    name: str
    state: WorkerState
    is_draining: bool
    facts_digest: Digest
    boot: int
    seen_wall_ms: int


@dataclass(frozen=True, slots=True)
class FactsImage:
    """Stored once and shared by all workers with equal facts."""

    digest: Digest
    facts: WorkerFacts


@dataclass(frozen=True, slots=True)
class FactsForgotten:
    """No worker of the state has these facts any more. They are kept while an image names them: that of a removed
    worker, or of one that got them again later in the same batch."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class CounterImage:
    """The one row of counters. ``now_ms``: engine time at this step, so that time goes on after a restart."""

    next_epoch: int
    next_seq: int
    now_ms: int


Record = JobImage | TaskImage | AttemptImage | WorkerImage | FactsImage | FactsForgotten | CounterImage
