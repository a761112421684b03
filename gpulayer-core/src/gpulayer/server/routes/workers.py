"""Workers: enrolment, sessions and the two channels for agents; list, drain, resume and remove for people."""

import hashlib
import logging
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response

from gpulayer.engine import State, outstanding
from gpulayer.engine.effects import Effect, Void
from gpulayer.engine.events import (
    DrainRequested,
    NodePhase,
    NodeReport,
    WorkerJoined,
    WorkerRemoved,
    WorkerReported,
    WorkerResumed,
)
from gpulayer.engine.state import Worker
from gpulayer.errors import (
    BadRequest,
    Conflict,
    DiskFull,
    GpulayerError,
    NotFound,
    StorageUnavailable,
)
from gpulayer.faults import here
from gpulayer.ids import Digest, Epoch, WorkerId, is_digest, new_worker_id
from gpulayer.server.admission import Demand
from gpulayer.server.audit import SYSTEM, entry
from gpulayer.server.auth import worker_party
from gpulayer.server.fence import is_held, job_held, lent, own_worker
from gpulayer.server.logs import LogKey
from gpulayer.server.mailbox import AssignOrder, Order, RevokeOrder, StopOrder, orders_of
from gpulayer.server.plane import Plane
from gpulayer.server.pools import offered
from gpulayer.server.records import device_holders, worker_record
from gpulayer.server.routes.logs import put_log
from gpulayer.server.starts import Incumbent, Start, start_of, superseded
from gpulayer.server.store import AuditEntry, IdentityRow, Side, TokenRow
from gpulayer.server.store.codec import facts_to_text
from gpulayer.server.submission import await_local_worker
from gpulayer.server.uploaded import check_uploaded
from gpulayer.server.web import ADMIN, JOIN, OPEN, READ, WORKER, Call, Query, Route, held, json_response
from gpulayer.spec.array import ARRAY_COUNT, ARRAY_INDEX
from gpulayer.spec.job import Array, Shape
from gpulayer.spec.logs import LogStream, streams_not_whole
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import Outcome
from gpulayer.spec.worker import WorkerState
from gpulayer.wire.convert import check_schema, limits_to_wire, outcome_from_wire, spec_from_wire
from gpulayer.wire.jobs import JobSubmission
from gpulayer.wire.told import check_told_plugins, told_facts
from gpulayer.wire.workers import (
    AssignCommand,
    Command,
    CommandsReply,
    EnrolBody,
    EnrolReply,
    LogReply,
    OutputsAccepted,
    OutputsBody,
    ReportBody,
    ReportItem,
    ReportReply,
    SessionBody,
    SessionReply,
    WorkerPage,
    WorkerRecord,
)

__all__ = ["ROUTES"]

_HOLD_LIMIT_S: Final = 60.0

_log = logging.getLogger(__name__)


async def enrol(call: Call) -> Response:
    """Exchange a join token for an identity. The same key again is the same identity."""
    plane, body = call.plane, await call.json(EnrolBody)
    check_schema(body["schema"], "enrolment")
    public_key, name = _public_key(body["public_key"]), _name(body["name"])
    plane.auth.check_enrolment(call.client, name, public_key, body["signature"])
    reported = told_facts(body["facts"])
    async with plane.enrolling:  # one at a time: a name, a token and a key belong to one worker; see ``Auth``
        known = plane.auth.identity_of_key(public_key)
        token = plane.auth.spend(call.client, public_key, None if known is None else known.worker)
        worker_id = new_worker_id(plane.random_bytes) if known is None else known.worker
        held_by = await plane.driver.read(lambda state: _holder_of(state, name))
        if held_by is not None and held_by != worker_id:
            raise Conflict(f"another worker has the name {name!r}", hint="join under another name: --name NAME")
        # Looked at again after the wait, and written in the same turn: sessions raise its counter without the lock.
        known = plane.auth.identity(worker_id)
        identity = _joined(known or IdentityRow(worker_id, public_key, -1, is_local=False), token)
        facts = offered(reported, identity)
        digest = _facts_digest(facts)
        used = () if token is None else (replace(token, uses=token.uses + 1),)
        told = () if token is None else (_told(call, "worker.enrol", worker_id, name),)
        await plane.driver.submit(
            lambda at: WorkerJoined(at, worker_id, name, facts, digest),
            side=Side(tokens=used, identities=(identity,), audit=told),
        )
        plane.auth.keep_identity(identity)
        for row in used:
            plane.auth.keep_token(row)
        here("plane.after_enrol")
        shown = await plane.driver.read(lambda state: state.workers[worker_id].name)
    return json_response({"worker_id": worker_id, "name": shown}, 201 if known is None else 200)


async def open_session(call: Call) -> Response:
    """A session for whoever signs with the worker's key. The body is the credential."""
    plane, body = call.plane, await call.json(SessionBody)
    check_schema(body["schema"], "session")
    worker_id = WorkerId(call.path("id"))
    start = start_of(body.get("boot"), body.get("instance"))
    try:
        starts = plane.auth.take_signature(worker_id, body["counter"], body["signature"], start=start)
    except Conflict as refusal:
        if start is not None and refusal.details.get("superseded"):
            await _tell_superseded(call, worker_id, start)
            row = plane.auth.identity(worker_id)
            if row is not None:
                known = await plane.driver.read(lambda state: _incumbent(plane, state, worker_id))
                raise superseded(row, known) from None
        raise
    call.recognise(worker_party(worker_id), is_worker=True)
    if starts:
        plane.hub.wake([("commands", worker_id)])  # of its earlier starts, whose sessions have ended
    await plane.driver.submit(side=Side(counters=((worker_id, body["counter"]),), starts=starts))
    reply: SessionReply = {
        "token": plane.auth.open_session(worker_id, plane.settings.session_life_s, start=start),
        "expires_in_s": plane.settings.session_life_s,
        "incarnation": plane.incarnation,
        "lease_ttl_ms": plane.policy.lease_ttl_ms,
        "heartbeat_ms": plane.settings.heartbeat_ms,
    }
    return json_response(reply, 201)


async def report(call: Call) -> Response:
    """Answered after commit."""
    plane, worker_id = call.plane, own_worker(call)
    body = await call.json(ReportBody)
    check_schema(body["schema"], "report")
    fields, told = body.get("facts"), body.get("plugins")
    check_told_plugins(told or ())
    identity = plane.auth.identity(worker_id)
    facts = None if fields is None or identity is None else offered(told_facts(fields), identity)
    digest = None if facts is None else _facts_digest(facts)
    recovered = body.get("recovered")
    items = tuple([await _item(plane, item) for item in body["items"]])
    plane.auth.check_boot(worker_id, body["boot"])  # before a log says anything
    for item in items:
        await _mark_log(plane, worker_id, item)
    plane.auth.check_still(call.client)
    plane.auth.check_boot(worker_id, body["boot"])
    effects = await plane.driver.submit(
        lambda at: WorkerReported(
            at,
            worker_id,
            body["boot"],
            body["seq"],
            holding=tuple(Epoch(epoch) for epoch in body["holding"]),
            recovered=None if recovered is None else tuple(Epoch(epoch) for epoch in recovered),
            unstarted=tuple(Epoch(epoch) for epoch in body.get("unstarted") or ()),
            unsure=body.get("unsure", False),
            untold=plane.mailboxes.untold(worker_id) if body.get("unsure") else frozenset(),
            items=items,
            facts=facts,
            facts_digest=digest,
            stopping=body.get("stopping", False),
            leaving=body.get("leaving", False),
        )
    )
    if told is not None and plane.auth.identity(worker_id) is not None:  # not removed meanwhile
        plane.worker_plugins[worker_id] = told
    if plane.auth.is_local(worker_id):
        plane.local_worker_reported.set()
    return json_response({"seq": body["seq"], "void": _void(effects)})


async def commands(call: Call) -> Response:
    """What the worker is to do, held until there is something; the cursor acknowledges what came before."""
    plane, worker_id = call.plane, own_worker(call)
    hold_s = call.query_number("hold_s", 25.0, most=_HOLD_LIMIT_S)
    cursor = call.query("after")
    if plane.mailboxes.knows(worker_id, cursor):
        plane.mailboxes.acknowledge(worker_id, cursor)
    else:
        await plane.driver.read(lambda state: _resync(plane, state, worker_id))
    until_ms = plane.clock.monotonic_ms() + int(hold_s * 1000)
    with plane.hub.watching(("commands", worker_id)) as watch:
        async with held(call, watch) as hold:
            while True:
                watch.clear()
                if plane.auth.identity(worker_id) is None:
                    raise NotFound(f"worker {worker_id} was removed", hint="join it again")
                cursor, orders = plane.mailboxes.waiting(worker_id)
                found = await _commands(plane, orders)
                hold.check()  # what is meant for the newest start goes to no other
                left_ms = until_ms - plane.clock.monotonic_ms()
                if found:
                    here("plane.before_commands")
                if found or left_ms <= 0 or hold.is_over:
                    return json_response({"cursor": cursor, "commands": found})
                await hold.wait(left_ms / 1000)


async def put_outputs(call: Call) -> Response:
    """Accept an output tree: all of its objects must be here, and it must not leave its folder."""
    plane = call.plane
    await lent(call, None)
    body = await call.json(OutputsBody)
    tree = body["tree"]
    if not is_digest(tree):
        raise BadRequest(f"tree: {tree[:80]!r} is not a digest")
    here("plane.before_outputs")
    totals = await check_uploaded(plane, Digest(tree), "output tree")
    plane.auth.check_still(call.client)
    await lent(call, None)  # still
    plane.accept_tree(Digest(tree))
    here("plane.after_outputs")
    return json_response({"files": totals.files, "size_bytes": totals.size_bytes})


async def list_workers(call: Call) -> Response:
    """By name, all on one page. A plane that has just started waits for its own worker first."""
    await await_local_worker(call.plane)
    plane = call.plane
    found = await plane.driver.read(lambda state: [_record(plane, state, worker) for worker in state.workers.values()])
    return json_response({"workers": sorted(found, key=lambda record: record["name"]), "next": None})


async def show(call: Call) -> Response:
    """By id, a unique beginning of one, or name; what is free is as of this moment."""
    ref = call.path("ref")
    return await _told_of(call, ref)


async def drain(call: Call) -> Response:
    """Answered once it is durable; what runs there goes on. May be repeated."""
    worker_id, name = await _find_id(call)
    told = _told(call, "worker.drain", worker_id, name)
    await call.plane.driver.submit(lambda at: DrainRequested(at, worker_id), side=Side(audit=(told,)))
    return await _told_of(call, worker_id)


async def resume(call: Call) -> Response:
    """Answered once it is durable. May be repeated."""
    worker_id, name = await _find_id(call)
    told = _told(call, "worker.resume", worker_id, name)
    await call.plane.driver.submit(lambda at: WorkerResumed(at, worker_id), side=Side(audit=(told,)))
    return await _told_of(call, worker_id)


async def remove(call: Call) -> Response:
    """Forget a worker and its key; what it holds is lost. It joins again only with a token that it has not had."""
    plane = call.plane
    is_forced = call.query_flag("force")
    async with plane.enrolling:  # no enrolment with its key may come between; see ``Auth``
        worker_id, name = await _find_id(call)
        if plane.settings.has_local_worker and plane.auth.is_local(worker_id):
            raise Conflict(
                "this is the control plane's own worker; without it nothing would start it again",
                hint="`gpulayer worker drain` keeps work off it; `gpulayer up --no-worker` starts a plane without one",
            )
        record = await plane.driver.read(lambda state: _check_removable(state, worker_id, is_forced=is_forced))
        told = _told(call, "worker.remove", worker_id, name)
        token = plane.auth.removal(worker_id)
        tokens = () if token is None else (token,)
        await plane.driver.submit(
            lambda at: WorkerRemoved(at, worker_id),
            side=Side(tokens=tokens, forget_identities=(worker_id,), audit=(told,)),
        )
        for row in tokens:
            plane.auth.keep_token(row)
        plane.auth.forget_worker(worker_id)
    plane.hub.wake([("commands", worker_id)])
    plane.mailboxes.forget(worker_id)
    plane.worker_plugins.pop(worker_id, None)
    return json_response(record)


def _joined(identity: IdentityRow, token: TokenRow | None) -> IdentityRow:
    """The identity after it joined with this token. None: with the one that it has joined with before."""
    if token is None:
        return identity
    return replace(
        identity,
        is_local=identity.is_local or token.is_local,
        token_id=token.id,
        labels=token.labels,
        max_devices=token.max_devices,
    )


async def _mark_log(plane: Plane, worker_id: WorkerId, item: NodeReport) -> None:
    """Where a log's end was lost on the worker, the log says so itself, to whoever reads it."""
    streams = () if item.outcome is None else streams_not_whole(item.outcome.evidence)
    if not streams:
        return
    job_id = await job_held(plane, worker_id, item.epoch, item.node)
    if job_id is None:
        return
    for stream in streams:
        key = LogKey(job_id, item.epoch, item.node, stream)
        try:
            mark = partial(
                plane.logs.mark_missing,
                key,
                wall_ms=plane.clock.wall_ms(),
                is_open=partial(is_held, plane, worker_id, item.epoch, item.node),
            )
            await plane.in_thread(plane.room.write, mark)
        except (DiskFull, StorageUnavailable) as error:
            _log.warning("the log of job %s can't be marked: %s", job_id, error.message)  # its evidence says so, too
        plane.hub.wake([key])


async def _item(plane: Plane, item: ReportItem) -> NodeReport:
    """An ended item's outputs must be a tree that was accepted; one that is not is left out, and said so."""
    outcome_fields, tree = item.get("outcome"), item.get("outputs")
    outcome = None if outcome_fields is None else outcome_from_wire(outcome_fields)
    phase = NodePhase(item["state"])
    if phase is not NodePhase.ENDED:
        return NodeReport(Epoch(item["epoch"]), item["node"], phase)
    if outcome is None:
        raise BadRequest(f"items: attempt {item['epoch']} ended without an outcome")
    outputs: Digest | None = None
    if tree is not None:
        try:
            if not is_digest(tree):
                raise BadRequest(f"{tree[:80]!r} is not a digest")
            if not plane.is_accepted(Digest(tree)):  # accepted before this plane started, or never
                await check_uploaded(plane, Digest(tree), "output tree")
            outputs = Digest(tree)
        except GpulayerError as error:
            outcome = _without_outputs(outcome, error)
    return NodeReport(Epoch(item["epoch"]), item["node"], phase, outcome, outputs, item.get("started_ago_ms"))


def _without_outputs(outcome: Outcome, error: GpulayerError) -> Outcome:
    evidence = f"{outcome.evidence}\n" if outcome.evidence else ""
    evidence += f"its outputs were not kept: {error.message}"
    return replace(outcome, evidence=evidence)


def _void(effects: tuple[Effect, ...]) -> list[int]:
    return [epoch for effect in effects if isinstance(effect, Void) for epoch in effect.epochs]


def _resync(plane: Plane, state: State, worker_id: WorkerId) -> None:
    plane.mailboxes.reset(worker_id, orders_of(state, outstanding(state, worker_id)))


async def _commands(plane: Plane, orders: list[Order]) -> list[Command]:
    jobs = list({order.job_id for order in orders if isinstance(order, AssignOrder)})
    submissions = await plane.submissions(jobs) if jobs else {}
    found: list[Command] = []
    for order in orders:
        match order:
            case AssignOrder():
                found.append(_assign(order, submissions[order.job_id]))
            case StopOrder():
                found.append(
                    {
                        "type": "stop",
                        "epoch": order.epoch,
                        "ended_by": str(order.ended_by),
                        "grace_ms": order.grace_ms,
                        "node": order.node,
                    }
                )
            case RevokeOrder():
                found.append({"type": "revoke", "epoch": order.epoch})
    return found


def _assign(order: AssignOrder, submission: JobSubmission) -> AssignCommand:
    spec = spec_from_wire(submission)
    return {
        "type": "assign",
        "epoch": order.epoch,
        "node": order.node,
        "job_id": order.job_id,
        "attempt": order.attempt,
        "command": list(spec.command),
        "env": {**dict(spec.env), **_element_variables(spec.shape, order.index)},
        "source": None if spec.source is None else spec.source.digest,
        "devices": list(order.devices),
        "cpus": order.cpus,
        "memory_bytes": order.memory_bytes,
        "outputs": list(spec.outputs),
        "keep_outputs": spec.keep_outputs,
        "timeout_ms": spec.timeout_ms,
        "grace_ms": spec.grace_ms,
        "keep_for_ms": spec.keep_for_ms,
        "exclusive": spec.exclusive,
        "limits": limits_to_wire(spec.limits),
        "split_streams": spec.split_streams,
        "has_credentials": spec.has_credentials,
        "launcher": spec.launcher,
        "environment": spec.environment,
        "inputs": dict(spec.inputs),
        "resources": dict(order.resources),
    }


def _element_variables(shape: Shape, index: int) -> dict[str, str]:
    """What an element of an array is told of itself."""
    return {ARRAY_INDEX: str(index), ARRAY_COUNT: str(shape.count)} if isinstance(shape, Array) else {}


async def _find_id(call: Call) -> tuple[WorkerId, str]:
    ref = call.path("ref")
    worker = await call.plane.driver.read(lambda state: _find(state, ref))
    return worker.id, worker.name


def _told(call: Call, action: str, worker_id: WorkerId, name: str) -> AuditEntry:
    return entry(call.plane.clock.wall_ms(), call.client, action, worker_id, name=name)


def _incumbent(plane: Plane, state: State, worker_id: WorkerId) -> Incumbent | None:
    worker = state.workers.get(worker_id)
    if worker is None:
        return None
    silent_ms = plane.driver.now().ms - worker.heard_ms
    is_silent = silent_ms >= state.policy.expiry_ms(state.policy.lease_ttl_ms)
    return Incumbent(worker.seen_wall_ms, is_silent, is_silent and not worker.leases)


async def _told_of(call: Call, ref: str) -> Response:
    plane = call.plane
    return json_response(await plane.driver.read(lambda state: _record(plane, state, _find(state, ref))))


def _record(plane: Plane, state: State, worker: Worker) -> WorkerRecord:
    refused_wall_ms = plane.auth.refused_wall_ms(worker.id)
    return worker_record(worker, holders=device_holders(state, worker), refused_wall_ms=refused_wall_ms)


async def _tell_superseded(call: Call, worker_id: WorkerId, start: Start) -> None:
    """In the trail, once for each start that is refused."""
    plane, client = call.plane, call.request.client
    identity = plane.auth.identity(worker_id)
    if identity is None or plane.auth.is_refusal_told(worker_id, start):
        return
    told = {"boot": start.boot, "newest": identity.boot, "address": None if client is None else client.host}
    trail = entry(plane.clock.wall_ms(), SYSTEM, "worker.superseded", worker_id, **told)
    await plane.driver.submit(side=Side(audit=(trail,)))
    plane.auth.refusal_told(worker_id, start)


def _find(state: State, ref: str) -> Worker:
    """By id, name, or unique prefix of an id. Raises NotFound."""
    exact = state.workers.get(WorkerId(ref)) or next((w for w in state.workers.values() if w.name == ref), None)
    if exact is not None:
        return exact
    prefixed = [worker for worker in state.workers.values() if ref and worker.id.startswith(ref)]
    if len(prefixed) == 1:
        return prefixed[0]
    if prefixed:
        raise NotFound(f"several workers have ids that begin with {ref}", hint="give more characters of the id")
    raise NotFound(f"no worker {ref[:100]!r}", hint="gpulayer worker list shows the workers there are")


def _holder_of(state: State, name: str) -> WorkerId | None:
    return next((worker.id for worker in state.workers.values() if worker.name == name), None)


def _check_removable(state: State, worker_id: WorkerId, *, is_forced: bool) -> WorkerRecord:
    worker = _find(state, worker_id)
    if worker.leases and worker.state is not WorkerState.SILENT and not is_forced:
        raise Conflict(
            f"worker {worker.name} is {worker.state} and holds {len(worker.leases)} attempts",
            hint="drain it first, or remove it by force: what it holds is lost",
        )
    return worker_record(worker, state=WorkerState.GONE)


def _public_key(text: str) -> str:
    if not is_digest(text):
        raise BadRequest("public_key: must be 64 lower-case hex characters of an Ed25519 key")
    return text


def _name(text: str) -> str:
    if not text.isprintable() or text != text.strip() or "/" in text:
        raise BadRequest(f"name: {text[:60]!r} can't name a worker", hint="use letters, digits, - and .")
    return text


def _facts_digest(facts: WorkerFacts) -> Digest:
    return Digest(hashlib.sha256(facts_to_text(facts).encode()).hexdigest())


ROUTES: Final = (
    Route(
        "POST",
        "/v1/workers:enrol",
        enrol,
        JOIN,
        "Exchange a join token for an identity",
        body=EnrolBody,
        reply=EnrolReply,
        status=201,
        repeated=200,
    ),
    Route(
        "POST",
        "/v1/workers/{id}/sessions",
        open_session,
        OPEN,
        "A session by signature: the body is the credential",
        body=SessionBody,
        reply=SessionReply,
        status=201,
    ),
    Route(
        "POST",
        "/v1/workers/{id}/reports",
        report,
        WORKER,
        "One report of an agent, answered when it is durable",
        body=ReportBody,
        reply=ReportReply,
    ),
    Route(
        "GET",
        "/v1/workers/{id}/commands",
        commands,
        WORKER,
        "What the worker is to do, held until there is something",
        reply=CommandsReply,
        query=(
            Query("after", "the cursor of the previous answer", "string"),
            Query("hold_s", "how long to hold, 0 to 60 seconds", "number", most=60),
        ),
    ),
    Route(
        "PUT",
        "/v1/workers/{id}/attempts/{epoch}/logs",
        put_log,
        WORKER,
        "A piece of a log, by offset; 409 with details.offset for a gap",
        reply=LogReply,
        raw="application/octet-stream",
        query=(
            Query("node", "the node of a gang", most=100_000),
            Query(
                "stream", "stdout (the default) or, of a job that was split, stderr", "string", choices=tuple(LogStream)
            ),
            Query("offset", "where the piece begins"),
            Query("final", "1: this is the end; durable before the answer", "flag"),
        ),
    ),
    Route(
        "POST",
        "/v1/workers/{id}/attempts/{epoch}/outputs",
        put_outputs,
        WORKER,
        "Accept an uploaded output tree",
        body=OutputsBody,
        reply=OutputsAccepted,
    ),
    Route("GET", "/v1/workers", list_workers, READ, "All workers", reply=WorkerPage, demand=Demand.LOOK),
    Route("GET", "/v1/workers/{ref}", show, READ, "A worker by id, prefix or name", reply=WorkerRecord),
    Route("POST", "/v1/workers/{ref}:drain", drain, ADMIN, "Let it end its work and take no more", reply=WorkerRecord),
    Route("POST", "/v1/workers/{ref}:resume", resume, ADMIN, "Let it take work again", reply=WorkerRecord),
    Route(
        "POST",
        "/v1/workers/{ref}:remove",
        remove,
        ADMIN,
        "Forget a worker and its key, which joins again only with another token",
        reply=WorkerRecord,
        query=(Query("force", "1: also while it holds attempts, which are lost", "flag"),),
    ),
)
