"""Why a job is where it is: the decision that was made, or the one that is still to come."""

from collections import Counter
from typing import Final

from starlette.responses import Response

from gpulayer.engine import State
from gpulayer.engine.records import AttemptImage
from gpulayer.ids import JobId
from gpulayer.server.plane import Plane
from gpulayer.server.records import explain_job, explain_now
from gpulayer.server.routes.jobs import find_job, read_record
from gpulayer.server.store import reads
from gpulayer.server.web import READ_OR_JOB, Call, Route, json_response
from gpulayer.spec.job import JobState
from gpulayer.spec.request import Request
from gpulayer.spec.verdict import Verdict
from gpulayer.wire.convert import needed_request, verdict_to_wire
from gpulayer.wire.jobs import DecisionRecord, JobRecord, VerdictRecord, WhyReply

__all__ = ["ROUTES"]

_VERDICTS: Final = 20
_ATTEMPTS: Final = 20


async def why(call: Call) -> Response:
    """Of a queued job the verdicts of now, of a rejected one those of then, of each attempt what was weighed when it
    was placed. Bounded, whatever the fleet: the rest is counted by reason."""
    job_id = await find_job(call)
    record = await read_record(call.plane, job_id)
    job = await call.plane.query(reads.read_job, job_id)
    request = needed_request(record["request"], record.get("options", {}))
    verdicts = await _verdicts(call.plane, record, request)
    reply: WhyReply = {
        "job": job_id,
        "state": record["state"],
        "reason": record["reason"],
        "request": request.summary(),
        "priority": record["priority"],
        "owner": job.owner,
        "waits": record.get("waits"),
        "verdicts": verdicts[:_VERDICTS],
        "others": dict(Counter(_code(verdict) for verdict in verdicts[_VERDICTS:])),
        "decisions": [_decision(attempt) for attempt in job.attempts[-_ATTEMPTS:] if attempt.is_shown],
    }
    return json_response(reply)


async def _verdicts(plane: Plane, record: JobRecord, request: Request) -> list[VerdictRecord]:
    if record["state"] != JobState.QUEUED:
        return record["verdicts"]
    wall_ms = plane.clock.wall_ms()

    def verdicts(state: State) -> tuple[Verdict, ...]:
        job = state.jobs.get(JobId(record["id"]))
        return explain_now(state, request, wall_ms=wall_ms) if job is None else explain_job(state, job, wall_ms=wall_ms)

    found = await plane.driver.read(verdicts)
    return [verdict_to_wire(verdict) for verdict in found]


def _code(verdict: VerdictRecord) -> str:
    """The first reason: the most basic one."""
    return verdict["reasons"][0]["code"] if verdict["reasons"] else verdict["verdict"]


def _decision(attempt: AttemptImage) -> DecisionRecord:
    considered = attempt.considered
    record: DecisionRecord = {
        "attempt": attempt.number,
        "epoch": attempt.epoch,
        "workers": [node.worker_name for node in attempt.nodes],
        "why": attempt.placement,
    }
    if considered is not None:
        record["considered"] = {
            "fitting": considered.fitting,
            "busy": considered.busy,
            "ineligible": considered.ineligible,
            "refused": considered.refused,
            "away": considered.away,
            "best": [
                {
                    "worker": place.worker,
                    "failed_there": place.is_avoided,
                    "preference": place.preference,
                    "mark": round(1 - place.mark_lost, 3),
                    "devices_left": place.devices_left,
                    "cpus_left": place.cpus_left,
                }
                for place in considered.best
            ],
        }
    return record


ROUTES: Final = (
    Route(
        "GET",
        "/v1/jobs/{ref}/why",
        why,
        READ_OR_JOB,
        "Why a job is where it is: what was weighed, or what it waits for",
        reply=WhyReply,
    ),
)
