"""The agent's state machine: what another start of it makes of what the last one left."""

from dataclasses import replace

import pytest

from gpulayer.errors import Blame
from gpulayer.protocol.messages import (
    CollectOutputs,
    DrainLog,
    FollowLog,
    Forget,
    Item,
    Journal,
    KillTree,
    LogDrained,
    OutputsCollected,
    Phase,
    ProcessExited,
    Progress,
    Recovered,
    RecoveredNode,
    ReportedState,
    ReportFailed,
    SignalTree,
    Spawn,
    Stage,
    Staged,
    Ticked,
)
from gpulayer.spec.outcome import EndedBy, Outcome
from tests.agent_machine import JOB, KEY, SOURCED, TREE, Agent, journal, recovered, spawn


def test_restart_while_staging_stages_again():
    _, actions = recovered(Progress(Phase.STAGING))
    assert actions == [Stage(SOURCED)]


def test_restart_while_starting_asks_the_spawner_again_or_finds_it_running_or_ended():
    agent, actions = recovered(Progress(Phase.SPAWNING))
    assert actions == []
    assert agent.answer() == [journal(Phase.SPAWNING), spawn(SOURCED)]
    _, actions = recovered(Progress(Phase.SPAWNING), is_running=True)
    assert actions == [journal(Phase.RUNNING, started_ms=0), FollowLog(KEY)]
    _, actions = recovered(Progress(Phase.SPAWNING), process=ProcessExited(KEY, exit_code=4))
    assert actions[-2:] == [DrainLog(KEY), CollectOutputs(KEY)]


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.SPAWNING])
def test_what_had_not_begun_is_told_of_and_begins_once_that_is_answered_unless_it_is_void(phase):
    """This may be a copy of the worker's folder, and the program has begun meanwhile where it was copied from."""
    for void in ((), (7,)):
        agent, _ = recovered(Progress(phase))
        assert agent.send(Staged(KEY)) == []
        agent.send(ReportFailed(agent.state.in_flight.seq, 10))
        agent.send(Ticked(), at=10)
        assert [plan.unstarted for plan in agent.reports] == [(7,), (7,)]
        actions = agent.answer(*void)
        assert [type(action) for action in actions] == ([Forget] if void else [Journal, Spawn])
        agent.send(Ticked(), at=60_000)
        assert agent.reports[-1].unstarted == ()


def test_restart_while_running_goes_on():
    agent, actions = recovered(Progress(Phase.RUNNING, started_ms=-50), is_running=True)
    assert actions == [FollowLog(KEY)]
    assert agent.state.held[KEY].started_ms == -50


def test_restart_after_the_exit_still_delivers_the_exit_code():
    agent, actions = recovered(Progress(Phase.RUNNING, started_ms=0), process=ProcessExited(KEY, exit_code=200))
    assert actions[0] == FollowLog(KEY)
    assert actions[-2:] == [DrainLog(KEY), CollectOutputs(KEY)]
    agent.send(LogDrained(KEY))
    agent.send(OutputsCollected(KEY, None))
    agent.settle()
    assert agent.ended.exit_code == 200


def test_restart_without_a_spawner_that_knows_the_program_is_a_loss():
    agent, actions = recovered(Progress(Phase.RUNNING, started_ms=0))
    assert actions[-1] == DrainLog(KEY)
    assert agent.state.held[KEY].outcome.ended_by is EndedBy.WORKER_LOST


def test_restart_within_the_grace_time_kills_when_it_has_passed_and_signals_only_what_was_not():
    stopped = Progress(Phase.RUNNING, started_ms=0, stop=EndedBy.CANCEL, kill_at_ms=30, is_signalled=True)
    agent, actions = recovered(stopped, is_running=True)
    assert actions == [FollowLog(KEY)]
    assert agent.send(Ticked(), at=30) == [KillTree(KEY)]
    _, actions = recovered(replace(stopped, is_signalled=False), is_running=True)
    assert actions == [FollowLog(KEY), SignalTree(KEY)]
    agent, _ = recovered(stopped, process=ProcessExited(KEY, exit_code=0))
    assert agent.state.held[KEY].outcome == Outcome(EndedBy.CANCEL, 0, blame=Blame.USER)


def test_restart_while_delivering_delivers_again():
    outcome = Outcome(EndedBy.PROGRAM, 0, blame=Blame.USER)
    _, actions = recovered(Progress(Phase.DRAINING, outcome=outcome))
    assert actions == [DrainLog(KEY), CollectOutputs(KEY)]


def test_restart_with_everything_delivered_only_reports():
    outcome = Outcome(EndedBy.PROGRAM, 0, blame=Blame.USER)
    agent, actions = recovered(Progress(Phase.ENDED, outcome=outcome, outputs=TREE))
    assert actions == []
    assert agent.items == [Item(KEY, ReportedState.ENDED, outcome, TREE)]
    assert agent.reports[0].recovered == (7,)
    assert agent.settle() == [Forget(KEY)]


def test_a_restart_counts_keep_for_on_from_the_saved_contact():
    agent = Agent(settled=False)
    node = RecoveredNode(replace(JOB, keep_for_ms=1000), Progress(Phase.RUNNING, started_ms=0), is_running=True)
    actions = agent.send(Recovered(boot=2, nodes=(node,), contact_ms=0), at=5000)
    assert actions[-1] == SignalTree(KEY)
