"""Arrays: elements begin in order, as many at once as may, each with retries of its own; the job ends as they do."""

import sys

import pytest

from gpulayer.engine.events import NodePhase, NodeReport, PlaneRestored, WorkerRemoved
from gpulayer.ids import JobId, WorkerId
from gpulayer.spec.after import After
from gpulayer.spec.job import Array, JobState, RetryOn
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.request import Request


def lent(plane, job: str = "j1") -> dict[int, int]:
    """Epochs of the elements that are lent, by number."""
    tasks = plane.state.jobs[JobId(job)].tasks.values()
    return {task.index: task.epoch for task in tasks if task.epoch is not None}


def end(plane, index: int, exit_code: int | None = 0, ended_by=EndedBy.PROGRAM, *, ms: int = 1_000) -> None:
    """After so long that nothing is lent ahead."""
    epoch = lent(plane)[index]
    plane.report("w1", NodeReport(epoch, 0, NodePhase.RUNNING))
    plane.now_ms += ms
    plane.end("w1", epoch, ended_by, exit_code)


def image(plane, index: int):
    return plane.records["TaskImage", (JobId("j1"), index)]


def restart(plane, *, all_tasks: bool = True) -> None:
    """all_tasks: a store may leave out what is done."""
    tasks = plane.images("TaskImage")
    if not all_tasks:
        failed = [task for task in tasks if task.is_done and not task.outcome.is_success]
        tasks = [task for task in tasks if not task.is_done] + failed[:1]
    before = plane.state
    plane.state = plane.rebuilt(tasks=tasks, heard=before.workers)
    for job_id, job in before.jobs.items():
        again = plane.state.jobs[job_id]
        assert (again.tasks, again.begun, again.failed) == (job.tasks, job.begun, job.failed)


def test_elements_begin_in_order_as_there_is_room(plane):
    plane.join(cpus=2)
    plane.submit(shape=Array(5))
    assert list(lent(plane)) == [0, 1]
    assert plane.job().state is JobState.STAGING
    end(plane, 1)
    assert list(lent(plane)) == [0, 2]
    end(plane, 0)
    end(plane, 2)
    end(plane, 4)
    assert plane.job().state is not JobState.SUCCEEDED
    end(plane, 3)
    assert plane.job().state is JobState.SUCCEEDED
    assert plane.job().outcome.exit_code == 0
    assert not plane.state.jobs
    assert [image(plane, index).outcome.is_success for index in range(5)] == [True] * 5


def test_no_more_begin_at_once_than_may(plane):
    plane.join(cpus=8)
    plane.submit(shape=Array(6, limit=2))
    assert list(lent(plane)) == [0, 1]
    end(plane, 0)
    assert list(lent(plane)) == [1, 2]
    for index in (1, 2, 3, 4, 5):
        end(plane, index)
    assert plane.job().state is JobState.SUCCEEDED


def test_what_waits_for_a_retry_keeps_its_place_among_those_at_once(plane):
    plane.join(cpus=1)
    plane.submit(shape=Array(3, limit=1), retries=1)
    end(plane, 0, None, EndedBy.WORKER_LOST)
    assert list(lent(plane)) == [0]
    assert list(plane.state.jobs[JobId("j1")].tasks) == [0, 1]


def test_a_failure_lets_all_others_run_and_the_first_by_number_is_the_jobs_end(plane):
    plane.join(cpus=4)
    plane.submit(shape=Array(4))
    end(plane, 2, 5)
    end(plane, 1, 3)
    end(plane, 0)
    assert not plane.job().state.is_final
    end(plane, 3)
    job = plane.job()
    assert (job.state, job.outcome.exit_code) == (JobState.FAILED, 3)
    assert (job.reason_code, job.reason_message) == ("program", "element 1: exit code 3")


def test_an_array_may_end_as_timed_out(plane):
    plane.join()
    plane.submit(shape=Array(2))
    end(plane, 0, None, EndedBy.TIMEOUT)
    end(plane, 1, 1)
    assert plane.job().state is JobState.TIMED_OUT


def test_each_element_has_retries_of_its_own(plane):
    plane.join(cpus=2)
    plane.submit(shape=Array(2), retries=1, retry_on=RetryOn.ANY)
    end(plane, 0, 1)
    end(plane, 1, 1)
    assert sorted(lent(plane)) == [0, 1]
    end(plane, 0)
    end(plane, 1, 1)
    assert plane.job().outcome.exit_code == 1
    assert (image(plane, 0).attempts, image(plane, 1).attempts) == (2, 2)


def test_the_state_is_that_of_most_of_it(plane):
    plane.join(cpus=2)
    plane.submit(shape=Array(4))
    epochs = lent(plane)
    plane.report("w1", NodeReport(epochs[1], 0, NodePhase.RUNNING))
    assert plane.job().state is JobState.RUNNING
    plane.report("w1", NodeReport(epochs[0], 0, NodePhase.STAGING))
    assert plane.job().state is JobState.RUNNING
    plane.end("w1", epochs[1])
    assert plane.job().state is JobState.STAGING


def test_a_cancel_ends_all_of_it_and_begins_nothing_more(plane):
    plane.join(cpus=2)
    plane.submit(shape=Array(1000))
    end(plane, 0)
    epochs = lent(plane)
    plane.cancel()
    assert plane.job().state is JobState.ENDING
    for epoch in epochs.values():
        plane.end("w1", epoch, EndedBy.CANCEL, None)
    job = plane.job()
    assert (job.state, job.outcome.ended_by) == (JobState.CANCELLED, EndedBy.CANCEL)
    assert job.reason_message == "cancelled\nnot all of its elements have succeeded"
    rows = [key for key in plane.records if key[0] == "TaskImage"]
    assert len(rows) == 4, "but for the next one, what was never begun leaves no row"


def test_a_cancel_of_one_that_waits_ends_it_at_once(plane):
    plane.submit(shape=Array(1000))
    plane.cancel()
    assert plane.job().state is JobState.CANCELLED


def test_one_whose_last_elements_succeed_in_spite_of_a_cancel_has_succeeded(plane):
    plane.join(cpus=2)
    plane.submit(shape=Array(2))
    end(plane, 0)
    plane.cancel()
    end(plane, 1)
    assert plane.job().state is JobState.SUCCEEDED


def test_an_array_that_fits_nowhere_is_refused_whole(plane):
    plane.join()
    plane.submit(shape=Array(10), request=Request(cpus=64))
    assert plane.job().state is JobState.REJECTED


def test_no_wait_asks_for_room_for_the_first(plane):
    plane.join(cpus=1)
    plane.submit("a", shape=Array(3), wait=False)
    assert list(lent(plane, "a")) == [0]
    plane.submit("b", shape=Array(3), wait=False)
    assert plane.job("b").reason_code == "no_capacity"


@pytest.mark.parametrize("all_tasks", [True, False])
def test_a_restart_at_any_time_changes_nothing(plane, all_tasks):
    plane.join(cpus=3)
    plane.submit(shape=Array(7, limit=2), retries=1)
    restart(plane, all_tasks=all_tasks)
    for index, exit_code in ((1, 0), (0, 4), (3, 0), (2, 9)):
        end(plane, index, exit_code)
        restart(plane, all_tasks=all_tasks)
        plane.report("w1")
    end(plane, 4, None, EndedBy.WORKER_LOST)
    restart(plane, all_tasks=all_tasks)
    plane.report("w1")
    for index in (5, 4, 6):
        end(plane, index)
        if plane.state.jobs:
            restart(plane, all_tasks=all_tasks)
            plane.report("w1")
    assert (plane.job().outcome.exit_code, plane.job().begun) == (4, 7)


def test_a_cancel_goes_on_after_a_restart(plane):
    plane.join(cpus=2)
    plane.submit(shape=Array(9))
    plane.cancel()
    restart(plane, all_tasks=False)
    plane.report("w1")
    for epoch in lent(plane).values():
        plane.end("w1", epoch, EndedBy.CANCEL, None)
    assert plane.job().state is JobState.CANCELLED


def test_an_exclusive_array_of_a_restored_plane_begins_nothing_before_a_lease_has_passed(plane):
    plane.join(cpus=8)
    plane.submit(shape=Array(5, limit=2), exclusive=True, retries=0)
    plane.step(PlaneRestored(plane.at, 10**12))
    plane.report("w1", holding=())
    assert lent(plane) == {}
    plane.pass_time(20_000)
    plane.report("w1", holding=())
    assert lent(plane) == {}
    restart(plane)
    plane.report("w1", holding=())
    plane.pass_time(20_000)
    assert sorted(lent(plane)) == [2, 3]


def test_a_cancel_of_an_exclusive_array_forgets_what_it_held(plane):
    plane.join("w1", cpus=1)
    plane.submit(shape=Array(3), exclusive=True)
    plane.join("w2", cpus=1)
    plane.step(WorkerRemoved(plane.at, WorkerId("w1")))
    assert (JobId("j1"), 0) in plane.state.held
    plane.cancel()
    assert not plane.state.held
    plane.pass_time(60_000)


def test_short_elements_are_lent_ahead_and_count_as_under_way(plane):
    plane.join(cpus=1)
    plane.submit(shape=Array(40, limit=4))
    for index in range(8):
        end(plane, index, ms=2)
    ahead = [attempt for attempt in plane.state.attempts.values() if attempt.is_ahead]
    assert len(ahead) == 3
    assert sorted(lent(plane)) == [8, 9, 10, 11]


def test_an_array_may_come_after_another_job(plane):
    plane.join(cpus=4)
    plane.submit("a", retries=0)
    plane.submit("j1", shape=Array(3), after=(After(JobId("a")),))
    plane.submit("c", shape=Array(3), after=(After(JobId("j1")),))
    assert lent(plane) == {}
    plane.run("w1", "a")
    plane.end("w1", plane.epoch("a"))
    assert list(lent(plane)) == [0, 1, 2]
    end(plane, 1, 1)
    end(plane, 0)
    end(plane, 2)
    assert (
        plane.job("c").reason_message
        == "it was to run after the success of job j1, which failed: element 1: exit code 1"
    )
    assert not plane.state.jobs


def test_the_priority_of_another_job_comes_between_elements(plane):
    plane.join(cpus=1)
    plane.submit(shape=Array(3))
    plane.submit("urgent", priority=5)
    end(plane, 0)
    assert plane.epoch("urgent")


def test_an_array_that_waits_costs_what_a_job_costs(plane):
    plane.submit(shape=Array(10_000))
    job = plane.state.jobs[JobId("j1")]
    assert len(job.tasks) == 1
    (known,) = plane.state.classes.values()
    assert [len(owned) for owned in known.queues.values()] == [1]


def test_of_what_is_done_nothing_is_kept_in_memory(plane):
    plane.join(cpus=2)
    plane.submit(shape=Array(300))
    for index in range(200):
        end(plane, index)
    job = plane.state.jobs[JobId("j1")]
    assert len(job.tasks) == 3 + len([a for a in plane.state.attempts.values() if a.is_ahead])
    assert sys.getsizeof(job.tasks) < 20_000
