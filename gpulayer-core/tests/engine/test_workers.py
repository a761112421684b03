"""Workers: reports, silence, return, restart, and what becomes of what they hold."""

from dataclasses import replace

import pytest

from gpulayer.engine import next_due_ms, rebuild, schedule
from gpulayer.engine.effects import Assign, Stop, Void
from gpulayer.engine.events import (
    DrainRequested,
    KeepForPassed,
    LeaseExpired,
    NodePhase,
    NodeReport,
    WorkerRemoved,
    WorkerResumed,
    WorkerWentSilent,
)
from gpulayer.engine.records import AttemptImage
from gpulayer.ids import Digest, WorkerId
from gpulayer.spec.job import Gang, JobState
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Request
from gpulayer.spec.worker import WorkerState


def kinds(events):
    return [type(event) for event in events]


def test_a_heartbeat_changes_nothing_that_is_stored(plane):
    plane.join()
    plane.now_ms += 10_000
    assert plane.report("w1").records == ()


def test_reports_keep_leases_and_silence_ends_them_after_the_lease_and_a_tenth(plane):
    plane.join("w1")
    plane.submit()
    plane.run("w1")
    assert plane.pass_time(32_999) == []
    assert kinds(plane.pass_time(1)) == [WorkerWentSilent, LeaseExpired]
    assert plane.job().state is JobState.QUEUED
    assert plane.state.workers["w1"].state is WorkerState.SILENT


def test_next_due_is_when_due_first_says_something(plane):
    plane.join("w1")
    plane.submit(retries=0, keep_for_ms=100_000)
    plane.run("w1")
    for _ in range(2):
        moment = next_due_ms(plane.state)
        assert plane.pass_time(moment - plane.now_ms - 1) == []
        assert plane.pass_time(1) != []
    assert next_due_ms(plane.state) is None


def test_a_silent_workers_task_is_lent_again_and_the_old_attempt_is_void_when_it_returns(plane):
    plane.join("w1")
    plane.submit()
    old = plane.run("w1")
    plane.join("w2")
    plane.now_ms += 20_000
    plane.report("w2")
    plane.pass_time(13_500)
    new = plane.epoch()
    assert new > old
    assert plane.state.attempts[new].nodes[0].allocation.worker == "w2"
    # C1: the old worker heals and reports success of an attempt that was given away.
    effects = plane.end("w1", old, exit_code=0).effects
    assert Void("w1", (old,)) in effects
    assert plane.state.jobs["j1"].tasks[0].epoch == new


def test_at_most_once_is_unreachable_until_it_must_have_ended_then_lost(plane):
    plane.join()
    plane.submit(retries=0, keep_for_ms=100_000, grace_ms=10_000)
    plane.run("w1")
    plane.pass_time(33_000)
    assert plane.job().state is JobState.UNREACHABLE
    assert plane.pass_time(121_000 - 33_000 - 1) == []
    assert kinds(plane.pass_time(1)) == [KeepForPassed]
    assert plane.job().state is JobState.LOST
    assert plane.job().outcome.ended_by is EndedBy.WORKER_LOST


def test_an_unreachable_job_goes_on_when_its_worker_comes_back(plane):
    plane.join()
    plane.submit(retries=0)
    epoch = plane.run("w1")
    plane.pass_time(60_000)
    assert plane.job().state is JobState.UNREACHABLE
    plane.report("w1")
    assert plane.job().state is JobState.RUNNING
    plane.end("w1", epoch)
    assert plane.job().state is JobState.SUCCEEDED


def test_cancelling_an_unreachable_job_ends_it(plane):
    plane.join()
    plane.submit(retries=0)
    epoch = plane.run("w1")
    plane.pass_time(60_000)
    plane.cancel()
    plane.pass_time(0)
    assert plane.job().state is JobState.CANCELLED
    assert Void("w1", (epoch,)) in plane.report("w1", holding=(epoch,)).effects


def test_a_doubled_report_is_dropped(plane):
    plane.join()
    plane.submit()
    epoch = plane.epoch()
    plane.report("w1", NodeReport(epoch, 0, NodePhase.RUNNING))
    plane.seqs["w1"] -= 1
    assert plane.report("w1", NodeReport(epoch, 0, NodePhase.RUNNING)).records == ()


def test_a_late_report_never_moves_an_attempt_back(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.report("w1", NodeReport(epoch, 0, NodePhase.STAGING))
    assert plane.state.attempts[epoch].phase is NodePhase.RUNNING


def test_an_agent_that_starts_again_and_knows_its_attempt_keeps_it(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.report("w1", boot=2, recovered=(epoch,))
    assert plane.state.attempts[epoch].phase is NodePhase.RUNNING


def test_an_agent_that_starts_again_without_its_attempt_has_lost_it(plane):
    plane.join()
    plane.submit()
    old = plane.run("w1")
    plane.report("w1", boot=2, recovered=())
    assert plane.epoch() > old


@pytest.mark.parametrize("phase", list(NodePhase)[:4])
def test_what_runs_is_lost_where_an_agent_would_start_it_anew_and_nothing_else_is(plane, phase):
    plane.join()
    plane.submit()
    epoch = plane.epoch()
    if phase is not NodePhase.ASSIGNED:
        plane.report("w1", NodeReport(epoch, 0, phase))
    void = plane.report("w1", boot=2, recovered=(epoch,), unstarted=(epoch,)).effects
    if phase in (NodePhase.ASSIGNED, NodePhase.STAGING):
        assert plane.epoch() == epoch
    else:
        assert plane.epoch() > epoch
        assert any(isinstance(effect, Void) and epoch in effect.epochs for effect in void)


@pytest.mark.parametrize("retries", [0, 1])
def test_what_may_have_begun_before_a_start_that_can_not_know_is_lost_and_what_that_start_knows_is_not(plane, retries):
    plane.join()
    job = plane.submit(retries=retries)
    epoch = plane.epoch()
    plane.report("w1", boot=2, recovered=(epoch,), unsure=True)
    plane.report("w1", boot=3, recovered=(), unsure=True, untold=frozenset([epoch]))
    assert plane.epoch() == epoch
    done = plane.report("w1", boot=4, recovered=(), unsure=True)
    (attempt,) = [each for each in done.records if isinstance(each, AttemptImage) and each.epoch == epoch]
    assert attempt.outcome.ended_by is EndedBy.WORKER_LOST
    assert "may have begun this attempt before" in attempt.outcome.evidence
    if retries:
        assert plane.epoch() > epoch
        again = plane.epoch()
        plane.report("w1", boot=4, recovered=(), unsure=True)  # its answer was lost
        assert plane.epoch() == again
    else:
        assert job not in plane.state.jobs


def test_an_attempt_that_the_agent_never_acknowledged_is_still_its_own_after_a_restart(plane):
    plane.join()
    plane.submit()
    epoch = plane.epoch()
    plane.report("w1", boot=2, recovered=())
    assert plane.epoch() == epoch


def test_a_message_of_an_agent_that_was_replaced_is_ignored(plane):
    plane.join()
    plane.submit()
    epoch = plane.run("w1")
    plane.report("w1", boot=2, recovered=(epoch,))
    assert plane.report("w1", NodeReport(epoch, 0, NodePhase.ENDING), boot=1).effects == ()
    assert plane.state.attempts[epoch].phase is NodePhase.RUNNING


def test_a_worker_that_leaves_loses_nothing_that_may_run_again(plane):
    plane.join("w1")
    plane.submit()
    plane.run("w1")
    plane.report("w1", leaving=True)
    assert plane.job().state is JobState.QUEUED
    assert plane.state.workers["w1"].state is WorkerState.SILENT
    plane.join("w2")
    assert plane.job().state is JobState.STAGING


def test_a_stopping_worker_is_lent_nothing_before_it_has_left(plane):
    """It used to get back, at once, what it had just ended, and each time a try was spent."""
    plane.join("w1")
    plane.submit("j1")
    epoch = plane.run("w1")
    stopped = NodeReport(epoch, 0, NodePhase.ENDED, Outcome(EndedBy.WORKER_STOPPED))
    plane.report("w1", stopped, stopping=True)
    assert plane.job("j1").state is JobState.QUEUED
    assert plane.state.workers["w1"].state is WorkerState.DRAINING
    plane.report("w1", leaving=True)
    assert plane.job("j1").state is JobState.QUEUED
    assert plane.state.jobs["j1"].tasks[0].attempts == 1
    plane.report("w1", boot=plane.state.workers["w1"].boot + 1, recovered=())
    assert plane.state.workers["w1"].state is WorkerState.READY
    assert plane.job("j1").state is JobState.STAGING


def test_a_worker_that_says_it_stops_is_lent_nothing_more_though_it_has_room(plane):
    plane.join("w1", cpus=4)
    plane.submit("j1")
    plane.run("w1")
    plane.report("w1", stopping=True)
    plane.submit("j2")
    assert plane.job("j2").state is JobState.QUEUED
    assert plane.state.workers["w1"].state is WorkerState.DRAINING


def test_a_stopping_worker_that_was_silent_is_lent_nothing_when_it_is_heard_again(plane):
    plane.join("w1")
    plane.report("w1", stopping=True)
    plane.pass_time(100_000)
    assert plane.state.workers["w1"].state is WorkerState.SILENT
    plane.report("w1", stopping=True)
    plane.submit()
    assert plane.job().state is JobState.QUEUED


def test_a_draining_worker_ends_its_work_and_takes_no_more(plane):
    plane.join()
    plane.submit("j1")
    epoch = plane.run("w1")
    plane.step(DrainRequested(plane.at, "w1"))
    plane.submit("j2")
    assert plane.job("j2").state is JobState.QUEUED
    plane.end("w1", epoch)
    assert plane.job("j2").state is JobState.QUEUED
    plane.step(WorkerResumed(plane.at, "w1"))
    assert plane.job("j2").state is JobState.STAGING


def test_a_worker_that_is_resumed_while_it_stops_is_lent_nothing_before_it_starts_anew(plane):
    plane.join()
    plane.step(DrainRequested(plane.at, "w1"))
    plane.report("w1", stopping=True)
    plane.step(WorkerResumed(plane.at, "w1"))
    plane.submit()
    assert plane.job().state is JobState.QUEUED
    plane.report("w1", boot=plane.state.workers["w1"].boot + 1, recovered=())
    assert plane.job().state is JobState.STAGING


def test_draining_outlives_silence(plane):
    plane.join()
    plane.step(DrainRequested(plane.at, "w1"))
    plane.pass_time(40_000)
    plane.report("w1")
    assert plane.state.workers["w1"].state is WorkerState.DRAINING


def test_a_removed_worker_is_forgotten_and_its_work_lost(plane):
    plane.join()
    plane.submit(retries=0)
    epoch = plane.run("w1")
    plane.step(WorkerRemoved(plane.at, "w1"))
    assert plane.job().state is JobState.LOST
    assert Void("w1", (epoch,)) in plane.report("w1", holding=(epoch,)).effects


def test_a_worker_that_has_not_reported_yet_gets_no_work(plane):
    plane.join(ready=False)
    plane.submit()
    assert plane.job().state is JobState.QUEUED


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_gang_starts_whole_or_not(plane, nodes):
    for number in range(nodes - 1):
        plane.join(f"w{number}", cpus=1)
    plane.join("busy", cpus=1)
    plane.submit("blocker", request=Request(worker="busy"))
    plane.submit("gang", shape=Gang(nodes))
    assert plane.job("gang").state is JobState.QUEUED
    plane.end("busy", plane.run("busy", "blocker"))
    attempt = plane.state.attempts[plane.epoch("gang")]
    assert len({node.allocation.worker for node in attempt.nodes}) == nodes


def test_one_lost_node_ends_its_gang_everywhere_before_the_next_try(plane):
    plane.join("w1", cpus=1)
    plane.join("w2", cpus=1)
    plane.submit("gang", shape=Gang(2))
    old = plane.epoch("gang")
    for index, node in enumerate(plane.state.attempts[old].nodes):
        plane.report(node.allocation.worker, NodeReport(old, index, NodePhase.RUNNING))
    first, second = (node.allocation.worker for node in plane.state.attempts[old].nodes)
    effects = plane.end(first, old, EndedBy.STAGING, exit_code=None, node=0).effects
    assert Stop(second, old, EndedBy.WORKER_STOPPED, 30_000) in effects
    assert not [effect for effect in effects if isinstance(effect, Assign)]
    assert plane.job("gang").state is JobState.ENDING
    plane.end(second, old, EndedBy.WORKER_STOPPED, exit_code=None, node=1)
    assert plane.epoch("gang") > old


def test_a_stopped_worker_costs_no_retry_but_at_most_once_stays_at_most_once(plane):
    plane.join()
    plane.submit("often", retries=1)
    plane.submit("once", retries=0)
    for _ in range(4):
        plane.report("w1", leaving=True)
        plane.report("w1")
        plane.run("w1", "often")
    assert plane.state.jobs["often"].tasks[0].failures == 0
    assert plane.job("once").state is JobState.LOST
    assert plane.job("once").reason_message == "worker w1 was stopped"
    plane.end("w1", plane.epoch("often"), exit_code=0)
    assert plane.job("often").state is JobState.SUCCEEDED


def test_after_a_restart_nothing_new_goes_to_a_worker_before_it_has_reported(plane):
    plane.join("gone")
    plane.join("here")
    plane.state = rebuilt(plane)
    plane.submit()
    assert plane.job().state is JobState.QUEUED
    plane.seqs.clear()
    plane.report("here")
    assert plane.state.attempts[plane.epoch()].nodes[0].allocation.worker == "here"


def test_a_state_that_is_only_reloaded_goes_on_with_the_workers_it_has_heard(plane):
    plane.join()
    plane.state = rebuilt(plane, heard=["w1"])
    plane.submit()
    assert plane.job().state is JobState.STAGING


def test_facts_that_no_worker_has_are_forgotten_with_all_that_is_known_of_them(plane):
    plane.join(cpus=2)
    plane.join("w2", cpus=2)
    plane.submit(request=Request(cpus=2))
    plane.submit("more", request=Request(cpus=2))
    plane.submit("waits", request=Request(cpus=2))
    own = plane.state.workers[WorkerId("w1")].facts
    for figure in range(1, 30):
        facts = replace(own, disk_bytes=figure)
        plane.report("w1", facts=facts, facts_digest=Digest(f"{figure:064x}"))
        assert set(plane.state.facts.values()) == {own, facts}
    (known,) = plane.state.classes.values()
    assert len(known.eligible) == 2
    plane.step(WorkerRemoved(plane.at, WorkerId("w1")))
    assert set(plane.state.facts.values()) == {own}


@pytest.mark.parametrize("is_news", [False, True])
def test_what_nothing_is_placed_by_makes_nobody_look_at_what_waits_again(plane, is_news):
    plane.join(cpus=2, gpus=1)
    plane.submit(request=Request(cpus=2))
    plane.submit("waits", request=Request(cpus=2))
    (known,) = plane.state.classes.values()
    assert known.is_blocked
    own = plane.state.workers[WorkerId("w1")].facts
    device = replace(own.devices[0], memory_free_bytes=7, temperature_c=80, use_percent=99)
    device = replace(device, memory_taken_bytes=7) if is_news else device
    looks = []
    before = schedule.workers_changed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "workers_changed", lambda turn: (looks.append(turn), before(turn)))
        plane.report("w1", facts=replace(own, devices=(device,)), facts_digest=Digest("7" * 64))
    assert bool(looks) is is_news
    assert plane.state.workers[WorkerId("w1")].facts.devices == (device,)


def rebuilt(plane, **options):
    by_kind = {}
    for (kind, _), record in plane.records.items():
        by_kind.setdefault(kind, []).append(record)
    (counters,) = by_kind["CounterImage"]
    return rebuild(plane.state.policy, counters, workers=by_kind["WorkerImage"], facts=by_kind["FactsImage"], **options)
