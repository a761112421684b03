"""A simulated machine: its disk, its spawner's process table, and the real agent between them and the network.

It carries out the actions of ``protocol.agent`` and feeds back what happened; the agent may die and come back, the
spawner may die and take the processes along, both may stop and go on later (SIGSTOP, a debugger, a machine that
swaps), the whole machine may lose power.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpulayer.engine.effects import Effect, Void
from gpulayer.engine.events import NodePhase, NodeReport, WorkerReported
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.protocol import agent as agent_protocol
from gpulayer.protocol import messages as m
from gpulayer.protocol.retry import backoff_ms
from gpulayer.server.mailbox import Order, RevokeOrder, StopOrder
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.job import JobEntry
from gpulayer.spec.machine import WorkerFacts
from gpulayer.testing.sim.clockwork import Clockwork
from gpulayer.testing.sim.network import Network
from gpulayer.testing.sim.plane import Commands, SimPlane

__all__ = ["Process", "SimHost"]

HEARTBEAT_MS = 10_000
ANSWER_MS = 15_000  # how long a request waits for its answer
HOLD_MS = 25_000
WATCHDOG_MS = 2_250  # it sees that the spawner does not do what it should have done (``spawner.lifeline.Patience``)
STUCK_MS = 40_000  # an agent that comes finds that the spawner does not answer (``worker.spawner_pulse``)


@dataclass(slots=True)
class Process:
    """A program's tree as the spawner knows it. ``end`` is set once it is over."""

    assignment: Assignment
    is_alive: bool = True
    end: m.ProcessExited | m.ProcessLost | None = None
    terms: int = 0
    kill_by_ms: int | None = None


@dataclass(slots=True)
class SimHost:
    """``staging_failure``: probability that a source does not come. ``agent`` is None while it is down."""

    id: WorkerId
    facts: WorkerFacts
    facts_digest: Digest
    clock: Clockwork
    network: Network
    plane: SimPlane
    programs: Callable[[Assignment], tuple[int, int, int]]  # run time, exit code, time it needs after SIGTERM
    started: Callable[["SimHost", Assignment], None]
    has_source: Callable[[JobId], bool] = lambda _job: True
    staging_failure: float = 0.03
    faults: int = 0
    # Disk: survives everything.
    boots: int = 0
    disks: int = 0
    folders: dict[NodeKey, tuple[Assignment, m.Progress]] = field(default_factory=dict)
    contact_ms: int | None = None
    # Spawner: survives the agent.
    processes: dict[NodeKey, Process] = field(default_factory=dict)
    is_spawner_stuck: bool = False
    # Agent.
    agent: agent_protocol.AgentState | None = None
    _cursor: str = ""
    _is_polling: bool = False
    _late: list[Callable[[], None]] | None = None  # what the agent will find when it goes on; None: it runs

    def start(self) -> None:
        """The agent starts (again): it reads its folders and the spawner's table."""
        if self.agent is not None:
            return
        if self.is_spawner_stuck:
            self.clock.after(STUCK_MS, self.crash_spawner)
            self.clock.after(STUCK_MS, self.start)
            return
        self.boots += 1
        self.agent = agent_protocol.AgentState(
            cpus=self.facts.cpus, memory_bytes=self.facts.memory_bytes, resources=self.facts.resources
        )
        self._cursor, self._is_polling = "", False
        self.clock.say(f"{self.id}: agent starts, boot {self.boots}")
        nodes = []
        for key, (assignment, progress) in sorted(self.folders.items()):
            process = self.processes.get(key)
            nodes.append(
                m.RecoveredNode(
                    assignment,
                    progress,
                    is_running=process is not None and process.is_alive,
                    process=process.end if process is not None else None,
                )
            )
        for key in [key for key in self.processes if key not in self.folders]:
            self._end(key, m.ProcessLost(key, "a leftover without a folder"))
            del self.processes[key]
        self.feed(m.SessionOpened(HEARTBEAT_MS, 30_000))
        self.feed(m.Recovered(self.boots, tuple(nodes), self.contact_ms))

    def crash_agent(self) -> None:
        """Processes and disk stay; it starts again within some seconds."""
        if self.agent is not None:
            self.clock.say(f"{self.id}: agent dies")
            self.faults += 1
            self.agent = self._late = None
            self.clock.after(self.clock.spread_ms(5_000), self.start)

    def stop(self) -> None:
        """The agent stops, and in half of the cases the spawner with it. Programs go on; so does the watchdog."""
        if self.agent is None or self._late is not None:
            return
        self.faults += 1
        self._late = []
        self.is_spawner_stuck = self.is_spawner_stuck or self.clock.chance(0.5)
        self.clock.say(f"{self.id}: agent stops{', spawner too' if self.is_spawner_stuck else ''}")
        self.clock.after(self.clock.spread_ms(40_000), self.go_on)

    def go_on(self) -> None:
        """Whatever was stopped goes on, with all that has come meanwhile."""
        self.is_spawner_stuck = False
        late, self._late = self._late, None
        if late is not None:
            self.clock.say(f"{self.id}: agent goes on")
        for what in late or ():
            what()

    def crash_spawner(self) -> None:
        """The watchdog ends every tree at once."""
        self.faults += 1
        self.is_spawner_stuck = False
        self.clock.say(f"{self.id}: spawner dies")
        for key, process in list(self.processes.items()):
            if process.is_alive:
                self._end(key, m.ProcessLost(key, "the spawner died"))

    def lose_power(self) -> None:
        """All processes die; in some runs the disk is lost as well."""
        self.faults += 1
        self.clock.say(f"{self.id}: power is lost")
        self.agent = self._late = None
        self.is_spawner_stuck = False
        for key, process in list(self.processes.items()):
            if process.is_alive:
                process.is_alive, process.end = False, m.ProcessLost(key, "the machine lost power")
        self.processes.clear()
        if self.clock.chance(0.3):
            self.clock.say(f"{self.id}: and comes back with an empty disk")
            self.folders.clear()
            self.contact_ms = None
            self.disks += 1
        self.clock.after(self.clock.spread_ms(40_000), self.start)

    def feed(self, event: m.Input) -> None:
        """One input to the agent, and its actions carried out. Lost while the agent is down."""
        if self.agent is None:
            return
        if self._late is not None:
            self._late.append(lambda: self.feed(event))
            return
        actions = agent_protocol.step(self.agent, event, now_ms=self.clock.now_ms)
        for action in actions:
            self.clock.say(f"{self.id}: {action}")
            self._act(action)
        self._wake()
        self._poll()

    def _act(self, action: m.Action) -> None:
        match action:
            case m.Admit():
                self.folders[action.assignment.key] = (action.assignment, m.Progress(m.Phase.STAGING))
            case m.Journal():
                if action.key in self.folders:
                    self.folders[action.key] = (self.folders[action.key][0], action.progress)
            case m.Stage():
                key = action.assignment.key
                assert action.assignment.source is not None, f"{key} brings nothing that could be staged"
                failed = self.clock.chance(self.staging_failure)
                outcome: m.Input = m.StagingFailed(key, "a blob was damaged") if failed else m.Staged(key)
                self._later(self.clock.spread_ms(50), outcome)
            case m.Hold():
                self._later(self.clock.spread_ms(50), m.Staged(action.assignment.key))
            case m.Spawn():
                self._spawn(action.assignment, action.kill_by_ms)
            case m.Extend():
                self._arm(action.key, action.kill_by_ms)
            case m.SignalTree():
                self._signal(action.key)
            case m.KillTree():
                self._end(action.key, m.ProcessExited(action.key, signal=9))
            case m.DrainLog():
                self._drain(action.key, tries=1)
            case m.CollectOutputs():
                self._later(self.clock.spread_ms(20), m.OutputsCollected(action.key, None))
            case m.SendReport():
                self._send(action.plan)
            case m.SaveContact():
                self.contact_ms = action.contact_ms
            case m.Forget():
                self._end(action.key, m.ProcessExited(action.key, signal=9))
                self.processes.pop(action.key, None)
                self.folders.pop(action.key, None)
            case m.AbandonStage() | m.FollowLog():
                pass
            case m.Finish():
                self.agent = None

    def _later(self, delay_ms: int, event: m.Input) -> None:
        """An answer to the agent that asked; its successor asks again."""
        asked = self.agent
        self.clock.after(delay_ms, lambda: self.feed(event) if self.agent is asked else None)

    def _wake(self) -> None:
        if self.agent is None:
            return
        at_ms = agent_protocol.next_wake_ms(self.agent)
        if at_ms is not None:
            self._later(max(at_ms - self.clock.now_ms, 1), m.Ticked())

    # Processes ---------------------------------------------------------------------------------------------------

    def _arm(self, key: NodeKey, kill_by_ms: int) -> None:
        """The spawner ends the tree at this time, whether or not the agent is there, or its watchdog does."""
        process = self.processes.get(key)
        if process is None:
            return
        process.kill_by_ms = kill_by_ms

        def end_late() -> None:
            if not process.is_alive or process.kill_by_ms is None or process.kill_by_ms > self.clock.now_ms:
                return
            if not self.is_spawner_stuck:
                self._end(key, m.ProcessLost(key, "the agent did not extend its time", is_expired=True))
            elif self.clock.now_ms < process.kill_by_ms + WATCHDOG_MS:
                self.clock.after(WATCHDOG_MS, end_late)
            else:
                self.crash_spawner()

        self.clock.after(kill_by_ms - self.clock.now_ms, end_late)

    def _spawn(self, assignment: Assignment, kill_by_ms: int) -> None:
        key = assignment.key
        known = self.processes.get(key)
        if known is None:
            self.processes[key] = Process(assignment)
            self._arm(key, kill_by_ms)
            self.started(self, assignment)
            run_ms, exit_code, _ = self.programs(assignment)
            self.clock.after(run_ms, lambda: self._end(key, m.ProcessExited(key, exit_code=exit_code)))
        self._later(2, m.Spawned(key))
        if known is not None and known.end is not None:
            self._later(3, known.end)

    def _signal(self, key: NodeKey) -> None:
        process = self.processes.get(key)
        if process is not None and process.is_alive:
            process.terms += 1
            _, exit_code, after_term_ms = self.programs(process.assignment)
            self.clock.after(after_term_ms, lambda: self._end(key, m.ProcessExited(key, exit_code=exit_code)))
        self._later(1, m.TreeSignalled(key))

    def _end(self, key: NodeKey, end: m.ProcessExited | m.ProcessLost) -> None:
        process = self.processes.get(key)
        if process is None or not process.is_alive:
            return
        process.is_alive, process.end = False, end
        self._later(1, end)

    # The control plane -------------------------------------------------------------------------------------------

    def _send(self, plan: m.ReportPlan) -> None:
        asked, answered = self.agent, False

        def answer(effects: tuple[Effect, ...] | None) -> None:
            nonlocal answered
            if self.agent is not asked or answered:
                return
            answered = True
            if effects is None:
                self.feed(m.ReportFailed(plan.seq, backoff_ms(1, random=self.clock.rng.random())))
                return
            void = tuple(
                epoch
                for effect in effects
                if isinstance(effect, Void) and effect.worker == self.id
                for epoch in effect.epochs
            )
            self.feed(m.ReportAnswered(plan.seq, void))

        def arrive() -> None:
            self.plane.handle(
                lambda at: WorkerReported(
                    at,
                    self.id,
                    plan.boot,
                    plan.seq,
                    plan.holding,
                    plan.recovered,
                    tuple(
                        NodeReport(
                            item.key.epoch,
                            item.key.node,
                            NodePhase(item.state),
                            item.outcome,
                            item.outputs,
                            item.started_ago_ms,
                        )
                        for item in plan.items
                    ),
                    facts=self.facts if plan.has_facts else None,
                    unstarted=plan.unstarted,
                    facts_digest=self.facts_digest if plan.has_facts else None,
                    stopping=plan.stopping,
                    leaving=plan.leaving,
                ),
                lambda effects: self.network.deliver(self.id, lambda: answer(effects)),
            )

        self.network.deliver(self.id, arrive)
        self.clock.after(ANSWER_MS, lambda: answer(None))

    def _drain(self, key: NodeKey, *, tries: int) -> None:
        """Send the log's end until the control plane has it, or says that the attempt is not ours any more."""
        asked, answered = self.agent, False

        def answer(is_lent: bool | None) -> None:
            nonlocal answered
            if self.agent is not asked or answered:
                return
            answered = True
            if is_lent is None:
                wait_ms = backoff_ms(tries, random=self.clock.rng.random())
                self.clock.after(wait_ms, lambda: self._drain(key, tries=tries + 1) if self.agent is asked else None)
            elif is_lent:
                self.feed(m.LogDrained(key))
            else:
                self.feed(m.AttemptsVoided((key.epoch,)))

        def arrive() -> None:
            if self.plane.state is not None:
                is_lent = self.plane.is_lent(self.id, key.epoch)
                self.network.deliver(self.id, lambda: answer(is_lent))

        self.network.deliver(self.id, arrive)
        self.clock.after(ANSWER_MS, lambda: answer(None))

    def _poll(self) -> None:
        """One held GET at a time, from the first answered report on."""
        if self.agent is None or self._is_polling or not self.agent.is_settled:
            return
        self._is_polling = True
        asked, answered, asked_ms = self.agent, False, self.clock.now_ms

        def answer(found: Commands | None) -> None:
            nonlocal answered
            if self.agent is not asked or answered:
                return
            if self._late is not None:
                self._late.append(lambda: answer(found))
                return
            answered, self._is_polling = True, False
            if found is None:
                self._poll()
                return
            cursor, commands = found
            if agent_protocol.is_current(self.agent, asked_ms, now_ms=self.clock.now_ms):
                self._cursor = cursor
            self.feed(m.CommandsReceived(asked_ms, tuple(self._command(command) for command in commands)))

        def arrive() -> None:
            self.plane.poll(self.id, self._cursor, lambda found: self.network.deliver(self.id, lambda: answer(found)))

        self.network.deliver(self.id, arrive)
        self.clock.after(HOLD_MS + ANSWER_MS, lambda: answer(None))

    def _command(self, order: Order) -> Assignment | m.Stop | m.Revoke:
        if isinstance(order, StopOrder):
            return m.Stop(order.epoch, order.ended_by, order.grace_ms, order.node)
        if isinstance(order, RevokeOrder):
            return m.Revoke(order.epoch)
        entry: JobEntry = self.plane.disk.entries[order.job_id]
        return Assignment(
            key=NodeKey(order.epoch, order.node),
            job_id=order.job_id,
            attempt=order.attempt,
            command=("program",),
            source=Digest("s" * 64) if self.has_source(order.job_id) else None,
            devices=order.devices,
            cpus=order.cpus,
            memory_bytes=order.memory_bytes,
            resources=order.resources,
            timeout_ms=entry.timeout_ms,
            grace_ms=entry.grace_ms,
            keep_for_ms=entry.keep_for_ms,
            exclusive=entry.exclusive,
        )
