"""A full disk: the task goes elsewhere, once; with nowhere to go the job has failed for that reason."""

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import WorkerId
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.request import Request


def fill(plane, worker, job="j1", blame=Blame.INFRASTRUCTURE):
    plane.end(worker, plane.run(worker, job), EndedBy.DISK_FULL, exit_code=1, blame=blame, evidence=f"{worker} is full")


def place(plane, job="j1"):
    return plane.state.attempts[plane.epoch(job)].nodes[0].allocation.worker


def test_it_runs_again_on_another_worker_and_a_second_full_disk_is_the_end(plane):
    for name in ("w1", "w2", "w3"):
        plane.join(name)
    plane.submit(retries=5)
    fill(plane, "w1")
    assert place(plane) == "w2"
    assert plane.job().state is JobState.STAGING
    fill(plane, "w2")
    assert plane.job().state is JobState.FAILED
    assert plane.job().outcome.ended_by is EndedBy.DISK_FULL
    assert plane.job().outcome.exit_code == 1
    assert plane.job().reason_message == "w2 is full"


def test_with_one_worker_it_has_failed_at_once(plane):
    plane.join("w1")
    plane.submit(retries=5)
    fill(plane, "w1")
    assert (plane.job().state, plane.job().outcome.ended_by) == (JobState.FAILED, EndedBy.DISK_FULL)


@pytest.mark.parametrize("options", [{"retries": 0}, {"request": Request(worker="w1")}])
def test_a_job_that_may_not_go_elsewhere_has_failed_at_once(plane, options):
    plane.join("w1")
    plane.join("w2")
    plane.submit(**options)
    fill(plane, "w1")
    assert plane.job().state is JobState.FAILED


def test_a_job_that_outgrew_its_own_limit_does_not_run_again(plane):
    plane.join("w1")
    plane.join("w2")
    plane.submit()
    fill(plane, "w1", blame=Blame.USER)
    assert plane.job().state is JobState.FAILED


def test_it_waits_for_the_other_worker_while_that_is_busy_and_never_goes_back(plane):
    plane.join("w1", cpus=1)
    plane.submit("j1")
    plane.join("w2", cpus=1)
    plane.submit("other")
    assert place(plane, "other") == "w2"
    fill(plane, "w1")
    assert plane.job().state is JobState.QUEUED
    plane.end("w2", plane.run("w2", "other"))
    assert place(plane) == "w2"


@pytest.mark.parametrize("leaves", ["silent", "left"])
def test_when_the_other_worker_goes_it_takes_what_there_is(plane, leaves):
    plane.join("w1", cpus=1)
    plane.submit("j1")
    plane.join("w2", cpus=1)
    plane.submit("other")
    fill(plane, "w1")
    assert plane.job().state is JobState.QUEUED
    if leaves == "left":
        plane.report("w2", leaving=True)
    else:
        worker = plane.state.workers[WorkerId("w2")]
        plane.pass_time(plane.state.policy.expiry_ms(30_000) + 1)
        assert worker.state == "silent"
        plane.report("w1")
    assert place(plane) == "w1"


def test_what_keeps_away_from_a_full_disk_keeps_nobody_else_away_who_goes_before_it(plane):
    plane.join("w1", cpus=1)
    plane.submit("j1", retries=5)
    plane.join("w2", cpus=1)
    plane.submit("j2")
    fill(plane, "w1")
    assert plane.job("j1").state is JobState.QUEUED  # it waits for w2
    plane.submit("j3", priority=5)
    assert place(plane, "j3") == "w1"
