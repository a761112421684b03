"""The agent's state machine: exact actions for given inputs, in every order that can happen."""

from dataclasses import replace

import pytest

from gpulayer.errors import Blame
from gpulayer.ids import Digest, Epoch, JobId
from gpulayer.protocol.agent import AgentState, is_current, next_wake_ms, step
from gpulayer.protocol.messages import (
    AbandonStage,
    Admit,
    AttemptsVoided,
    CallOff,
    CollectOutputs,
    CommandsReceived,
    DrainLog,
    Extend,
    FactsChanged,
    Finish,
    FollowLog,
    Forget,
    Hold,
    Item,
    Journal,
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
    Revoke,
    SaveContact,
    SendReport,
    SessionOpened,
    SignalTree,
    Spawn,
    Spawned,
    SpawnFailed,
    SpawnPutOff,
    Stage,
    Staged,
    StagingFailed,
    Stop,
    StopAllRequested,
    Ticked,
    TreeSignalled,
)
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome

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


def recovered(progress, **fields):
    agent = Agent(settled=False)
    return agent, agent.send(Recovered(boot=2, nodes=(RecoveredNode(SOURCED, progress, **fields),), contact_ms=0))


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
