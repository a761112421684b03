"""The shell around the real agent on a simulated host: it carries out the actions of ``protocol.agent`` and feeds back
what happened, as ``worker.agent`` does."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from gpulayer.engine.effects import Effect, Void
from gpulayer.engine.events import NodePhase, NodeReport, WorkerReported
from gpulayer.errors import Blame
from gpulayer.ids import Digest, Epoch
from gpulayer.protocol import agent as protocol
from gpulayer.protocol import messages as m
from gpulayer.protocol.reporting import answer_limit_ms
from gpulayer.protocol.retry import backoff_ms
from gpulayer.server.mailbox import AssignOrder, Order, RevokeOrder, StopOrder
from gpulayer.spec.array import ARRAY_INDEX
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.job import Array
from gpulayer.spec.outcome import EndedBy
from gpulayer.testing.sim.clockwork import spread_ms
from gpulayer.testing.sim.network import IN, OUT
from gpulayer.testing.sim.parts import Part
from gpulayer.testing.sim.plane import Commands
from gpulayer.testing.sim.rules import Violation
from gpulayer.testing.sim.spawner import Process
from gpulayer.testing.sim.words import attempt_name, lasting

if TYPE_CHECKING:
    from gpulayer.testing.sim.host import SimHost

__all__ = ["SimAgent"]

HEARTBEAT_MS: Final = 10_000
LEASE_MS: Final = 30_000
HOLD_LIMIT_MS: Final = 30_000
WRITE_LIMIT_MS: Final = 15_000
WRITE_AGAIN_MS: Final = 500  # the journal, on a full disk (``worker.keeping``)
LEAVE_AGAIN_MS: Final = 200
SLOW_MS: Final = 60_000  # the most that a launcher takes
REMOVED: Final = "removed"  # the answer to a report of an unknown worker
SUPERSEDED: Final = "superseded"  # … of one that has lost its place to a copy


@dataclass(slots=True)
class SimAgent:
    """One start of it. Everything but what is on its host's disk dies with it. is_begun: it is at its spawner."""

    host: "SimHost"
    state: protocol.AgentState = field(init=False)
    is_begun: bool = False
    incarnation: int = 0  # of the control plane that it has its session with
    _cursor: str = ""
    _is_polling: bool = False
    _tries: int = 0
    _poll_tries: int = 0
    _refused: set[NodeKey] = field(default_factory=set)
    _unwritten: dict[NodeKey, m.Progress] = field(default_factory=dict)
    _asked: dict[int, Callable[[], None]] = field(default_factory=dict)  # of the spawner, and not answered
    _starts: dict[NodeKey, int] = field(default_factory=dict)
    _count: int = 0
    _is_removed: bool = False
    _never: set[NodeKey] = field(default_factory=set)
    _called_off: dict[int, NodeKey] = field(default_factory=dict)  # after the spawner was asked
    _launching: dict[NodeKey, tuple[int, int]] = field(default_factory=dict)  # at a launcher; until when it may run
    _wake_ms: int | None = None
    _given_up: set[NodeKey] = field(default_factory=set)  # of what was stopped for want of contact

    def __post_init__(self) -> None:
        self._look()

    def _look(self) -> None:
        facts = self.host.facts
        self.state = protocol.AgentState(
            cpus=facts.cpus, memory_bytes=facts.memory_bytes, resources=facts.resources, has_new_facts=True
        )

    @property
    def is_at_work(self) -> bool:
        """Something runs, or has been asked to be started."""
        return any(held.phase in (m.Phase.SPAWNING, m.Phase.RUNNING) for held in self.state.held.values())

    def begin(self, boot: int) -> None:
        """The spawner answers: it reads its folders and the spawner's table."""
        host = self.host
        self._look()  # again: the spawner may have kept it waiting
        self.is_begun = True
        self.incarnation = host.plane.incarnation
        if host.disk.contact_ms is None:
            host.contact_ms = host.piece.now_ms
        nodes = []
        for key, (assignment, progress) in sorted(host.disk.nodes().items()):
            if progress.stop is EndedBy.WORKER_LOST:
                self._given_up.add(key)
            process = host.spawner.processes.get(key)
            nodes.append(
                m.RecoveredNode(
                    assignment,
                    progress,
                    is_running=process is not None and process.end is None,
                    process=process.end if process is not None else None,
                )
            )
        for key in [key for key in host.spawner.processes if key not in host.disk.folders]:
            self._ask(lambda key=key: self._clear(key))  # type: ignore[misc]
        self.feed(m.SessionOpened(HEARTBEAT_MS, LEASE_MS))
        self.feed(m.Recovered(boot, tuple(nodes), host.disk.contact_ms, host.disk.has_rebooted))

    def attached(self) -> None:
        """There is a new spawner: what became of everything is in its table, and what was asked is asked again."""
        for held in list(self.state.held.values()):
            process = self.host.spawner.processes.get(held.key)
            if process is None and held.phase is m.Phase.RUNNING:
                self.feed(m.ProcessLost(held.key, "the spawner was lost, and the program with it"))
            elif process is not None and process.end is not None:
                self.feed(process.end)
        for number, what in list(self._asked.items()):
            if number in self._called_off:  # whoever comes next is not asked for what nobody wants any more
                del self._asked[number]
                key = self._called_off.pop(number)
                self._later(1, m.SpawnFailed(key, None, "it was called off while its spawner did not answer"))
            else:
                self._carry(number, what)

    def feed(self, event: m.Input) -> None:
        """One input to the agent, and its actions carried out. Lost once this one has died; later, while it is
        stopped."""
        if self.host.agent is not self:
            return
        if self.host.is_stopped(Part.AGENT):
            self.host.run(Part.AGENT, lambda: self.feed(event))
            return
        clock = self.host.clock
        if clock.story is not None:
            clock.story.heard(clock.now_ms, self.host.line, event)
        for action in protocol.step(self.state, event, now_ms=self.host.piece.now_ms):
            if clock.story is not None:
                clock.story.acted(clock.now_ms, self.host.line, action)
            self._act(action)
        self._refuse(event)
        self._wake()
        self._poll()

    def _refuse(self, event: m.Input) -> None:
        """What it was told to end, and has not asked its spawner for, never begins."""
        match event:
            case m.CommandsReceived(commands=commands):
                told = [command.epoch for command in commands if isinstance(command, m.Stop)]
            case m.ReportAnswered(void=epochs) | m.AttemptsVoided(epochs=epochs):
                told = list(epochs)
            case _:
                return
        for key in (NodeKey(epoch, 0) for epoch in told):
            if self._starts.get(key) not in self._asked and key not in self.host.spawner.processes:
                self._never.add(key)

    def _act(self, action: m.Action) -> None:
        match action:
            case m.Admit():
                if not self.host.disk.admit(action.assignment):
                    self._refused.add(action.assignment.key)
            case m.Journal():
                self._journal(action.key, action.progress)
            case m.Stage():
                self._stage(action.assignment)
            case m.Hold():
                self._later(self._spread_ms(50), m.Staged(action.assignment.key))
            case m.Spawn():
                self._spawn(action.assignment, action.kill_by_ms)
            case m.CallOff():
                self._call_off(action.key)
            case m.Extend() if action.key in self._launching:
                number, _ = self._launching[action.key]
                self._launching[action.key] = number, action.kill_by_ms
            case m.Extend():
                self._ask(lambda: self._extend(action.key, action.kill_by_ms), stays=True)
            case m.SignalTree():
                self._ask(lambda: self.host.spawner.signal(action.key))
                self._later(2, m.TreeSignalled(action.key))
            case m.KillTree():
                self._ask(lambda: self._kill(action.key), stays=True)
            case m.FollowLog():
                if action.key in self.state.held:
                    self._write("log", action.key, lambda: None)
            case m.DrainLog():
                self._write("log", action.key, lambda: self.feed(m.LogDrained(action.key)))
            case m.CollectOutputs() if self._fails("outputs"):
                self._later(1, m.OutputsFailed(action.key, "its outputs have changed while they were read"))
            case m.CollectOutputs():
                tree = Digest(f"{action.key.epoch:064x}")
                self._write("outputs", action.key, lambda: self.feed(m.OutputsCollected(action.key, tree)))
            case m.SendReport():
                self._send(action.plan)
            case m.SaveContact():
                self.host.disk.save_contact(action.contact_ms)
            case m.Forget():
                self._refused.discard(action.key)
                self._unwritten.pop(action.key, None)
                self._ask(lambda: self._clear(action.key))
            case m.AbandonStage():  # its answer comes too late to matter
                pass
            case m.Finish():
                self.host.left(is_removed=self._is_removed)
            case _:
                assert_never(action)

    def _later(self, delay_ms: int, event: m.Input) -> None:
        """An answer to the agent that asked; its successor asks again."""
        self.host.piece.after(delay_ms, lambda: self.feed(event))

    def _wake(self) -> None:
        """Timers that ring too early are left to; most are never reached."""
        at_ms = protocol.next_wake_ms(self.state)
        if at_ms is None or (self._wake_ms is not None and self._wake_ms <= at_ms):
            return
        self._wake_ms = at_ms = max(at_ms, self.host.piece.now_ms + 1)

        def ring() -> None:
            if self._wake_ms != at_ms:
                return
            if self.host.is_stopped(Part.AGENT):
                self.host.run(Part.AGENT, ring)
                return
            self._wake_ms = None
            due_ms = protocol.next_wake_ms(self.state)
            if due_ms is not None and due_ms <= self.host.piece.now_ms:
                self.feed(m.Ticked())
            else:
                self._wake()

        self.host.piece.after(at_ms - self.host.piece.now_ms, ring)

    def _spread_ms(self, mean_ms: float) -> int:
        return spread_ms(self.host.numbers, mean_ms)

    # The disk ------------------------------------------------------------------------------------------------------

    def _journal(self, key: NodeKey, progress: m.Progress) -> None:
        """A line that finds no room stays in mind and is written as soon as it does."""
        if progress.stop is EndedBy.WORKER_LOST and key not in self._given_up:
            self._given_up.add(key)
            if key in self.state.held:
                self.host.guard.gave_up(self.host, self.state.held[key].assignment)
        if key in self._refused:
            return
        if self.host.disk.write(key, progress):
            self._unwritten.pop(key, None)
            return
        if not self._unwritten:
            self.host.piece.after(WRITE_AGAIN_MS, self._write_again)
        self._unwritten[key] = progress

    def _write_again(self) -> None:
        if self.host.agent is not self:
            return
        if self.host.is_stopped(Part.AGENT):
            self.host.run(Part.AGENT, self._write_again)
            return
        for key, progress in list(self._unwritten.items()):
            if self.host.disk.write(key, progress):
                del self._unwritten[key]
        if self._unwritten:
            self.host.piece.after(WRITE_AGAIN_MS, self._write_again)

    def _why_not(self, key: NodeKey) -> bool:
        """A crash now would leave no trace of this node, or a wrong one."""
        progress = self._unwritten.get(key)
        return key in self._refused or (progress is not None and progress.phase in (m.Phase.STAGING, m.Phase.SPAWNING))

    def _stage(self, assignment: Assignment) -> None:
        key, host = assignment.key, self.host
        assert assignment.source is not None, f"{key} brings nothing that could be staged"
        rng = host.clock.numbers("staging", (host.id, key.epoch))
        outcome: m.Input = m.Staged(key)
        if self._why_not(key):
            outcome = m.StagingFailed(key, "no space left on device", EndedBy.DISK_FULL)
        elif rng.random() < host.staging_failure:
            host.clock.fault("staging_failed", host.id, after_ms=0)
            outcome = m.StagingFailed(key, "a blob was damaged")
        self._later(spread_ms(rng, 50), outcome)

    # The spawner ---------------------------------------------------------------------------------------------------

    def _ask(self, what: Callable[[], None], *, stays: bool = False) -> int:
        """It reaches the spawner, or the next one, if this agent lives as long. Returns its number. stays: a spawner
        that stood still reads it all the same."""
        self._count += 1
        number = self._count
        self._asked[number] = what
        self._carry(number, what, stays=stays)
        return number

    def _carry(self, number: int, what: Callable[[], None], *, stays: bool = False) -> None:
        host = self.host
        life = host.spawner

        def arrive() -> None:
            if number in self._asked and life.is_up and (host.agent is self or stays):
                del self._asked[number]
                what()

        if host.spawner.is_up:
            host.piece.after(1, lambda: host.run(Part.SPAWNER, arrive))

    def _spawn(self, assignment: Assignment, kill_by_ms: int) -> None:
        key, host = assignment.key, self.host
        if self._why_not(key):
            self._later(1, m.SpawnFailed(key, None, "no space left on device", EndedBy.DISK_FULL, Blame.INFRASTRUCTURE))
            return
        if not set(assignment.devices) <= {device.uuid for device in host.facts.devices}:
            self._later(1, m.SpawnFailed(key, None, "a device is not there any more", EndedBy.DRIFT))
            return
        if assignment.devices and host.is_taken:
            self._later(1, m.SpawnFailed(key, None, "a device is in use by somebody else", EndedBy.DRIFT))
            return
        if self._fails("put off"):
            self._later(1, m.SpawnPutOff(key))
            return
        if self._fails("slow launch"):
            self._count += 1
            number, delay_ms = self._count, host.numbers.randrange(SLOW_MS)
            self._launching[key] = number, kill_by_ms
            host.clock.say(f"{host.id} takes {lasting(delay_ms)} to start {attempt_name(assignment)}")
            host.piece.after(delay_ms, lambda: self._launch(assignment, number))
            return
        self._start(assignment, kill_by_ms)

    def _fails(self, what: str) -> bool:
        host = self.host
        if not host.launch_failure or host.clock.dice(f"{what} {host.id}").random() >= host.launch_failure:
            return False
        host.clock.fault(what.replace(" ", "_"), host.id, after_ms=0)
        return True

    def _launch(self, assignment: Assignment, number: int) -> None:
        """Its launcher is done, unless it was called off or this agent has died meanwhile."""
        if self._launching.get(assignment.key, (0, 0))[0] != number or self.host.agent is not self:
            return
        if self.host.is_stopped(Part.AGENT):
            self.host.run(Part.AGENT, lambda: self._launch(assignment, number))
            return
        _, kill_by_ms = self._launching.pop(assignment.key)
        self._start(assignment, kill_by_ms)

    def _extend(self, key: NodeKey, kill_by_ms: int) -> None:
        if not self.host.spawner.extend(key, kill_by_ms):
            self._later(1, m.ExtendFailed(key))

    def _start(self, assignment: Assignment, kill_by_ms: int) -> None:
        key, host = assignment.key, self.host

        def spawn() -> None:
            if key in self._never:
                raise Violation(
                    f"{attempt_name(assignment)} starts on {host.id}, which was told to end it before", promise=3
                )
            process = host.spawner.spawn(assignment, kill_by_ms)
            if process is None:
                self._later(1, m.SpawnFailed(key, None, "the time by which it must be over has passed"))
                return
            end = process.end
            self._later(1, m.Spawned(key))
            if end is not None:
                self._later(2, end)

        self._starts[key] = self._ask(spawn)

    def _call_off(self, key: NodeKey) -> None:
        """Of a start that has not reached the spawner."""
        number = self._starts.get(key, 0)
        is_asked_for = number in self._asked and not self.host.spawner.is_up
        if self._launching.pop(key, None) is not None or is_asked_for:
            self._asked.pop(number, None)
            self._later(1, m.SpawnPutOff(key))
        elif number in self._asked:
            self._called_off[number] = key

    def _kill(self, key: NodeKey) -> None:
        known: Process | None = self.host.spawner.processes.get(key)
        if known is None:
            self._later(1, m.ProcessLost(key, "the spawner does not know the program any more"))
        else:
            self.host.spawner.kill(key)

    def _clear(self, key: NodeKey) -> None:
        """Forget it in the spawner, then delete its folder; what still runs stays, for the next start to find."""
        if key not in self.host.disk.folders and self.host.spawner.processes.get(key) is not None:
            self.host.spawner.kill(key)
        if self.host.spawner.forget(key):
            self.host.disk.forget(key)

    # The control plane ---------------------------------------------------------------------------------------------

    def _request(
        self, limit_ms: int, send: Callable[[Callable[[object], None]], None], heard: Callable[[object], None]
    ) -> None:
        """One request: ``send`` is what arrives, ``heard`` gets its answer, or None where none came in time."""
        host, is_answered, is_late = self.host, False, False

        def answer(found: object) -> None:
            nonlocal is_answered
            if is_answered or host.agent is not self:
                return
            if host.is_stopped(Part.AGENT):
                host.run(Part.AGENT, lambda: answer(found))
                return
            is_answered = True
            if found is None and is_late:
                host.network.renew(host.line)
            elif host.plane.incarnation != self.incarnation:
                self.incarnation = host.plane.incarnation
                self.feed(m.SessionOpened(HEARTBEAT_MS, LEASE_MS))
            heard(found)

        def expire() -> None:
            nonlocal is_late
            is_late = True
            answer(None)

        def arrive() -> None:
            def reply(found: object) -> None:
                host.network.deliver(host.line, IN, lambda: host.hear(lambda: answer(found)))

            host.plane.arrive(lambda: send(reply))

        host.network.deliver(host.line, OUT, arrive)
        host.piece.after(limit_ms, expire)

    def _send(self, plan: m.ReportPlan) -> None:
        host = self.host
        facts, digest = host.facts, host.facts_digest

        def heard(effects: object) -> None:
            if effects is None:
                self._tries += 1
                self.feed(m.ReportFailed(plan.seq, backoff_ms(self._tries, random=host.numbers.random())))
                return
            self._tries = 0
            if effects is REMOVED or effects is SUPERSEDED:
                host.is_superseded = host.is_superseded or effects is SUPERSEDED
                self._leave(plan.seq)
                return
            assert isinstance(effects, tuple)
            host.contact_ms = max(host.contact_ms, plan.sent_ms)
            void = _void(effects, host)
            self.feed(m.ReportAnswered(plan.seq, void))
            host.guard.answered(host, void, has_work=bool(self.state.held))

        def send(reply: Callable[[object], None]) -> None:
            if not host.arrived():
                reply(SUPERSEDED)
                return
            if not host.plane.knows(host.id):
                reply(REMOVED)
                return
            host.plane.handle(
                lambda at: WorkerReported(
                    at,
                    host.id,
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
                    facts=facts if plan.has_facts else None,
                    unstarted=plan.unstarted,
                    unsure=plan.unsure,
                    untold=host.plane.mailboxes.untold(host.id) if plan.unsure else frozenset(),
                    facts_digest=digest if plan.has_facts else None,
                    stopping=plan.stopping,
                    leaving=plan.leaving,
                ),
                reply,
            )

        self._request(answer_limit_ms(self.state, tries=self._tries), send, heard)

    def _leave(self, seq: int) -> None:
        """The control plane does not know this worker any more: none of its work goes on."""
        if not self._is_removed:
            self._is_removed = True
            self.feed(m.AttemptsVoided(tuple(sorted({key.epoch for key in self.state.held}))))
            self.feed(m.StopAllRequested(evidence="it was removed"))
        self.feed(m.ReportFailed(seq, LEAVE_AGAIN_MS))

    def _write(self, kind: str, key: NodeKey, then: Callable[[], None], *, tries: int = 1) -> None:
        """Send it until the control plane has it, or says that the attempt is not ours any more."""
        host = self.host

        def heard(is_lent: object) -> None:
            if is_lent is None:
                again_ms = backoff_ms(tries, random=host.numbers.random())
                host.piece.after(again_ms, lambda: self._write_on(kind, key, then, tries + 1))
            elif is_lent:
                then()
            else:
                self.feed(m.AttemptsVoided((key.epoch,)))

        def send(reply: Callable[[object], None]) -> None:
            if host.arrived():
                host.plane.write(kind, host.id, key.epoch, reply)
            else:
                reply(False)

        self._request(WRITE_LIMIT_MS, send, heard)

    def _write_on(self, kind: str, key: NodeKey, then: Callable[[], None], tries: int) -> None:
        if self.host.agent is self and key in self.state.held:
            self._write(kind, key, then, tries=tries)

    def _poll(self) -> None:
        """One held GET at a time, from the first answered report on."""
        if self.host.agent is not self or self._is_polling or not self.state.is_settled:
            return
        self._is_polling = True
        asked_ms = self.host.piece.now_ms

        def heard(found: object) -> None:
            if found is None:
                self._poll_tries += 1
                self._rest(self._poll_tries)
                return
            self._poll_tries = 0
            cursor, commands = _commands(found)
            is_heard = protocol.is_current(self.state, asked_ms, now_ms=self.host.piece.now_ms)
            if is_heard:
                self._cursor = cursor
                self._is_polling = False
            if commands:
                self.feed(m.CommandsReceived(asked_ms, tuple(self._command(command) for command in commands)))
            if is_heard:
                self._poll()
            else:
                self._rest(1)

        cursor, host = self._cursor, self.host

        def send(reply: Callable[[object], None]) -> None:
            if host.arrived():
                host.plane.poll(host.id, cursor, lambda found: reply(found) if host.has_seat else None)

        self._request(HOLD_LIMIT_MS, send, heard)

    def _rest(self, tries: int) -> None:
        def again() -> None:
            self._is_polling = False
            self._poll()

        wait_ms = backoff_ms(tries, random=self.host.numbers.random())
        self.host.piece.after(wait_ms, lambda: self.host.run(Part.AGENT, again))

    def _command(self, order: Order) -> Assignment | m.Stop | m.Revoke:
        match order:
            case StopOrder():
                return m.Stop(order.epoch, order.ended_by, order.grace_ms, order.node)
            case RevokeOrder():
                return m.Revoke(order.epoch)
            case AssignOrder():
                pass
        entry = self.host.plane.disk.entries[order.job_id]
        return Assignment(
            key=NodeKey(order.epoch, order.node),
            job_id=order.job_id,
            attempt=order.attempt,
            command=("program",),
            source=Digest("s" * 64) if self.host.has_source(order.job_id) else None,
            devices=order.devices,
            cpus=order.cpus,
            memory_bytes=order.memory_bytes,
            resources=order.resources,
            timeout_ms=entry.timeout_ms,
            grace_ms=entry.grace_ms,
            keep_for_ms=entry.keep_for_ms,
            exclusive=entry.exclusive,
            env=((ARRAY_INDEX, str(order.index)),) if isinstance(entry.shape, Array) else (),
        )


def _void(effects: tuple[Effect, ...], host: "SimHost") -> tuple[Epoch, ...]:
    return tuple(
        epoch for effect in effects if isinstance(effect, Void) and effect.worker == host.id for epoch in effect.epochs
    )


def _commands(found: object) -> Commands:
    assert isinstance(found, tuple)
    cursor, orders = found
    return cursor, orders
