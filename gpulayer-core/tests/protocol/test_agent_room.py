"""The agent's state machine: what waits until there is room for it here, and what uses it."""

from dataclasses import replace

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.agent import next_wake_ms
from gpulayer.protocol.messages import (
    AttemptsVoided,
    CommandsReceived,
    FactsChanged,
    LogDrained,
    OutputsCollected,
    Phase,
    ProcessExited,
    Progress,
    Recovered,
    RecoveredNode,
    ReportedState,
    Revoke,
    Spawn,
    Spawned,
    Stage,
    Ticked,
)
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome
from tests.agent_machine import JOB, KEY, Agent


def lent(epoch, **options):
    return replace(JOB, key=NodeKey(Epoch(epoch), 0), job_id=JobId(f"j{epoch}"), **options)


def started(actions):
    return [action.assignment.key.epoch for action in actions if isinstance(action, Spawn)]


def hear(agent, *commands):
    return agent.send(CommandsReceived(agent.now, commands))


def finish(agent, epoch):
    """The program ends and all of it is delivered; what follows from that."""
    key = NodeKey(Epoch(epoch), 0)
    agent.send(ProcessExited(key, exit_code=0))
    agent.send(LogDrained(key))
    return agent.send(OutputsCollected(key, None))


def test_what_there_is_no_room_for_waits_and_starts_in_order_of_epochs():
    agent = Agent(cpus=2, memory_bytes=100)
    assert started(hear(agent, lent(1), lent(2), lent(4), lent(3))) == [1, 2]
    for epoch in (1, 2):
        agent.send(Spawned(NodeKey(Epoch(epoch), 0)))
    assert started(finish(agent, 2)) == [3]
    assert started(finish(agent, 1)) == [4]


def test_what_fits_passes_what_does_not_and_one_program_always_fits():
    agent = Agent(cpus=2, memory_bytes=100)
    assert started(hear(agent, lent(1), lent(2, cpus=2), lent(3, memory_bytes=200), lent(4))) == [1, 4]
    agent.send(FactsChanged(1, 100))
    agent.send(Spawned(NodeKey(Epoch(1), 0)))
    agent.send(Spawned(NodeKey(Epoch(4), 0)))
    assert started(finish(agent, 1)) == []
    assert started(finish(agent, 4)) == [2]


def test_what_is_void_uses_its_cores_until_it_is_dead():
    agent = Agent(cpus=1, memory_bytes=100)
    hear(agent, lent(1), lent(2))
    agent.send(Spawned(NodeKey(Epoch(1), 0)))
    assert started(agent.send(AttemptsVoided((Epoch(1),)))) == []
    assert started(agent.send(ProcessExited(NodeKey(Epoch(1), 0), signal=9))) == [2]


def test_what_has_not_started_is_given_back():
    agent = Agent(cpus=1, memory_bytes=100)
    hear(agent, lent(1), lent(2), lent(3))
    hear(agent, Revoke(Epoch(2)))
    given_back = Outcome(EndedBy.PREEMPTED, evidence="given back before it started", blame=Blame.CAPACITY)
    assert agent.state.held[NodeKey(Epoch(2), 0)].outcome == given_back
    agent.send(Spawned(NodeKey(Epoch(1), 0)))
    assert started(finish(agent, 1)) == [3]


@pytest.mark.parametrize("is_known_to_run", [False, True])
def test_what_has_started_is_not_given_back(is_known_to_run):
    agent = Agent(cpus=1, memory_bytes=100)
    hear(agent, lent(1))
    if is_known_to_run:
        agent.send(Spawned(NodeKey(Epoch(1), 0)))
    assert hear(agent, Revoke(Epoch(1))) == []
    assert agent.state.held[NodeKey(Epoch(1), 0)].outcome is None


def test_a_revoke_that_comes_before_its_assignment_prevents_the_start_and_is_answered():
    agent = Agent()
    hear(agent, Revoke(KEY.epoch))
    assert started(hear(agent, JOB)) == []
    assert [item.outcome.ended_by for item in agent.reports[-1].items] == [EndedBy.PREEMPTED]
    agent.answer()
    assert started(hear(agent, JOB)) == []


def test_what_waits_for_room_is_held_and_no_news():
    agent = Agent(cpus=1, memory_bytes=100)
    hear(agent, lent(1), lent(2))
    agent.send(Ticked(), at=200)
    assert agent.reports[-1].holding == (1, 2)
    assert [item.key.epoch for item in agent.reports[-1].items] == [1]


def test_while_work_waits_here_ends_go_together_and_tell_when_they_began():
    agent = Agent(cpus=1, memory_bytes=100)
    hear(agent, *(lent(epoch) for epoch in range(1, 9)))
    count = len(agent.reports)
    for epoch in range(1, 4):
        agent.now += 2
        agent.send(Spawned(NodeKey(Epoch(epoch), 0)))
        agent.now += 3
        finish(agent, epoch)
    assert len(agent.reports) == count
    agent.send(Ticked(), at=next_wake_ms(agent.state))
    ended = [item for item in agent.reports[-1].items if item.state is ReportedState.ENDED]
    assert [item.key.epoch for item in ended] == [1, 2, 3]
    assert [item.started_ago_ms for item in ended] == [agent.now - 2, agent.now - 7, agent.now - 12]


def test_more_is_asked_for_before_what_waits_here_has_run_out():
    agent = Agent(cpus=1, memory_bytes=100)
    hear(agent, lent(1), lent(2), lent(3))
    count = len(agent.reports)
    for epoch in (1, 2):
        agent.send(Spawned(NodeKey(Epoch(epoch), 0)))
        finish(agent, epoch)
    assert len(agent.reports) > count


@pytest.mark.parametrize(("void", "starts"), [((), [2]), ((2,), [])])
def test_what_waited_for_room_starts_out_of_contact_only_once_it_is_known_to_be_ours(void, starts):
    agent = Agent(cpus=1, memory_bytes=100)
    hear(agent, lent(1), lent(2))
    agent.send(Spawned(NodeKey(Epoch(1), 0)))
    agent.now = 30_001
    assert started(finish(agent, 1)) == []
    assert started(agent.answer(*void)) == starts


def test_what_brings_nothing_and_waits_for_room_still_does_after_a_restart():
    agent = Agent(settled=False, cpus=1, memory_bytes=100)
    nodes = (
        RecoveredNode(lent(1), Progress(Phase.RUNNING, started_ms=0), is_running=True),
        RecoveredNode(lent(2), Progress(Phase.STAGING)),
    )
    asked = agent.send(Recovered(2, nodes, contact_ms=0))
    assert not started(asked)
    assert not [action for action in asked if isinstance(action, Stage)]
    agent.answer()
    assert started(finish(agent, 1)) == [2]


LICENCE = (("licence", 1),)


def test_what_takes_a_resource_waits_until_a_void_program_that_has_it_is_dead():
    agent = Agent(cpus=8, memory_bytes=100, resources=LICENCE)
    hear(agent, lent(1, resources=LICENCE))
    agent.send(Spawned(NodeKey(Epoch(1), 0)))
    agent.send(AttemptsVoided((Epoch(1),)))
    assert started(hear(agent, lent(2, resources=LICENCE), lent(3))) == [3]
    assert started(agent.send(ProcessExited(NodeKey(Epoch(1), 0), signal=9))) == [2]


def test_a_resource_that_nobody_uses_here_is_there_whatever_the_machine_says_now():
    two = (("licence", 2),)
    agent = Agent(cpus=8, memory_bytes=100, resources=two)
    agent.send(FactsChanged(resources=()))
    assert started(hear(agent, lent(1, resources=two), lent(2, resources=LICENCE))) == [1]
    agent.send(Spawned(NodeKey(Epoch(1), 0)))
    assert started(agent.send(FactsChanged(resources=(("licence", 3),)))) == [2]
