"""The agent's state machine: stops, time limits, and how a worker leaves."""

from dataclasses import replace

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import Epoch
from gpulayer.protocol.agent import next_wake_ms
from gpulayer.protocol.messages import (
    AbandonStage,
    AttemptsVoided,
    CallOff,
    CollectOutputs,
    DrainLog,
    Finish,
    Forget,
    Hold,
    Item,
    Journal,
    KillTree,
    LogDrained,
    OutputsCollected,
    Phase,
    ProcessExited,
    Progress,
    ReportedState,
    ReportFailed,
    SignalTree,
    Spawned,
    SpawnFailed,
    SpawnPutOff,
    Staged,
    StagingFailed,
    StopAllRequested,
    Ticked,
    TreeSignalled,
)
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome
from tests.agent_machine import JOB, KEY, SOURCED, TREE, Agent, journal, recovered, spawn


def test_a_stop_that_arrives_before_its_assign_prevents_the_start_and_is_answered():
    agent = Agent()
    assert agent.stop() == []
    assert agent.settle() == [Forget(KEY)]
    assert agent.items == [Item(KEY, ReportedState.ENDED, agent.ended, None)]
    assert agent.ended.ended_by is EndedBy.CANCEL
    assert agent.assign() == []
    late = replace(JOB, key=NodeKey(KEY.epoch, 1))
    assert agent.assign(late) == []
    agent.settle()
    assert agent.items[-1].key == late.key
    assert agent.items[-1].state is ReportedState.ENDED


def test_stop_sends_sigterm_once_and_sigkill_after_the_grace_time():
    agent = Agent().run()
    progress = Progress(Phase.RUNNING, started_ms=0, stop=EndedBy.CANCEL, kill_at_ms=1000)
    assert agent.stop(grace_ms=1000) == [Journal(KEY, progress), SignalTree(KEY)]
    assert agent.send(TreeSignalled(KEY)) == [Journal(KEY, replace(progress, is_signalled=True))]
    assert agent.stop(grace_ms=1000) == []
    assert agent.send(Ticked(), at=999) == []
    assert next_wake_ms(replace(agent.state, in_flight=agent.reports[-1])) == 1000
    assert agent.send(Ticked(), at=1000) == [KillTree(KEY)]
    assert agent.send(Ticked(), at=1001) == []
    assert agent.send(Ticked(), at=6000) == [KillTree(KEY)]
    told = "it did not end within its grace time of 1.0 s and was killed"
    assert agent.finish(ProcessExited(KEY, signal=9)) == Outcome(EndedBy.CANCEL, None, 9, told, Blame.USER)


def test_a_program_that_ends_within_the_grace_time_keeps_its_code_and_brings_its_files_home():
    agent = Agent().run()
    agent.stop()
    assert agent.send(ProcessExited(KEY, exit_code=5))[1:] == [DrainLog(KEY), CollectOutputs(KEY)]
    agent.send(OutputsCollected(KEY, TREE))
    agent.send(LogDrained(KEY))
    agent.settle()
    assert agent.items[-1] == Item(KEY, ReportedState.ENDED, Outcome(EndedBy.CANCEL, 5, blame=Blame.USER), TREE)


def test_grace_zero_kills_at_once():
    agent = Agent().run()
    assert agent.stop(grace_ms=0)[1:] == [SignalTree(KEY), KillTree(KEY)]


def test_a_later_stop_can_only_shorten_the_grace_time_and_the_first_reason_stays():
    agent = Agent().run()
    agent.stop(EndedBy.PREEMPTED, grace_ms=5000)
    agent.stop(EndedBy.CANCEL, grace_ms=9000)
    assert agent.state.held[KEY].kill_at_ms == 5000
    agent.stop(EndedBy.CANCEL, grace_ms=100)
    assert agent.send(Ticked(), at=100) == [KillTree(KEY)]
    assert agent.finish(ProcessExited(KEY, signal=9)).ended_by is EndedBy.PREEMPTED


def test_a_stop_after_the_programs_own_end_changes_nothing():
    agent = Agent().run()
    agent.send(ProcessExited(KEY, exit_code=0))
    assert agent.stop() == []
    agent.send(LogDrained(KEY))
    agent.send(OutputsCollected(KEY, None))
    assert agent.stop() == []
    agent.settle()
    assert agent.ended.ended_by is EndedBy.PROGRAM


def test_a_stop_while_staging_ends_without_starting():
    agent = Agent()
    agent.assign(SOURCED)
    actions = agent.stop()
    assert actions[0] == AbandonStage(KEY)
    assert agent.state.held[KEY].phase is Phase.ENDED
    assert agent.send(Staged(KEY)) == []
    agent.settle()
    assert agent.ended.ended_by is EndedBy.CANCEL
    assert agent.ended.exit_code is None


def test_a_stop_while_the_program_is_being_started_is_carried_out_once_it_runs():
    agent = Agent()
    agent.assign()
    assert agent.stop() == [Journal(KEY, Progress(Phase.SPAWNING, stop=EndedBy.CANCEL)), CallOff(KEY)]
    assert agent.send(Spawned(KEY))[-1] == SignalTree(KEY)
    assert agent.state.held[KEY].kill_at_ms == 1000


@pytest.mark.parametrize("later", [SpawnPutOff(KEY), SpawnFailed(KEY, None, "nothing ran"), Spawned(KEY)])
def test_a_stop_while_the_program_is_being_started_is_never_lost(later):
    agent = Agent()
    agent.assign()
    agent.stop()
    assert agent.stop() == [], "the second asks for nothing new"
    agent.send(later)
    if isinstance(later, Spawned):
        agent.finish(ProcessExited(KEY, signal=15))
        assert agent.reports[-1].items[0].outcome.ended_by is EndedBy.CANCEL
    else:
        assert agent.state.held[KEY].outcome.ended_by is EndedBy.CANCEL
        assert agent.state.held[KEY].outcome.exit_code is None


def test_a_restart_ends_what_was_stopped_while_it_was_being_started_unless_it_runs():
    stopped = Progress(Phase.SPAWNING, stop=EndedBy.CANCEL)
    agent, actions = recovered(stopped)
    assert [type(action) for action in actions] == [Journal]
    assert (agent.state.held[KEY].phase, agent.state.held[KEY].outcome.ended_by) == (Phase.ENDED, EndedBy.CANCEL)
    agent, actions = recovered(stopped, is_running=True)
    assert actions[-1] == SignalTree(KEY)


def test_a_start_that_is_put_off_waits_like_what_has_not_begun_and_is_made_when_it_may_be():
    agent = Agent()
    agent.assign()
    assert agent.send(SpawnPutOff(KEY)) == [Hold(JOB)]
    assert agent.state.held[KEY].phase is Phase.STAGING
    assert agent.send(SpawnPutOff(KEY)) == []
    assert agent.send(Staged(KEY)) == [journal(Phase.SPAWNING), spawn(JOB)]
    agent.send(SpawnPutOff(KEY))
    assert agent.send(StagingFailed(KEY, "not for an hour", EndedBy.ENVIRONMENT, Blame.PLUGIN))
    assert agent.state.held[KEY].outcome.blame is Blame.PLUGIN


def test_a_start_that_is_put_off_can_be_stopped_before_and_after():
    agent = Agent()
    agent.assign()
    agent.stop()
    agent.send(SpawnPutOff(KEY))
    assert agent.state.held[KEY].outcome.ended_by is EndedBy.CANCEL
    agent = Agent()
    agent.assign()
    agent.send(SpawnPutOff(KEY))
    assert agent.stop()[0] == AbandonStage(KEY)
    assert agent.state.held[KEY].outcome.ended_by is EndedBy.CANCEL
    assert agent.send(Staged(KEY)) == []
    agent = Agent()
    agent.assign()
    agent.send(AttemptsVoided((KEY.epoch,)))
    assert agent.send(SpawnPutOff(KEY)) == [Forget(KEY)]


def test_the_timeout_counts_from_the_start_and_says_so():
    agent = Agent()
    agent.assign(replace(JOB, timeout_ms=500))
    agent.send(Spawned(KEY), at=100)
    agent.settle()
    assert agent.send(Ticked(), at=599) == []
    assert agent.send(Ticked(), at=600)[-1] == SignalTree(KEY)
    told = "it ran for longer than its --timeout of 500 ms"
    assert agent.finish(ProcessExited(KEY, signal=15)) == Outcome(EndedBy.TIMEOUT, None, 15, told, Blame.USER)


def test_what_stopped_the_worker_is_told_of_each_of_its_jobs_also_by_the_next_agent():
    agent = Agent().run()
    (written, _) = agent.send(StopAllRequested(evidence="worker w was stopped (SIGTERM)"))
    told = "worker w was stopped (SIGTERM)"
    assert agent.finish(ProcessExited(KEY, exit_code=0)).evidence == told
    agent, _ = recovered(written.progress, process=ProcessExited(KEY, exit_code=0))
    assert agent.state.held[KEY].outcome.evidence == told


def test_a_stopping_worker_ends_its_jobs_with_a_capped_grace_then_leaves():
    agent = Agent().run()
    assert agent.send(StopAllRequested(grace_cap_ms=10_000))[-1] == SignalTree(KEY)
    assert agent.state.held[KEY].kill_at_ms == 10_000
    assert agent.send(StopAllRequested(grace_cap_ms=10_000)) == []
    late = replace(JOB, key=NodeKey(Epoch(8), 0))
    assert agent.assign(late) == []
    assert agent.finish(ProcessExited(KEY, signal=15)).ended_by is EndedBy.WORKER_STOPPED
    assert agent.reports[-1].leaving
    assert agent.state.is_finished
    assert next_wake_ms(agent.state) is None


def test_an_idle_worker_leaves_at_once_even_if_nobody_listens():
    agent = Agent()
    agent.send(StopAllRequested())
    assert agent.reports[-1].leaving
    assert agent.send(ReportFailed(agent.reports[-1].seq, 100)) == [Finish()]


def test_a_worker_that_cannot_deliver_finishes_after_its_deadline_and_keeps_the_rest():
    agent = Agent().run()
    agent.send(StopAllRequested(grace_cap_ms=100))
    agent.send(ProcessExited(KEY, signal=15), at=50)
    assert agent.send(Ticked(), at=15_099) == []
    assert agent.send(Ticked(), at=15_100) == [Finish()]
    assert KEY in agent.state.held


def test_once_leaves_after_the_first_job():
    agent = Agent(once=True).run()
    agent.finish()
    assert agent.reports[-1].leaving
    assert agent.state.is_finished
