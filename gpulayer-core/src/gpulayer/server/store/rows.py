"""What goes into and comes out of the store beside the engine's images: plain rows, no tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpulayer.engine.records import AttemptImage, CounterImage, FactsImage, JobImage, Record, TaskImage, WorkerImage
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.spec.job import JobEntry, JobSpec, JobState
from gpulayer.spec.outcome import Outcome
from gpulayer.wire.jobs import JobSubmission

__all__ = [
    "AuditEntry",
    "AuditRow",
    "Batch",
    "EventRow",
    "IdempotencyRow",
    "IdentityRow",
    "JobRow",
    "Live",
    "LogPage",
    "LogRow",
    "SecretRow",
    "Side",
    "StartRow",
    "StoredElement",
    "StoredEvent",
    "StoredJob",
    "TokenRow",
]


@dataclass(frozen=True, slots=True)
class JobRow:
    """The immutable part of a job. owner: who may manage it, whatever token they use; token_id: the one it was
    submitted with. retry_of: the job that it repeats; empty: none."""

    id: JobId
    owner: str
    submitter: str
    client: str
    submitted_wall_ms: int
    spec: JobSpec
    submission: JobSubmission
    token_id: str = ""
    retry_of: str = ""


@dataclass(frozen=True, slots=True)
class SecretRow:
    """sealed: as ``server.sealing`` made it, for this job and name alone."""

    job_id: JobId
    name: str
    sealed: bytes


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What somebody did. actor: the token's owner and id, or ``system``; details: JSON text without anything secret."""

    wall_ms: int
    actor: str
    action: str
    subject: str = ""
    details: str = "{}"


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry in its place of the chain."""

    seq: int
    entry: AuditEntry
    hash: str


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    """``job_ids`` in the order of the submission; ``body_digest`` tells a repetition from another use of the key."""

    owner: str
    key: str
    body_digest: str
    job_ids: tuple[JobId, ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """expires_wall_ms None: never. is_local: of the plane's own client or worker.

    role, owner: of a client token: what it may do, and whose jobs are its own. max_uses, uses: of a join token.
    labels, max_devices: what its workers are labelled with, and how many devices each may offer (None: all).
    used_wall_ms: when it was last used, to the minute; None: never. replaces: the id of the token that was rotated into
    this one. removed_keys: of a join token: public keys of workers that it joined and that were removed.
    """

    id: str
    kind: str
    name: str
    secret_hash: str
    created_wall_ms: int
    expires_wall_ms: int | None
    is_revoked: bool = False
    is_local: bool = False
    role: str = ""
    owner: str = ""
    max_uses: int = 1
    uses: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    max_devices: int | None = None
    used_wall_ms: int | None = None
    replaces: str = ""
    removed_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IdentityRow:
    """A worker's key. counter: the highest that a session was asked for with.

    token_id: of the join token it came with, whose labels and max_devices it keeps.
    boot, instance, started_wall_ms: the newest start of its agent that was given a session, and when; see
    ``server.starts``. An empty instance: nobody knows whose that boot was.
    """

    worker: WorkerId
    public_key: str
    counter: int
    is_local: bool
    token_id: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    max_devices: int | None = None
    boot: int = 0
    instance: str = ""
    started_wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class StartRow:
    """A start of a worker's agent, as its ``IdentityRow`` is to tell of it."""

    worker: WorkerId
    boot: int
    instance: str
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Side:
    """Rows that must be as durable as the events they come with; replaced by key. audit: appended, never replaced.

    counters, starts: of workers' identities; they only rise, and where there is no identity (any more) they make none.
    sink_cursors: how far in the event log each sink has been told. forget_events: up to this number; 0: none.
    forget_facts: unless a worker has them, or an event after number ``facts_after`` names them.
    forget_idempotency_ms: keys that are older, some of them (``KEYS_AT_A_TIME``). outputs: what arrays that have ended
    brought home, put together.
    """

    jobs: tuple[JobRow, ...] = ()
    idempotency: tuple[IdempotencyRow, ...] = ()
    tokens: tuple[TokenRow, ...] = ()
    identities: tuple[IdentityRow, ...] = ()
    counters: tuple[tuple[WorkerId, int], ...] = ()
    starts: tuple[StartRow, ...] = ()
    forget_identities: tuple[WorkerId, ...] = ()
    forget_tokens: tuple[str, ...] = ()
    secrets: tuple[SecretRow, ...] = ()
    forget_secrets: tuple[JobId, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    sink_cursors: tuple[tuple[str, int], ...] = ()
    forget_events: int = 0
    forget_facts: tuple[Digest, ...] = ()
    facts_after: int = 0
    forget_idempotency_ms: int = 0
    outputs: tuple[tuple[JobId, Digest], ...] = ()


@dataclass(frozen=True, slots=True)
class EventRow:
    """``job_id``: set on what a job's own history shows. ``body``: JSON text."""

    at_ms: int
    wall_ms: int
    kind: str
    body: str
    job_id: JobId | None = None
    worker: WorkerId | None = None


@dataclass(slots=True)
class Batch:
    """Everything of one transaction, in the order of the steps. ``verdicts``: JSON text of rejected jobs."""

    records: list[Record] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)
    verdicts: dict[JobId, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.records or self.events or self.sides)


@dataclass(frozen=True, slots=True)
class Live:
    """The inputs of ``engine.rebuild``: the last image of everything that is not final.

    waiting: with their ``seq``, in its order, the jobs that wait and of which nothing else is to be told; they are not
    among ``jobs``. There may be 100,000 of them, and a start waits for an object each.
    """

    counters: CounterImage
    jobs: Sequence[tuple[JobEntry, JobImage]]
    tasks: Sequence[TaskImage]
    attempts: Sequence[AttemptImage]
    workers: Sequence[WorkerImage]
    facts: Sequence[FactsImage]
    waiting: Sequence[tuple[JobEntry, int]] = ()

    def all_jobs(self) -> list[tuple[JobEntry, JobImage]]:
        """``jobs``, and those of ``waiting`` with the images that they would have."""
        queued = JobState.QUEUED
        plain = [
            (entry, JobImage(entry.id, seq, queued, "", "", None, 0, None, None, None, None))
            for entry, seq in self.waiting
        ]
        return sorted([*self.jobs, *plain], key=lambda pair: pair[1].seq)


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as read: its submission, its latest image, its attempts in order (empty where not asked for)."""

    submission: JobSubmission
    owner: str
    submitter: str
    client: str
    submitted_wall_ms: int
    image: JobImage
    verdicts: str | None
    attempts: tuple[AttemptImage, ...] = ()
    token_id: str = ""


@dataclass(frozen=True, slots=True)
class StoredElement:
    """An element of an array that has been lent. state: how it ended; None while it has not."""

    index: int
    attempts: int
    state: JobState | None
    outcome: Outcome | None
    outputs: Digest | None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """``seq`` orders all events of the store. body: JSON."""

    seq: int
    wall_ms: int
    kind: str
    body: str


@dataclass(frozen=True, slots=True)
class LogRow:
    """A row of the whole log. body: JSON; empty where nobody is told of it."""

    seq: int
    wall_ms: int
    kind: str
    body: str
    job_id: JobId | None = None
    worker: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class LogPage:
    """Some rows in order, with the jobs (and their attempts) and the names of the workers that they are about, as of
    now."""

    rows: Sequence[LogRow]
    jobs: Mapping[JobId, StoredJob] = field(default_factory=dict)
    workers: Mapping[WorkerId, str] = field(default_factory=dict)
