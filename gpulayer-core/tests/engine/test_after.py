"""A job that comes after others begins when they have ended as it wants, and never waits for what can't come."""

from dataclasses import replace

import pytest

from gpulayer.engine import step
from gpulayer.engine.events import JobSubmitted, NodePhase, NodeReport, PlaneRestored
from gpulayer.ids import JobId
from gpulayer.spec.after import After, parse_after
from gpulayer.spec.job import JobEntry, JobSpec, JobState
from gpulayer.spec.machine import Framework
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.request import Accelerator, FrameworkNeed, Request


def after(*texts: str) -> tuple[After, ...]:
    return tuple(parse_after(text) for text in texts)


def finish(plane, job: str, exit_code: int = 0, worker: str = "w1") -> None:
    plane.run(worker, job)
    plane.end(worker, plane.epoch(job), exit_code=exit_code)


def test_it_begins_once_the_other_has_succeeded(plane):
    plane.join(cpus=4)
    plane.submit("a")
    plane.submit("b", after=after("a"))
    assert plane.job("b").state is JobState.QUEUED
    assert not plane.state.classes, "and stands in no queue meanwhile"
    finish(plane, "a")
    assert plane.job("b").state is JobState.STAGING


@pytest.mark.parametrize(
    ("ended_by", "exit_code", "said"),
    [
        (EndedBy.PROGRAM, 3, "failed: exit code 3"),
        (EndedBy.TIMEOUT, None, "timed out: it ran for longer than its --timeout"),
        (EndedBy.WORKER_LOST, None, "was lost: its worker was lost"),
    ],
)
def test_a_success_that_does_not_come_ends_it_as_cancelled_with_the_reason(plane, ended_by, exit_code, said):
    plane.join()
    plane.submit("a", retries=0)
    plane.submit("b", after=after("a"))
    plane.run("w1", "a")
    plane.end("w1", plane.epoch("a"), ended_by, exit_code)
    job = plane.job("b")
    assert (job.state, job.reason_code) == (JobState.CANCELLED, "after_failed")
    assert job.reason_message == f"it was to run after the success of job a, which {said}"
    assert job.outcome.ended_by is EndedBy.CANCEL
    assert not plane.state.jobs
    assert not plane.state.followers


def test_a_retry_of_the_other_is_waited_for(plane):
    plane.join()
    plane.submit("a", retries=1)
    plane.submit("b", after=after("a"))
    plane.run("w1", "a")
    plane.end("w1", plane.epoch("a"), EndedBy.WORKER_LOST, None)
    assert not plane.job("b").state.is_final
    finish(plane, "a")
    assert plane.epoch("b")


@pytest.mark.parametrize("exit_code", [0, 3])
def test_with_any_it_begins_whatever_the_other_ends_as(plane, exit_code):
    plane.join()
    plane.submit("a")
    plane.submit("b", after=after("a:any"))
    finish(plane, "a", exit_code)
    assert plane.epoch("b")


def test_with_any_it_begins_also_after_a_cancel_and_a_rejection(plane):
    plane.join(cpus=4)
    plane.submit("a")
    plane.submit("busy", after=after("a"))
    plane.submit("b", after=after("busy:any"))
    plane.cancel("busy")
    assert plane.epoch("b")
    plane.step(JobSubmitted(plane.at, entry("c", after("x:any")), ((JobId("x"), JobState.REJECTED),)))
    assert plane.state.jobs[JobId("c")].unmet == ()


def entry(name: str, comes_after: tuple[After, ...], **options) -> JobEntry:
    return JobEntry.of(JobId(name), "me", JobSpec(command=("true",), after=comes_after, **options))


def test_all_that_it_comes_after_have_to_end(plane):
    plane.join(cpus=4)
    plane.submit("a")
    plane.submit("b")
    plane.submit("c", after=after("a", "b:any"))
    finish(plane, "a")
    assert plane.job("c").state is JobState.QUEUED
    finish(plane, "b", 1)
    assert plane.epoch("c")


def test_a_failure_ends_all_that_hangs_on_it_however_long_the_chain(plane):
    plane.join()
    plane.submit("0", retries=0)
    for number in range(1, 3000):
        step(plane.state, JobSubmitted(plane.at, entry(str(number), after(str(number - 1)))))
    plane.submit("last", after=after("2999:any"))
    plane.run("w1", "0")
    made = plane.end("w1", plane.epoch("0"), exit_code=1)
    ended = [record for record in made.records if getattr(record, "state", None) is JobState.CANCELLED]
    assert len(ended) == 2999
    assert plane.epoch("last")


def test_what_ended_before_it_came_decides_at_once(plane):
    plane.join()
    plane.step(JobSubmitted(plane.at, entry("b", after("a")), ((JobId("a"), JobState.FAILED),)))
    assert plane.job("b").reason_message == "it was to run after the success of job a, which failed"
    plane.step(JobSubmitted(plane.at, entry("c", after("a")), ((JobId("a"), JobState.SUCCEEDED),)))
    assert plane.epoch("c")


def test_a_live_job_counts_more_than_what_was_noted_of_its_end(plane):
    plane.join()
    plane.submit("a")
    plane.step(JobSubmitted(plane.at, entry("b", after("a")), ((JobId("a"), JobState.FAILED),)))
    assert plane.job("b").state is JobState.QUEUED


def test_a_cancel_of_who_waits_ends_it_and_the_other_goes_on(plane):
    plane.join()
    plane.submit("a")
    plane.submit("b", after=after("a"))
    plane.cancel("b")
    assert plane.job("b").state is JobState.CANCELLED
    finish(plane, "a")
    assert plane.job("a").state is JobState.SUCCEEDED


def test_it_is_refused_at_once_where_no_worker_could_ever_run_it(plane):
    plane.join()
    plane.submit("a")
    plane.submit("b", after=after("a"), request=Request(cpus=64))
    assert plane.job("b").reason_code == "no_worker_fits"


def test_when_its_turn_comes_it_is_judged_by_the_workers_of_then(plane):
    plane.submit("a")  # nobody is there yet
    plane.submit("b", after=after("a"), request=Request(cpus=64))
    plane.join()
    finish(plane, "a")
    assert plane.job("b").state is JobState.REJECTED
    assert plane.job("b").reason_code == "no_worker_fits"


def test_no_wait_is_asked_when_its_turn_comes(plane):
    plane.join(cpus=1)
    plane.submit("a")
    plane.submit("b", after=after("a"), wait=False)
    plane.submit("c", priority=5)
    plane.submit("d", after=after("b:any"))
    assert plane.job("b").state is JobState.QUEUED
    finish(plane, "a")
    assert plane.epoch("c"), "who had waited goes first"
    assert plane.job("b").reason_code == "no_capacity"
    finish(plane, "c")
    assert plane.epoch("d")


def test_no_wait_goes_at_once_where_there_is_room(plane):
    plane.join(cpus=1)
    plane.submit("a")
    plane.submit("b", after=after("a"), wait=False)
    finish(plane, "a")
    assert plane.epoch("b")


def test_it_was_accepted_in_the_hope_of_checks_and_is_judged_by_what_they_found(plane):
    plane.join()
    plane.submit("a")
    wants = Request(frameworks=(FrameworkNeed("torch", ""),), accelerators=(Accelerator.CPU,))
    pending = Framework("torch", "", Accelerator.CPU, usable=False, reason="", is_pending=True)
    known = plane.state.workers["w1"].facts
    plane.report("w1", facts=replace(known, frameworks=(pending,)), facts_digest="d" * 64)
    plane.submit("b", after=after("a"), request=wants)
    assert plane.job("b").state is JobState.QUEUED
    missing = replace(pending, is_pending=False, reason="it is not installed")
    plane.report("w1", facts=replace(known, frameworks=(missing,)), facts_digest="e" * 64)
    finish(plane, "a")
    assert plane.job("b").state is JobState.REJECTED


def test_a_restart_forgets_nobody_who_waits(plane):
    plane.join(cpus=4)
    plane.submit("a")
    plane.submit("b", after=after("a"))
    plane.submit("c", after=after("b"))
    plane.state = plane.rebuilt()
    assert plane.state.jobs[JobId("b")].unmet == after("a")
    plane.report("w1", holding=tuple(plane.state.attempts))
    assert plane.job("b").state is JobState.QUEUED
    finish(plane, "a")
    plane.state = plane.rebuilt()
    plane.report("w1", holding=tuple(plane.state.attempts))
    finish(plane, "b")
    assert plane.epoch("c")


def test_an_exclusive_one_of_a_restored_plane_waits_for_both(plane):
    plane.join(cpus=4)
    plane.submit("a", retries=0)
    plane.submit("b", after=after("a:any"), exclusive=True)
    plane.step(PlaneRestored(plane.at, 10**12))
    assert plane.job("a").state is JobState.LOST
    plane.report("w1", holding=())
    assert plane.state.jobs[JobId("b")].tasks[0].epoch is None, "it may have been lent since the backup was made"
    plane.pass_time(20_000)
    plane.report("w1", holding=())
    plane.pass_time(20_000)
    assert plane.epoch("b")


def test_the_hold_may_pass_before_the_other_ends(plane):
    plane.join(cpus=4)
    plane.submit("a")
    plane.submit("b", after=after("a"), exclusive=True)
    plane.step(PlaneRestored(plane.at, 10**12))
    plane.report("w1", holding=())
    plane.pass_time(20_000)
    plane.report("w1")
    plane.pass_time(20_000)
    assert plane.job("b").reason_code == ""
    assert plane.state.jobs[JobId("b")].tasks[0].epoch is None
    plane.report("w1")
    finish(plane, "a")
    assert plane.epoch("b")


def test_short_work_that_waits_for_another_is_not_lent_ahead(plane):
    plane.join(cpus=1)
    for name in ("a", "b", "c"):
        plane.submit(name)
    plane.submit("d", after=after("c"))
    for name in ("a", "b"):
        plane.now_ms += 1
        finish(plane, name)
    plane.report("w1", NodeReport(plane.epoch("c"), 0, NodePhase.RUNNING))
    assert plane.state.jobs[JobId("d")].tasks[0].epoch is None


def test_very_many_are_queued_some_at_a_time_so_that_nobody_else_waits_for_it(plane):
    plane.join(cpus=1)
    plane.submit("a")
    for number in range(100):
        plane.submit(f"b{number}", after=after("a"))
    plane.submit("last", after=after("b99"))
    finish(plane, "a")
    assert len(plane.state.met) == 100
    plane.cancel("b0")
    assert len(plane.pass_time(0)) == 4
    assert not plane.state.met
    assert plane.epoch("b1")
    assert plane.job("b99").state is JobState.QUEUED


def test_a_restart_queues_all_that_were_to_be(plane):
    plane.join(cpus=1)
    plane.submit("a")
    for number in range(100):
        plane.submit(f"b{number}", after=after("a"))
    finish(plane, "a")
    plane.state = plane.rebuilt()
    plane.report("w1", holding=())
    assert plane.epoch("b0")
