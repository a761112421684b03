"""Jobs: submit, read, wait, cancel, retry, explain."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from gpulayer.engine import State
from gpulayer.engine.asking import is_undecided
from gpulayer.engine.events import CancelRequested, NodePhase
from gpulayer.engine.holds import HELD
from gpulayer.engine.opinions import awaited
from gpulayer.engine.standing import place_of_new, stands_now, would_stand
from gpulayer.engine.turn import attempt_image, job_image
from gpulayer.errors import BadRequest, Conflict, NotFound
from gpulayer.ids import ID_LENGTH, Digest, Epoch, JobId
from gpulayer.server.admission import Demand
from gpulayer.server.audit import entry
from gpulayer.server.bodies import parse_submissions
from gpulayer.server.elements import (
    array_record,
    check_index,
    element_page,
    element_view,
    is_over,
    merged_outputs,
    why_kept_back,
)
from gpulayer.server.plane import Plane
from gpulayer.server.records import (
    Asked,
    after_reason,
    event_record,
    explain_job,
    explain_now,
    explain_reply,
    held_reason,
    job_record,
    output_records,
    restored_hint,
    suspended_reason,
    unkept_log_reason,
    wait_record,
    waiting_reason,
)
from gpulayer.server.rights import check_manages, check_sees, is_anothers
from gpulayer.server.scorers import lacking_opinions
from gpulayer.server.store import AuditEntry, JobRow, Side, StoredJob, reads
from gpulayer.server.submission import Again, Submitted, await_local_worker, submit_jobs
from gpulayer.server.tails import Tail, read_tails
from gpulayer.server.tokens import TokenKind
from gpulayer.server.uploaded import tree_reader
from gpulayer.server.web import READ, READ_OR_JOB, SUBMIT, Call, Query, Route, held, json_response
from gpulayer.spec.array import MAX_ELEMENTS
from gpulayer.spec.job import JobState
from gpulayer.spec.request import Request
from gpulayer.spec.verdict import ReasonCode, Verdict
from gpulayer.staging.trees import walk_tree
from gpulayer.wire.convert import request_from_wire
from gpulayer.wire.jobs import (
    BatchReply,
    BatchSubmission,
    CancelBody,
    ElementPage,
    EventPage,
    ExplainBody,
    ExplainReply,
    JobPage,
    JobRecord,
    JobSubmission,
    OutputRecord,
    OutputsReply,
    ReasonRecord,
    WaitRecord,
)

__all__ = ["INDEX", "ROUTES", "element_index", "find_job", "read_record"]

_WAIT_LIMIT_S: Final = 60.0
_DECISION_S: Final = 1.0
_LOGGING: Final = (JobState.RUNNING, JobState.ENDING)


async def submit(call: Call) -> Response:
    """201 for a new job, 200 for the one that the same key made before; durable in both cases."""
    raw = await call.content()
    (submission,) = await parse_submissions(raw, in_list=False)
    done = await submit_jobs(
        call.plane, call.client, [submission], client=_client_of(call), key=_key_of(call), body=raw
    )
    return await _submitted(call.plane, done)


async def submit_batch(call: Call) -> Response:
    """All or none, in one commit. 201 for new jobs, 200 for those that the same key made before."""
    raw = await call.content()
    submissions = await parse_submissions(raw, in_list=True)
    done = await submit_jobs(call.plane, call.client, submissions, client=_client_of(call), key=_key_of(call), body=raw)
    reply: BatchReply = {"ids": list(done.ids)}
    if done.warnings:
        reply["warnings"] = list(done.warnings)
    return json_response(reply, 201 if done.rows else 200)


async def list_jobs(call: Call) -> Response:
    """Newest first, 50 unless told otherwise, 500 at most; a cursor stands for a place, not for a snapshot."""
    states = tuple(_state(text) for text in call.query("state").split(",") if text)
    limit = call.query_int("limit", 50, least=1, most=500) or 50
    before = call.query_int("cursor", None)
    owner = call.client.owner if call.query_flag("mine") else None
    found, after = await call.plane.query(
        reads.page_of_jobs, states=states, name=call.query("name"), owner=owner, before_seq=before, limit=limit
    )
    reasons = await _reasons(call.plane, found)
    arrays = {job.image.id: await array_record(call.plane, job) for job in found if "array" in job.submission}
    jobs = [job_record(job, reason=reasons.get(job.image.id), array=arrays.get(job.image.id)) for job in found]
    return json_response({"jobs": jobs, "next": None if after is None else str(after)})


async def show(call: Call) -> Response:
    """With ``wait_s`` it holds until the job is final or the time is over, and answers with what it is then. With
    ``index`` all that is about that element of an array."""
    wait_s = call.query_number("wait_s", 0.0, most=_WAIT_LIMIT_S)
    index = element_index(call)
    if not wait_s and call.client.kind is TokenKind.CLIENT:  # it sees every job: one query does
        try:
            found = await call.plane.query(reads.find_job, call.path("ref"))
        except NotFound as error:
            raise _not_known(call, error) from None
        return json_response(await _record(call.plane, found, index))
    job_id = await find_job(call)
    if wait_s:
        await _await_final(call, job_id, wait_s, index)
    return json_response(await read_record(call.plane, job_id, index))


async def cancel(call: Call) -> Response:
    """Only asks: the answer shows the job as it is now. A job that is final stays as it is."""
    body = await call.json(CancelBody, optional=True)
    job_id = await find_job(call)
    job = await call.plane.query(reads.read_job, job_id)
    check_manages(call.client, job)
    grace_ms = body.get("grace_ms")
    if await call.plane.driver.read(lambda state: job_id in state.jobs):
        audit = _told_if_anothers(call, job, "job.cancel_other")
        side = Side(audit=audit) if audit else None
        call.plane.auth.check_still(call.client)
        await call.plane.driver.submit(lambda at: CancelRequested(at, job_id, grace_ms, _who(call)), side=side)
    return json_response(await read_record(call.plane, job_id))


async def retry(call: Call) -> Response:
    """A new job from the same spec, and of the same owner, whoever asks for it: what it is granted is then no more than
    what its owner may. The idempotency key is the caller's own: nobody uses up another's."""
    plane = call.plane
    job_id = await find_job(call)
    job = await plane.query(reads.read_job, job_id)
    check_manages(call.client, job)
    if not job.image.state.is_final:
        raise Conflict(
            f"job {job_id} is {job.image.state}; only a job that has ended runs again", hint="cancel it first"
        )
    done = await submit_jobs(
        plane,
        call.client,
        [job.submission],
        client=_client_of(call),
        key=_key_of(call),
        body=f"retry {job_id}".encode(),
        again=Again(job_id, job.owner, lambda new: _told_if_anothers(call, job, "job.retry_other", into=new)),
    )
    return await _submitted(plane, done)


async def events(call: Call) -> Response:
    """``next`` repeats ``after`` where there was nothing new."""
    after = call.query_int("after", 0) or 0
    limit = call.query_int("limit", 200, least=1, most=1000) or 200
    job_id = await find_job(call)
    found = await call.plane.query(reads.job_events, job_id, after=after, limit=limit)
    last = found[-1].seq if found else after
    return json_response({"events": [event_record(event) for event in found], "next": last})


async def outputs(call: Call) -> Response:
    """Empty, with ``tree`` None, until outputs have come home."""
    job_id = await find_job(call)
    job = await call.plane.query(reads.read_job, job_id)
    index = element_index(call)
    if index is not None:
        job = await element_view(call.plane, job, index)
    tree, _ = await _output_tree(call.plane, job, index)
    return json_response({"tree": tree, "outputs": await _outputs(call.plane, tree)})


async def elements(call: Call) -> Response:
    """Of an array; 200 of them unless told otherwise."""
    job_id = await find_job(call)
    first = call.query_int("after", 0) or 0
    limit = call.query_int("limit", 200, least=1, most=1000) or 200
    job = await call.plane.query(reads.read_job, job_id)
    check_index(job, first)
    is_failed = call.query_flag("failed")
    return json_response(await element_page(call.plane, job, first=first, limit=limit, is_failed=is_failed))


def element_index(call: Call) -> int | None:
    """The element that is asked for; None: the whole job."""
    return call.query_int("index", None, most=MAX_ELEMENTS)


async def explain(call: Call) -> Response:
    """Reserves nothing. A plane that has just started waits for its own worker first."""
    body = await call.json(ExplainBody)
    request = request_from_wire(body["request"])
    await await_local_worker(call.plane)
    asked = await _opinions_on(call.plane, request)
    owner = call.client.owner
    wall_ms = call.plane.clock.wall_ms()

    def reply(state: State) -> ExplainReply:
        place = place_of_new(state, owner=owner, priority=0)
        verdicts = explain_now(state, request, asked, wall_ms=wall_ms, place=place)
        return explain_reply(request, verdicts, standing=would_stand(state, owner=owner, priority=0))

    return json_response(await call.plane.driver.read(reply))


async def _opinions_on(plane: Plane, request: Request) -> Asked:
    """Of machines that scorers were not asked about lately, what they think now: nobody else may be waiting for it.
    Nothing of it goes into the state."""
    await plane.plugins_settled()
    if plane.scorers is None:
        return {}
    lacking = await plane.driver.read(lambda state: lacking_opinions(state, request))
    return await plane.scorers.ask(request, lacking)


async def find_job(call: Call) -> JobId:
    """The job that the path's ``ref`` names, if the caller may see it. Raises NotFound, and Forbidden for a job that is
    not the calling job's own, which may not learn either whether there is one."""
    job_id = JobId(call.path("ref"))  # the whole id of a live job, mostly: no other name comes before an id
    if not call.plane.driver.look(lambda state: job_id in state.jobs):
        try:
            job_id = await call.plane.query(reads.resolve_job, call.path("ref"))
        except NotFound as error:
            await check_sees(call.plane, call.client, None)
            raise _not_known(call, error) from None
    await check_sees(call.plane, call.client, job_id)
    return job_id


def _not_known(call: Call, error: NotFound) -> NotFound:
    """As ``error`` says; of a whole id, in a store that was restored, with what has become of it."""
    ref, restored = call.path("ref"), call.plane.restored
    if restored is None or len(ref) != ID_LENGTH:
        return error
    return NotFound(error.message, hint=restored_hint(restored))


async def read_record(plane: Plane, job_id: JobId, index: int | None = None) -> JobRecord:
    """The whole record of one job: why it waits, and what came home, included. index: of that element of an array."""
    return await _record(plane, await plane.query(reads.read_job, job_id), index)


async def _record(plane: Plane, job: StoredJob, index: int | None = None) -> JobRecord:
    if "array" in job.submission or index is not None:
        return await _array_record(plane, job, index)
    waits: dict[JobId, WaitRecord] = {}
    reasons = await _reasons(plane, [job], waits=waits)
    outputs = await _outputs(plane, job.image.outputs)
    return job_record(
        job,
        reason=reasons.get(job.image.id),
        waits=waits.get(job.image.id),
        outputs=outputs,
        tails=await _tails(plane, job),
    )


async def _array_record(plane: Plane, job: StoredJob, index: int | None) -> JobRecord:
    array, kept_back = None, None
    if index is None:
        array = await array_record(plane, job)
    else:
        job = await element_view(plane, job, index)
        if job.image.state is JobState.QUEUED:
            kept_back = await plane.driver.read(lambda state: why_kept_back(state, job.image.id, index))
    reason = kept_back or (await _reasons(plane, [job])).get(job.image.id)
    tree, clashes = await _output_tree(plane, job, index)
    if tree != job.image.outputs:
        job = replace(job, image=replace(job.image, outputs=tree))
    tails = await _tails(plane, job)
    outputs = await _outputs(plane, tree)
    return job_record(job, reason=reason, outputs=outputs, tails=tails, array=array, index=index, clashes=clashes)


async def _output_tree(plane: Plane, job: StoredJob, index: int | None) -> tuple[Digest | None, int]:
    """Of an array that has ended, that of all its elements, and how many files are not in it."""
    if "array" not in job.submission or index is not None or not job.image.state.is_final:
        return job.image.outputs, 0
    return await merged_outputs(plane, job)


async def _submitted(plane: Plane, done: Submitted) -> Response:
    """The record of the one job that was just submitted. One that does not wait is decided first."""
    if done.rows and not done.rows[0].spec.wait:
        await _await_decision(plane, done.ids[0])
    record = await _new_record(plane, done.rows[0]) if done.rows else await read_record(plane, done.ids[0])
    if done.warnings:
        record["warnings"] = list(done.warnings)
    return json_response(record, 201 if done.rows else 200)


async def _new_record(plane: Plane, row: JobRow) -> JobRecord:
    """From memory while its first attempt lives, else as any other."""
    job = await plane.driver.read(lambda state: _fresh(state, row))
    if job is None:
        return await read_record(plane, row.id)
    reasons = await _reasons(plane, [job])
    return job_record(job, reason=reasons.get(row.id))


def _fresh(state: State, row: JobRow) -> StoredJob | None:
    """None once it has ended or lost an attempt: then the store knows more than the state."""
    job = state.jobs.get(row.id)
    if job is None or job.is_array or any(task.attempts > (task.epoch is not None) for task in job.tasks.values()):
        return None
    tries = [attempt_image(state.attempts[task.epoch]) for task in job.tasks.values() if task.epoch is not None]
    tries = [image for image in tries if image.is_shown]
    return StoredJob(
        submission=row.submission,
        owner=row.owner,
        submitter=row.submitter,
        client=row.client,
        submitted_wall_ms=row.submitted_wall_ms,
        image=job_image(job),
        verdicts=None,
        attempts=tuple(tries),
        token_id=row.token_id,
    )


async def _await_final(call: Call, job_id: JobId, wait_s: float, index: int | None = None) -> None:
    plane = call.plane
    until_ms = plane.clock.monotonic_ms() + int(wait_s * 1000)
    with plane.hub.watching(("job", job_id)) as watch:
        async with held(call, watch) as hold:
            while True:
                watch.clear()
                left_ms = until_ms - plane.clock.monotonic_ms()
                if await plane.driver.read(lambda state: is_over(state, job_id, index)):
                    return
                if left_ms <= 0 or hold.is_over:
                    return
                await hold.wait(left_ms / 1000)


async def _await_decision(plane: Plane, job_id: JobId) -> None:
    """Scorers may be asked before it is placed or turned away, which takes no longer than the engine waits for them."""
    with plane.hub.watching(("job", job_id)) as watch, suppress(TimeoutError):
        async with asyncio.timeout(plane.policy.opinion_wait_ms / 1000 + _DECISION_S):
            while True:
                watch.clear()
                if not await plane.driver.read(lambda state: is_undecided(state, job_id)):
                    return
                await watch.wait()


async def _reasons(
    plane: Plane, jobs: list[StoredJob], *, waits: dict[JobId, WaitRecord] | None = None
) -> dict[JobId, ReasonRecord]:
    """Why the waiting ones of these wait; equal requests are explained once. waits: what to put in there of each, which
    costs a look at the whole queue."""
    wall_ms = plane.clock.wall_ms()
    unexplained = [job for job in jobs if job.image.reason_code in ("", ReasonCode.FRAMEWORK_UNCHECKED)]
    waiting = {job.image.id for job in unexplained if job.image.state is JobState.QUEUED}
    staging = {job.image.id for job in unexplained if job.image.state is JobState.STAGING and _may_need_plugins(job)}
    kept_off = {job.image.id for job in jobs if job.image.reason_code == HELD}
    refused = {job.image.id: plane.logs.refused(job.image.id) for job in unexplained if job.image.state in _LOGGING}
    unkept = {job_id: unkept_log_reason(error) for job_id, error in refused.items() if error is not None}
    if not waiting and not staging and not kept_off:
        return unkept

    def explain_all(state: State) -> dict[JobId, ReasonRecord]:
        known: dict[object, tuple[Verdict, ...]] = {}
        found = dict(unkept)
        for job_id in waiting:
            job = state.jobs.get(job_id)
            if job is None:
                continue
            if job.unmet:
                found[job_id] = after_reason(state, job)
                continue
            request = job.entry.request
            whose = (request, job_id) if state.reserved else request  # what is kept is not kept from all
            if whose not in known:
                known[whose] = explain_job(state, job, wall_ms=wall_ms)
            found[job_id] = waiting_reason(known[whose], awaits=awaited(state, request))
            if waits is not None:
                nodes = job.class_key[1]
                waits[job_id] = wait_record(known[whose], stands_now(state, job), nodes=nodes)
        now = plane.driver.now()
        for job_id, index in state.held if kept_off else ():
            if job_id in kept_off:
                found[job_id] = held_reason(state.jobs[job_id], until_ms=state.held[job_id, index], now=now)
        for job_id in staging:
            reason = _suspended(plane, state, job_id)
            if reason is not None:
                found[job_id] = reason
        return found

    return await plane.driver.read(explain_all)


def _may_need_plugins(job: StoredJob) -> bool:
    """Most jobs don't, and need no look at the state for it."""
    asked = job.submission
    named = (asked.get("launcher"), asked.get("environment"), asked.get("inputs"))
    return any(named) or "capabilities" in asked.get("request", {})


def _suspended(plane: Plane, state: State, job_id: JobId) -> ReasonRecord | None:
    job = state.jobs.get(job_id)
    if job is None or not job.entry.request.capabilities:
        return None
    attempts = [state.attempts[task.epoch] for task in job.tasks.values() if task.epoch is not None]
    nodes = [node for attempt in attempts for node in attempt.nodes]
    told = [
        (node.worker_name, plane.worker_plugins.get(node.allocation.worker, ()))
        for node in nodes
        if node.phase in (NodePhase.ASSIGNED, NodePhase.STAGING)
    ]
    return suspended_reason(job.entry.request.capabilities, told)


async def _outputs(plane: Plane, tree: Digest | None) -> list[OutputRecord]:
    if tree is None:
        return []
    known = plane.known_outputs(tree)
    if known is None:
        try:
            known = await plane.in_thread(lambda: output_records(walk_tree(tree, tree_reader(plane))))
        except (NotFound, BadRequest):
            return []  # the tree was removed; the record of the job stands without it
        plane.remember_outputs(tree, known)
    return known


async def _tails(plane: Plane, job: StoredJob) -> dict[Epoch, Tail]:
    if all(attempt.outcome is None or attempt.outcome.is_success for attempt in job.attempts):
        return {}
    return await plane.in_thread(read_tails, plane.logs, job.attempts)


def _told_if_anothers(call: Call, job: StoredJob, action: str, **details: object) -> tuple[AuditEntry, ...]:
    caller = call.client
    if not is_anothers(caller, job):
        return ()
    name = job.submission.get("name") or None
    now_ms = call.plane.clock.wall_ms()
    return (entry(now_ms, caller, action, job.image.id, owner=job.owner, name=name, **details),)


def _client_of(call: Call) -> str:
    return call.request.headers.get("user-agent", "")[:200]


def _who(call: Call) -> str:
    """For people: the token's name and the program it was used by."""
    client = _client_of(call)
    return f"{call.client.name} ({client})" if client else call.client.name


def _key_of(call: Call) -> str:
    return call.request.headers.get("idempotency-key", "")


def _state(text: str) -> JobState:
    try:
        return JobState(text)
    except ValueError:
        raise BadRequest(f"state: {text[:40]!r} is unknown", hint=f"one of {', '.join(JobState)}") from None


INDEX: Final = Query("index", "only this element of an array", most=MAX_ELEMENTS)

ROUTES: Final = (
    Route(
        "POST",
        "/v1/jobs",
        submit,
        SUBMIT,
        "Submit a job",
        body=JobSubmission,
        reply=JobRecord,
        status=201,
        repeated=200,
        demand=Demand.SUBMIT,
    ),
    Route(
        "POST",
        "/v1/jobs:batch",
        submit_batch,
        SUBMIT,
        "Submit many jobs, all or none",
        body=BatchSubmission,
        reply=BatchReply,
        status=201,
        repeated=200,
        demand=Demand.SUBMIT,
    ),
    Route(
        "GET",
        "/v1/jobs",
        list_jobs,
        READ,
        "A page of jobs, newest first",
        reply=JobPage,
        demand=Demand.LOOK,
        query=(
            Query("state", "only jobs in these states, joined by commas", "string"),
            Query("name", "only jobs of this name", "string"),
            Query("mine", "1: only jobs of the caller's owner", "flag"),
            Query("limit", "jobs on the page, 1 to 500", least=1, most=500),
            Query("cursor", "the previous page's next"),
        ),
    ),
    Route(
        "GET",
        "/v1/jobs/{ref}",
        show,
        READ_OR_JOB,
        "A job by id, unique prefix of an id, or unique name",
        reply=JobRecord,
        query=(Query("wait_s", "hold until the job is final, 0 to 60 seconds", "number", most=60), INDEX),
    ),
    Route(
        "POST",
        "/v1/jobs/{ref}:cancel",
        cancel,
        SUBMIT,
        "Ask a job to end; repeating changes nothing",
        body=CancelBody,
        reply=JobRecord,
    ),
    Route(
        "POST",
        "/v1/jobs/{ref}:retry",
        retry,
        SUBMIT,
        "A new job from the spec of one that has ended",
        reply=JobRecord,
        status=201,
        repeated=200,
        demand=Demand.SUBMIT,
    ),
    Route(
        "GET",
        "/v1/jobs/{ref}/events",
        events,
        READ_OR_JOB,
        "What happened to a job, oldest first",
        reply=EventPage,
        query=(
            Query("after", "only events after this number"),
            Query("limit", "events on the page, 1 to 1000", least=1, most=1000),
        ),
    ),
    Route(
        "GET",
        "/v1/jobs/{ref}/outputs",
        outputs,
        READ_OR_JOB,
        "The files that a job brought home",
        reply=OutputsReply,
        query=(INDEX,),
    ),
    Route(
        "GET",
        "/v1/jobs/{ref}/elements",
        elements,
        READ_OR_JOB,
        "The elements of an array, by number",
        reply=ElementPage,
        query=(
            Query("after", "only elements from this number on"),
            Query("limit", "elements on the page, 1 to 1000", least=1, most=1000),
            Query("failed", "1: only those that are done and have not succeeded", "flag"),
        ),
    ),
    Route(
        "POST",
        "/v1/explain",
        explain,
        READ,
        "Every worker's verdict on a request; nothing is submitted",
        body=ExplainBody,
        reply=ExplainReply,
        demand=Demand.LOOK,
    ),
)
