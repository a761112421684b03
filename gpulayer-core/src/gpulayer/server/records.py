"""Images, specs and state to the records that people and scripts read. Pure."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Final

from gpulayer.clock import Instant, iso_utc
from gpulayer.engine import State, opinions
from gpulayer.engine.after import WAITS
from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import AttemptImage, JobImage
from gpulayer.engine.reservations import keeps_off
from gpulayer.engine.standing import Standing, place_of
from gpulayer.engine.state import Attempt, Job, Node, QueuePlace, Worker
from gpulayer.errors import GpulayerError
from gpulayer.ids import Digest, Epoch, JobId
from gpulayer.placement.capacity import allocate
from gpulayer.placement.ends import Held
from gpulayer.placement.explain import WorkerView, choice, explain, starts_by
from gpulayer.server.store import AuditEntry, StoredEvent, StoredJob
from gpulayer.server.tails import Tail
from gpulayer.spec.job import JobKind, JobState
from gpulayer.spec.opinion import Opinion
from gpulayer.spec.request import Request
from gpulayer.spec.tree import Entry, EntryKind
from gpulayer.spec.verdict import ReasonCode, Verdict, VerdictKind
from gpulayer.spec.worker import WorkerState
from gpulayer.wire.convert import placed_request, verdict_to_wire
from gpulayer.wire.facts import device_to_wire, facts_to_wire
from gpulayer.wire.jobs import (
    ArrayRecord,
    AttemptRecord,
    EventRecord,
    ExplainReply,
    JobRecord,
    OutputRecord,
    ReasonRecord,
    WaitRecord,
)
from gpulayer.wire.plugins import PluginFields
from gpulayer.wire.workers import WorkerRecord

__all__ = [
    "Asked",
    "after_reason",
    "attempt_record",
    "device_holders",
    "event_record",
    "explain_job",
    "explain_now",
    "explain_reply",
    "held_reason",
    "job_record",
    "output_records",
    "presence",
    "restored_hint",
    "suspended_reason",
    "unkept_log_reason",
    "wait_record",
    "waiting_reason",
    "worker_record",
    "worker_views",
]

_OPTIONS: Final = (
    *("timeout_ms", "grace_ms", "keep_for_ms", "retries", "retry_on", "exclusive"),
    *("pids", "nice", "pin_cores", "log_limit_bytes", "grant"),
    *("launcher", "environment", "inputs", "after", "array", "array_limit"),
)


_SHOWN: Final = 3
_REFUSALS_SHOWN: Final = 3
_HOLDERS_SHOWN: Final = 1024  # as many devices as a worker may tell of
# What is called of what a job needs, by the word of its capability.
_CALLED: Final = MappingProxyType(
    {"launcher": "Launcher.", "environment": "EnvironmentBuilder.", "stager": "Stager."},
)

Asked = Mapping[tuple[str, Digest], Opinion | None]  # by scorer and facts


def job_record(
    job: StoredJob,
    *,
    reason: ReasonRecord | None = None,
    waits: WaitRecord | None = None,
    outputs: Sequence[OutputRecord] = (),
    tails: Mapping[Epoch, Tail] = MappingProxyType({}),
    array: ArrayRecord | None = None,
    index: int | None = None,
    clashes: int = 0,
) -> JobRecord:
    """``reason``: why it waits, for a queued job or one that its worker keeps waiting, where the live state knows more
    than the engine noted; else the record says that. array: of an array. index: ``job`` is but that element of one.
    clashes: see ``JobRecord``."""
    image, submission = job.image, job.submission
    outcome = image.outcome
    record: JobRecord = {
        "id": image.id,
        "name": submission.get("name", ""),
        "kind": submission.get("kind", str(JobKind.COMMAND)),
        "state": str(image.state),
        "reason": reason or _noted(image),
        "command": submission["command"],
        "request": placed_request(submission),
        "options": {name: submission[name] for name in _OPTIONS if name in submission},
        "source": submission.get("source"),
        "tags": submission.get("tags", {}),
        "priority": submission.get("priority", 0),
        "submitted_by": {"token_id": job.token_id, "name": job.submitter, "client": job.client},
        "submitted_at": iso_utc(job.submitted_wall_ms) or "",
        "started_at": iso_utc(image.started_wall_ms),
        "ended_at": iso_utc(image.ended_wall_ms),
        "attempts": [
            attempt_record(attempt, tail=tails.get(attempt.epoch), is_element="array" in submission)
            for attempt in job.attempts
        ],
        "exit_code": outcome.exit_code if outcome else None,
        "signal": outcome.signal if outcome else None,
        "ended_by": str(outcome.ended_by) if outcome else None,
        "outputs": list(outputs),
        "output_tree": image.outputs,
        "placement": (job.attempts[-1].placement or None) if job.attempts else None,
        "split_streams": submission.get("split_streams", False),
        "secrets": submission.get("secret_names", []),
        "verdicts": json.loads(job.verdicts) if job.verdicts else [],
    }
    if waits is not None:
        record["waits"] = waits
    if array is not None:
        record["array"] = array
    if index is not None:
        record["index"] = index
    if clashes:
        record["clashes"] = clashes
    return record


def attempt_record(image: AttemptImage, *, tail: Tail | None = None, is_element: bool = False) -> AttemptRecord:
    """``state`` is ``unreachable`` while its worker is out of contact. ``blame`` is None for a success. is_element: it
    is of an array."""
    outcome = image.outcome
    record: AttemptRecord = {
        "number": image.number,
        "epoch": image.epoch,
        "state": str(JobState.UNREACHABLE) if image.is_unreachable else str(image.phase),
        "nodes": [
            {
                "worker": node.worker_name,
                "devices": list(node.devices),
                "exit_code": node.outcome.exit_code if node.outcome else None,
                "signal": node.outcome.signal if node.outcome else None,
            }
            for node in image.nodes
        ],
        "started_at": iso_utc(image.started_wall_ms),
        "ended_at": iso_utc(image.ended_wall_ms),
        "ended_by": str(outcome.ended_by) if outcome else None,
        "blame": str(outcome.blame) if outcome and not outcome.is_success else None,
        "evidence": outcome.evidence if outcome else "",
    }
    if is_element:
        record["index"] = image.task_index
    if tail is not None:
        record["log_tail"] = tail.log
        if tail.errors:
            record["stderr_tail"] = tail.errors
    return record


def event_record(event: StoredEvent) -> EventRecord:
    """``details`` differ by kind of event; the time is the wall clock's and orders nothing."""
    return {
        "seq": event.seq,
        "at": iso_utc(event.wall_ms) or "",
        "event": event.kind,
        "details": json.loads(event.body),
    }


def output_records(entries: Iterable[tuple[tuple[str, ...], Entry]]) -> list[OutputRecord]:
    """Files of an output tree, as ``staging.walk_tree`` gives them; links and folders are in the tree alone."""
    return [
        {"path": "/".join(path), "size": entry.size, "digest": entry.digest}
        for path, entry in entries
        if entry.kind is EntryKind.FILE
    ]


def worker_record(
    worker: Worker,
    *,
    holders: Iterable[tuple[str, JobId]] = (),
    state: WorkerState | None = None,
    refused_wall_ms: int | None = None,
) -> WorkerRecord:
    """holders: see ``device_holders``. ``state``: where the worker is not what the engine's entity says (it was
    removed). refused_wall_ms: when an agent of an older number was refused."""
    facts = facts_to_wire(worker.facts)
    record: WorkerRecord = {
        "id": worker.id,
        "name": worker.name,
        "state": str(state or presence(worker)),
        "last_seen_at": iso_utc(worker.seen_wall_ms or None),
        "version": worker.facts.version,
        "platform": worker.facts.platform,
        "labels": facts["labels"],
        "locality": facts["locality"],
        "cpus": worker.facts.cpus,
        "cpus_free": worker.free.cpus,
        "memory_bytes": worker.facts.memory_bytes,
        "disk_bytes": worker.facts.disk_bytes,
        "devices": [device_to_wire(device) for device in worker.facts.devices],
        "frameworks": facts["frameworks"],
        "enforces": facts.get("enforces", []),
        "addresses": facts.get("addresses", []),
        "resources": facts.get("resources", {}),
        "resources_free": {name: max(0, worker.free.count_of(name)) for name, _ in worker.facts.resources},
        "capabilities": facts.get("capabilities", []),
        "leases": list(worker.leases),
        "device_jobs": dict(islice(holders, _HOLDERS_SHOWN)),
    }
    if worker.facts.cpu_model:
        record["cpu_model"] = worker.facts.cpu_model
    if worker.facts.missing:
        record["missing"] = dict(worker.facts.missing)
    if worker.facts.python:
        record["python"] = worker.facts.python
    if worker.facts.python_version:
        record["python_version"] = worker.facts.python_version
    if refused_wall_ms is not None:
        record["refused"] = (
            f"an agent with its identity was refused at {iso_utc(refused_wall_ms)}: one that was started later has its"
            f" place, and was last heard of at {iso_utc(worker.seen_wall_ms or None) or 'no time'}"
        )
    return record


def device_holders(state: State, worker: Worker) -> Iterator[tuple[str, JobId]]:
    """The job that has it, of each device of the worker that one has."""
    for attempt, node in _at_work(state, worker):
        if node.phase is not NodePhase.ENDED:
            yield from ((uuid, attempt.job_id) for uuid in node.allocation.devices)


def worker_views(
    state: State,
    request: Request,
    asked: Asked = MappingProxyType({}),
    *,
    wall_ms: int,
    place: QueuePlace | None = None,
    limit_ms: int | None = None,
) -> list[WorkerView]:
    """The workers as placement explains them for this request. wall_ms: now; what should have ended is not waited for
    with a date. place, limit_ms: where it stands in the queue, and how long it runs at the longest."""
    views = []
    for worker in state.workers.values():
        view = _view(state, worker, request, asked, wall_ms)
        if place is not None and worker.id in state.reserved:
            kept_for = _kept_for(state, worker, request, place, limit_ms)
            view = replace(view, kept_for=kept_for)
        views.append(view)
    return views


def _kept_for(
    state: State, worker: Worker, request: Request, place: QueuePlace, limit_ms: int | None
) -> tuple[JobId, int] | None:
    share = allocate(request, worker.id, worker.facts, worker.free)
    kept = share and keeps_off(state, worker, share, place, limit_ms=limit_ms)
    return (kept.job, max(0, kept.starts_ms - state.now_ms)) if kept else None


def explain_now(
    state: State,
    request: Request,
    asked: Asked = MappingProxyType({}),
    *,
    wall_ms: int,
    place: QueuePlace | None = None,
    limit_ms: int | None = None,
) -> tuple[Verdict, ...]:
    """A verdict a worker, from the live state; call it where that may be read. asked: what scorers said besides, of
    what the state has no opinion on. place, limit_ms: see ``worker_views``; without, nothing is kept from it."""
    return explain(request, worker_views(state, request, asked, wall_ms=wall_ms, place=place, limit_ms=limit_ms))


def explain_job(state: State, job: Job, *, wall_ms: int) -> tuple[Verdict, ...]:
    """Of a job that waits."""
    place, limit_ms = place_of(state, job), job.entry.longest_ms
    return explain_now(state, job.entry.request, wall_ms=wall_ms, place=place, limit_ms=limit_ms)


def explain_reply(request: Request, verdicts: Sequence[Verdict], standing: Standing) -> ExplainReply:
    """``choice`` is the worker that would get it now, as these very verdicts say."""
    chosen = choice(verdicts)
    return {
        "request": request.summary(),
        "choice": chosen,
        "verdicts": [verdict_to_wire(verdict) for verdict in verdicts],
        "waits": None if chosen else wait_record(verdicts, standing),
    }


def wait_record(verdicts: Sequence[Verdict], standing: Standing, *, nodes: int = 1) -> WaitRecord:
    """A time is told only where nobody stands ahead: how long those take nobody knows."""
    record: WaitRecord = {
        "ahead": standing.ahead,
        "first_ahead": standing.first,
        "starts_by": None if standing.ahead else iso_utc(starts_by(verdicts, nodes=nodes)),
    }
    if standing.is_by_share:
        record["by_share"] = {
            "owner": standing.owner,
            "share": round(standing.share, 4),
            "owner_ahead": standing.first_owner,
            "share_ahead": round(standing.first_share, 4),
        }
    return record


def waiting_reason(verdicts: Sequence[Verdict], *, awaits: Sequence[str] = ()) -> ReasonRecord:
    """Why a queued job waits, in one line: the best verdict, and of busy workers' that of one that is there: others may
    be gone for good. awaits: scorers whose opinion is still to come."""
    if not verdicts:
        return {"code": "no_worker", "message": "no worker has joined yet"}
    best = verdicts[0]
    if best.kind is VerdictKind.BUSY:
        busy = [each for each in verdicts if each.kind is VerdictKind.BUSY]
        best = next((each for each in busy if not _is_away(each)), best)
    match best.kind:
        case VerdictKind.ELIGIBLE:
            if awaits:
                return {"code": "waiting", "message": f"waits for what scorers say: {', '.join(awaits)}"}
            return {"code": "waiting", "message": f"waits for its turn; {best.worker} fits"}
        case VerdictKind.BUSY:
            code = str(best.reasons[0].code) if best.reasons else "busy"
            return {"code": code, "message": f"{best.worker}: " + ", ".join(r.message for r in best.reasons)}
        case VerdictKind.INELIGIBLE if refused := _refused(verdicts):
            return {"code": str(ReasonCode.PLUGIN_REJECTED), "message": f"every worker that fits is refused: {refused}"}
        case VerdictKind.INELIGIBLE:
            return {"code": "no_worker_fits", "message": "no worker that is known now fits"}


def _is_away(verdict: Verdict) -> bool:
    return any(reason.code in (ReasonCode.OFFLINE, ReasonCode.DRAINING) for reason in verdict.reasons)


def held_reason(job: Job, *, until_ms: int, now: Instant) -> ReasonRecord:
    """Why an exclusive job waits that was lent before, and for how long (engine time)."""
    left_s = max(1, math.ceil((until_ms - now.ms) / 1000))
    until = (iso_utc(now.wall_ms + until_ms - now.ms) or "")[:19].replace("T", " ")
    return {
        "code": job.reason_code,
        "message": f"{job.reason_message}: it goes to nobody for {left_s} s, until {until} UTC",
    }


def after_reason(state: State, job: Job) -> ReasonRecord:
    """What a job waits for that comes after others."""
    shown = [f"job {after.job} ({_stands(state, after.job)})" for after in job.unmet[:_SHOWN]]
    more = len(job.unmet) - len(shown)
    return {"code": WAITS, "message": f"waits for {', '.join(shown)}{f' and {more} more' if more else ''}"}


def _stands(state: State, job_id: JobId) -> str:
    other = state.jobs[job_id]
    return "waits itself" if other.unmet else str(other.state)


def unkept_log_reason(error: GpulayerError) -> ReasonRecord:
    """Why a job whose program may have ended long ago does not end."""
    return {"code": error.code, "message": f"its log is not taken: {error.message}; its worker sends it again"}


def restored_hint(told: AuditEntry) -> str:
    """For whoever asks for a job that is not known here: it may be of the time that no backup has."""
    made_wall_ms = json.loads(told.details).get("made_wall_ms")
    return (
        f"this control plane was restored on {iso_utc(told.wall_ms)} from a backup of {iso_utc(made_wall_ms)}:"
        " what was submitted in between is unknown to it, and has to be submitted again"
    )


def suspended_reason(
    capabilities: Sequence[str], told: Iterable[tuple[str, Sequence[PluginFields]]]
) -> ReasonRecord | None:
    """Why a job that was placed does not start: a plugin that it needs rests. told: by name, its workers' plugins."""
    for worker, plugins in told:
        suspended = [plugin for plugin in plugins if plugin["status"] == "suspended"]
        for kind, _, name in (capability.partition(":") for capability in capabilities):
            for plugin in suspended:
                if f"{kind} {name}" in plugin["provides"] and _failed(plugin, kind):
                    what = f"plugin {plugin['name']} ({kind} {name}), which failed several times in a row"
                    again = "it is tried again by itself: gpulayer plugins"
                    return {"code": "plugin_suspended", "message": f"worker {worker} waits for {what}; {again}"}
    return None


def _failed(plugin: PluginFields, kind: str) -> bool:
    """Whether what rests of it may be that: the record does not say, but which calls failed."""
    called = _CALLED.get(kind, "")
    faults = plugin["last_faults"]
    return not faults or any(fault["hook"].startswith(called) for fault in faults)


def _refused(verdicts: Sequence[Verdict]) -> str:
    """What scorers say, each once, and of which worker; empty where they refuse nothing."""
    said: dict[str, str] = {}
    for verdict in verdicts:
        for reason in verdict.reasons:
            if reason.code is ReasonCode.PLUGIN_REJECTED:
                said.setdefault(reason.message, verdict.worker)
    shown = [f"{message} ({worker})" for message, worker in list(said.items())[:_REFUSALS_SHOWN]]
    return "; ".join(shown) + (f"; and {len(said) - _REFUSALS_SHOWN} more" if len(said) > _REFUSALS_SHOWN else "")


def _noted(image: JobImage) -> ReasonRecord | None:
    if not image.reason_code:
        return None
    return {"code": image.reason_code, "message": image.reason_message}


def presence(worker: Worker) -> WorkerState:
    """A worker that has not reported since this control plane started is not known to be there."""
    is_present = worker.is_heard or worker.state not in (WorkerState.READY, WorkerState.DRAINING)
    return worker.state if is_present else WorkerState.SILENT


def _at_work(state: State, worker: Worker) -> Iterator[tuple[Attempt, Node]]:
    """What it has, without what is lent ahead, which uses nothing yet."""
    for epoch, index in worker.leases.items():
        attempt = state.attempts[epoch]
        if not attempt.nodes[index].is_ahead:
            yield attempt, attempt.nodes[index]


def _ends_wall_ms(state: State, attempt: Attempt, wall_ms: int) -> int | None:
    """Of one that runs by a time limit that is not over yet: when that and its grace time are."""
    entry = state.jobs[attempt.job_id].entry
    if entry.timeout_ms is None or attempt.started_wall_ms is None:
        return None
    ends = attempt.started_wall_ms + entry.timeout_ms + entry.grace_ms
    return ends if ends > wall_ms else None


def _view(state: State, worker: Worker, request: Request, asked: Asked, wall_ms: int) -> WorkerView:
    jobs: list[JobId] = []
    held: list[Held] = []
    resource_holders: list[tuple[str, JobId]] = []
    for attempt, node in _at_work(state, worker):
        jobs.append(attempt.job_id)
        held.append(Held(attempt.job_id, node.allocation, _ends_wall_ms(state, attempt, wall_ms)))
        if node.phase is not NodePhase.ENDED:
            resource_holders.extend((name, attempt.job_id) for name, _ in node.allocation.resources)
    return WorkerView(
        id=worker.id,
        name=worker.name,
        state=presence(worker),
        facts=worker.facts,
        free=worker.free,
        holders=tuple(device_holders(state, worker)),
        jobs=tuple(jobs),
        resource_holders=tuple(resource_holders),
        held=tuple(held),
        opinions=tuple(
            (scorer, opinion or asked.get((scorer, worker.facts_digest)))
            for scorer, opinion in opinions.of(state, request, worker.facts_digest)
        )
        if state.policy.scorers
        else (),
    )
