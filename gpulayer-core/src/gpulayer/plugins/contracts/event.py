"""What the hook ``gpulayer_on_event`` is told: what happened, after it was committed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

__all__ = ["EVENT_DEADLINE_S", "EventKind", "JobSummary", "PlaneEvent"]

EVENT_DEADLINE_S: Final = 10.0


class EventKind(StrEnum):
    """For scripts: kinds are added, never renamed; a sink passes over those that it does not know."""

    JOB_SUBMITTED = "job.submitted"
    JOB_STARTED = "job.started"
    JOB_RETRIED = "job.retried"
    JOB_UNREACHABLE = "job.unreachable"
    JOB_ENDED = "job.ended"
    WORKER_JOINED = "worker.joined"
    WORKER_SILENT = "worker.silent"
    WORKER_DRAINING = "worker.draining"
    WORKER_RESUMED = "worker.resumed"
    WORKER_REMOVED = "worker.removed"


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The job as it was when the event was told of, which may be later than the event."""

    id: str
    name: str
    owner: str
    tags: Mapping[str, str]
    state: str
    exit_code: int | None = None
    signal: int | None = None
    ended_by: str | None = None


@dataclass(frozen=True, slots=True)
class PlaneEvent:
    """``id`` is the same whenever the event is told again, and of no other event of any control plane; ``seq`` grows,
    with gaps. ``at_ms``: Unix time, as the control plane's clock had it. ``details``: by kind, for people and scripts:
    attempt, workers, blame, evidence.
    """

    id: str
    seq: int
    at_ms: int
    kind: EventKind
    job: JobSummary | None = None
    worker: str = ""
    details: Mapping[str, str | int | None] = field(default_factory=lambda: MappingProxyType({}))
