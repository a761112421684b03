"""The agent's state machine as tests drive it: a clock of its own, and the answers that do not matter."""

from dataclasses import replace

from gpulayer.ids import Digest, Epoch, JobId
from gpulayer.protocol.agent import AgentState, step
from gpulayer.protocol.messages import (
    CommandsReceived,
    Journal,
    LogDrained,
    OutputsCollected,
    ProcessExited,
    Progress,
    Recovered,
    RecoveredNode,
    ReportAnswered,
    ReportedState,
    SaveContact,
    SendReport,
    Spawn,
    Spawned,
    Staged,
    Stop,
)
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy

__all__ = ["JOB", "KEY", "SOURCED", "TREE", "Agent", "journal", "recovered", "spawn"]

KEY = NodeKey(Epoch(7), 0)
TREE = Digest("a" * 64)
JOB = Assignment(key=KEY, job_id=JobId("j"), attempt=1, command=("true",))
SOURCED = replace(JOB, source=Digest("b" * 64))


class Agent:
    """A state, a clock, and the answers to reports that a test does not care about."""

    def __init__(self, *, settled=True, **options):
        self.state = AgentState(**options)
        self.now = 0
        self.reports = []
        if settled:
            self.send(Recovered(boot=1))
            self.answer()

    def send(self, event, *, at=None):
        self.now = self.now if at is None else at
        actions = step(self.state, event, now_ms=self.now)
        self.reports += [action.plan for action in actions if isinstance(action, SendReport)]
        return [action for action in actions if not isinstance(action, (SendReport, SaveContact))]

    def answer(self, *void):
        assert self.state.in_flight is not None
        return self.send(ReportAnswered(self.state.in_flight.seq, tuple(Epoch(epoch) for epoch in void)))

    def settle(self):
        """Let every report that is due be sent and answered."""
        actions = []
        while self.state.in_flight is not None:
            actions += self.answer()
        return actions

    def assign(self, assignment=JOB):
        return self.send(CommandsReceived(self.now, (assignment,)))

    def stop(self, ended_by=EndedBy.CANCEL, grace_ms=1000, epoch=KEY.epoch):
        return self.send(CommandsReceived(self.now, (Stop(epoch, ended_by, grace_ms),)))

    def run(self, assignment=JOB):
        self.assign(assignment)
        if assignment.source is not None:
            self.send(Staged(assignment.key))
        self.send(Spawned(assignment.key))
        self.settle()
        return self

    def finish(self, exited=None, tree=None):
        self.send(exited or ProcessExited(KEY, exit_code=0))
        self.send(LogDrained(KEY))
        self.send(OutputsCollected(KEY, tree))
        self.settle()
        return self.ended

    @property
    def items(self):
        return [item for plan in self.reports for item in plan.items]

    @property
    def ended(self):
        (outcome,) = {item.outcome for item in self.items if item.state is ReportedState.ENDED and item.key == KEY}
        return outcome


def spawn(assignment, *, contact_ms=0):
    """kept for an hour, 30 s of grace, and a sixteenth of the hour so that the agent goes first"""
    return Spawn(assignment, contact_ms + 3_600_000 + 30_000 + 225_000)


def journal(phase, **fields):
    return Journal(KEY, Progress(phase, **fields))


def recovered(progress, **fields):
    agent = Agent(settled=False)
    return agent, agent.send(Recovered(boot=2, nodes=(RecoveredNode(SOURCED, progress, **fields),), contact_ms=0))
