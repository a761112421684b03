"""Client and AsyncClient: the same methods, and the same behaviour over a scripted control plane."""

import asyncio
import inspect
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

import gpulayer as gl
from gpulayer.client.connect import Settings
from gpulayer.client.location import Configured
from gpulayer.errors import JobEnded, JobRefused, NoWorkerFits, TimedOut, Unreachable, UsageError
from gpulayer.sdk import AsyncJob
from gpulayer.sdk import job as jobs


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


def shape(method):
    parameters = inspect.signature(method).parameters.values()
    return [(one.name, one.kind, one.annotation, callable(one.default) or one.default) for one in parameters]


@pytest.mark.parametrize(("sync", "twin"), [(gl.Client, gl.AsyncClient), (gl.Job, AsyncJob)])
def test_the_async_twin_has_the_same_methods_with_the_same_parameters(sync, twin):
    assert public(sync) == public(twin)
    for name in public(sync):
        ours, theirs = inspect.getattr_static(sync, name), inspect.getattr_static(twin, name)
        assert isinstance(ours, property) == isinstance(theirs, property), name
        if not isinstance(ours, property):
            assert shape(ours) == shape(theirs), name
            assert inspect.iscoroutinefunction(theirs) or inspect.isasyncgenfunction(theirs), name


def test_the_face_shows_what_it_lists():
    for name in gl.__all__:
        assert getattr(gl, name) is not None
    with pytest.raises(AttributeError):
        gl.nothing_of_the_kind  # noqa: B018


@pytest.mark.parametrize(
    "name",
    ["remote", "service", "File", "Folder", "current", "progress", "wait", "as_completed", "RemoteError"],
)
def test_what_comes_later_is_named(name):
    with pytest.raises(AttributeError, match=rf"^gl\.{name} comes with a later version$"):
        getattr(gl, name)


def settings_of(plane):
    return Settings(Configured(plane.location), {}, "0.1.0", "gpulayer/test")


@pytest.fixture(params=["sync", "async"])
def client(request, plane):
    """Calls by name, whichever the kind: ``client("submit", [...])``."""
    if request.param == "sync":
        with gl.Client(settings=settings_of(plane)) as one:

            def call(target, name, /, *args, **options):
                found = getattr(target or one, name)
                if not callable(found):
                    return found
                done = found(*args, **options)
                return list(done) if name == "logs" else done

            yield call
        return
    with asyncio.Runner() as runner:
        twin = gl.AsyncClient(settings=settings_of(plane))

        def call_twin(target, name, /, *args, **options):
            async def finish():
                found = getattr(target or twin, name)
                if inspect.isawaitable(found):
                    return await found
                if not callable(found):
                    return found
                done = found(*args, **options)
                if inspect.isasyncgen(done):
                    return [piece async for piece in done]
                return await done

            return runner.run(finish())

        yield call_twin
        runner.run(twin.close())


def test_a_job_is_submitted_followed_and_read(client, job_plane):
    job_plane.log = b"hello\n"
    job = client(None, "submit", ["echo", "hello"], name="greeting")
    assert job.id == job_plane.record["id"]
    assert job_plane.of("POST", "/v1/jobs")[0].json == {"schema": 1, "command": ["echo", "hello"], "name": "greeting"}
    assert client(job, "state") == "succeeded"
    assert b"".join(client(job, "logs", follow=True)) == b"hello\n"
    assert b"".join(client(job, "logs")) == b"hello\n"
    assert client(job, "wait")["exit_code"] == 0
    assert client(job, "result")["state"] == "succeeded"


def test_a_log_is_read_by_stream_rank_attempt_and_time_and_says_what_is_missing(client, job_plane, parts):
    job_plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(body=b"end", headers={"X-Gpulayer-Log-Start": 9}))
    job = client(None, "job", "7f")
    at = datetime(2026, 11, 30, tzinfo=UTC)
    marked = b"[gpulayer: 9 bytes of the log are missing here]\nend"
    for follow in (False, True):
        assert b"".join(client(job, "logs", follow=follow)) == marked
        job_plane.asked.clear()
        options = {"attempt": 1, "stream": "stderr", "rank": 2, "since": at}
        assert b"".join(client(job, "logs", follow=follow, **options)) == b"end"  # what is older is not missing
        query = {"attempt": "1", "stream": "stderr", "node": "2", "since_ms": str(int(at.timestamp() * 1000))}
        assert job_plane.asked[0].query == query | ({"follow": "1"} if follow else {})
    for wrong in ({"stream": "both"}, {"since": "yesterday"}):
        with pytest.raises(UsageError):
            client(job, "logs", **wrong)


def test_who_waits_for_a_jobs_end_is_more_patient_than_a_client_is_otherwise(plane, parts):
    """The job goes on while its control plane is away, so a wait that gave up at once would be taken for its end."""
    plane.on("GET", "/v1/jobs/{ref}", parts.job(state="succeeded"))
    settings = replace(settings_of(plane), retry_for_s=0.0)
    with gl.Client(settings=settings) as client:
        job = client.job("j")
        plane.drop("GET", f"/v1/jobs/{job.id}", 1)
        with pytest.raises(Unreachable):
            job.record()
        plane.drop("GET", f"/v1/jobs/{job.id}", 2)
        assert job.wait()["state"] == "succeeded"

    async def twin():
        async with gl.AsyncClient(settings=settings) as client:
            job = await client.job("j")
            plane.drop("GET", f"/v1/jobs/{job.id}", 2)
            return await job.wait()

    assert asyncio.run(twin())["state"] == "succeeded"


def test_a_job_that_goes_on_past_the_timeout_raises_and_goes_on(client, plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job(state="running"))
    job = client(None, "job", "7f")
    with pytest.raises(TimedOut, match="is still running"):
        client(job, "wait", timeout=0.0)


def test_a_wait_ends_with_its_time_where_its_control_plane_is_lost_just_before(client, plane, parts, monkeypatch):
    """It takes connections still, and nothing comes: whoever is more patient than that gets an answer in the end."""
    monkeypatch.setattr(jobs, "_LAST_S", 0.2)
    gone, asked_of = threading.Event(), []

    def lost(asked):
        asked_of.append(asked.query)
        if len(asked_of) > 1:
            gone.wait(20)
        return parts.job(state="running" if len(asked_of) == 1 else "succeeded")

    plane.on("GET", "/v1/jobs/{ref}", lost)
    job = client(None, "job", "7f")
    try:
        with pytest.raises(Unreachable):
            client(job, "wait", timeout=0.3)
    finally:
        gone.set()


def test_the_last_answer_of_a_wait_has_a_moment_and_nothing_is_tried_for_longer():
    assert jobs.Asking.within(None) == jobs.Asking(60.0, 60.0, None)
    assert jobs.Asking.within(90.0) == jobs.Asking(60.0, 60.0, 95.0)
    assert jobs.Asking.within(20.0) == jobs.Asking(20.0, 20.0, 25.0)
    assert jobs.Asking.within(0.0) == jobs.Asking(0.0, None, 5.0)


@pytest.mark.parametrize(("state", "error"), [("failed", JobEnded), ("lost", JobEnded), ("rejected", NoWorkerFits)])
def test_the_result_of_a_job_that_did_not_succeed_is_an_error_with_its_record(client, plane, parts, state, error):
    plane.on("GET", "/v1/jobs/{ref}", parts.job(state=state, exit_code=3))
    job = client(None, "job", "7f")
    with pytest.raises(error) as caught:
        client(job, "result")
    assert caught.value.details["job"]["state"] == state


def test_a_batch_is_one_request_with_a_key(client, plane):
    plane.on("POST", "/v1/jobs:batch", {"ids": ["a", "b"]})
    jobs = client(None, "submit_batch", [["true"], {"command": ["false"], "retries": 0}])
    assert [job.id for job in jobs] == ["a", "b"]
    (asked,) = plane.asked
    assert asked.headers["idempotency-key"]
    assert asked.json == {
        "schema": 1,
        "jobs": [{"schema": 1, "command": ["true"]}, {"schema": 1, "command": ["false"], "retries": 0}],
    }
    assert client(None, "submit_batch", []) == []


def test_a_job_has_what_plugins_warned_of_when_it_was_submitted(client, plane, parts):
    warned = {"plugin": "care", "severity": "warning", "field": "", "message": "slow", "hint": ""}
    plane.on("POST", "/v1/jobs", parts.job(warnings=[warned]))
    plane.on("POST", "/v1/jobs/{ref}:retry", parts.job(warnings=[warned]))
    plane.on("POST", "/v1/jobs:batch", {"ids": ["a", "b"], "warnings": [warned]})
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    assert client(None, "submit", ["true"]).warnings == (warned,)
    assert [job.warnings for job in client(None, "submit_batch", [["true"], ["false"]])] == [(warned,), (warned,)]
    found = client(None, "job", "7f")
    assert found.warnings == ()
    assert client(found, "retry").warnings == (warned,)


def test_a_job_that_a_plugin_refuses_is_an_error_with_what_each_said(client, plane, parts):
    problems = [{"plugin": "quota", "severity": "error", "field": "", "message": "over", "hint": "less"}]
    plane.on("POST", "/v1/jobs", parts.error(422, "job_refused", "over", "less", {"problems": problems}))
    with pytest.raises(JobRefused) as caught:
        client(None, "submit", ["true"])
    assert caught.value.details["problems"] == problems


def test_plugins_are_records(client, plane):
    record = {"where": "plane", "name": "quota", "status": "ok", "last_faults": []}
    plane.on("GET", "/v1/plugins", {"plugins": [record], "next": None})
    assert client(None, "plugins") == [record]


def test_lists_go_over_pages(client, plane, parts):
    first = {"jobs": [parts.job(), parts.job()], "next": "c1"}
    plane.on("GET", "/v1/jobs", [first, {"jobs": [parts.job()], "next": None}])
    assert len(client(None, "jobs")) == 3
    event = {"seq": 1, "at": "", "event": "x", "details": {}}
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    plane.on("GET", "/v1/jobs/{ref}/events", [{"events": [event], "next": 5}, {"events": [], "next": 5}])
    assert client(client(None, "job", "7f"), "events") == [event]


def test_workers_and_explanations_are_records(client, plane, parts):
    plane.on("GET", "/v1/workers", {"workers": [parts.worker()], "next": None})
    plane.on("POST", "/v1/workers/{ref}:drain", parts.worker(state="draining"))
    plane.on("POST", "/v1/explain", {"request": "", "choice": "laptop", "verdicts": []})
    assert client(None, "workers")[0]["name"] == "laptop"
    assert client(None, "drain_worker", "laptop")["state"] == "draining"
    assert client(None, "explain", accelerator="cuda", devices=2)["choice"] == "laptop"
    assert plane.of("POST", "/v1/explain")[0].json == {"request": {"accelerators": ["cuda"], "devices": 2}}


def test_a_log_whose_connection_always_breaks_ends_as_unreachable(client, plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(pieces=[], cut=True))
    with pytest.raises(Unreachable, match="in a row"):
        client(client(None, "job", "7f"), "logs")
