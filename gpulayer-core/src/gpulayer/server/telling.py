"""From the event log to what event sinks are told: one row, one event or none. Pure.

The log is written for replay and for a job's own history; of its rows these tell something to the outside. Which
row an event is made of decides its id and its place, so that it is the same whenever it is told again.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, assert_never

from gpulayer.engine.records import AttemptImage
from gpulayer.plugins.contracts.event import EventKind, JobSummary, PlaneEvent
from gpulayer.server.store import LogPage, LogRow, StoredJob
from gpulayer.spec.job import FINAL_STATES

__all__ = ["LEAVING", "TOLD", "event_of"]

LEAVING: Final = '"leaving":true}'
"""How the body of a report ends whose worker was stopped in good order."""

_JOB_KINDS: Final[Mapping[str, EventKind]] = {
    "job_submitted": EventKind.JOB_SUBMITTED,
    "attempt_running": EventKind.JOB_STARTED,
    # Of a further attempt. No row says "queued" of a job that is given to another worker at once.
    "attempt_assigned": EventKind.JOB_RETRIED,
    "job_unreachable": EventKind.JOB_UNREACHABLE,
    **{f"job_{state}": EventKind.JOB_ENDED for state in FINAL_STATES},
}
_WORKER_KINDS: Final[Mapping[str, EventKind]] = {
    "worker_joined": EventKind.WORKER_JOINED,
    "worker_went_silent": EventKind.WORKER_SILENT,
    "worker_reported": EventKind.WORKER_SILENT,  # its last one
    "drain_requested": EventKind.WORKER_DRAINING,
    "worker_resumed": EventKind.WORKER_RESUMED,
    "worker_removed": EventKind.WORKER_REMOVED,
}

TOLD: Final = frozenset({*_JOB_KINDS, *_WORKER_KINDS} - {"worker_reported"})
"""Kinds of rows whose bodies ``event_of`` needs; of ``worker_reported`` only those that end with ``LEAVING``."""

Details = dict[str, str | int | None]


def event_of(row: LogRow, page: LogPage, *, store_id: str) -> PlaneEvent | None:
    """None for a row that is told to nobody."""
    if row.job_id is not None and row.kind in _JOB_KINDS:
        job = page.jobs.get(row.job_id)
        return None if job is None else _of_job(row, job, store_id)
    if row.worker is not None and row.kind in _WORKER_KINDS:
        return _of_worker(row, page.workers.get(row.worker, ""), store_id)
    return None


def _of_job(row: LogRow, job: StoredJob, store_id: str) -> PlaneEvent | None:
    kind, body = _JOB_KINDS[row.kind], _body(row)
    if body.get("index"):
        return None  # an array begins with its first element; of the others only its end tells
    details: Details
    match kind:
        case EventKind.JOB_SUBMITTED:
            details = {}
        case EventKind.JOB_STARTED:
            details = _attempt(body.get("attempt"), job)
        case EventKind.JOB_RETRIED:
            number = body.get("attempt")
            if not isinstance(number, int) or number < 2:
                return None
            details = {**_end(_numbered(number - 1, job)), **_attempt(number, job)}
        case EventKind.JOB_UNREACHABLE:
            details = {**_attempt(_last_number(job), job), "reason": body.get("message")}
        case EventKind.JOB_ENDED:
            details = {**_end(job), **_attempt(_last_number(job), job)}
            if job.image.outcome is None:  # it never began
                details["reason"] = body.get("message")
        case (
            EventKind.WORKER_JOINED
            | EventKind.WORKER_SILENT
            | EventKind.WORKER_DRAINING
            | EventKind.WORKER_RESUMED
            | EventKind.WORKER_REMOVED
        ):
            raise AssertionError(kind)
        case _:
            assert_never(kind)
    return PlaneEvent(
        _id(row, store_id), row.seq, row.wall_ms, kind, job=_summary(job), details=MappingProxyType(details)
    )


def _of_worker(row: LogRow, name: str, store_id: str) -> PlaneEvent | None:
    details: Details = {"worker_id": row.worker}
    body = _body(row)
    if row.kind == "worker_reported":
        if not body.get("leaving"):
            return None
        details["left"] = 1
    kind = _WORKER_KINDS[row.kind]
    shown = name or str(body.get("name") or "")
    return PlaneEvent(_id(row, store_id), row.seq, row.wall_ms, kind, worker=shown, details=MappingProxyType(details))


def _id(row: LogRow, store_id: str) -> str:
    """With the time of the row: a store that is restored from a copy counts on from there, and what happens then is
    not what happened before."""
    return f"{store_id}-{row.seq}-{row.wall_ms:x}"


def _summary(job: StoredJob) -> JobSummary:
    image, outcome = job.image, job.image.outcome
    return JobSummary(
        id=image.id,
        name=job.submission.get("name", ""),
        owner=job.owner,
        tags=MappingProxyType(dict(job.submission.get("tags", {}))),
        state=str(image.state),
        exit_code=None if outcome is None else outcome.exit_code,
        signal=None if outcome is None else outcome.signal,
        ended_by=None if outcome is None else str(outcome.ended_by),
    )


def _attempt(number: object, job: StoredJob) -> Details:
    if not isinstance(number, int):
        return {}
    attempt = _numbered(number, job)
    if attempt is None:
        return {"attempt": number}
    return {"attempt": number, "workers": ",".join(node.worker_name for node in attempt.nodes)}


def _end(ended: StoredJob | AttemptImage | None) -> Details:
    outcome = ended.image.outcome if isinstance(ended, StoredJob) else ended.outcome if ended is not None else None
    if outcome is None:
        return {}
    return {"ended_by": str(outcome.ended_by), "blame": str(outcome.blame), "evidence": outcome.evidence}


def _numbered(number: int, job: StoredJob) -> AttemptImage | None:
    first = (attempt for attempt in reversed(job.attempts) if not attempt.task_index)
    return next((attempt for attempt in first if attempt.number == number), None)


def _last_number(job: StoredJob) -> int | None:
    return job.attempts[-1].number if job.attempts else None


def _body(row: LogRow) -> Mapping[str, Any]:  # Any: JSON, by kind
    body = json.loads(row.body) if row.body else {}
    return body if isinstance(body, dict) else {}
