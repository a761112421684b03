"""An exclusive job is lent to nobody while what was lent before may still run, whoever has said that it is lost."""

from dataclasses import replace

import pytest

from gpulayer.engine import Policy, next_due_ms, rebuild
from gpulayer.engine.events import HoldPassed, NodePhase, NodeReport, PlaneRestored, WorkerRemoved
from gpulayer.engine.records import CounterImage
from gpulayer.spec.job import Gang, JobState, RetryOn
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for

LEASE_MS = 33_000


def lent(plane, **options) -> None:
    """To w1; w2 is idle, and heard at every moment that matters."""
    plane.join("w1")
    plane.submit(exclusive=True, **options)
    plane.run("w1")
    plane.join("w2", cpus=4)


def wait(plane, ms) -> list:
    """w2 goes on reporting meanwhile."""
    events = plane.pass_time(ms // 2)
    plane.report("w2")
    return events + plane.pass_time(ms - ms // 2)


def remove(plane) -> None:
    plane.step(WorkerRemoved(plane.at, "w1"))


def restore(plane) -> None:
    plane.step(PlaneRestored(plane.at, 10**12))


def vanish(plane) -> None:
    plane.report("w1", boot=2, recovered=())


def begin_anew(plane) -> None:
    plane.report("w1", boot=2, recovered=plane.state.attempts, unstarted=tuple(plane.state.attempts))


def take_over(plane, *items, **more) -> None:
    """Another start of its agent, which says that it knows of everything."""
    plane.report("w1", *items, boot=2, recovered=plane.state.attempts, **more)


def ended(plane, ended_by, **more) -> NodeReport:
    return NodeReport(plane.epoch(), 0, NodePhase.ENDED, Outcome(ended_by, blame=blame_for(ended_by), **more))


def tell_at_once(plane) -> None:
    take_over(plane, ended(plane, EndedBy.WORKER_LOST))


def tell_later(plane) -> None:
    take_over(plane)
    plane.report("w1", ended(plane, EndedBy.WORKER_LOST), boot=2)


def tell_after_a_restart(plane) -> None:
    take_over(plane)
    plane.state = _restarted(plane)
    plane.report("w1", ended(plane, EndedBy.WORKER_STOPPED), boot=2)


def leave(plane) -> None:
    take_over(plane)
    plane.report("w1", boot=2, stopping=True, leaving=True)


TOLD = [tell_at_once, tell_later, tell_after_a_restart, leave]
ENDS = pytest.mark.parametrize("end", [remove, restore, vanish, begin_anew, *TOLD])


def again(plane, end) -> None:
    """Whoever is there after it reports, so that the task could be lent."""
    end(plane)
    for worker in plane.state.workers:
        plane.report(worker, boot=plane.state.workers[worker].boot)


@ENDS
def test_what_is_lost_without_its_workers_word_is_lent_again_when_that_must_have_ended_it(plane, end):
    lent(plane)
    again(plane, end)
    assert (plane.job().state, plane.job().reason_code) == (JobState.QUEUED, "exclusive_held")
    assert plane.job().reason_message.endswith("it may still run there, and this job is exclusive")
    assert not any(isinstance(event, HoldPassed) for event in wait(plane, LEASE_MS - 1))
    assert not plane.state.attempts
    plane.report("w2")
    assert next_due_ms(plane.state) == plane.now_ms + 1
    assert HoldPassed in [type(event) for event in plane.pass_time(1)]
    assert plane.state.attempts[plane.epoch()].nodes[0].allocation.worker in ("w1", "w2")


@ENDS
def test_a_job_that_is_not_exclusive_waits_for_nothing(plane, end):
    plane.join("w1")
    plane.submit()
    plane.run("w1")
    plane.join("w2")
    again(plane, end)
    assert plane.job().state is JobState.STAGING


def test_a_removed_workers_time_counts_from_its_last_word(plane):
    lent(plane)
    wait(plane, 20_000)
    remove(plane)
    wait(plane, LEASE_MS - 20_000 - 1)
    assert not plane.state.attempts
    plane.report("w2")
    plane.pass_time(1)
    assert plane.state.attempts


@pytest.mark.parametrize("end", [vanish, begin_anew, tell_at_once, leave])
def test_where_its_agent_started_anew_the_time_counts_from_the_last_word_of_the_start_before(plane, end):
    """A machine that was restarted waits no longer for its job than one that stays away."""
    lent(plane)
    wait(plane, 20_000)
    end(plane)
    wait(plane, LEASE_MS - 20_000 - 1)
    assert not plane.state.attempts
    plane.report("w2")
    plane.pass_time(1)
    assert plane.state.attempts


def test_what_a_new_start_of_an_agent_has_seen_end_leaves_no_hold(plane):
    lent(plane, retry_on=RetryOn.ANY)
    take_over(plane)
    plane.report("w1", ended(plane, EndedBy.PROGRAM, exit_code=3, ran_ms=700), boot=2)
    assert not plane.state.held
    assert plane.state.attempts


def test_what_an_agent_says_of_its_own_programs_leaves_no_hold(plane):
    """Also some time after it has started anew, when its former start can't have been answered for so long."""
    lent(plane)
    plane.report("w1", ended(plane, EndedBy.WORKER_LOST))
    assert not plane.state.held
    for _ in range(4):
        plane.report("w1", boot=2, recovered=plane.state.attempts)
        plane.report("w2")
        plane.pass_time(LEASE_MS // 3)
    plane.run("w2")
    plane.report("w2", boot=2, recovered=plane.state.attempts)
    for _ in range(4):
        plane.report("w2", boot=2)
        plane.report("w1", boot=2)
        plane.pass_time(LEASE_MS // 3)
    plane.report("w2", ended(plane, EndedBy.WORKER_LOST), boot=2)
    assert not plane.state.held


def test_of_a_gang_one_node_that_was_seen_to_end_says_nothing_of_the_others(plane):
    plane.join("w1", cpus=1)
    plane.join("w2", cpus=1)
    plane.submit(exclusive=True, shape=Gang(2), retry_on=RetryOn.ANY)
    epoch = plane.run("w1", node=plane.state.workers["w1"].leases[plane.epoch()])
    for worker in ("w1", "w2"):
        plane.report(worker, boot=2, recovered=plane.state.attempts)
    for worker, ran_ms in (("w1", None), ("w2", 500)):
        node = plane.state.workers[worker].leases[epoch]
        outcome = Outcome(EndedBy.WORKER_LOST, ran_ms=ran_ms, blame=blame_for(EndedBy.WORKER_LOST))
        plane.report(worker, NodeReport(epoch, node, NodePhase.ENDED, outcome), boot=2)
    assert plane.job().reason_code == "exclusive_held"


def test_what_its_worker_ended_or_has_outlived_its_lease_leaves_no_hold(plane):
    lent(plane)
    wait(plane, LEASE_MS)
    assert plane.state.attempts[plane.epoch()].nodes[0].allocation.worker == "w2"
    plane.end("w2", plane.epoch(), EndedBy.STAGING)
    assert plane.epoch()
    plane.report("w2", leaving=True)
    assert not plane.state.held


def test_a_hold_and_the_place_in_the_queue_outlive_a_restart(plane):
    lent(plane)
    plane.submit("held too", exclusive=True)
    remove(plane)
    restarted = _restarted(plane)
    assert restarted.held == plane.state.held != {}
    plane.state = restarted
    for _ in range(2):
        plane.report("w2")
        wait(plane, LEASE_MS // 2 + 1)
    assert plane.epoch()


def test_a_lease_that_got_shorter_counts_from_the_workers_next_report_on(plane):
    lent(plane)
    plane.state = _restarted(plane, Policy(lease_ttl_ms=2_000))
    plane.report("w2")
    for _ in range(32):
        plane.pass_time(1_000)
        plane.report("w2")
    assert plane.state.attempts[plane.epoch()].nodes[0].allocation.worker == "w1"
    plane.pass_time(1_000)
    assert plane.state.attempts[plane.epoch()].nodes[0].allocation.worker == "w2"
    plane.state = _restarted(plane, Policy(lease_ttl_ms=4_000))
    plane.report("w2")
    plane.state = _restarted(plane, Policy(lease_ttl_ms=2_000))
    plane.pass_time(4_399)
    assert plane.job().state is JobState.STAGING
    plane.pass_time(1)
    assert plane.job().reason_code == "retry"


def test_what_was_queued_in_a_backup_may_have_been_lent_since(plane):
    plane.join("w1", cpus=1)
    plane.submit("first")
    plane.submit("queued", exclusive=True)
    plane.submit("plain")
    restore(plane)
    plane.report("w1")
    assert plane.epoch("first")
    plane.end("w1", plane.epoch("first"))
    assert plane.epoch("plain")
    assert plane.job("queued").reason_code == "exclusive_held"


def test_a_held_job_can_be_cancelled(plane):
    lent(plane)
    remove(plane)
    plane.cancel()
    assert plane.job().state is JobState.CANCELLED
    assert not plane.state.held
    assert plane.pass_time(100_000)


def test_a_gang_waits_for_the_node_that_is_not_known_to_have_ended(plane):
    plane.join("w1", cpus=1)
    plane.join("w2", cpus=1)
    plane.submit(exclusive=True, shape=Gang(2))
    epoch = plane.run("w1")
    plane.join("w3", cpus=1)
    remove(plane)
    node = plane.state.workers["w2"].leases[epoch]
    plane.report("w2", NodeReport(epoch, node, NodePhase.ENDED, Outcome(EndedBy.WORKER_STOPPED)))
    assert plane.job().reason_code == "exclusive_held"
    assert not plane.state.attempts


def _restarted(plane, policy=None):
    """From what is stored."""
    kinds = {}
    for (kind, _), record in plane.records.items():
        kinds.setdefault(kind, []).append(record)
    entries = {job_id: job.entry for job_id, job in plane.state.jobs.items()}
    counters = CounterImage(plane.state.next_epoch, plane.state.next_seq, plane.now_ms)
    return rebuild(
        policy or replace(plane.state.policy),
        counters,
        jobs=[(entries[image.id], image) for image in kinds["JobImage"] if image.id in entries],
        tasks=kinds.get("TaskImage", ()),
        attempts=kinds.get("AttemptImage", ()),
        workers=kinds["WorkerImage"],
        facts=kinds["FactsImage"],
    )
