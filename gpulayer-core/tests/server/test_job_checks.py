"""Job checks of plugins: what they say refuses or warns, and what they do wrong costs nobody a job."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from gpulayer.clock import SystemClock
from gpulayer.plugins import Problem, Severity
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.server import job_checks
from gpulayer.spec.job import JobSpec


def error(message="no licence", **more):
    return Problem(Severity.ERROR, message, **more)


def warning(message="it may be slow", **more):
    return Problem(Severity.WARNING, message, **more)


SAYS = {"warn": Severity.WARNING, "refuse": Severity.ERROR}


class Checked:
    """A control plane whose plugins have these checks, by the plugin's name."""

    def __init__(self, live, checks, hide=None):
        self.guard = Guard(clock=SystemClock(), hide=hide)
        registry = Registry(job_checks=tuple(Registered(name, check) for name, check in checks.items()))
        live.host = lambda: Host(registry, self.guard, lambda: ())
        self.live = live.start()

    def post(self, path="/v1/jobs", **fields):
        return self.live.http.post(path, json={"schema": 1, "command": ["true"], **fields})

    def batch(self, *commands, **fields):
        jobs = [{"schema": 1, "command": [command], **fields} for command in commands]
        return self.live.http.post("/v1/jobs:batch", json={"schema": 1, "jobs": jobs})

    def jobs(self):
        return self.live.http.get("/v1/jobs").json()["jobs"]

    def faults(self, plugin):
        return self.guard.faults_of(plugin)


@pytest.fixture
def checked(make_plane):
    return lambda **checks: Checked(make_plane(), checks)


@pytest.fixture
def soon(monkeypatch):
    """What hangs need not hang for long."""
    monkeypatch.setattr(job_checks, "JOB_CHECK_DEADLINE_S", 0.2)


def test_an_error_refuses_the_job_and_nothing_of_it_is_kept(checked):
    def licences(spec):
        return [error("no licence is left", field="request.resources", hint="wait, or ask for fewer"), warning()]

    plane = checked(licences=licences)
    answer = plane.post()
    assert answer.status_code == 422
    refusal = plane.live.check_envelope(answer)
    assert refusal["code"] == "job_refused"
    assert refusal["blame"] == "user"
    assert refusal["message"] == "plugin licences refuses it: no licence is left"
    assert refusal["hint"] == "wait, or ask for fewer"
    first, second = refusal["details"]["problems"]
    assert first == {
        "plugin": "licences",
        "severity": "error",
        "field": "request.resources",
        "message": "no licence is left",
        "hint": "wait, or ask for fewer",
    }
    assert second["severity"] == "warning"
    assert plane.jobs() == []


def test_one_refused_job_refuses_its_batch_and_is_named(checked):
    plane = checked(names=lambda spec: [error("that name", field="command")] if spec.command[0] == "bad" else [])
    answer = plane.batch("good", "bad", "good", "bad")
    refusal = plane.live.check_envelope(answer)
    assert answer.status_code == 422
    assert refusal["message"] == "jobs.1: plugin names refuses it: that name (and 1 more problem)"
    assert [problem["field"] for problem in refusal["details"]["problems"]] == ["jobs.1.command", "jobs.3.command"]
    assert plane.jobs() == []
    assert plane.batch("good", "good").status_code == 201


def test_a_warning_goes_back_with_the_answer_and_is_not_kept(checked):
    plane = checked(care=lambda spec: [warning(hint="use a faster one")])
    answer = plane.post()
    assert answer.status_code == 201
    (told,) = answer.json()["warnings"]
    assert (told["plugin"], told["severity"], told["hint"]) == ("care", "warning", "use a faster one")
    assert "warnings" not in plane.live.job(answer.json()["id"])


def test_a_batch_is_warned_of_each_thing_once(checked):
    plane = checked(care=lambda spec: [warning(), warning(spec.command[0])])
    answer = plane.batch("a", "b", "a")
    assert answer.status_code == 201
    assert [one["message"] for one in answer.json()["warnings"]] == ["it may be slow", "a", "b"]


def test_without_a_warning_answers_are_as_they_always_were(checked):
    plane = checked(care=lambda spec: [])
    assert "warnings" not in plane.post().json()
    assert set(plane.batch("a", "b").json()) == {"ids"}


def raises(spec):
    raise RuntimeError("no such table")


def leaves(spec):
    raise SystemExit(3)


def endless(spec):
    while True:
        yield warning()


@pytest.mark.parametrize(
    ("check", "story"),
    [
        (raises, "RuntimeError: no such table"),
        (leaves, "it tried to end the process"),
        (endless, "more than 100 Problem"),
        (lambda spec: None, "None where a list of Problem is due"),
        (lambda spec: "error", "a str where a list of Problem is due"),
        (lambda spec: [error(), 5], "a int where Problem is due"),
        (lambda spec: [Problem("error", "a text for a severity")], "a str where Severity is due"),
        (lambda spec: [error(b"bytes")], "a bytes where str is due"),
        (lambda spec: [error(hint=None)], "None where str is due"),
    ],
)
def test_a_check_that_fails_says_nothing_and_the_job_is_taken(checked, check, story):
    plane = checked(bad=check, good=lambda spec: [warning()])
    answer = plane.post()
    assert answer.status_code == 201
    assert [(one["plugin"], one["message"]) for one in answer.json()["warnings"]] == [
        ("bad", "its check failed: the job was accepted without it"),
        ("good", "it may be slow"),
    ]
    count, (fault,) = plane.faults("bad")
    assert count == 1
    assert fault.hook == "gpulayer_check_job"
    assert story in fault.message
    assert plane.faults("good") == (0, ())


def test_long_stories_are_cut_to_a_line(checked):
    plane = checked(long=lambda spec: [warning("line\n" * 1000, field="f" * 1000, hint="h\n\x1b[31m" * 1000)])
    (told,) = plane.post().json()["warnings"]
    assert "\n" not in told["message"] + told["hint"]
    assert len(told["message"]) <= 400
    assert len(told["field"]) <= 100
    assert len(told["hint"]) <= 400


def test_many_problems_are_counted_and_some_are_told(checked):
    plane = checked(all=lambda spec: [error(str(number)) for number in range(100)])
    refusal = plane.live.check_envelope(plane.batch("a", "b", "c"))
    assert refusal["message"].endswith("(and 299 more problems)")
    assert len(refusal["details"]["problems"]) == 100


def spoil(thing):
    """Change everything that is below it, frozen or not."""
    for name in getattr(thing, "__dataclass_fields__", ()):
        spoil(getattr(thing, name))
        object.__setattr__(thing, name, ("spoilt",))


def test_what_a_check_does_to_its_specs_is_not_kept_and_not_seen_by_others(checked):
    seen = []

    def spoils(spec):
        spoil(spec)
        return []

    plane = checked(first=spoils, second=lambda spec: seen.append((spec.command, spec.request.cpus, spec.name)) or [])
    fields = {"request": {"cpus": 3}, "name": "whole", "env": {"A": "1"}, "tags": {"t": "1"}}
    made = plane.post(**fields).json()
    assert plane.batch("a", "b", **fields).status_code == 201
    assert seen == [((one,), 3, "whole") for one in ("true", "a", "b")]
    for job in (made, plane.live.job(made["id"]), *plane.jobs()):
        assert job["request"]["cpus"] == 3
        assert job["name"] == "whole"
        assert job["tags"] == {"t": "1"}
    worker = plane.live.worker(cpus=9)
    worker.report()
    assigned = worker.commands()
    assert sorted(one["command"] for one in assigned) == [["a"], ["b"], ["true"]]
    assert all(one["env"] == {"A": "1"} for one in assigned)


def test_a_check_never_sees_the_value_of_a_secret(checked):
    seen = []
    plane = checked(curious=lambda spec: seen.append(spec) or [])
    assert plane.post(secrets={"KEY": "hunter2"}).status_code == 201
    (spec,) = seen
    assert spec.secret_names == ("KEY",)
    assert "hunter2" not in repr(spec)


def test_a_repeated_submission_is_not_checked_again_and_a_retry_is(checked):
    seen = []

    def closed(spec):
        seen.append(spec.command)
        return [error("closed")] if len(seen) > 2 else [warning("closing")]

    plane = checked(hours=closed)
    headers = {"Idempotency-Key": "k"}
    body = {"schema": 1, "command": ["true"]}
    first = plane.live.http.post("/v1/jobs", json=body, headers=headers)
    again = plane.live.http.post("/v1/jobs", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert len(seen) == 1
    job = first.json()["id"]
    plane.live.http.post(f"/v1/jobs/{job}:cancel")
    retried = plane.live.http.post(f"/v1/jobs/{job}:retry")
    assert retried.status_code == 201
    assert [one["message"] for one in retried.json()["warnings"]] == ["closing"]
    refused = plane.live.http.post(f"/v1/jobs/{job}:retry")
    assert plane.live.check_envelope(refused)["code"] == "job_refused"
    assert len(plane.jobs()) == 2


def test_the_same_key_may_come_again_after_a_refusal(checked):
    answers = [[error()], []]
    plane = checked(moody=lambda spec: answers.pop(0))
    headers = {"Idempotency-Key": "k"}
    body = {"schema": 1, "command": ["true"]}
    assert plane.live.http.post("/v1/jobs", json=body, headers=headers).status_code == 422
    assert plane.live.http.post("/v1/jobs", json=body, headers=headers).status_code == 201


def test_checks_run_side_by_side(checked):
    both = threading.Barrier(2, timeout=10)

    def meets(spec):
        both.wait()
        return [warning()]

    plane = checked(one=meets, other=meets)
    assert [told["plugin"] for told in plane.post().json()["warnings"]] == ["one", "other"]


def test_a_call_ends_after_the_job_that_it_is_at_when_nobody_waits_for_it(checked, soon):
    may_go, seen, threads = threading.Event(), [], set()

    def slow(spec):
        seen.append(spec.command[0])
        threads.add(threading.current_thread())
        may_go.wait(10)
        return [error()]

    plane = checked(slow=slow)
    answer = plane.batch("a", "b", "c")
    assert answer.status_code == 201
    (told,) = answer.json()["warnings"]
    assert told["message"] == "its check failed: the jobs were accepted without it"
    _, (fault,) = plane.faults("slow")
    assert "no answer within" in fault.message
    may_go.set()
    assert plane.batch("d").status_code == 422
    plane.guard.close()
    for thread in threads:
        thread.join(10)
    assert seen == ["a", "d"]


def test_submissions_do_not_queue_up_behind_a_check_that_hangs(checked, soon):
    may_go, seen = threading.Event(), []

    def hangs(spec):
        seen.append(spec.command)
        may_go.wait(30)
        return [error()]

    plane = checked(hangs=hangs, works=lambda spec: [warning()])
    try:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: plane.post(), range(12)))
        assert [answer.status_code for answer in answers] == [201] * 12
        assert all([one["plugin"] for one in answer.json()["warnings"]] == ["hangs", "works"] for answer in answers)
        begun = len(seen)
        assert begun < 12, "no more threads than the guard has for a hook"
        assert plane.guard.is_resting("hangs")
        told, _ = plane.faults("hangs")
        for _ in range(5):
            assert plane.post().status_code == 201
        assert len(seen) == begun, "it is not asked while it rests"
        assert plane.faults("hangs")[0] == told
    finally:
        may_go.set()


def test_a_caller_that_hangs_up_leaves_no_check_behind(checked):
    may_go, begun, seen = threading.Event(), threading.Event(), []

    def slow(spec):
        seen.append(spec.command[0])
        begun.set()
        may_go.wait(10)
        return []

    plane = checked(slow=slow)

    async def read(start, stop):
        return [JobSpec((name,)) for name in "abc"[start:stop]]

    async def hang_up():

        checks = plane.live.plane.job_checks
        task = plane.live.loop.create_task(checks.check(plane.live.plane.plugins, 3, read))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    plane.live.call(hang_up)
    may_go.set()
    assert plane.post(command=["d"]).status_code == 201
    assert seen == ["a", "d"]
    assert plane.faults("slow") == (0, ())


def test_the_size_of_a_batch_is_no_failure_of_a_check(checked, monkeypatch):
    monkeypatch.setattr(job_checks, "JOB_CHECK_JOBS", 1)
    never = threading.Event()

    def takes_its_time(spec):
        never.wait(0.5)
        return [warning(spec.command[0])]

    plane = checked(slow=takes_its_time)
    answer = plane.batch(*"abcde")  # more than one call may take
    assert [one["message"] for one in answer.json()["warnings"]] == list("abcde")
    assert plane.faults("slow") == (0, ())


def test_that_many_submit_at_once_switches_no_check_off(checked, monkeypatch):
    monkeypatch.setattr(job_checks, "JOB_CHECK_DEADLINE_S", 20.0)
    are_many, never = threading.Barrier(4, timeout=20), threading.Event()
    calls, running, most = itertools.count(), [], []

    def takes_its_time(spec):
        running.append(spec)
        if next(calls) < 4:
            are_many.wait()
        never.wait(0.05)
        most.append(len(running))
        running.pop()
        return [warning()]

    plane = checked(slow=takes_its_time)
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: plane.post(), range(40)))
    assert [[one["message"] for one in answer.json()["warnings"]] for answer in answers] == [["it may be slow"]] * 40
    assert plane.faults("slow") == (0, ())
    assert max(most) == 4, "the guard has slots for twice as many, so that none waits there while its time passes"


def test_who_gets_no_turn_for_too_long_is_told_to_come_again(checked, monkeypatch):
    monkeypatch.setattr(job_checks, "JOB_CHECK_DEADLINE_S", 20.0)
    monkeypatch.setattr(job_checks, "_SIDE_BY_SIDE", 1)
    monkeypatch.setattr(job_checks, "_TURN_S", 0.1)
    begun, may_go = threading.Event(), threading.Event()

    def slow(spec):
        begun.set()
        may_go.wait(20)
        return []

    plane = checked(slow=slow)
    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(plane.post)
            assert begun.wait(20)
            refused = plane.post()
            assert refused.status_code == 503
            assert "for the checks of plugin slow" in plane.live.check_envelope(refused)["message"]
            may_go.set()
            assert first.result(20).status_code == 201
    finally:
        may_go.set()
    assert len(plane.jobs()) == 1
    assert plane.faults("slow") == (0, ())


@pytest.fixture
def two_at_a_time(monkeypatch):
    monkeypatch.setattr(job_checks, "JOB_CHECK_JOBS", 2)


def test_a_check_that_fails_is_not_asked_further_and_what_it_said_before_counts(checked, two_at_a_time):
    seen = []

    def fails(spec):
        seen.append(spec.command[0])
        if spec.command[0] == "bad":
            raise RuntimeError("no")
        return [error()] if spec.command[0] == "refused" else [warning(spec.command[0])]

    plane = checked(fails=fails)
    answer = plane.batch("a", "b", "bad", "c", "d", "e")
    assert [one["message"] for one in answer.json()["warnings"]] == [
        "its check failed: 4 of 6 jobs were accepted without it",
        "a",
        "b",
    ]
    assert seen == ["a", "b", "bad"]
    assert plane.faults("fails")[0] == 1
    refusal = plane.live.check_envelope(plane.batch("a", "refused", "bad", "c"))
    assert refusal["message"] == "jobs.1: plugin fails refuses it: no licence"
    assert "check failed" not in str(refusal["details"])


def test_a_check_has_a_time_for_a_whole_submission_and_its_record_says_when_that_is_not_enough(
    checked, two_at_a_time, monkeypatch
):
    monkeypatch.setattr(job_checks, "JOB_CHECKS_DEADLINE_S", 0.0)
    plane = checked(slow=lambda spec: [warning(spec.command[0])])
    assert [one["message"] for one in plane.batch("a", "b", "c").json()["warnings"]] == [
        "its check failed: 1 of 3 jobs were accepted without it",
        "a",
        "b",
    ]
    (fault,) = plane.faults("slow")[1]
    assert fault.message == "it had checked 2 of 3 jobs when its 0 s for a submission ended"
    assert not plane.guard.is_resting("slow")


def test_what_a_check_says_holds_no_secret_of_its_plugin(make_plane):
    secret = "hunter2-and-some-more"
    texts = {"message": f"{'x ' * 195}{secret}", "field": secret, "hint": f"ask with {secret}"}
    plane = Checked(
        make_plane(),
        {"leaks": lambda spec: [Problem(SAYS[spec.command[0]], **texts)]},
        SecretsHider({"leaks": {"key": secret}}),
    )
    for answer in (plane.post(command=["warn"]), plane.post(command=["refuse"])):
        assert "hint" in answer.text
        assert "***" in answer.text
        assert "hunter2" not in answer.text, "nor a part of it, where a text is cut"


def test_a_text_that_is_too_long_to_be_looked_through_is_a_fault(checked):
    plane = checked(long=lambda spec: [warning("x" * ((1 << 20) + 1))])
    (told,) = plane.post().json()["warnings"]
    assert "check failed" in told["message"]
    assert "1,048,577 characters" in plane.faults("long")[1][0].message
