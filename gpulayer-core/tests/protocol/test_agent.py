"""The agent's state machine: exact actions for given inputs, from an assignment to the report of its end."""

from dataclasses import replace

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.agent import AgentState, is_current, next_wake_ms, step
from gpulayer.protocol.messages import (
    Admit,
    AttemptsVoided,
    CallOff,
    CollectOutputs,
    CommandsReceived,
    DrainLog,
    Extend,
    FactsChanged,
    FollowLog,
    Forget,
    Item,
    KillTree,
    LogDrained,
    OutputsCollected,
    OutputsFailed,
    Phase,
    ProcessExited,
    ProcessLost,
    Progress,
    Recovered,
    RecoveredNode,
    ReportAnswered,
    ReportedState,
    ReportFailed,
    SaveContact,
    SendReport,
    SessionOpened,
    SignalTree,
    Spawn,
    Spawned,
    SpawnFailed,
    Stage,
    Staged,
    StagingFailed,
    Ticked,
)
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome
from tests.agent_machine import JOB, KEY, SOURCED, TREE, Agent, journal, spawn


def test_a_job_without_source_goes_from_assignment_to_forget():
    agent = Agent()
    assert agent.assign() == [Admit(JOB), journal(Phase.SPAWNING), spawn(JOB)]
    agent.now = 10
    assert agent.send(Spawned(KEY)) == [journal(Phase.RUNNING, started_ms=10), FollowLog(KEY)]
    outcome = Outcome(EndedBy.PROGRAM, 3, blame=Blame.USER)
    assert agent.send(ProcessExited(KEY, exit_code=3), at=20) == [
        journal(Phase.DRAINING, started_ms=10, outcome=outcome),
        DrainLog(KEY),
        CollectOutputs(KEY),
    ]
    assert agent.send(LogDrained(KEY)) == []
    assert agent.send(OutputsCollected(KEY, TREE)) == [
        journal(Phase.ENDED, started_ms=10, outcome=outcome, outputs=TREE)
    ]
    assert agent.settle() == [Forget(KEY)]
    assert agent.items[-1] == Item(KEY, ReportedState.ENDED, outcome, TREE)
    assert not agent.state.held


def test_a_source_is_staged_before_the_program_starts():
    agent = Agent()
    assert agent.assign(SOURCED) == [Admit(SOURCED), Stage(SOURCED)]
    assert agent.send(Staged(KEY)) == [journal(Phase.SPAWNING), spawn(SOURCED)]


def test_the_first_report_of_a_boot_says_what_was_recovered_until_it_is_answered():
    agent = Agent(settled=False)
    node = RecoveredNode(JOB, Progress(Phase.RUNNING, started_ms=0), is_running=True)
    agent.send(Recovered(boot=4, nodes=(node,)))
    assert not agent.state.is_settled
    agent.send(ReportFailed(0, retry_in_ms=100))
    agent.send(Ticked(), at=99)
    assert len(agent.reports) == 1
    agent.send(Ticked(), at=100)
    first, second = agent.reports
    assert (first.boot, first.seq, first.recovered, first.has_facts) == (4, 0, (7,), True)
    assert (second.seq, second.recovered, second.has_facts) == (1, (7,), True)
    agent.answer()
    assert agent.state.is_settled
    agent.send(Ticked(), at=20_000)
    assert agent.reports[-1].recovered is None
    assert not agent.reports[-1].has_facts


def test_a_second_assign_of_the_same_node_changes_nothing_at_any_phase():
    agent = Agent()
    agent.assign(SOURCED)
    assert agent.assign(SOURCED) == []
    agent.send(Staged(KEY))
    assert agent.assign(SOURCED) == []
    agent.send(Spawned(KEY))
    assert agent.assign(SOURCED) == []
    agent.finish()
    assert not agent.state.held
    assert agent.assign(SOURCED) == []


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_start_is_the_programs_own_failure(code):
    agent = Agent()
    agent.assign()
    agent.send(SpawnFailed(KEY, code, "no such program"))
    assert agent.settle() == [Forget(KEY)]
    assert agent.ended == Outcome(EndedBy.PROGRAM, code, evidence="no such program", blame=Blame.USER)


def test_a_machine_that_cannot_start_anything_is_infrastructure():
    agent = Agent()
    agent.assign()
    agent.send(SpawnFailed(KEY, None, "no memory"))
    agent.settle()
    assert agent.ended == Outcome(EndedBy.WORKER_LOST, evidence="no memory", blame=Blame.INFRASTRUCTURE)


def test_what_could_not_start_is_blamed_on_whom_the_shell_says():
    agent = Agent()
    agent.assign()
    agent.send(SpawnFailed(KEY, None, "it needs two nodes", EndedBy.ENVIRONMENT, Blame.USER))
    agent.settle()
    assert agent.ended == Outcome(EndedBy.ENVIRONMENT, evidence="it needs two nodes", blame=Blame.USER)


@pytest.mark.parametrize(
    ("fields", "is_staged"),
    [
        ({"inputs": (("data", "file:///d"),)}, True),
        ({"environment": "uv"}, True),
        ({"environment": "system"}, False),
        ({"launcher": "torch", "resources": (("licence", 1),)}, False),
    ],
)
def test_inputs_and_an_environment_of_its_own_are_staged_before_the_start(fields, is_staged):
    agent, job = Agent(), replace(JOB, **fields)
    actions = agent.assign(job)
    assert (Stage(job) in actions, any(isinstance(action, Spawn) for action in actions)) == (is_staged, not is_staged)
    if is_staged:
        assert any(isinstance(action, Spawn) for action in agent.send(Staged(KEY)))


def test_failed_staging_keeps_its_blame_and_evidence():
    agent = Agent()
    agent.assign(SOURCED)
    agent.send(StagingFailed(KEY, "climbs out", blame=Blame.USER))
    agent.settle()
    assert agent.ended == Outcome(EndedBy.STAGING, evidence="climbs out", blame=Blame.USER)


def test_memory_evidence_wins_over_the_signal():
    agent = Agent().run()
    assert agent.finish(ProcessExited(KEY, signal=9, is_out_of_memory=True)).ended_by is EndedBy.OUT_OF_MEMORY


def test_a_lost_program_is_the_workers_loss_and_makes_no_outputs():
    agent = Agent().run()
    assert agent.send(ProcessLost(KEY, "the spawner died"))[1:] == [DrainLog(KEY)]
    agent.send(LogDrained(KEY))
    agent.settle()
    assert agent.ended == Outcome(EndedBy.WORKER_LOST, evidence="the spawner died", blame=Blame.INFRASTRUCTURE)


def test_no_outputs_are_collected_when_none_are_wanted():
    agent = Agent().run(replace(JOB, keep_outputs=False))
    assert agent.send(ProcessExited(KEY, exit_code=0))[1:] == [DrainLog(KEY)]
    agent.send(LogDrained(KEY))
    assert agent.settle() == [Forget(KEY)]


def test_lost_outputs_and_lost_log_ranges_are_told_as_evidence():
    agent = Agent().run()
    agent.send(ProcessExited(KEY, exit_code=0))
    agent.send(LogDrained(KEY, warning="the log is cut"))
    agent.send(OutputsFailed(KEY, "disk error"))
    agent.settle()
    assert agent.ended.is_success
    assert agent.ended.evidence == "the log is cut\noutputs could not be brought home: disk error"


def test_ended_waits_for_log_and_outputs_in_either_order():
    for first, second in [
        (LogDrained(KEY), OutputsCollected(KEY, None)),
        (OutputsCollected(KEY, None), LogDrained(KEY)),
    ]:
        agent = Agent().run()
        agent.send(ProcessExited(KEY, exit_code=0))
        agent.send(first)
        agent.send(first)
        assert agent.state.held[KEY].phase is Phase.DRAINING
        agent.send(second)
        assert agent.state.held[KEY].phase is Phase.ENDED


def test_a_result_is_reported_again_until_it_is_answered():
    agent = Agent().run()
    agent.send(ProcessExited(KEY, exit_code=0), at=1000)
    agent.send(LogDrained(KEY))
    agent.send(OutputsCollected(KEY, None))
    for _ in range(3):
        agent.send(ReportFailed(agent.state.in_flight.seq, retry_in_ms=50))
        agent.send(Ticked(), at=agent.now + 50)
    ended = [item for item in agent.items if item.state is ReportedState.ENDED]
    assert len(ended) == 4
    assert len({plan.seq for plan in agent.reports}) == len(agent.reports)
    assert agent.answer() == [Forget(KEY)]


def test_one_report_at_a_time_and_the_next_carries_all_that_happened_meanwhile():
    agent = Agent()
    agent.assign()
    agent.send(Spawned(KEY))
    assert agent.state.in_flight.items == (Item(KEY, ReportedState.RUNNING),)
    count = len(agent.reports)
    others = [replace(JOB, key=NodeKey(Epoch(epoch), 0)) for epoch in (8, 9)]
    agent.send(CommandsReceived(agent.now, tuple(others)))
    for other in others:
        agent.send(Spawned(other.key))
    assert len(agent.reports) == count
    agent.answer()
    assert agent.reports[-1].items == tuple(Item(other.key, ReportedState.RUNNING) for other in others)
    assert agent.reports[-1].holding == (7, 8, 9)


def test_a_tiny_job_costs_two_reports():
    agent = Agent()
    count = len(agent.reports)
    agent.assign()
    agent.send(Spawned(KEY), at=2)
    agent.finish()
    assert [tuple(item.state for item in plan.items) for plan in agent.reports[count:]] == [
        (ReportedState.RUNNING,),
        (ReportedState.ENDED,),
    ]


def test_staging_is_told_after_a_moment():
    agent = Agent()
    agent.assign(SOURCED)
    assert agent.state.in_flight is None
    assert next_wake_ms(agent.state) == 100
    agent.send(Ticked(), at=100)
    assert agent.state.in_flight.items == (Item(KEY, ReportedState.STAGING),)


def test_heartbeats_go_on_whatever_staging_does():
    agent = Agent()
    agent.send(SessionOpened(heartbeat_ms=1000, lease_ttl_ms=3000))
    agent.assign(SOURCED)
    for second in range(1, 5):
        agent.send(Ticked(), at=second * 1000 + 100)
        agent.settle()
    assert [plan.sent_ms for plan in agent.reports if plan.sent_ms] == [1100, 2100, 3100, 4100]


def test_a_control_plane_that_has_opened_a_new_session_hears_of_its_worker_at_once():
    agent = Agent().run()
    agent.send(Ticked(), at=20_000)
    agent.settle()
    count = len(agent.reports)
    agent.send(SessionOpened(heartbeat_ms=10_000, lease_ttl_ms=30_000), at=20_500)
    assert [plan.sent_ms for plan in agent.reports[count:]] == [20_500]


def test_what_is_void_is_killed_and_forgotten_and_nothing_of_it_is_sent():
    agent = Agent().run()
    agent.send(Ticked(), at=20_000)
    assert agent.answer(7) == [KillTree(KEY)]
    count = len(agent.items)
    assert agent.send(Ticked(), at=25_000) == [KillTree(KEY)]
    assert agent.send(ProcessExited(KEY, signal=9)) == [Forget(KEY)]
    agent.send(Ticked(), at=90_000)
    agent.settle()
    assert len(agent.items) == count
    assert agent.reports[-1].holding == ()
    assert agent.assign() == []
    agent.settle()
    assert len(agent.items) == count


def test_a_stale_write_voids_too():
    agent = Agent().run()
    agent.send(ProcessExited(KEY, exit_code=0))
    assert agent.send(AttemptsVoided((KEY.epoch,))) == [Forget(KEY)]
    assert agent.send(OutputsCollected(KEY, TREE)) == []


def test_void_while_staging_and_while_starting():
    agent = Agent()
    agent.assign(SOURCED)
    assert agent.send(AttemptsVoided((KEY.epoch,))) == [Forget(KEY)]
    agent = Agent()
    agent.assign()
    assert agent.send(AttemptsVoided((KEY.epoch,))) == [CallOff(KEY)]
    assert agent.send(Spawned(KEY))[-1] == KillTree(KEY)
    assert agent.send(ProcessExited(KEY, signal=9)) == [Forget(KEY)]
    agent = Agent()
    agent.assign()
    agent.send(AttemptsVoided((KEY.epoch,)))
    assert agent.send(SpawnFailed(KEY, 127, "gone")) == [Forget(KEY)]


def test_void_of_an_unknown_epoch_prevents_a_start():
    agent = Agent()
    agent.send(AttemptsVoided((KEY.epoch,)))
    assert agent.assign() == []
    assert not agent.state.held


def test_an_outage_shorter_than_keep_for_stops_nothing():
    agent = Agent().run(replace(JOB, keep_for_ms=60_000))
    agent.send(Ticked(), at=20_000)
    for second in range(21, 60):
        if agent.state.in_flight is not None:
            agent.send(ReportFailed(agent.state.in_flight.seq, 100))
        assert agent.send(Ticked(), at=second * 1000) == []
    assert agent.send(Ticked(), at=60_000)[-1] == SignalTree(KEY)
    assert agent.send(ProcessExited(KEY, exit_code=0))[1:] == [DrainLog(KEY), CollectOutputs(KEY)]


def test_keep_for_counts_from_the_send_time_of_the_last_answered_report():
    agent = Agent().run(replace(JOB, keep_for_ms=60_000))
    agent.send(Ticked(), at=10_000)
    agent.now = 39_000
    agent.answer()
    assert agent.state.contact_ms == 10_000
    assert agent.send(Ticked(), at=69_999) == []
    assert agent.send(Ticked(), at=70_000)[-1] == SignalTree(KEY)


def test_a_finished_job_waits_for_contact_however_long_the_outage():
    agent = Agent().run(replace(JOB, keep_for_ms=1000))
    agent.send(ProcessExited(KEY, exit_code=0), at=500)
    assert agent.send(Ticked(), at=10_000_000) == []
    assert agent.state.held[KEY].outcome.is_success


def test_exclusive_work_is_dead_before_its_lease_has_passed():
    agent = Agent().run(replace(JOB, exclusive=True))
    agent.state.in_flight = agent.reports[-1]  # no answer ever comes
    assert next_wake_ms(agent.state) == 30_000 - 10_000 - 1_000
    assert agent.send(Ticked(), at=19_000)[-1] == SignalTree(KEY)
    assert agent.send(Ticked(), at=29_000) == [KillTree(KEY)]


def test_facts_that_changed_ride_on_the_next_report_and_again_if_it_failed():
    agent = Agent()
    agent.send(FactsChanged())
    assert agent.state.in_flight.has_facts
    agent.send(ReportFailed(agent.state.in_flight.seq, 100))
    agent.send(Ticked(), at=100)
    assert agent.state.in_flight.has_facts
    agent.answer()
    agent.send(Ticked(), at=60_000)
    assert not agent.state.in_flight.has_facts


def test_contact_is_saved_before_it_is_needed_and_seldom():
    agent = Agent()
    for second in range(10, 100, 10):
        agent.send(Ticked(), at=second * 1000)
        agent.settle()
    saved = [
        action
        for action in step(agent.state, CommandsReceived(95_000, (JOB,)), now_ms=95_000)
        if isinstance(action, SaveContact)
    ]
    assert saved == [SaveContact(90_000)]


def test_who_can_not_tell_that_its_machine_went_on_says_so_until_it_is_answered():
    """It may be a copy of the worker's folder, older than what was lent to the worker last, or have lost its notes."""
    state = AgentState()
    (sent,) = step(state, Recovered(boot=2), now_ms=50)
    assert sent.plan.unsure
    assert step(state, ReportFailed(sent.plan.seq, 10), now_ms=60) == ()
    (again,) = step(state, Ticked(), now_ms=70)
    assert again.plan.unsure
    answered = step(state, ReportAnswered(again.plan.seq), now_ms=80)
    assert SaveContact(70) in answered, "from now on a start finds that it was here"
    later = step(state, Ticked(), now_ms=60_000)
    assert [action.plan.unsure for action in later if isinstance(action, SendReport)] == [False]


def test_it_can_where_it_was_in_contact_since_the_machine_started_or_finds_a_program_that_runs():
    node = RecoveredNode(JOB, Progress(Phase.RUNNING, started_ms=0), is_running=True)
    for event in (Recovered(boot=2, contact_ms=10), Recovered(boot=2, nodes=(node,))):
        (plan,) = [action.plan for action in step(AgentState(), event, now_ms=50) if isinstance(action, SendReport)]
        assert not plan.unsure


def test_a_late_answer_to_an_older_report_acknowledges_nothing():
    agent = Agent()
    agent.assign()
    agent.send(Spawned(KEY))
    agent.send(ReportAnswered(0))
    assert agent.state.in_flight is not None
    assert agent.state.held[KEY].acked is None


# Rules that the simulator asked for


def test_a_device_is_free_only_when_the_void_attempt_that_had_it_is_dead():
    agent = Agent()
    first = replace(JOB, devices=("GPU-1",))
    second = replace(first, key=NodeKey(Epoch(8), 0), job_id=JobId("other"))
    agent.run(first)
    agent.send(AttemptsVoided((KEY.epoch,)))
    assert spawn(second) not in agent.assign(second)
    assert spawn(second) in agent.send(ProcessExited(KEY, signal=9))


def test_a_job_that_was_lent_again_to_the_same_worker_waits_for_its_void_attempt_to_be_dead():
    agent = Agent()
    second = replace(JOB, key=NodeKey(Epoch(8), 0))
    agent.run()
    agent.send(AttemptsVoided((KEY.epoch,)))
    assert spawn(second) not in agent.assign(second)
    assert spawn(second) in agent.send(ProcessExited(KEY, signal=9))


def test_an_exclusive_job_is_to_be_ended_by_the_spawner_unless_answered_reports_extend_its_time():
    agent = Agent()
    job = replace(JOB, exclusive=True, grace_ms=5_000)
    assert Spawn(job, 30_000 - 1_000) in agent.assign(job)
    agent.send(Spawned(KEY))
    agent.settle()
    agent.send(Ticked(), at=10_000)
    assert Extend(KEY, 39_000) in agent.answer()


@pytest.mark.parametrize(("job", "is_late_ms"), [(replace(SOURCED, exclusive=True), 19_000), (SOURCED, 3_600_000)])
def test_what_was_staged_while_the_agent_stood_still_for_too_long_ends_instead_of_starting(job, is_late_ms):
    """It was stopped, or the machine slept: what it finds first on going on is that the files are there."""
    for at in (is_late_ms - 1, is_late_ms):
        agent = Agent()
        agent.assign(job)
        starts = [action for action in agent.send(Staged(KEY), at=at) if isinstance(action, Spawn)]
        assert len(starts) == (at < is_late_ms)
    agent.send(Ticked(), at=max(is_late_ms, 30_000))  # an exclusive one waits for contact while its lease stands
    assert agent.state.held[KEY].outcome.ended_by is EndedBy.WORKER_LOST


def test_an_assignment_that_crossed_a_lapsed_lease_is_not_started():
    agent = Agent()
    agent.send(Ticked(), at=40_000)  # reports go out and nothing comes back for longer than the lease
    agent.send(ReportAnswered(agent.state.in_flight.seq), at=41_000)
    assert not is_current(agent.state, 39_000, now_ms=41_000)
    assert agent.send(CommandsReceived(39_000, (JOB,))) == []
    assert is_current(agent.state, 41_000, now_ms=41_500)
    assert spawn(JOB, contact_ms=40_000) in agent.send(CommandsReceived(41_000, (JOB,)))


def test_what_comes_while_contact_is_lost_is_not_started():
    agent = Agent()
    assert agent.send(CommandsReceived(0, (JOB,)), at=30_001) == []
