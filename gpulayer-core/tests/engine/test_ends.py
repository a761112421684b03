"""Each way to end, through the engine: state, reason, blame, whether it runs again, and the command's exit code."""

from dataclasses import replace

import pytest

from gpulayer.cli.exits import exit_for_job
from gpulayer.engine.events import CancelRequested, NodePhase, NodeReport
from gpulayer.errors import Blame
from gpulayer.ids import Digest, JobId
from gpulayer.spec.job import JobState, RetryOn
from gpulayer.spec.machine import DeviceState
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for
from gpulayer.spec.request import Accelerator, Request

USER, CAPACITY, INFRASTRUCTURE = Blame.USER, Blame.CAPACITY, Blame.INFRASTRUCTURE
NEVER, ALWAYS, IF_ANY = (False, False), (True, True), (False, True)

# What ended it; the last state; whom it blames; whether it runs again (by default, with --retry-on any); exit code.
TABLE = [
    (EndedBy.PROGRAM, 0, None, JobState.SUCCEEDED, USER, NEVER, 0),
    (EndedBy.PROGRAM, 3, None, JobState.FAILED, USER, IF_ANY, 3),
    (EndedBy.PROGRAM, 127, None, JobState.FAILED, USER, IF_ANY, 127),
    (EndedBy.SIGNAL, None, 11, JobState.FAILED, USER, IF_ANY, 139),
    (EndedBy.OUT_OF_MEMORY, None, 9, JobState.FAILED, USER, IF_ANY, 137),
    (EndedBy.TIMEOUT, None, 15, JobState.TIMED_OUT, USER, NEVER, 8),
    (EndedBy.CANCEL, 0, None, JobState.CANCELLED, USER, NEVER, 7),
    (EndedBy.WORKER_STOPPED, 1, None, JobState.LOST, INFRASTRUCTURE, ALWAYS, 6),
    (EndedBy.WORKER_LOST, None, None, JobState.LOST, INFRASTRUCTURE, ALWAYS, 6),
    (EndedBy.PREEMPTED, None, 15, JobState.LOST, CAPACITY, ALWAYS, 6),
    (EndedBy.STAGING, None, None, JobState.FAILED, INFRASTRUCTURE, ALWAYS, 6),
    (EndedBy.ENVIRONMENT, None, None, JobState.FAILED, USER, IF_ANY, 6),
    (EndedBy.DISK_FULL, None, 9, JobState.FAILED, INFRASTRUCTURE, ALWAYS, 6),
    (EndedBy.DRIFT, None, None, JobState.FAILED, INFRASTRUCTURE, ALWAYS, 6),
    (EndedBy.CLIENT_LOST, None, 15, JobState.LOST, USER, NEVER, 6),
]
WORDS = {
    EndedBy.PROGRAM: "exit code ",
    EndedBy.SIGNAL: "killed by signal 11 (SIGSEGV)",
    EndedBy.OUT_OF_MEMORY: "it ran out of memory",
    EndedBy.TIMEOUT: "it ran for longer than its --timeout",
    EndedBy.CANCEL: "cancelled",
    EndedBy.WORKER_STOPPED: "its worker was stopped",
    EndedBy.WORKER_LOST: "its worker was lost",
    EndedBy.PREEMPTED: "its worker was taken away",
    EndedBy.STAGING: "ended by staging",
    EndedBy.ENVIRONMENT: "ended by environment",
    EndedBy.DISK_FULL: "the disk was full",
    EndedBy.DRIFT: "ended by drift",
    EndedBy.CLIENT_LOST: "ended by client lost",
}
IDS = [f"{row[0]}-{row[1]}" for row in TABLE]


def test_the_table_has_every_way_to_end():
    assert {row[0] for row in TABLE} == set(EndedBy)


@pytest.mark.parametrize(("ended_by", "code", "number", "state", "blame", "again", "exit_code"), TABLE, ids=IDS)
def test_each_end_leads_to_its_state_reason_blame_and_exit_code(
    plane, ended_by, code, number, state, blame, again, exit_code
):
    plane.join()
    plane.submit(retries=0)
    epoch = plane.run("w1")
    plane.end("w1", epoch, ended_by, exit_code=code, signal=number)
    job, attempt = plane.job(), plane.records["AttemptImage", epoch]
    assert job.state is state
    assert attempt.outcome.blame is blame is blame_for(ended_by)
    assert job.ended_wall_ms == attempt.ended_wall_ms == plane.at.wall_ms
    assert job.reason_code == ("" if state is JobState.SUCCEEDED else ended_by)
    assert job.reason_message.startswith("" if state is JobState.SUCCEEDED else WORDS[ended_by])
    record = {
        "state": str(job.state),
        "ended_by": str(job.outcome.ended_by),
        "signal": job.outcome.signal,
        "exit_code": job.outcome.exit_code,
    }
    assert exit_for_job(record) == exit_code


@pytest.mark.parametrize("retry_on", RetryOn)
@pytest.mark.parametrize(("ended_by", "code", "number", "state", "blame", "again", "exit_code"), TABLE, ids=IDS)
def test_each_end_runs_again_or_not(plane, ended_by, code, number, state, blame, again, exit_code, retry_on):
    plane.join("w1")
    plane.join("w2")  # a full disk is left alone
    plane.submit(retries=2, retry_on=retry_on)
    plane.end("w1", plane.run("w1"), ended_by, exit_code=code, signal=number)
    if again[retry_on is RetryOn.ANY]:
        assert plane.job().state in (JobState.QUEUED, JobState.STAGING)
        assert plane.job().ended_wall_ms is None
    else:
        assert plane.job().state is state


@pytest.mark.parametrize("ended_by", [EndedBy.WORKER_LOST, EndedBy.PREEMPTED, EndedBy.STAGING])
def test_infrastructure_ends_run_again_as_often_as_retries_say(plane, ended_by):
    plane.join()
    plane.submit(retries=2)
    for _ in range(3):
        assert not plane.job().state.is_final
        plane.end("w1", plane.run("w1"), ended_by, exit_code=None)
    assert plane.job().state.is_final
    assert plane.job().outcome.ended_by is ended_by


def test_infrastructure_ends_never_use_up_the_programs_retries(plane):
    plane.join()
    plane.submit(retries=2, retry_on=RetryOn.ANY)
    for ended_by in (EndedBy.WORKER_LOST, EndedBy.PROGRAM, EndedBy.STAGING, EndedBy.PROGRAM):
        plane.end("w1", plane.run("w1"), ended_by, exit_code=1 if ended_by is EndedBy.PROGRAM else None)
    task = plane.state.jobs["j1"].tasks[0]
    assert (task.failures, task.program_failures, task.attempts) == (2, 2, 5)
    assert plane.records["TaskImage", ("j1", 0)].program_failures == 2
    plane.end("w1", plane.run("w1"), EndedBy.PROGRAM, exit_code=1)
    assert plane.job().state is JobState.FAILED


def test_who_cancelled_is_told_while_it_ends_and_for_good(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.step(CancelRequested(plane.at, JobId("j1"), None, "laptop (gpulayer/0.1.0)"))
    told = "cancelled by laptop (gpulayer/0.1.0)"
    assert (plane.job().reason_code, plane.job().reason_message, plane.job().stop_by) == (
        "cancel",
        told,
        "laptop (gpulayer/0.1.0)",
    )
    plane.step(CancelRequested(plane.at, JobId("j1"), 10, "somebody else"))
    plane.end("w1", epoch, EndedBy.CANCEL, exit_code=None, signal=9, evidence="it was killed")
    assert plane.job().reason_message == f"{told}\nit was killed"
    assert plane.records["AttemptImage", epoch].outcome.evidence == f"{told}\nit was killed"


def test_who_cancelled_a_waiting_job_is_told(plane):
    plane.submit()
    plane.step(CancelRequested(plane.at, JobId("j1"), None, "laptop"))
    assert plane.job().reason_message == "cancelled by laptop\nit had not started"


def test_a_job_that_succeeded_before_the_cancel_reached_it_has_no_reason(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.step(CancelRequested(plane.at, JobId("j1"), None, "laptop"))
    plane.end("w1", epoch, exit_code=0)
    assert (plane.job().state, plane.job().reason_code, plane.job().reason_message) == (JobState.SUCCEEDED, "", "")


def test_a_worker_lost_under_a_cancelled_job_is_told_below_who_cancelled(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.step(CancelRequested(plane.at, JobId("j1"), None, "laptop"))
    plane.end("w1", epoch, EndedBy.WORKER_LOST, exit_code=None, evidence="the spawner died")
    assert (plane.job().state, plane.job().outcome.ended_by) == (JobState.CANCELLED, EndedBy.CANCEL)
    assert plane.job().reason_message == "cancelled by laptop\nthe spawner died"
    assert plane.records["AttemptImage", epoch].outcome.ended_by is EndedBy.WORKER_LOST


def test_a_programs_end_is_told_with_what_else_was_seen(plane):
    plane.join()
    plane.submit()
    outcome = Outcome(EndedBy.PROGRAM, 127, evidence="nosuch: not found on the PATH", blame=Blame.USER)
    plane.report("w1", NodeReport(plane.epoch(), 0, NodePhase.ENDED, outcome))
    assert plane.job().reason_message == "exit code 127\nnosuch: not found on the PATH"


def test_an_end_that_was_told_late_has_the_time_at_which_it_was(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.now_ms += 20_000  # the worker was out of contact, and its program had ended long before
    plane.end("w1", epoch, ran_ms=5_000)
    image = plane.job()
    assert image.ended_wall_ms - image.started_wall_ms == 5_000


@pytest.mark.parametrize("state", [DeviceState.BUSY, DeviceState.UNHEALTHY])
def test_a_job_whose_device_could_not_be_started_upon_waits_for_another_and_loses_no_retry(plane, state):
    """Also at most once: it has not run. What its worker is like travels with the same report."""
    plane.join("w1", gpus=1)
    plane.submit(retries=0, request=Request(accelerators=(Accelerator.CUDA,), devices=1))
    worker = plane.state.workers["w1"]
    facts = replace(worker.facts, devices=(replace(worker.facts.devices[0], state=state, reason="python computes"),))
    outcome = Outcome(EndedBy.DRIFT, evidence="device 0 is busy", blame=Blame.INFRASTRUCTURE)
    report = NodeReport(plane.epoch(), 0, NodePhase.ENDED, outcome)
    plane.report("w1", report, facts=facts, facts_digest=Digest("d" * 64))
    assert plane.job().state is JobState.QUEUED
    task = plane.state.jobs["j1"].tasks[0]
    assert (task.epoch, task.failures, task.attempts) == (None, 0, 1)
    plane.report("w1", facts=worker_facts(facts, DeviceState.USABLE), facts_digest=Digest("e" * 64))
    epoch = plane.run("w1")
    plane.end("w1", epoch, EndedBy.DRIFT, exit_code=None)
    assert plane.job().state is JobState.FAILED, "once it has run, it is an end like others"


def test_a_worker_that_goes_on_being_taken_by_somebody_else_is_not_tried_for_ever_beside_a_free_one(plane):
    for worker in ("w1", "w2"):
        plane.join(worker, gpus=1)
    plane.submit(request=Request(accelerators=(Accelerator.CUDA,), devices=1))
    (first,) = plane.state.attempts.values()
    taken = first.nodes[0].allocation.worker
    plane.end(taken, first.epoch, EndedBy.DRIFT, exit_code=None)
    (second,) = plane.state.attempts.values()
    assert second.nodes[0].allocation.worker != taken
    assert plane.state.jobs["j1"].tasks[0].failures == 0


def worker_facts(facts, state):
    return replace(facts, devices=(replace(facts.devices[0], state=state, reason=""),))
