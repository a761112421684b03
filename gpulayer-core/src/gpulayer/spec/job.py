"""What a user submits: an immutable ``JobSpec``, and the small part of it that scheduling reads."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpulayer.ids import JobId
from gpulayer.spec.after import After
from gpulayer.spec.limits import Limits
from gpulayer.spec.request import Request
from gpulayer.spec.tree import SourceRef

__all__ = [
    "DEFAULT_GRACE_MS",
    "DEFAULT_KEEP_FOR_MS",
    "DEFAULT_LEASE_TTL_MS",
    "DEFAULT_RETRIES",
    "FINAL_STATES",
    "Array",
    "CallRange",
    "Gang",
    "JobEntry",
    "JobKind",
    "JobSpec",
    "JobState",
    "Replicas",
    "RetryOn",
    "Shape",
    "Single",
]

DEFAULT_RETRIES: Final = 2
DEFAULT_GRACE_MS: Final = 30_000
DEFAULT_KEEP_FOR_MS: Final = 3_600_000
DEFAULT_LEASE_TTL_MS: Final = 30_000


class JobKind(StrEnum):
    """What runs. Only ``command`` can be submitted as yet; the others are refused by name."""

    COMMAND = "command"
    FUNCTION = "function"
    DISTRIBUTED = "distributed"
    SERVICE = "service"


class JobState(StrEnum):
    """``ending``: its end was asked for, or its output is on the way. ``unreachable``: its worker is out of contact and
    may come back. ``lost``: the infrastructure ended it, and no retry was left. ``rejected``: it never began.
    """

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    STAGING = "staging"
    RUNNING = "running"
    ENDING = "ending"
    UNREACHABLE = "unreachable"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    REJECTED = "rejected"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES: Final = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
        JobState.LOST,
        JobState.REJECTED,
    }
)


class RetryOn(StrEnum):
    """Which failures run again."""

    INFRASTRUCTURE = "infrastructure"  # failures that are not the program's own
    ANY = "any"  # also the program's


@dataclass(frozen=True, slots=True)
class Single:
    """One task of one node."""


@dataclass(frozen=True, slots=True)
class Gang:
    """One task of ``nodes`` nodes that start all together or not at all."""

    nodes: int


@dataclass(frozen=True, slots=True)
class Array:
    """``count`` tasks of one node, of which at most ``limit`` are under way at once; 0: any number."""

    count: int
    limit: int = 0


@dataclass(frozen=True, slots=True)
class CallRange:
    """``calls`` calls of one function, leased in ranges; a call is never a row."""

    calls: int


@dataclass(frozen=True, slots=True)
class Replicas:
    """``count`` tasks that are kept running."""

    count: int


Shape = Single | Gang | Array | CallRange | Replicas


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything needed to run the job anywhere. Never changed after submission.

    env: the job's own additions to a worker's allow-list. outputs: glob patterns; empty means "every file that
    is new or changed". keep_for_ms: how long a worker out of contact goes on by itself. split_streams: stdout and
    stderr are two logs; else they share one pipe, in order. secret_names: of variables whose values are kept elsewhere.
    grant: what the job's own token may do (``own`` or ``submit``); empty: it has none.
    launcher, environment: names of plugins' objects on the worker; empty: ``process`` and ``system``. inputs: (name,
    URI), fetched by the worker before the program starts. What these need of a worker stands in ``request`` as well.
    after: it is not begun before these have ended.
    """

    command: tuple[str, ...]
    kind: JobKind = JobKind.COMMAND
    request: Request = field(default_factory=Request)
    shape: Shape = field(default_factory=Single)
    name: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    priority: int = 0
    env: tuple[tuple[str, str], ...] = ()
    source: SourceRef | None = None
    outputs: tuple[str, ...] = ()
    keep_outputs: bool = True
    retries: int = DEFAULT_RETRIES
    retry_on: RetryOn = RetryOn.INFRASTRUCTURE
    timeout_ms: int | None = None
    grace_ms: int = DEFAULT_GRACE_MS
    keep_for_ms: int = DEFAULT_KEEP_FOR_MS
    exclusive: bool = False
    wait: bool = True
    limits: Limits = field(default_factory=Limits)
    split_streams: bool = False
    secret_names: tuple[str, ...] = ()
    grant: str = ""
    launcher: str = ""
    environment: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    after: tuple[After, ...] = ()

    @property
    def has_credentials(self) -> bool:
        """Whether its worker has to fetch something for it that is in no assignment."""
        return bool(self.secret_names or self.grant)

    def with_command(self, command: tuple[str, ...]) -> "JobSpec":
        """The same for another command; half the time of ``dataclasses.replace``, for batches."""
        return JobSpec(
            command,
            self.kind,
            self.request,
            self.shape,
            self.name,
            self.tags,
            self.priority,
            self.env,
            self.source,
            self.outputs,
            self.keep_outputs,
            self.retries,
            self.retry_on,
            self.timeout_ms,
            self.grace_ms,
            self.keep_for_ms,
            self.exclusive,
            self.wait,
            self.limits,
            self.split_streams,
            self.secret_names,
            self.grant,
            self.launcher,
            self.environment,
            self.inputs,
            self.after,
        )


@dataclass(frozen=True, slots=True)
class JobEntry:
    """What the engine keeps of a job: no argv, environment, source or log."""

    id: JobId
    owner: str
    request: Request
    shape: Shape
    priority: int
    retries: int
    retry_on: RetryOn
    timeout_ms: int | None
    grace_ms: int
    keep_for_ms: int
    exclusive: bool
    wait: bool
    after: tuple[After, ...] = ()

    @property
    def longest_ms(self) -> int | None:
        """How long an attempt of it runs at the longest, its grace time included; None: nobody knows."""
        return None if self.timeout_ms is None else self.timeout_ms + self.grace_ms

    @classmethod
    def of(cls, job_id: JobId, owner: str, spec: JobSpec) -> "JobEntry":
        """The scheduling part of a spec."""
        return cls(
            id=job_id,
            owner=owner,
            request=spec.request,
            shape=spec.shape,
            priority=spec.priority,
            retries=spec.retries,
            retry_on=spec.retry_on,
            timeout_ms=spec.timeout_ms,
            grace_ms=spec.grace_ms,
            keep_for_ms=spec.keep_for_ms,
            exclusive=spec.exclusive,
            wait=spec.wait,
            after=spec.after,
        )
