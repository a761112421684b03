"""The live state: what scheduling needs and nothing else (no argv, environment, source or log).

Only ``step`` changes it, in place. Jobs leave it when they are final; the store keeps their rows. Everything that
``rebuild`` can't restore from row images (``heard_ms``, ``seq`` of reports) must be safe to forget.
"""

from dataclasses import dataclass, field

from gpulayer.engine.events import NodePhase
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.placement.capacity import Allocation, Free
from gpulayer.spec.after import After
from gpulayer.spec.considered import Considered
from gpulayer.spec.job import DEFAULT_LEASE_TTL_MS, Array, JobEntry, JobState
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.opinion import Opinion
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Request
from gpulayer.spec.worker import WorkerState

__all__ = [
    "Attempt",
    "Capacity",
    "Job",
    "Node",
    "Opinions",
    "Pace",
    "Policy",
    "QueueEntry",
    "QueuePlace",
    "RequestClass",
    "Reservation",
    "State",
    "Task",
    "Used",
    "Worker",
]

QueueEntry = tuple[int, int, JobId, int]
"""(-priority, seq, job, task index): heap order is the order of one owner's tasks."""

QueuePlace = tuple[int, int, int, JobId, int]
"""(-priority, share of the owner now, seq, job, task index): the order of all."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Numbers that the whole control plane shares. ``expiry_percent``: the control plane waits that much longer
    than the worker, so that clock rates may differ by 5 % and the worker is always the first to give up.

    scorers: names of those who are asked for opinions; without any, nothing of ``opinions`` costs anything.
    opinion_wait_ms: how long requests wait for opinions; a little longer than a scorer may take.
    """

    lease_ttl_ms: int = DEFAULT_LEASE_TTL_MS
    expiry_percent: int = 110
    scorers: tuple[str, ...] = ()
    opinion_wait_ms: int = 2_500

    def expiry_ms(self, duration_ms: int) -> int:
        """How long the control plane waits where the worker waits ``duration_ms``."""
        return duration_ms * self.expiry_percent // 100


@dataclass(slots=True)
class Task:
    """The unit that is placed. ``epoch``: its live attempt, None while it waits. ``failures``, ``held_until_ms``: see
    ``TaskImage``.

    full: workers on whose full disk it ended; while another can take it, it does not go there. Safe to forget: then
    it may end there once more. outcome, outputs: of an array's element that is done. at: of an element, what it is at.
    """

    index: int
    epoch: Epoch | None = None
    is_done: bool = False
    attempts: int = 0
    failures: int = 0
    program_failures: int = 0
    held_until_ms: int = 0
    avoid: frozenset[WorkerId] = frozenset()  # not sets: two empty ones would be a third of what a waiting job takes
    full: frozenset[WorkerId] = field(default=frozenset(), compare=False)
    outcome: Outcome | None = None
    outputs: Digest | None = None
    at: JobState = field(default=JobState.QUEUED, compare=False)


@dataclass(slots=True)
class Job:
    """A job that is not final. ``seq`` orders the queue. ``stop``: its end was asked for, and by what; ``stop_by``: by
    whom. ``unmet``: what it still waits for; such a job is in no queue (``after``).

    Of an array (``elements``): begun: how many of its elements have ever been lent; failed: the first by number that
    did not succeed, and how; at: how many of them are at what, but for those that wait. Its tasks are those that are
    under way, and the head."""

    entry: JobEntry
    seq: int
    state: JobState
    class_key: tuple[Request, int]
    tasks: dict[int, Task]
    reason_code: str = ""
    reason_message: str = ""
    stop: EndedBy | None = None
    stop_grace_ms: int = 0
    stop_by: str = ""
    started_wall_ms: int | None = None
    ended_wall_ms: int | None = None
    outcome: Outcome | None = None
    outputs: Digest | None = None
    unmet: tuple[After, ...] = ()
    begun: int = 0
    failed: tuple[int, Outcome] | None = None
    at: dict[JobState, int] | None = None

    @property
    def is_array(self) -> bool:
        return isinstance(self.entry.shape, Array)

    @property
    def count(self) -> int:
        """How many tasks it has in all."""
        shape = self.entry.shape
        return shape.count if isinstance(shape, Array) else 1

    @property
    def is_untried(self) -> bool:
        """Its first task waits, and has been lent to nobody."""
        first = self.tasks.get(0)
        return first is not None and first.epoch is None and not first.is_done and not first.attempts

    def is_kept_back(self, task: Task) -> bool:
        """An array's head, while as many of its elements are under way as may be at once."""
        shape = self.entry.shape
        if not isinstance(shape, Array) or not shape.limit or task.index != self.begun:
            return False
        return len(self.tasks) - 1 >= shape.limit


@dataclass(slots=True)
class Node:
    """One node of an attempt: the lease of its allocation, fenced by the attempt's epoch.

    is_ahead: it waits at its worker for a slot, and its allocation counts against nothing (see ``ahead``).
    is_revoked: it is wanted back, unless it has started by the time its worker hears of it.
    """

    allocation: Allocation
    worker_name: str
    phase: NodePhase = NodePhase.ASSIGNED
    outcome: Outcome | None = None
    outputs: Digest | None = None
    is_ahead: bool = False
    is_revoked: bool = False


@dataclass(slots=True)
class Attempt:
    """One try of a task; never revived. ``first_failure``: the node whose failure ended it. ``lent_ms``: when, in
    engine time, and ``began_ms``: when it began to run; volatile. is_kept_off: from other workers, by
    reservations; volatile. ``lease_ttl_ms``: of the control plane's life in
    which its worker last reported it, which is what that goes by."""

    epoch: Epoch
    job_id: JobId
    task_index: int
    number: int
    nodes: list[Node]
    phase: NodePhase = NodePhase.ASSIGNED
    stop: EndedBy | None = None
    is_unreachable: bool = False
    first_failure: int | None = None
    started_wall_ms: int | None = None
    ended_wall_ms: int | None = None
    outcome: Outcome | None = None
    placement: str = ""
    considered: Considered | None = None
    lease_ttl_ms: int = DEFAULT_LEASE_TTL_MS
    lent_ms: int = field(default=0, compare=False)
    began_ms: int | None = field(default=None, compare=False)
    is_kept_off: bool = field(default=False, compare=False)

    @property
    def is_ahead(self) -> bool:
        """Only attempts of one node are lent ahead."""
        return self.nodes[0].is_ahead


@dataclass(slots=True)
class Pace:
    """How quickly attempts end on a worker: smoothed time between two ends, when the last was, and how many ended
    since it last was slow. Volatile."""

    gap_ms: float
    last_ms: int
    ends: int


@dataclass(slots=True)
class Worker:
    """``leases``: epochs with a node here that has not ended. ``heard_ms``, ``seq``, ``is_heard``, ``is_stopping``:
    volatile.

    is_heard: it has reported since the control plane started. Before that it may be anywhere, and gets nothing new.
    is_stopping: it has said so, and says it again until it starts anew.
    """

    id: WorkerId
    name: str
    state: WorkerState
    facts: WorkerFacts
    facts_digest: Digest
    free: Free
    boot: int = 0
    is_draining: bool = False
    seen_wall_ms: int = 0
    seq: int = -1
    heard_ms: int = 0
    is_heard: bool = True
    is_stopping: bool = False
    leases: dict[Epoch, int] = field(default_factory=dict)  # epoch → node index


@dataclass(slots=True)
class Opinions:
    """What scorers say of one request, by the digest of a machine's facts. Volatile: a restart asks again.

    said: by scorer, what it last said and the engine time up to which that is believed.
    asked: by scorer, of what it was asked and has not answered; all of these are in ``waits``.
    waits: pairs that lack a fresh opinion, and until when they wait for it; until then they are not used.
    usable: pairs on which all have spoken and that nobody refuses, and up to which time. Follows from ``said``.
    held_until_ms: nothing at all is placed before: no opinion was there, and all are to come. 0: not held.
    until_ms: once this has passed, all that is in here is over.
    """

    said: dict[str, dict[Digest, tuple[Opinion | None, int]]]
    asked: dict[str, set[Digest]]
    waits: dict[Digest, int] = field(default_factory=dict)
    usable: dict[Digest, int] = field(default_factory=dict)
    held_until_ms: int = 0
    until_ms: int = 0


@dataclass(slots=True)
class RequestClass:
    """Equal requests wait together and share what is known of them. ``queues``: by owner, see ``queue``.

    ``is_blocked``: its head fitted nowhere, and no worker that could take it has gained capacity since. is_kept_off: it
    would have, but for a reservation. plans_ms: before this nobody looks whether something is to be reserved for it.
    unsure: jobs that were accepted only because checks of frameworks were to end; their rows say so.
    opinions: of its request, once they were looked at. looks_ms: engine time at which that is due again; 0: at once.
    eligible, groups: by the digest of a machine's facts; shapes: each of ``groups`` once. room, left_out: see
    ``rooms``; None: to be found out.
    """

    request: Request
    nodes: int
    queues: dict[str, list[QueueEntry]] = field(default_factory=dict)
    eligible: dict[Digest, bool] = field(default_factory=dict)
    groups: dict[Digest, tuple[int, ...]] = field(default_factory=dict)
    shapes: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    room: dict[WorkerId, None] | None = None
    left_out: tuple[int, int] | None = None
    is_blocked: bool = False
    is_kept_off: bool = False
    plans_ms: int = 0
    unsure: dict[JobId, None] = field(default_factory=dict)
    opinions: Opinions | None = None
    looks_ms: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """These workers are kept for a task that waits, which can begin there at ``starts_ms`` at the latest."""

    job: JobId
    task: int
    workers: frozenset[WorkerId]
    starts_ms: int


@dataclass(slots=True)
class Used:
    """What so many nodes take together, or workers have. share: see ``shares``, -1: to be worked out."""

    nodes: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    devices: int = 0
    share: int = field(default=-1, compare=False)


@dataclass(slots=True)
class Capacity:
    """A machine asked of a provider, from request to release. Joined to its worker by name once that enrols."""

    request_id: str
    provider: str
    request: Request
    worker: WorkerId | None = None
    is_released: bool = False


@dataclass(slots=True)
class State:
    """``now_ms``: time of the last event. ``next_epoch`` and ``next_seq`` only ever grow, and outlive a restart.
    ``facts``: those that a worker has. ``ahead``: the attempts lent ahead, by worker; workers without one are not in
    it. ``paces``: volatile. ``held``: waiting tasks that are in no queue, and until when (``holds``). ``followers``: of
    each job that others wait for, these; ``met``: those that wait for nothing any more and are to be queued, some at a
    time.

    opinions: by request; they outlive its class, so that the next job need not wait. opinions_limit: with more requests
    than this in it, it is time to forget some. sweep_ms: engine time at which to forget what is over. undecided:
    ``--no-wait`` jobs that wait for opinions, by class, and when they are decided at the latest; 0: not known yet,
    after a restart. used: by owner, what his live attempts take; fleet: what all workers have, None: to be added up.
    reservations: by class, see there; reserved: for which class a worker is. Volatile.
    """

    policy: Policy = field(default_factory=Policy)
    now_ms: int = 0
    next_epoch: int = 1
    next_seq: int = 1
    jobs: dict[JobId, Job] = field(default_factory=dict)
    attempts: dict[Epoch, Attempt] = field(default_factory=dict)
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    facts: dict[Digest, WorkerFacts] = field(default_factory=dict)
    classes: dict[tuple[Request, int], RequestClass] = field(default_factory=dict)
    capacity: dict[str, Capacity] = field(default_factory=dict)
    ahead: dict[WorkerId, dict[Epoch, None]] = field(default_factory=dict)
    paces: dict[WorkerId, Pace] = field(default_factory=dict)
    held: dict[tuple[JobId, int], int] = field(default_factory=dict)
    followers: dict[JobId, dict[JobId, None]] = field(default_factory=dict)
    met: dict[JobId, None] = field(default_factory=dict)
    opinions: dict[Request, Opinions] = field(default_factory=dict)
    opinions_limit: int = 0
    sweep_ms: int = 0
    undecided: dict[tuple[Request, int], dict[JobId, int]] = field(default_factory=dict)
    used: dict[str, Used] = field(default_factory=dict)
    fleet: Used | None = field(default=None, compare=False)
    reservations: dict[tuple[Request, int], Reservation] = field(default_factory=dict, compare=False)
    reserved: dict[WorkerId, tuple[Request, int]] = field(default_factory=dict, compare=False)
