"""The shell around ``protocol.agent``: carries its actions out and tells it what came of them. It decides nothing.

One event loop. ``_feed`` is the only way into the machine; it runs to its end without waiting, and what has to wait
becomes a task that feeds its result back. Tasks belong to a group and, where they work for a node, to that node, so
that forgetting it ends them. What must be durable first is written inside ``_feed``, in the order given.

A failure of a node's own work is that node's, and a full disk ends what fills it; the loss of the spawner link and
other faults of the worker itself end the agent. Then whoever looks after it starts it again, and it finds everything.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, assert_never

from gpulayer.clock import Clock
from gpulayer.errors import (
    Conflict,
    GpulayerError,
    NotFound,
)
from gpulayer.faults import here
from gpulayer.ids import Epoch
from gpulayer.plugins.host import Host
from gpulayer.protocol.agent import AgentState, next_wake_ms, step
from gpulayer.protocol.messages import (
    AbandonStage,
    Action,
    Admit,
    CallOff,
    CollectOutputs,
    DiskFilled,
    DrainLog,
    Extend,
    FactsChanged,
    Finish,
    FollowLog,
    Forget,
    Hold,
    Input,
    Journal,
    KillTree,
    LogDrained,
    OutputsCollected,
    Phase,
    ProcessLost,
    Progress,
    Recovered,
    RecoveredNode,
    SaveContact,
    SendReport,
    SessionOpened,
    SignalTree,
    Spawn,
    SpawnFailed,
    SpawnPutOff,
    Stage,
    StopAllRequested,
    Ticked,
)
from gpulayer.spawner.messages import ExitRecord
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.wire.workers import SessionReply
from gpulayer.worker.contact import Contact
from gpulayer.worker.disk import Reserve, is_nearly_full
from gpulayer.worker.environments import Builds, Environments
from gpulayer.worker.facts import KnownFacts, Probing, devices_of
from gpulayer.worker.forgetting import Forgetting
from gpulayer.worker.frameworks import FrameworkChecks
from gpulayer.worker.giving_up import OUTPUTS_PATIENCE_MS, GivingUp
from gpulayer.worker.inputs import Inputs
from gpulayer.worker.journal import Journal as Folders
from gpulayer.worker.keeping import Keeper
from gpulayer.worker.network import LOOK_EVERY_S, NetworkWatch
from gpulayer.worker.node_logs import NodeLogs
from gpulayer.worker.node_work import NodeWork
from gpulayer.worker.occupancy import Lent
from gpulayer.worker.patience import Patience
from gpulayer.worker.plugin_records import PluginRecords
from gpulayer.worker.session import NotKnown, Plane, Superseded
from gpulayer.worker.settings import WorkerSettings
from gpulayer.worker.spawner_link import Attached, Exited, Output, SpawnerEvent, SpawnerLink, Stalled
from gpulayer.worker.stage import Stager
from gpulayer.worker.story import Story

__all__ = ["Agent"]

_log: Final = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 60.0
_Result = TypeVar("_Result")


class Agent:
    """One start of one worker. ``run`` returns when the worker has left in good order."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        plane: Plane,
        link: SpawnerLink,
        folders: Folders,
        reserve: Reserve,
        stager: Stager,
        host: Host,
        patience: Patience,
        builds: Builds,
        probing: Probing,
        checks: FrameworkChecks,
        facts: WorkerFacts,
        clock: Clock,
        boot: int,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._link = link
        self._folders = folders
        self._reserve = reserve
        self._keeper = Keeper(folders, reserve, settings.work_dir, worker_name=lambda: plane.worker_name)
        self._plugins = PluginRecords(host)
        self._checks = checks
        self._known = KnownFacts(
            facts, probing, checks.found, python=checks.python, python_version=checks.python_version
        )
        self._looked = self._known.facts
        self._environments = Environments(
            host, patience, builds, settings.work_dir, environment=settings.environment, start=self._start
        )
        self._work = NodeWork(
            feed=self._feed,
            plane=plane,
            link=link,
            folders=folders,
            keeper=self._keeper,
            stager=stager,
            host=host,
            patience=patience,
            known=self._known,
            environments=self._environments,
            inputs=Inputs(host, patience, folders, environment=settings.environment),
            make_way=checks.make_way,
            tell_machine=self._tell_machine,
        )
        probing.lent = self._lent
        self._network = NetworkWatch()
        self._clock = clock
        self._boot = boot
        self._state = AgentState(
            once=settings.once, cpus=facts.cpus, memory_bytes=facts.memory_bytes, resources=facts.resources
        )
        self._story = Story()
        self._contact = Contact(
            plane,
            self._state,
            feed=self._feed,
            known=self._known,
            plugins=self._plugins,
            story=self._story,
            clock=clock,
        )
        self._logs = NodeLogs(plane, self._work, giving_up=self._giving_up, start_for=self._start_for)
        self._forgetting = Forgetting(link, folders, start=self._start)
        self._inputs: deque[Input] = deque()
        self._is_feeding = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._put_off: tuple[NodeKey, Progress] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[NodeKey, set[asyncio.Task[None]]] = {}
        self._stages: dict[NodeKey, asyncio.Task[None]] = {}
        self._starts: dict[NodeKey, asyncio.Task[None]] = {}
        self._settled = asyncio.Event()
        self._finished = asyncio.Event()
        self._is_stop_wanted = False
        self._why_stopped = ""

    @property
    def removed(self) -> NotFound | NotKnown | Superseded | None:
        """How it was told that it has no place any more; None while it has."""
        return self._contact.removed

    def session_opened(self, session: SessionReply) -> None:
        """The control plane's terms hold from now on; it may be one that knows nothing of this worker's plugins."""
        self._plugins.tell_anew()
        self._feed(SessionOpened(session["heartbeat_ms"], session["lease_ttl_ms"]))

    def stop(self, why: str = "") -> None:
        """End all jobs, say so, and leave. May be repeated, and called before ``run``. why: for the jobs' records."""
        if not self._is_stop_wanted and self.removed is None:
            self._story.stopping(jobs=len(self._state.held))
        self._is_stop_wanted = True
        self._why_stopped = self._why_stopped or why
        if self._state.boot:
            self._feed_from_outside(StopAllRequested(evidence=self._why_stopped))

    async def run(self) -> None:
        """Raises what makes a worker unable to go on: the loss of its spawner link to another agent.

        Where the control plane has forgotten this worker, or serves another agent in its place, its jobs are killed,
        and ``removed`` says how it was told.
        """
        events = self._link.events()
        attached = await anext(events)
        assert isinstance(attached, Attached)
        # Before the first report, which carries the facts.
        self._known.set_enforced(attached.enforces)
        self._known.set_addresses(self._network.addresses, own=self._plane.local_address)
        await self._plugins.look()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._recover(attached)
                if self._is_stop_wanted:
                    self._feed(StopAllRequested(evidence=self._why_stopped))
                loops = [
                    group.create_task(self._watch_spawner(events), name="spawner events"),
                    group.create_task(self._watch_commands(), name="commands"),
                    group.create_task(self._watch_machine(), name="facts"),
                    group.create_task(self._watch_frameworks(), name="framework checks"),
                    group.create_task(self._plugins.watch(lambda: self._feed(FactsChanged())), name="plugin records"),
                    group.create_task(self._watch_network(), name="network"),
                    group.create_task(self._keeper.watch(), name="room"),
                    group.create_task(asyncio.to_thread(self._folders.sweep), name="sweep"),
                    group.create_task(asyncio.to_thread(self._environments.sweep), name="sweep of environments"),
                ]
                await self._finished.wait()
                self._environments.close()
                for task in (*loops, *(task for tasks in self._tasks.values() for task in tasks)):
                    task.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._folders.close()
        if not self._state.held:
            await self._shut_spawner_down()

    # The machine ------------------------------------------------------------------------------------------------------

    def _feed(self, event: Input) -> None:
        """Take one input in. An action that is answered at once feeds again: it queues behind the one being taken."""
        self._inputs.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._inputs:
                now_ms = self._clock.monotonic_ms()
                for action in step(self._state, self._inputs.popleft(), now_ms=now_ms):
                    self._carry_out(action)
            self._write_put_off()
        finally:
            self._is_feeding = False
        if self._state.is_settled:
            self._settled.set()
        self._arm()

    def _arm(self) -> None:
        """A timer that rings too early is left to: it looks again, and most of them are never reached."""
        wake_ms = next_wake_ms(self._state)
        if self._timer is not None:
            if wake_ms is not None and self._timer_ms <= wake_ms:
                return
            self._timer.cancel()
            self._timer = None
        if wake_ms is not None and self._group is not None:
            wait_s = max(0, wake_ms - self._clock.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._feed_tick)
            self._timer_ms = wake_ms

    def _feed_tick(self) -> None:
        self._timer = None
        wake_ms = next_wake_ms(self._state)
        if wake_ms is None or wake_ms > self._clock.monotonic_ms():
            self._arm()
        else:
            self._feed_from_outside(Ticked())

    def _feed_from_outside(self, event: Input) -> None:
        """From a timer or signal handler, which has nobody above it: the group hears of a failure."""
        try:
            self._feed(event)
        except Exception as error:
            self._start(_raise(error), "failed input")

    def _carry_out(self, action: Action) -> None:
        if self._put_off is not None and not isinstance(action, Journal | DrainLog | CollectOutputs):
            self._write_put_off()
        match action:
            case Admit(assignment):
                self._keeper.admit(assignment)
                here("agent.after_admission")
            case Journal(key, progress):
                if key in self._state.held and self._state.held[key].assignment.command:
                    self._write_progress(key, progress)
            case SaveContact(contact_ms):
                self._keeper.save_contact(contact_ms)
            case Stage(assignment):
                self._stages[assignment.key] = self._start_for(assignment.key, self._work.stage(assignment))
            case Hold(assignment):
                self._stages[assignment.key] = self._start_for(assignment.key, self._work.hold(assignment))
            case AbandonStage(key):
                task = self._stages.pop(key, None)
                if task is not None:
                    task.cancel()
            case Spawn(assignment, kill_by_ms):
                key = assignment.key
                self._starts[key] = self._start_for(key, self._work.spawn(assignment, kill_by_ms))
            case CallOff(key):
                start = self._starts.get(key)
                if start is not None and not start.done() and self._work.call_off(key):
                    start.cancel()
                    self._feed(SpawnPutOff(key))
            case Extend(key, kill_by_ms):
                self._start_for(key, self._work.extend(key, kill_by_ms))
            case FollowLog(key):
                assignment = self._state.held[key].assignment
                self._logs.follow(assignment, is_resumed=False)
                if assignment.limits.disk_bytes:
                    self._start_for(key, self._work.watch_usage(assignment))
            case SignalTree(key):
                self._start_for(key, self._work.signal_tree(key))
            case KillTree(key):
                self._start_for(key, self._work.kill_tree(key))
            case DrainLog(key):
                if self._logs.is_needless(key):
                    self._feed(LogDrained(key))
                else:
                    self._write_put_off()
                    self._logs.drain(self._state.held[key].assignment)
            case CollectOutputs(key):
                if self._folders.made_nothing(key):
                    self._feed(OutputsCollected(key, None))
                else:
                    self._write_put_off()
                    gives_up = self._giving_up(key, OUTPUTS_PATIENCE_MS)
                    self._start_for(key, self._work.collect(self._state.held[key].assignment, gives_up))
            case SendReport(plan):
                self._start(self._contact.report(plan), "report")
            case Forget(key):
                self._forget(key)
            case Finish():
                self._finished.set()
            case _:
                assert_never(action)

    def _write_progress(self, key: NodeKey, progress: Progress) -> None:
        self._story.progressed(self._state.held[key].assignment, progress, now_ms=self._clock.monotonic_ms())
        if self._put_off is not None and self._put_off[0] != key:
            self._write_put_off()
        self._put_off = None
        if progress.phase is Phase.DRAINING:
            # A tiny job that left nothing ends in this same turn: one line then says both.
            self._put_off = (key, progress)
        else:
            self._keeper.write(key, progress)

    def _write_put_off(self) -> None:
        """Before anything that others can see follows from it."""
        if self._put_off is not None:
            (key, progress), self._put_off = self._put_off, None
            self._keeper.write(key, progress)

    def _start(self, work: Coroutine[Any, Any, _Result], name: str) -> asyncio.Task[_Result]:
        assert self._group is not None
        return self._group.create_task(work, name=name)

    def _start_for(self, key: NodeKey, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._start(work, f"node {key}")
        tasks = self._tasks.setdefault(key, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # Start ------------------------------------------------------------------------------------------------------------

    async def _recover(self, attached: Attached) -> None:
        here("agent.before_recovery")
        rows = {row.key: row for row in attached.rows}
        nodes: list[RecoveredNode] = []
        for assignment, progress in await asyncio.to_thread(self._folders.load):
            row = rows.pop(str(assignment.key), None)
            process = None if row is None or row.exit is None else self._work.end_of(assignment, row.exit)
            if isinstance(process, SpawnFailed):
                process = None  # the machine asks the spawner to start it, and hears this again
            nodes.append(
                RecoveredNode(assignment, progress, is_running=row is not None and row.exit is None, process=process)
            )
        for key, row in rows.items():  # its folder is gone: nobody wants it any more
            self._forgetting.clear(key, is_running=row.exit is None)
        for node in nodes:
            self._story.found(node.assignment, node.progress.phase)
            if node.progress.phase is not Phase.STAGING and node.progress.phase is not Phase.ENDED:
                self._logs.follow(node.assignment, is_resumed=True)
        contact_ms, has_rebooted = self._folders.contact_ms(), self._folders.has_rebooted()
        self._feed(Recovered(self._boot, tuple(nodes), contact_ms, has_rebooted))

    # Loops ------------------------------------------------------------------------------------------------------------

    async def _watch_spawner(self, events: Any) -> None:  # Any: the async iterator that the link hands out
        async for event in events:
            self._hear(event)
        if not self._finished.is_set():
            raise Conflict("the link to the spawner was closed")

    def _hear(self, event: SpawnerEvent) -> None:
        match event:
            case Output():
                self._logs.grown(_key_of(event.key), event.stream)
            case Exited():
                self._ended(event.record)
            case Attached():
                if self._known.set_enforced(event.enforces):
                    self._feed(FactsChanged())
                rows = {row.key: row for row in event.rows}
                for held in list(self._state.held.values()):
                    row = rows.get(str(held.key))
                    if row is None and held.phase is Phase.RUNNING:
                        self._feed(ProcessLost(held.key, "the spawner was lost, and the program with it"))
                    elif row is not None and row.exit is not None:
                        self._ended(row.exit)
                    self._logs.grown(held.key)
                for text, row in rows.items():  # it heard late what was given up long ago
                    if row.exit is None and _key_of(text) not in self._state.held:
                        self._forgetting.clear(text, is_running=True)
            case Stalled():
                self._stalled(event)
            case _:
                assert_never(event)

    def _stalled(self, event: Stalled) -> None:
        """Told again and again while it lasts."""
        held = self._state.held.get(_key_of(event.key))
        if event.is_draining:
            self._reserve.release()  # for the last words of a program that is dead and can't take more
        elif held is not None and held.stop is None:
            _log.warning("output of %s waits: %s", event.key, event.message)
            self._feed(DiskFilled(held.key, self._keeper.full_text(event.errno)))

    def _ended(self, record: ExitRecord) -> None:
        key = _key_of(record.key)
        here("agent.after_exit")
        if key in self._state.held:
            assignment = self._state.held[key].assignment
            self._feed(self._work.end_of(assignment, record))
            if record.survivors and assignment.devices:
                self._start(self._work.why_unusable(assignment.devices), "looking at devices")
        elif record.reason != "spawn_failed":
            self._forgetting.clear(record.key, is_running=False)

    async def _watch_commands(self) -> None:
        await self._settled.wait()
        await self._contact.listen()

    async def _watch_machine(self) -> None:
        look = self._known.catch_up
        while True:
            if await look():
                self._tell_machine()
            retry_in_s = self._known.retry_in_s
            look = self._known.look_again if retry_in_s is None else self._known.retry
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S if retry_in_s is None else retry_in_s):
                    await self._known.until_left()
                    look = self._known.look_again

    def _tell_machine(self) -> None:
        """A look has found something new."""
        before, facts = self._looked, self._known.facts
        self._looked = facts
        self._feed(FactsChanged(facts.cpus, facts.memory_bytes, facts.resources))
        if devices_of(before) != devices_of(facts):
            self._checks.renew(before, facts)

    def _lent(self) -> Mapping[str, Lent] | None:
        if not self._state.boot:
            return None
        running = (held for held in self._state.held.values() if held.phase in (Phase.SPAWNING, Phase.RUNNING))
        return {
            device: Lent(str(held.key), is_running=held.phase is Phase.RUNNING)
            for held in running
            for device in held.assignment.devices
        }

    async def _watch_frameworks(self) -> None:
        def tell() -> None:
            python, version = self._checks.python, self._checks.python_version
            if self._known.set_frameworks(self._checks.found, python=python, python_version=version):
                self._feed(FactsChanged())

        def taken() -> set[str]:
            return {device for held in self._state.held.values() for device in held.assignment.devices}

        await self._checks.watch(lambda: self._known.facts, tell=tell, taken=taken)

    async def _watch_network(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            why = self._network.look(own=self._plane.local_address)
            if why:
                _log.info("%s: connecting anew", why)
                self._plane.forget_connections()
                self._feed(Ticked())  # what fell due meanwhile; timers of a process stand still while a machine sleeps
            if self._known.set_addresses(self._network.addresses, own=self._plane.local_address):
                self._feed(FactsChanged())

    # Actions that wait ------------------------------------------------------------------------------------------------

    def _giving_up(self, key: NodeKey, patience_ms: int) -> GivingUp:
        return GivingUp(self._clock.monotonic_ms, lambda: self._has_failed_for_room(key), patience_ms)

    def _has_failed_for_room(self, key: NodeKey) -> bool:
        """It ended for want of room; or it failed, and there is next to none: who fills a disk may lose the race to see
        it full."""
        held = self._state.held.get(key)
        if held is None or held.outcome is None or held.outcome.is_success:
            return False
        return held.outcome.ended_by is EndedBy.DISK_FULL or is_nearly_full(self._folders.site(key).work_dir)

    def _forget(self, key: NodeKey) -> None:
        self._story.forgotten(key)
        self._keeper.forget(key)
        self._work.forget(key)
        self._logs.forget(key)
        self._stages.pop(key, None)
        self._starts.pop(key, None)
        current = asyncio.current_task()
        for task in self._tasks.pop(key, ()):
            if task is not current:
                task.cancel()
        self._checks.freed()
        self._forgetting.forget(key)

    async def _shut_spawner_down(self) -> None:
        try:
            await self._link.shutdown()
        except GpulayerError as error:
            _log.warning("the spawner stays: %s", error.message)


def _key_of(text: str) -> NodeKey:
    epoch, _, node = text.partition(".")
    return NodeKey(Epoch(int(epoch)), int(node))


async def _raise(error: Exception) -> None:
    raise error
