"""An ``EventSink`` is told what happened, after it was committed, at least once.

Each sink is told one event at a time, in order; none waits for another's. What it has been told is remembered durably,
but a moment later: after a crash of the control plane the last events are told again, with the ids that they had.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

__all__ = ["EVENT_DEADLINE_S", "EventKind", "EventRefused", "EventSink", "JobSummary", "PlaneEvent"]

EVENT_DEADLINE_S: Final = 10.0


class EventKind(StrEnum):
    """For scripts: kinds are added, never renamed; a sink passes over those that it does not know.

    ``job.started``: an attempt's program runs (or does still, after ``job.unreachable``); left out where its worker
    tells of start and end in one report.
    ``job.retried``: a further attempt has been given to a worker. ``job.ended``: it will not run again.
    ``worker.silent``: it has not reported for a while, or was stopped in good order (``details["left"]``).
    """

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
    attempt, workers (names, with commas between), blame, evidence; of a retry, those of the attempt before.
    """

    id: str
    seq: int
    at_ms: int
    kind: EventKind
    job: JobSummary | None = None
    worker: str = ""
    details: Mapping[str, str | int | None] = field(default_factory=lambda: MappingProxyType({}))


class EventRefused(Exception):
    """This event will never be taken, whenever it is told again: it is passed over, and the record says so."""


@runtime_checkable
class EventSink(Protocol):
    """``tell`` may take ``EVENT_DEADLINE_S``; it is not called again before it has returned.

    When it raises, the same event is told again after a while that grows from a second to five minutes, and the later
    ones wait; after 20 such calls it is passed over, which the plugin's record says. One that is late counts as failed
    unless it returns after all; it is waited for as long as it takes. ``EventRefused`` passes an event over at once.
    While the plugin is away events wait for it in the log. A new sink begins with what happens from the start of the
    control plane that first loads it.

    name: a plain name that no other sink of the plugin has and that stays the same: by it the control plane knows which
    events it has had. kinds: those that it is told of, None for all. Both are read once.
    """

    @property
    def name(self) -> str: ...

    @property
    def kinds(self) -> frozenset[EventKind] | None: ...

    def tell(self, event: PlaneEvent) -> None: ...
