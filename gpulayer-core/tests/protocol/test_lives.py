"""What the agent's machine does about the ends of everything around it: the clock, the spawner, itself."""

from dataclasses import replace

import pytest

from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.agent import AgentState, step
from gpulayer.protocol.messages import (
    CommandsReceived,
    Extend,
    ExtendFailed,
    KillTree,
    LogDrained,
    Phase,
    ProcessExited,
    ProcessLost,
    Progress,
    Recovered,
    RecoveredNode,
    ReportAnswered,
    ReportedState,
    SendReport,
    SignalTree,
    Spawn,
    Spawned,
    Stage,
    Stop,
    StopAllRequested,
    Ticked,
)
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome

HOUR_MS = 3_600_000
KEY = NodeKey(Epoch(7), 0)
JOB = Assignment(key=KEY, job_id=JobId("j"), attempt=1, command=("true",), keep_outputs=False)


class Agent:
    """A state and a clock; ``hear`` lets it send what is due, and answers."""

    def __init__(self, *nodes, **options):
        self.state = AgentState(**options)
        self.reports = []
        self.now = 0
        self.take(Recovered(1, nodes))
        self.hear()

    def take(self, event, *, at=None):
        self.now = self.now if at is None else at
        actions = step(self.state, event, now_ms=self.now)
        self.reports += [action.plan for action in actions if isinstance(action, SendReport)]
        return actions

    def hear(self, *, at=None):
        actions = self.take(Ticked(), at=at)
        while self.state.in_flight is not None:
            actions += self.take(ReportAnswered(self.state.in_flight.seq))
        return actions

    def run(self, job=JOB):
        actions = self.take(CommandsReceived(self.now, (job,)))
        self.take(Spawned(job.key))
        self.hear()
        return [action for action in actions if isinstance(action, Spawn)]

    def outcome(self, key=KEY):
        (outcome,) = {
            item.outcome
            for plan in self.reports
            for item in plan.items
            if item.key == key and item.state is ReportedState.ENDED
        }
        return outcome


def extends(actions):
    return [action.kill_by_ms for action in actions if isinstance(action, Extend)]


def test_every_job_has_an_end_by_the_clock_that_is_never_before_the_agents_own():
    (spawn,) = Agent().run()
    assert spawn.kill_by_ms == HOUR_MS + JOB.grace_ms + HOUR_MS // 16
    assert spawn.kill_by_ms < (HOUR_MS + JOB.grace_ms) * 11 // 10, "nor after the control plane has given it up"


def test_contact_extends_it_every_two_minutes_not_with_every_report():
    agent = Agent()
    agent.run()
    told = []
    for now in range(10_000, 600_000, 10_000):
        told += extends(agent.hear(at=now))
        assert agent.state.held[KEY].told_kill_by_ms >= agent.state.contact_ms + HOUR_MS + JOB.grace_ms
    assert 4 <= len(told) <= 6
    assert told == sorted(set(told))


def test_an_exclusive_jobs_end_moves_with_every_report():
    agent = Agent()
    (spawn,) = agent.run(replace(JOB, exclusive=True))
    assert spawn.kill_by_ms == 29_000
    assert [extends(agent.hear(at=now)) for now in (10_000, 20_000)] == [[39_000], [49_000]]


def test_an_agent_that_started_anew_tells_the_time_again_and_one_that_was_not_heard_repeats_it():
    node = RecoveredNode(JOB, Progress(Phase.RUNNING, started_ms=0), is_running=True)
    agent = Agent()
    agent = Agent(node)
    told = agent.state.held[KEY].told_kill_by_ms
    assert told == HOUR_MS + JOB.grace_ms + HOUR_MS // 16
    assert extends(agent.hear(at=10_000)) == []
    agent.take(ExtendFailed(KEY))
    assert extends(agent.hear(at=20_000)) == [told + 20_000]
    agent.take(ExtendFailed(NodeKey(Epoch(99), 0)))
    assert extends(agent.hear(at=30_000)) == []


@pytest.mark.parametrize("phase", [Phase.STAGING, Phase.SPAWNING])
def test_what_seems_not_to_have_begun_is_not_begun_once_its_machine_was_restarted(phase):
    node = RecoveredNode(JOB, Progress(phase))
    agent = Agent()
    agent.state = AgentState()
    actions = agent.take(Recovered(2, (node,), has_rebooted=True)) + agent.hear()
    assert not any(isinstance(action, Spawn | Stage) for action in actions)
    assert agent.outcome().ended_by is EndedBy.WORKER_LOST
    assert agent.outcome().evidence == "its machine was restarted, and whether it had begun is not known"
    assert agent.state.held == {}


def test_what_ran_when_its_machine_was_restarted_is_lost_and_what_had_ended_has_ended():
    ran = RecoveredNode(JOB, Progress(Phase.RUNNING, started_ms=5))
    ended = RecoveredNode(
        replace(JOB, key=NodeKey(Epoch(8), 0)), Progress(Phase.ENDED, outcome=Outcome(EndedBy.PROGRAM, exit_code=0))
    )
    agent = Agent()
    agent.state = AgentState()
    agent.take(Recovered(2, (ran, ended), has_rebooted=True))
    agent.take(LogDrained(KEY))
    agent.hear()
    assert agent.outcome().ended_by is EndedBy.WORKER_LOST
    assert agent.outcome(NodeKey(Epoch(8), 0)) == Outcome(EndedBy.PROGRAM, exit_code=0)


def test_an_exclusive_job_that_would_be_ended_at_once_waits_for_contact():
    agent = Agent()
    job = replace(JOB, exclusive=True, grace_ms=10_000)
    actions = agent.take(CommandsReceived(20_000, (job,)), at=25_000)  # its 19 s are over, the lease is not
    assert not any(isinstance(action, Spawn) for action in actions)
    assert agent.state.held[KEY].stop is None
    assert [action.kill_by_ms for action in agent.hear() if isinstance(action, Spawn)] == [25_000 + 29_000]


def test_an_exclusive_job_that_has_not_begun_ends_when_it_may_be_lent_to_another():
    agent = Agent()
    job = replace(JOB, exclusive=True, grace_ms=10_000)
    agent.take(CommandsReceived(20_000, (job,)), at=25_000)
    agent.take(Ticked(), at=29_999)
    assert agent.state.held[KEY].stop is None
    actions = agent.take(Ticked(), at=30_000)
    assert not any(isinstance(action, Spawn) for action in actions)
    assert agent.state.held[KEY].stop is EndedBy.WORKER_LOST


def test_an_end_by_the_clock_is_a_lost_worker_with_the_time_as_evidence():
    agent = Agent()
    agent.run(replace(JOB, keep_for_ms=40_000))
    agent.take(ProcessLost(KEY, "its time was not extended by the agent", is_expired=True))
    agent.take(LogDrained(KEY))
    agent.hear()
    outcome = agent.outcome()
    assert outcome.ended_by is EndedBy.WORKER_LOST
    assert outcome.evidence == (
        "no contact with the control plane for as long as it is kept for (40.0 s): ended by its spawner"
    )


def test_a_job_whose_spawner_was_told_to_end_was_ended_by_a_stopping_worker():
    agent = Agent()
    agent.run()
    agent.take(ProcessLost(KEY, "its spawner was told to end", ended_by=EndedBy.WORKER_STOPPED))
    agent.take(LogDrained(KEY))
    agent.hear()
    assert agent.outcome().ended_by is EndedBy.WORKER_STOPPED


def test_that_it_stops_is_the_first_thing_a_worker_tells():
    agent = Agent()
    agent.run()
    agent.hear(at=5_000)
    assert not agent.reports[-1].stopping
    agent.take(StopAllRequested(), at=6_000)
    first = agent.reports[-1]
    assert (first.stopping, first.leaving, first.sent_ms) == (True, False, 6_000)
    agent.take(ReportAnswered(first.seq))
    agent.take(ProcessExited(KEY, signal=15), at=7_000)
    agent.take(LogDrained(KEY))
    agent.hear()
    assert agent.reports[-1].leaving
    assert all(plan.stopping for plan in agent.reports if plan.seq >= first.seq)


def test_a_report_on_its_way_when_it_stops_is_followed_by_one_that_says_so():
    agent = Agent()
    agent.run()
    agent.take(Ticked(), at=60_000)
    on_its_way = agent.state.in_flight
    agent.take(StopAllRequested(), at=60_010)
    assert not on_its_way.stopping
    agent.take(ReportAnswered(on_its_way.seq), at=60_020)
    assert (agent.reports[-1].stopping, agent.reports[-1].sent_ms) == (True, 60_020)


SECOND = replace(JOB, key=NodeKey(Epoch(7), 1))


@pytest.mark.parametrize(("node", "stopped"), [(None, [0, 1]), (0, [0]), (1, [1])])
def test_a_stop_ends_the_node_that_it_names_or_all(node, stopped):
    agent = Agent()
    agent.run()
    agent.run(SECOND)
    actions = agent.take(CommandsReceived(agent.now, (Stop(Epoch(7), EndedBy.CANCEL, 0, node),)))
    assert [action.key.node for action in actions if isinstance(action, SignalTree)] == stopped
    assert [action.key.node for action in actions if isinstance(action, KillTree)] == stopped


def test_a_stop_that_came_before_its_assignment_keeps_only_the_node_that_it_names_from_starting():
    agent = Agent()
    agent.take(CommandsReceived(0, (Stop(Epoch(7), EndedBy.CANCEL, 0, 1),)))
    agent.hear()
    assert agent.outcome(SECOND.key).ended_by is EndedBy.CANCEL
    assert agent.run(SECOND) == []
    assert [spawn.assignment for spawn in agent.run()] == [JOB]
