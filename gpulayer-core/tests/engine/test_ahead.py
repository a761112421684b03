"""Short work is lent ahead of its slot, and comes back when it should not wait there."""

import pytest

from gpulayer.engine import outstanding, rebuild
from gpulayer.engine.effects import Assign, Revoke, Stop, Void
from gpulayer.engine.events import AheadWaitPassed, DrainRequested, NodePhase, NodeReport
from gpulayer.engine.turn import attempt_image, job_image, task_image, worker_image
from gpulayer.errors import Blame
from gpulayer.ids import JobId, WorkerId
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Accelerator, Request

DONE = Outcome(EndedBy.PROGRAM, exit_code=0, blame=Blame.USER)
GIVEN_BACK = Outcome(EndedBy.PREEMPTED, evidence="given back before it started", blame=Blame.CAPACITY)
W1, W2 = WorkerId("w1"), WorkerId("w2")


def warm_up(plane, worker="w1", ends=8, ms=5):
    """A worker on which attempts end quickly, one after the other."""
    for number in range(ends):
        plane.submit(f"{worker}-warm{number}", request=Request(worker=worker))
        epoch = plane.epoch(f"{worker}-warm{number}")
        plane.now_ms += ms
        plane.end(worker, epoch)


def fill(plane, *names, ms=1):
    """One job each on a slot of w1, known to run."""
    for name in names:
        plane.submit(name, request=Request(worker="w1"))
        plane.now_ms += ms
        plane.run("w1", name)


def ahead(plane, worker=W1):
    return [plane.state.attempts[epoch].job_id for epoch in plane.state.ahead.get(worker, ())]


def revoked(step):
    return [effect.epoch for effect in step.effects if isinstance(effect, Revoke)]


def give_back(plane, epoch, worker="w1"):
    return plane.report(worker, NodeReport(epoch, 0, NodePhase.ENDED, GIVEN_BACK))


def test_a_worker_that_ends_work_quickly_is_lent_more_than_it_has_slots_for(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    assert [type(effect) for effect in plane.last.effects] == [Assign]
    assert ahead(plane) == ["next"]
    assert plane.state.workers[W1].free.cpus == 0
    assert plane.state.jobs[JobId("next")].state is JobState.QUEUED


def test_what_was_lent_ahead_counts_when_a_slot_is_free(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    plane.end("w1", plane.epoch("now"))
    assert ahead(plane) == []
    assert plane.state.workers[W1].free.cpus == 0
    assert plane.job("next").state is JobState.STAGING


def test_one_item_tells_all_of_a_job_that_ran_between_two_reports(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    items = [NodeReport(plane.epoch(name), 0, NodePhase.ENDED, DONE, None, ago) for name, ago in (("next", 7),)]
    plane.report("w1", NodeReport(plane.epoch("now"), 0, NodePhase.ENDED, DONE), *items)
    assert plane.job("next").state is JobState.SUCCEEDED
    assert plane.job("next").started_wall_ms == plane.at.wall_ms - 7


def test_ends_make_room_for_starts_that_stand_before_them_in_a_report(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    started = NodeReport(plane.epoch("next"), 0, NodePhase.RUNNING)
    plane.report("w1", started, NodeReport(plane.epoch("now"), 0, NodePhase.ENDED, DONE))
    assert plane.job("next").state is JobState.RUNNING
    assert plane.state.workers[W1].free.cpus == 0


def test_a_start_out_of_turn_puts_the_other_back_into_the_wait(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("first")
    plane.submit("second")
    plane.end("w1", plane.epoch("now"))
    assert ahead(plane) == ["second"]
    plane.report("w1", NodeReport(plane.epoch("second"), 0, NodePhase.RUNNING))  # the files of the first still come
    assert ahead(plane) == ["first"]
    assert plane.state.workers[W1].free.cpus == 0
    assert plane.state.jobs[JobId("first")].state is JobState.QUEUED


def test_nothing_is_lent_ahead_where_nothing_has_ended_or_work_takes_long(plane):
    plane.join(cpus=1)
    fill(plane, "now")
    plane.submit("next")
    assert ahead(plane) == []
    plane.now_ms += 60_000
    plane.end("w1", plane.epoch("now"))
    plane.run("w1", "next")
    plane.submit("later")
    assert ahead(plane) == []


def test_a_surprise_ends_the_lending_and_what_waits_behind_it_is_wanted_back_after_a_second(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "surprise")
    plane.submit("behind")
    waiting = plane.epoch("behind")
    events = plane.pass_time(1_001)
    assert [type(event) for event in events] == [AheadWaitPassed]
    assert revoked(plane.last) == [waiting]
    give_back(plane, waiting)
    assert ahead(plane) == []
    assert plane.job("behind").state is JobState.QUEUED
    plane.submit("another")
    assert ahead(plane) == []


def test_what_is_given_back_costs_no_retry_and_is_no_attempt_to_anybody(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    first = plane.epoch("next")
    plane.pass_time(1_001)
    give_back(plane, first)
    assert not plane.records["AttemptImage", first].is_shown
    plane.end("w1", plane.epoch("now"))
    task = plane.state.jobs[JobId("next")].tasks[0]
    assert task.epoch != first
    assert (task.attempts, task.failures, task.avoid) == (1, 0, set())
    assert plane.job("next").reason_code == ""


def test_what_has_started_when_it_is_revoked_runs_on(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    epoch = plane.epoch("next")
    plane.pass_time(1_001)
    assert outstanding(plane.state, W1) == (Assign(W1, epoch, 0, JobId("next")), Revoke(W1, epoch))
    plane.report(
        "w1",
        NodeReport(plane.epoch("now"), 0, NodePhase.ENDED, DONE),
        NodeReport(epoch, 0, NodePhase.RUNNING),
    )
    assert outstanding(plane.state, W1) == ()
    plane.end("w1", epoch)
    assert plane.job("next").state is JobState.SUCCEEDED
    assert plane.records["AttemptImage", epoch].is_shown


def test_a_worker_that_has_room_gets_what_waits_elsewhere_but_no_more_than_it_can_take(plane):
    plane.join(cpus=1)
    plane.join("w2", cpus=1)
    plane.submit("other", request=Request(worker="w2"))
    plane.run("w2", "other")
    warm_up(plane)
    fill(plane, "now")
    for name in ("a", "b", "c"):
        plane.submit(name)
    assert ahead(plane) == ["a", "b", "c"]
    newest = plane.epoch("c")
    step = plane.end("w2", plane.epoch("other"))
    assert revoked(step) == [newest]
    give_back(plane, newest)
    assert plane.state.attempts[plane.epoch("c")].nodes[0].allocation.worker == W2


def test_a_better_priority_gets_its_place_before_what_has_not_started(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    for number in range(20):
        plane.submit(f"low{number}")
    waiting = list(plane.state.ahead[W1])
    assert len(waiting) == 8  # as many as have ended there
    plane.submit("urgent", priority=5)
    assert revoked(plane.last) == waiting
    for epoch in waiting:
        give_back(plane, epoch)
    assert ahead(plane)[0] == "urgent"
    plane.end("w1", plane.epoch("now"))
    assert plane.job("urgent").state is JobState.STAGING


def test_a_task_that_may_not_be_lent_ahead_is_not_passed_by_what_comes_after_it(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("once", retries=0)
    plane.submit("after")
    assert ahead(plane) == []
    plane.end("w1", plane.epoch("now"))
    assert plane.job("once").state is JobState.STAGING


SCARCE = [Request(resources=(("licence", 1),)), Request(accelerators=(Accelerator.CUDA,), devices=1)]


@pytest.mark.parametrize("scarce", SCARCE, ids=["resource", "device"])
def test_what_waits_for_more_than_a_slot_keeps_nobody_off_until_a_slot_is_all_it_lacks(plane, scarce):
    plane.join(cpus=2, gpus=1, resources=[("licence", 1)])
    warm_up(plane)
    plane.submit("holds", request=scarce)
    plane.run("w1", "holds")
    fill(plane, "now")
    plane.submit("waits", request=scarce)
    plane.submit("next")
    assert ahead(plane) == ["next"]
    plane.end("w1", plane.epoch("holds"))  # its slot goes to what waits there
    assert plane.job("next").state is JobState.STAGING
    plane.submit("later")
    assert ahead(plane) == []
    plane.end("w1", plane.epoch("now"))
    assert plane.job("waits").state is JobState.STAGING


@pytest.mark.parametrize("scarce", SCARCE, ids=["resource", "device"])
def test_what_was_passed_while_it_waited_for_more_than_a_slot_makes_way_once_that_is_free(plane, scarce):
    plane.join(cpus=2, gpus=1, resources=[("licence", 1)])
    warm_up(plane)
    plane.submit("holds", request=scarce)
    plane.run("w1", "holds")
    fill(plane, "now")
    for number in range(4):
        plane.submit(f"low{number}")
    plane.submit("urgent", request=scarce, priority=5)
    assert (ahead(plane), revoked(plane.last)) == (["low0", "low1", "low2", "low3"], [])
    step = plane.end("w1", plane.epoch("holds"))
    assert revoked(step) == [plane.epoch(f"low{number}") for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "options",
    [
        {"retries": 0},
        {"exclusive": True},
        {"request": Request(accelerators=(Accelerator.CUDA,), devices=1)},
        {"request": Request(cpus=2)},
    ],
    ids=["at most once", "exclusive", "devices", "does not fit"],
)
def test_some_work_always_waits_for_its_slot(plane, options):
    plane.join(cpus=1, gpus=1)
    plane.join("large", cpus=2)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("large-now", request=Request(worker="large", cpus=2))
    plane.submit("device", request=Request(worker="w1", accelerators=(Accelerator.CUDA,), devices=1, cpus=0))
    plane.submit("job", **options)
    assert plane.state.jobs[JobId("job")].tasks[0].epoch is None


def test_no_wait_is_refused_though_it_could_wait_at_a_worker(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("job", wait=False)
    assert plane.job("job").state is JobState.REJECTED


def test_a_worker_that_drains_gives_back_what_waits_there(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    step = plane.step(DrainRequested(plane.at, W1))
    assert revoked(step) == [plane.epoch("next")]


def test_a_silent_workers_wait_ends_with_its_lease(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    old = plane.epoch("next")
    plane.pass_time(33_000)
    assert plane.state.jobs[JobId("next")].tasks[0].epoch is None
    step = plane.report("w1", holding=[old])
    assert [old in effect.epochs for effect in step.effects if isinstance(effect, Void)] == [True]
    assert plane.job("next").state is JobState.QUEUED


def test_cancelling_what_waits_ahead_ends_it(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    epoch = plane.epoch("next")
    assert [type(effect) for effect in plane.cancel("next").effects if isinstance(effect, Stop)] == [Stop]
    plane.end("w1", epoch, EndedBy.CANCEL, None)
    assert plane.job("next").state is JobState.CANCELLED


def test_a_cancel_that_races_with_giving_back_still_ends_it(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    epoch = plane.epoch("next")
    plane.pass_time(1_001)
    plane.cancel("next")
    give_back(plane, epoch)
    assert plane.job("next").state is JobState.CANCELLED


def test_what_is_lent_ahead_and_wanted_back_outlives_a_restart(plane):
    plane.join(cpus=1)
    warm_up(plane)
    fill(plane, "now")
    plane.submit("next")
    plane.submit("last")
    state = plane.state
    plane.step(AheadWaitPassed(plane.at, plane.epoch("next"), W1))
    again = rebuild(
        state.policy,
        None,
        jobs=[(job.entry, job_image(job)) for job in state.jobs.values()],
        tasks=[task_image(job.entry.id, task) for job in state.jobs.values() for task in job.tasks.values()],
        attempts=[attempt_image(attempt) for attempt in state.attempts.values()],
        workers=[worker_image(worker) for worker in state.workers.values()],
        facts=[record for (kind, _), record in plane.records.items() if kind == "FactsImage"],
    )
    assert again.ahead == state.ahead
    assert again.workers[W1].free == state.workers[W1].free
    assert outstanding(again, W1) == outstanding(state, W1)
