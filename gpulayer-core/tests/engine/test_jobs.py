"""A job's life: queued, placed, run, ended, run again."""

import pytest

from gpulayer.engine import outstanding
from gpulayer.engine.effects import Assign, Notify, Stop
from gpulayer.engine.events import NodePhase, NodeReport
from gpulayer.errors import Blame
from gpulayer.ids import WorkerId
from gpulayer.spec.job import JobState, RetryOn
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Accelerator, Request


def test_a_job_is_assigned_at_once_to_a_worker_that_fits(plane):
    plane.join()
    plane.submit()
    assert [effect for effect in plane.last.effects if isinstance(effect, Assign)] == [Assign("w1", 1, 0, "j1")]
    assert plane.job().state is JobState.STAGING


def test_a_job_ends_as_its_program_ended(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    assert plane.job().state is JobState.RUNNING
    plane.end("w1", epoch, exit_code=0)
    assert plane.job().state is JobState.SUCCEEDED
    assert Notify("j1", JobState.SUCCEEDED) in plane.last.effects
    assert not plane.state.jobs
    assert not plane.state.attempts


@pytest.mark.parametrize("code", [1, 2, 126, 127, 200, 255])
def test_a_program_that_fails_does_not_run_again_by_default(plane, code):
    plane.join()
    plane.submit()
    plane.end("w1", plane.run("w1"), exit_code=code)
    assert plane.job().state is JobState.FAILED
    assert plane.job().outcome.exit_code == code


def test_retry_on_any_runs_the_programs_own_failures_again_as_often_as_allowed(plane):
    plane.join()
    plane.submit(retries=2, retry_on=RetryOn.ANY)
    epochs = []
    for _ in range(3):
        epochs.append(plane.run("w1"))
        plane.end("w1", epochs[-1], exit_code=1)
    assert epochs == [1, 2, 3]
    assert plane.job().state is JobState.FAILED


def test_infrastructure_failures_run_again_somewhere_else_first(plane):
    plane.join("w1")
    plane.join("w2")
    plane.submit()
    epoch = plane.run("w1")
    plane.end("w1", epoch, EndedBy.STAGING, exit_code=None)
    attempt = plane.state.attempts[plane.epoch()]
    assert attempt.nodes[0].allocation.worker == "w2"
    assert "has not failed there" in attempt.placement


def test_a_worker_to_avoid_is_taken_when_nothing_else_fits(plane):
    plane.join("w1")
    plane.submit()
    plane.end("w1", plane.run("w1"), EndedBy.STAGING, exit_code=None)
    assert plane.state.attempts[plane.epoch()].nodes[0].allocation.worker == "w1"


def test_retries_zero_means_at_most_once(plane):
    plane.join()
    plane.submit(retries=0)
    plane.end("w1", plane.run("w1"), EndedBy.STAGING, exit_code=None)
    assert plane.job().state is JobState.FAILED
    assert plane.job().outcome.blame is Blame.INFRASTRUCTURE


def test_priority_then_age_orders_the_queue(plane):
    plane.join(cpus=1)
    plane.submit("running")
    plane.submit("old")
    plane.submit("new")
    plane.submit("urgent", priority=10)
    order = []
    current = "running"
    for _ in range(4):
        order.append(current)
        plane.end("w1", plane.run("w1", current))
        current = next((job_id for job_id, job in plane.state.jobs.items() if job.state is not JobState.QUEUED), None)
    assert order == ["running", "urgent", "old", "new"]


def test_a_small_job_passes_a_large_one_that_does_not_fit_now(plane):
    plane.join(cpus=2)
    plane.submit("first")
    plane.submit("large", request=Request(cpus=2))
    plane.submit("small")
    assert plane.state.jobs["small"].state is JobState.STAGING
    assert plane.state.jobs["large"].state is JobState.QUEUED


def test_a_job_that_no_known_worker_can_ever_run_is_rejected(plane):
    plane.join()
    plane.submit(request=Request(accelerators=(Accelerator.CUDA,), devices=1))
    assert plane.job().state is JobState.REJECTED
    assert plane.job().reason_code == "no_worker_fits"
    assert not plane.state.jobs


def test_with_no_worker_at_all_a_job_waits_for_one(plane):
    plane.submit()
    assert plane.job().state is JobState.QUEUED
    plane.join()
    assert plane.job().state is JobState.STAGING


def test_no_wait_is_rejected_where_every_worker_that_fits_is_busy(plane):
    plane.join(cpus=1)
    plane.submit("j1")
    plane.submit("j2", wait=False)
    assert plane.job("j2").state is JobState.REJECTED
    assert plane.job("j2").reason_code == "no_capacity"


def test_devices_are_leased_to_one_attempt_at_a_time(plane):
    plane.join(cpus=8, gpus=2)
    request = Request(accelerators=(Accelerator.CUDA,), devices=1)
    for name in ("a", "b", "c"):
        plane.submit(name, request=request)
    devices = {plane.state.attempts[plane.epoch(name)].nodes[0].allocation.devices for name in ("a", "b")}
    assert devices == {("GPU-w1-0",), ("GPU-w1-1",)}
    assert plane.state.jobs["c"].state is JobState.QUEUED


# Cancelling


def test_cancelling_a_queued_job_ends_it_at_once(plane):
    plane.submit()
    plane.cancel()
    assert plane.job().state is JobState.CANCELLED
    assert not plane.state.classes


def test_cancelling_a_running_job_stops_it_and_waits_for_its_end(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    effects = plane.cancel().effects
    assert Stop("w1", epoch, EndedBy.CANCEL, 30_000) in effects
    assert plane.job().state is JobState.ENDING
    plane.end("w1", epoch, EndedBy.CANCEL, exit_code=0)
    assert plane.job().state is JobState.CANCELLED


def test_a_program_that_finished_before_the_stop_reached_it_has_succeeded(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.cancel()
    plane.end("w1", epoch, exit_code=0)
    assert plane.job().state is JobState.SUCCEEDED


def test_cancelling_twice_changes_nothing(plane):
    plane.join()
    plane.submit()
    plane.run("w1")
    plane.cancel()
    assert plane.cancel().records == ()


def test_a_stopped_job_is_never_run_again(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.cancel()
    plane.end("w1", epoch, EndedBy.WORKER_LOST, exit_code=None)
    assert plane.job().state is JobState.CANCELLED


def test_terminal_is_final_whatever_comes_later(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.end("w1", epoch, exit_code=3)
    records = plane.end("w1", epoch, exit_code=0).records
    assert not [record for record in records if type(record).__name__ == "JobImage"]
    assert plane.cancel().records == ()
    assert plane.job().state is JobState.FAILED


def test_outstanding_commands_are_derived_from_the_state(plane):
    plane.join()
    plane.submit()
    assert outstanding(plane.state, WorkerId("w1")) == (Assign("w1", 1, 0, "j1"),)
    plane.run("w1")
    assert outstanding(plane.state, WorkerId("w1")) == ()
    plane.cancel()
    assert outstanding(plane.state, WorkerId("w1")) == (Stop("w1", 1, EndedBy.CANCEL, 30_000),)
    assert outstanding(plane.state, WorkerId("nobody")) == ()


def test_outputs_of_the_last_attempt_are_the_jobs(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    outcome = Outcome(EndedBy.PROGRAM, 0, blame=Blame.USER)
    plane.report("w1", NodeReport(epoch, 0, NodePhase.ENDED, outcome, outputs="a" * 64))
    assert plane.job().outputs == "a" * 64
