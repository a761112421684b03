"""A full disk, as the agent's machine decides on it."""

from dataclasses import replace

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.agent import AgentState, next_wake_ms, step
from gpulayer.protocol.messages import (
    AbandonStage,
    CommandsReceived,
    DiskFilled,
    DrainLog,
    Journal,
    KillTree,
    LogDrained,
    OutputsCollected,
    Phase,
    ProcessExited,
    ProcessLost,
    Progress,
    Recovered,
    RecoveredNode,
    ReportAnswered,
    ReportedState,
    SaveContact,
    SendReport,
    SignalTree,
    Spawned,
    SpawnFailed,
    Stop,
    Ticked,
)
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome

KEY = NodeKey(Epoch(7), 0)
JOB = Assignment(key=KEY, job_id=JobId("j"), attempt=1, command=("true",), grace_ms=30_000)
FULL = DiskFilled(KEY, "the disk of worker w is full")


class Agent:
    def __init__(self, *nodes):
        self.state = AgentState()
        self.now = 0
        self.ended = None
        self.send(Recovered(1, nodes))

    def send(self, event, *, at=None):
        self.now = self.now if at is None else at
        told = []
        for action in step(self.state, event, now_ms=self.now):
            if isinstance(action, SendReport):
                for item in action.plan.items:
                    if item.state is ReportedState.ENDED:
                        self.ended = item.outcome
                told += self.send(ReportAnswered(action.plan.seq))
            elif not isinstance(action, SaveContact):
                told.append(action)
        return told

    def run(self, assignment=JOB):
        self.send(CommandsReceived(self.now, (assignment,)))
        self.send(Spawned(KEY))
        return self

    def finish(self, end):
        self.send(end)
        self.send(LogDrained(KEY))
        self.send(OutputsCollected(KEY, None))
        return self.ended


@pytest.mark.parametrize(("grace_ms", "kill_at_ms"), [(30_000, 5_010), (200, 210)])
def test_a_running_program_gets_sigterm_a_short_grace_and_sigkill(grace_ms, kill_at_ms):
    agent = Agent().run(replace(JOB, grace_ms=grace_ms))
    progress = Progress(
        Phase.RUNNING,
        started_ms=0,
        stop=EndedBy.DISK_FULL,
        stop_evidence=FULL.evidence,
        stop_blame=Blame.INFRASTRUCTURE,
        kill_at_ms=kill_at_ms,
    )
    assert agent.send(FULL, at=10) == [Journal(KEY, progress), SignalTree(KEY)]
    assert agent.send(FULL, at=11) == [], "it may be said again"
    assert KillTree(KEY) not in agent.send(Ticked(), at=kill_at_ms - 1)
    assert next_wake_ms(agent.state) == kill_at_ms
    assert KillTree(KEY) in agent.send(Ticked(), at=kill_at_ms)
    outcome = agent.finish(ProcessExited(KEY, signal=9, evidence="left"))
    assert (outcome.ended_by, outcome.signal, outcome.blame) == (EndedBy.DISK_FULL, 9, Blame.INFRASTRUCTURE)
    first, *_, last = outcome.evidence.splitlines()
    assert (first, last) == (FULL.evidence, "left")


def test_a_job_that_outgrew_its_own_limit_is_blamed_itself_also_by_the_next_agent():
    agent = Agent().run()
    actions = agent.send(DiskFilled(KEY, "it used 60 MB of its --disk 50 MB", Blame.USER))
    (progress,) = [action.progress for action in actions if isinstance(action, Journal)]
    successor = Agent(RecoveredNode(JOB, progress, is_running=True))
    outcome = successor.finish(ProcessExited(KEY, exit_code=0))
    assert outcome == Outcome(EndedBy.DISK_FULL, 0, None, "it used 60 MB of its --disk 50 MB", Blame.USER)


def test_a_cancel_before_wins_and_one_after_only_shortens_the_grace():
    agent = Agent().run()
    agent.send(CommandsReceived(0, (Stop(KEY.epoch, EndedBy.CANCEL, 20_000),)))
    assert agent.send(FULL) == []
    assert agent.finish(ProcessExited(KEY, exit_code=0)).ended_by is EndedBy.CANCEL
    agent = Agent().run()
    agent.send(FULL)
    agent.send(CommandsReceived(0, (Stop(KEY.epoch, EndedBy.CANCEL, 100),)))
    assert next_wake_ms(agent.state) == 100
    assert agent.finish(ProcessExited(KEY, exit_code=0)).ended_by is EndedBy.DISK_FULL


def test_what_has_not_started_is_not_started():
    agent = Agent()
    agent.send(CommandsReceived(0, (replace(JOB, source="a" * 64),)))
    actions = agent.send(FULL)
    assert actions[0] == AbandonStage(KEY)
    assert agent.ended.ended_by is EndedBy.DISK_FULL
    assert agent.ended.evidence.startswith(FULL.evidence)


def test_a_start_that_found_no_room_is_a_full_disk_and_not_a_lost_worker():
    agent = Agent()
    agent.send(CommandsReceived(0, (JOB,)))
    agent.send(SpawnFailed(KEY, None, "no room", EndedBy.DISK_FULL))
    assert agent.ended == Outcome(EndedBy.DISK_FULL, evidence="no room", blame=Blame.INFRASTRUCTURE)


def test_a_program_that_fails_by_itself_on_a_full_disk_keeps_its_code_beside():
    agent = Agent().run()
    outcome = agent.finish(ProcessExited(KEY, exit_code=3, evidence="full", is_disk_full=True))
    assert outcome == Outcome(EndedBy.DISK_FULL, 3, None, "full", Blame.INFRASTRUCTURE)


def test_it_means_nothing_to_a_program_that_has_ended():
    agent = Agent().run()
    assert DrainLog(KEY) in agent.send(ProcessExited(KEY, exit_code=0))
    assert agent.send(FULL) == []
    agent.send(LogDrained(KEY))
    agent.send(OutputsCollected(KEY, None))
    assert agent.ended.ended_by is EndedBy.PROGRAM
    assert agent.send(FULL) == []


def test_a_spawner_that_dies_after_it_does_not_change_the_reason():
    agent = Agent().run()
    agent.send(FULL)
    outcome = agent.finish(ProcessLost(KEY, "the spawner died"))
    assert (outcome.ended_by, outcome.evidence) == (EndedBy.DISK_FULL, f"{FULL.evidence}\nthe spawner died")
