"""Laws of the agent's state machine under loss, repetition, reordering and restarts of everything around it."""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpulayer.errors import Blame
from gpulayer.ids import Digest, Epoch, JobId
from gpulayer.protocol.agent import AgentState, next_wake_ms, step
from gpulayer.protocol.messages import (
    Admit,
    AttemptsVoided,
    CallOff,
    CollectOutputs,
    CommandsReceived,
    DiskFilled,
    DrainLog,
    Finish,
    FollowLog,
    Forget,
    Hold,
    Journal,
    KillTree,
    LogDrained,
    OutputsCollected,
    Phase,
    ProcessExited,
    Progress,
    Recovered,
    RecoveredNode,
    ReportAnswered,
    ReportedState,
    ReportFailed,
    SendReport,
    SignalTree,
    Spawn,
    Spawned,
    SpawnFailed,
    SpawnPutOff,
    Stage,
    Staged,
    StagingFailed,
    Stop,
    Ticked,
    TreeSignalled,
)
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy

PHASES = list(Phase)
STATES = list(ReportedState)


@dataclass
class Program:
    """What the spawner knows of one key."""

    is_running: bool = True
    exit: ProcessExited | None = None
    terms: int = 0


@dataclass
class Disk:
    """What outlives the agent."""

    nodes: dict = field(default_factory=dict)  # key → (assignment, progress)
    programs: dict = field(default_factory=dict)
    contact: int | None = None


class LossyWorld(RuleBasedStateMachine):
    """The agent's machine among a spawner, a disk and a control plane; messages come late, twice or never."""

    @initialize()
    def start(self):
        self.disk = Disk()
        self.now = 0
        self.boot = 0
        self.assignments = {}
        self.starts = {}
        self.void = set()
        self.ended = {}  # key → outcome of the first report of its end
        self.delivered = set()
        self.unstartable = set()
        self.over = set()  # epochs that the control plane lends to nobody any more
        self.restart()

    def restart(self):
        self.boot += 1
        self.state = AgentState()
        self.wanted = []  # what the shell is doing
        nodes = []
        for key, (assignment, progress) in self.disk.nodes.items():
            program = self.disk.programs.get(key)
            nodes.append(
                RecoveredNode(
                    assignment,
                    progress,
                    is_running=program is not None and program.is_running,
                    process=program.exit if program is not None else None,
                )
            )
        self.send(Recovered(self.boot, tuple(nodes), self.disk.contact))

    def send(self, event):
        for action in step(self.state, event, now_ms=self.now):
            self.carry_out(action)

    def carry_out(self, action):
        match action:
            case Admit(assignment):
                assert assignment.key not in self.disk.nodes
                self.disk.nodes[assignment.key] = (assignment, Progress(Phase.STAGING))
            case Journal(key, progress):
                if key in self.disk.nodes:
                    assignment, before = self.disk.nodes[key]
                    assert PHASES.index(progress.phase) >= PHASES.index(before.phase)
                    assert before.stop is None or progress.stop == before.stop
                    self.disk.nodes[key] = (assignment, progress)
            case Spawn(assignment):
                assert self.disk.nodes[assignment.key][1].phase is Phase.SPAWNING
                assert assignment.key.epoch not in self.void
                self.wanted.append(action)
            case SignalTree(key):
                progress = self.disk.nodes[key][1]
                assert progress.stop is not None
                assert progress.kill_at_ms is not None
                self.wanted.append(action)
            case DrainLog(key) | CollectOutputs(key):
                assert not self.disk.programs[key].is_running or key.epoch in self.void
                assert key.epoch not in self.void
                self.wanted.append(action)
            case SendReport(plan):
                assert len([one for one in self.wanted if isinstance(one, SendReport)]) == 0
                assert not {item.key.epoch for item in plan.items} & self.void
                for item in plan.items:
                    if item.state is ReportedState.ENDED:
                        self.check_end(item)
                self.wanted.append(action)
            case Forget(key):
                program = self.disk.programs.get(key)
                assert program is None or not program.is_running
                self.disk.nodes.pop(key, None)
                self.wanted = [one for one in self.wanted if getattr(one, "key", None) != key]
            case Finish():
                raise AssertionError("nobody asked the worker to stop")
            case Stage() | KillTree() | CallOff():
                self.wanted.append(action)
            case FollowLog():
                pass
            case _:
                if type(action).__name__ == "SaveContact":
                    self.disk.contact = action.contact_ms

    def check_end(self, item):
        if item.key in self.disk.nodes:  # of what it never had it tells the end that was asked for last
            assert self.ended.setdefault(item.key, item.outcome) == item.outcome, "an end was told in two ways"
        program = self.disk.programs.get(item.key)
        if program is not None:
            assert not program.is_running
            assert {(item.key, "log"), (item.key, "outputs")} <= self.delivered
            assert (item.outcome.exit_code, item.outcome.signal) == (program.exit.exit_code, program.exit.signal)

    epochs = st.integers(1, 4).map(Epoch)

    @rule(
        epoch=epochs,
        source=st.booleans(),
        keep=st.sampled_from([5_000, 3_600_000]),
        timeout=st.sampled_from([None, 300]),
    )
    def assigned(self, epoch, source, keep, timeout):
        assignment = self.assignments.setdefault(
            epoch,
            Assignment(
                key=NodeKey(epoch, 0),
                job_id=JobId("j"),
                attempt=1,
                command=("x",),
                source=Digest("a" * 64) if source else None,
                keep_for_ms=keep,
                timeout_ms=timeout,
                grace_ms=200,
            ),
        )
        if epoch not in self.over:
            self.send(CommandsReceived(self.now, (assignment,)))

    @rule(epoch=epochs, reason=st.sampled_from([EndedBy.CANCEL, EndedBy.PREEMPTED]), grace=st.sampled_from([0, 200]))
    def stopped(self, epoch, reason, grace):
        if epoch not in self.over:
            self.send(CommandsReceived(self.now, (Stop(epoch, reason, grace),)))

    @rule(epoch=epochs, blame=st.sampled_from([Blame.USER, Blame.INFRASTRUCTURE]))
    def disk_filled(self, epoch, blame):
        self.send(DiskFilled(NodeKey(epoch, 0), "full", blame))

    @rule(epoch=epochs)
    def voided(self, epoch):
        self.void.add(epoch)
        self.over.add(epoch)
        self.send(AttemptsVoided((epoch,)))

    @rule(ms=st.sampled_from([0, 1, 100, 250, 6_000]))
    def time_passes(self, ms):
        self.now += ms
        self.send(Ticked())

    @rule()
    def crash(self):
        # A new boot may be told of a void epoch again only by an answer: until then it may report it.
        self.void.clear()
        self.restart()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def something_gets_done(self, data):
        action = data.draw(st.sampled_from(self.wanted))
        if not data.draw(st.sampled_from([False, False, False, True])):  # else it is done and its answer repeated
            self.wanted.remove(action)
        self.do(action, data)

    def do(self, action, data):
        match action:
            case Hold(assignment):
                self.send(Staged(assignment.key))
            case Stage(assignment):
                self.send(Staged(assignment.key) if data.draw(st.booleans()) else StagingFailed(assignment.key, "no"))
            case Spawn(assignment):
                key = assignment.key
                if key not in self.disk.programs and data.draw(st.sampled_from([False, False, True])):
                    self.wanted = [one for one in self.wanted if one != action]  # it is given up, and asked for again
                    self.send(SpawnPutOff(key))
                elif key in self.disk.programs:
                    self.send(Spawned(key))
                elif key not in self.unstartable and data.draw(st.sampled_from([True, True, False])):
                    self.starts[key] = self.starts.get(key, 0) + 1
                    self.disk.programs[key] = Program()
                    self.send(Spawned(key))
                else:
                    self.unstartable.add(key)
                    self.send(SpawnFailed(key, 127, "no"))
            case CallOff(key):
                asked = [one for one in self.wanted if isinstance(one, Spawn) and one.assignment.key == key]
                self.wanted = [one for one in self.wanted if one not in asked]
                if asked and key not in self.disk.programs:
                    self.send(SpawnPutOff(key))
                elif asked:
                    self.send(Spawned(key))
            case SignalTree(key):
                self.disk.programs[key].terms += 1
                self.send(TreeSignalled(key))
            case KillTree(key):
                self.exit(key, ProcessExited(key, signal=9))
            case DrainLog(key):
                self.delivered.add((key, "log"))
                self.send(LogDrained(key))
            case CollectOutputs(key):
                self.delivered.add((key, "outputs"))
                self.send(OutputsCollected(key, None))
            case SendReport(plan):
                if action in self.wanted:
                    self.wanted.remove(action)
                if data.draw(st.sampled_from([True, True, False])):
                    void = set(plan.holding) & self.over
                    self.over |= {item.key.epoch for item in plan.items if item.state is ReportedState.ENDED}
                    self.send(ReportAnswered(plan.seq, tuple(sorted(void))))
                else:
                    self.send(ReportFailed(plan.seq, 50))

    def exit(self, key, exited):
        program = self.disk.programs[key]
        if program.is_running:
            program.is_running, program.exit = False, exited
        self.send(program.exit)

    @precondition(lambda self: any(program.is_running for program in self.disk.programs.values()))
    @rule(data=st.data(), code=st.sampled_from([0, 1, 255]), heard=st.booleans())
    def a_program_ends(self, data, code, heard):
        key = data.draw(st.sampled_from([key for key, program in self.disk.programs.items() if program.is_running]))
        if heard:
            self.exit(key, ProcessExited(key, exit_code=code))
        else:  # the agent learns of it after its next start, or by the repeated kill
            self.disk.programs[key] = replace(
                self.disk.programs[key], is_running=False, exit=ProcessExited(key, exit_code=code)
            )

    @invariant()
    def nothing_starts_twice(self):
        assert all(count == 1 for count in getattr(self, "starts", {}).values())

    @invariant()
    def the_machine_always_wants_to_be_woken_while_it_waits_for_nothing(self):
        if hasattr(self, "state"):
            assert self.state.in_flight is not None or next_wake_ms(self.state) is not None


LossyWorld.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestLossyWorld = LossyWorld.TestCase
