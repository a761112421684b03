"""A simulated machine: its clock and disk, its agent and spawner, and all that can happen to it.

Parts of it may die and come back or be stopped for a while (SIGSTOP, a debugger, a machine that swaps); all of it may
sleep (its clock goes on), lose power (its clock begins anew, and of what it wrote last some is gone), or be taken away.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Final

from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.protocol import messages as m
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.testing.sim.agent import SimAgent
from gpulayer.testing.sim.clockwork import Clockwork, Timepiece
from gpulayer.testing.sim.network import Network
from gpulayer.testing.sim.parts import EVERYTHING, Part
from gpulayer.testing.sim.plane import SimPlane
from gpulayer.testing.sim.scenario import Fault, HostPlan, Trouble
from gpulayer.testing.sim.spawner import WRITEBACK_MS, Process, SimSpawner
from gpulayer.testing.sim.troubles import NEED_POWER
from gpulayer.testing.sim.words import listed

if TYPE_CHECKING:
    from gpulayer.testing.sim.guard import Guard

__all__ = ["HostDisk", "SimHost", "facts_of"]

STUCK_MS: Final = 40_000  # so long a spawner may give no sign of life (``worker.spawner_pulse``)
COPY_BOOTS: Final = 1_000  # above all that the original may have come to meanwhile (``Identities.follow``)
START_AGAIN_MS: Final = 5_000
FOR_EVER_MS: Final = 10**9
LEAVING_MS: Final = 30_000  # what an agent takes to end, and then some
STUMBLES: Final = 0.3  # of the programs on a disk that is full


def facts_of(plan: HostPlan, name: str) -> WorkerFacts:
    """What its probes say when they tell the truth. Devices are joined in pairs, the last one of three to nobody."""
    return WorkerFacts(
        platform="linux-x86_64",
        version="0.1.0",
        cpus=plan.cpus,
        memory_bytes=plan.memory_bytes,
        resources=(("licence", plan.licences),) if plan.licences else (),
        devices=tuple(
            Device(
                f"GPU-{name}-{index}",
                index,
                Accelerator.CUDA,
                "NVIDIA A100",
                40 * 10**9,
                links=((f"GPU-{name}-{index ^ 1}", "NV12"),) if index ^ 1 < plan.gpus else (),
            )
            for index in range(plan.gpus)
        ),
    )


@dataclass(slots=True)
class HostDisk:
    """Folders of attempts with all that was ever noted of their progress, and the last contact. ``is_full``: nothing
    can be written. missed_ms: the last contact that was not saved for that."""

    clock: Clockwork
    is_full: bool = False
    folders: dict[NodeKey, tuple[Assignment, list[tuple[int, m.Progress]]]] = field(default_factory=dict)
    contact_ms: int | None = None  # of this boot
    missed_ms: int = -(10**9)
    _is_old: bool = False  # the file is there, and of an earlier boot
    _saved_ms: int = 0  # true time

    def admit(self, assignment: Assignment) -> bool:
        """Whether it could."""
        if not self.is_full:
            self.folders[assignment.key] = (assignment, [(self.clock.now_ms, m.Progress(m.Phase.STAGING))])
        return not self.is_full

    def write(self, key: NodeKey, progress: m.Progress) -> bool:
        """Whether it could; what was never admitted is not written either, and that is all right."""
        if key in self.folders and not self.is_full:
            self.folders[key][1].append((self.clock.now_ms, progress))
        return not self.is_full

    @property
    def has_rebooted(self) -> bool:
        """What has folders, and no contact that was saved since it started, is taken for one that did."""
        return self.contact_ms is None and (self._is_old or bool(self.folders))

    def save_contact(self, contact_ms: int) -> None:
        if self.is_full:
            self.missed_ms = contact_ms
        else:
            self.contact_ms, self._is_old, self._saved_ms = contact_ms, False, self.clock.now_ms

    def forget(self, key: NodeKey) -> None:
        self.folders.pop(key, None)

    def nodes(self) -> dict[NodeKey, tuple[Assignment, m.Progress]]:
        """As a new agent reads them."""
        return {key: (assignment, lines[-1][1]) for key, (assignment, lines) in self.folders.items()}

    def copied(self) -> "HostDisk":
        """As another machine reads it, whose boot is another."""
        folders = {key: (assignment, list(lines)) for key, (assignment, lines) in self.folders.items()}
        return HostDisk(self.clock, folders=folders, _is_old=True)

    def lose_power(self, rng: Random) -> None:
        """Nothing of it is synced: of each folder's last lines some are gone, or all of it where it is new, and what
        was written of the last contact may be torn."""
        is_torn = self._saved_ms > self.clock.now_ms - WRITEBACK_MS and rng.random() < 0.5
        self._is_old = (self._is_old or self.contact_ms is not None) and not is_torn
        self.contact_ms, self.missed_ms = None, -(10**9)  # it is of this boot alone
        for key, (_, lines) in list(self.folders.items()):
            while lines and lines[-1][0] > self.clock.now_ms - WRITEBACK_MS and rng.random() < 0.5:
                lines.pop()
            if not lines:
                del self.folders[key]

    def lose_all(self) -> None:
        """Another disk, an empty one."""
        self.folders.clear()
        self.contact_ms, self._is_old, self.missed_ms = None, False, -(10**9)


@dataclass(frozen=True, slots=True)
class HostFolder:
    """A copy of a worker's folder, as it was at one moment."""

    disk: HostDisk
    table: tuple[Process, ...]

    @classmethod
    def of(cls, host: "SimHost") -> "HostFolder":
        return cls(host.disk.copied(), tuple(replace(process) for process in host.spawner.processes.values()))


@dataclass(slots=True)
class SimHost:
    """``agent`` is None while it is down. ``contact_ms``: send time of the last report whose answer came, on this
    boot's clock. most_cpus: the most that it has claimed to have since it last had nothing to do. went_on_ms: true
    time at which each part last did. is_dark: without power. is_gone: for ever. kept_ms: what it must know of its last
    contact when its agent starts anew.

    line: its name in the network; of a copy of another one's folder its id is the first word of that. copied: of a copy
    that has not been heard of; called when it is. is_superseded: it has heard that it has lost its place to one."""

    id: WorkerId
    plan: HostPlan
    clock: Clockwork
    network: Network
    plane: SimPlane
    programs: Callable[[Assignment], tuple[int, int, int]]  # run time, exit code, time it needs after SIGTERM
    guard: "Guard"
    has_source: Callable[[JobId], bool]
    piece: Timepiece = field(init=False)
    disk: HostDisk = field(init=False)
    spawner: SimSpawner = field(init=False)
    facts: WorkerFacts = field(init=False)
    facts_digest: Digest = field(init=False)
    numbers: Random = field(init=False)
    agent: SimAgent | None = None
    boots: int = 0
    most_cpus: int = 0
    contact_ms: int = 0
    kept_ms: int | None = None
    went_on_ms: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, -(10**9)))
    staging_failure: float = 0.0
    launch_failure: float = 0.0
    enrol: Callable[[], None] = lambda: None
    is_enrolled: bool = False
    line: str = ""
    copied: Callable[[], None] | None = None
    is_superseded: bool = False
    is_gone: bool = False
    is_dark: bool = False
    _stops: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, 0))
    _late: dict[Part, list[Callable[[], None]]] = field(default_factory=lambda: {part: [] for part in Part})
    _since_ms: int = 0  # since when its programs are stopped
    _starts: int = 0  # of agents, also of those that come to nothing
    _back_ms: int = 0  # after its end in good order
    _strangers: int = 0

    def __post_init__(self) -> None:
        self.line = self.line or self.id
        self.piece = Timepiece(self.clock, self.plan.rate, self.plan.wall_ms)
        self.disk, self.spawner = HostDisk(self.clock), SimSpawner(self)
        self.numbers = self.clock.numbers("host's", self.id)
        self.staging_failure, self.launch_failure = self.plan.staging_failure, self.plan.launch_failure
        self._claim(facts_of(self.plan, self.id))

    # Its parts ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The agent starts (again), and a spawner where there is none."""
        if self.agent is not None or self.is_gone or self.is_dark or not self.is_enrolled:
            return
        if self.disk.is_full:
            self._start_in(START_AGAIN_MS)  # it can't even keep the number of its start
            return
        self.boots += 1
        self.agent = agent = SimAgent(self)
        self.clock.say(f"start {self.boots} of the agent of {self.id}")
        boot = self.boots

        def begin() -> None:
            if self.agent is agent and not agent.is_begun:
                agent.begin(boot)

        if self.spawner.is_up:
            self.run(Part.SPAWNER, begin)
            self._end_stuck(agent)
        else:
            self.need_spawner(begin)

    def need_spawner(self, then: Callable[[], None]) -> None:
        """The agent starts one; ``then`` is after it has done with what the last one left."""
        if self.agent is not None:
            self.spawner.start(then)

    def spawner_lost(self) -> None:
        """The agent's link is broken, and it starts another one."""
        agent = self.agent
        if agent is None:
            return
        if agent.is_begun:
            self.run(Part.AGENT, lambda: self.need_spawner(agent.attached))
        else:
            boot = self.boots

            def begin() -> None:
                if self.agent is agent and not agent.is_begun:
                    agent.begin(boot)

            self.run(Part.AGENT, lambda: self.need_spawner(begin))

    def tell_agent(self, event: m.Input) -> None:
        """Over the link, if somebody is there."""
        agent = self.agent
        if agent is not None and agent.is_begun:
            self.piece.after(1, lambda: agent.feed(event))

    def hear(self, what: Callable[[], None]) -> None:
        """A message has come; a machine that sleeps or is off does not."""
        if not self.is_dark and not self.is_gone:
            what()

    def copy_from(self, other: "SimHost", folder: "HostFolder") -> None:
        """It has the folder of that one as it was, and nothing of its processes."""
        self.disk = folder.disk
        self.boots = other.boots + COPY_BOOTS
        for process in folder.table:
            key = process.assignment.key
            lost = m.ProcessLost(key, "it is not known how it ended")
            self.spawner.processes[key] = replace(process, is_alive=False, is_orphan=False, end=process.end or lost)

    def arrived(self) -> bool:
        """A request of it has, at the control plane: whether it is answered. A copy takes the place of all before it,
        as ``server.starts`` has it, where whoever starts last does."""
        if self.copied is not None:
            self.plane.seats[self.id] = self.line
            copied, self.copied = self.copied, None
            copied()
        return self.has_seat

    @property
    def has_seat(self) -> bool:
        """No copy of its folder has its place."""
        return self.plane.seats.get(self.id, self.id) == self.line

    @property
    def is_whole(self) -> bool:
        """Agent, spawner and watchdog are there and at work."""
        agent, spawner = self.agent, self.spawner
        is_there = agent is not None and agent.is_begun and spawner.is_up and spawner.has_watchdog
        return is_there and not self.is_dark and not any(self._stops.values())

    def is_stopped(self, part: Part) -> bool:
        return self._stops[part] > 0

    def run(self, part: Part, what: Callable[[], None]) -> None:
        """Now, or when that part goes on. Lost where it has died by then and whoever asked does not care."""
        if self._stops[part]:
            self._late[part].append(what)
        else:
            what()

    def drop_late(self, part: Part) -> None:
        """What waited for that part died with it, and what comes next is not stopped."""
        self._late[part].clear()
        self._stops[part] = 0

    # Troubles -----------------------------------------------------------------------------------------------------

    def why_not(self, fault: Fault) -> str:
        """Why nothing would come of this one now; empty where something does."""
        kind, agent = fault.kind, self.agent
        if kind in NEED_POWER and self.is_dark:
            return "it has no power"
        is_there = agent is not None and (agent.is_begun or kind is not Trouble.AGENT_LEAVES)
        if kind in (Trouble.AGENT_DIES, Trouble.AGENT_LEAVES) and not is_there:
            return "it is not running"
        if kind in (Trouble.SPAWNER_DIES, Trouble.WATCHDOG_AND_SPAWNER_DIE) and not self.spawner.is_up:
            return "it is not running"
        if not self.plan.gpus and (kind is Trouble.STRANGER or (kind is Trouble.PROBE_LIES and fault.amount != 1)):
            return "it has no GPUs"
        return ""

    def crash_agent(self, restart_ms: int) -> None:
        """Processes and disk stay."""
        if self.agent is None:
            return
        self._trouble(Trouble.AGENT_DIES, restart_ms)
        self._lose_agent()
        self._start_in(restart_ms)

    def leave(self, back_ms: int) -> None:
        """Its agent ends its work and itself, and is started again so long after that."""
        if self.agent is None or not self.agent.is_begun:
            return
        self._trouble(Trouble.AGENT_LEAVES, back_ms + LEAVING_MS)
        self._back_ms = back_ms
        self.agent.feed(m.StopAllRequested(evidence="somebody stopped the worker"))

    def left(self, *, is_removed: bool) -> None:
        """Its agent has ended in good order. Who was removed joins again."""
        self._lose_agent()
        if self.is_superseded:
            self.is_gone = True
        elif is_removed:
            self.is_enrolled = False
            self.enrol()
        else:
            self._start_in(self._back_ms)

    def let_stranger(self, lasts_ms: int) -> None:
        """Its devices are in use for so long, and no probe sees it."""
        self._trouble(Trouble.STRANGER, lasts_ms)
        self._strangers += 1
        if self.plan.gpus:
            self.clock.went_wrong("devices", self.id)

        def go() -> None:
            self._strangers = max(0, self._strangers - 1)
            if not self._strangers:
                self.clock.over("devices", self.id, f"the devices of {self.id} are free again")

        self.clock.after(lasts_ms, go)

    @property
    def is_taken(self) -> bool:
        """Its devices are, by somebody else."""
        return self._strangers > 0

    def crash_spawner(self, *, with_watchdog: bool) -> None:
        """Where the agent lives it starts another one; else the next agent does."""
        if not self.spawner.is_up:
            return
        self._trouble(Trouble.WATCHDOG_AND_SPAWNER_DIE if with_watchdog else Trouble.SPAWNER_DIES, 5_000)
        self.spawner.die(with_watchdog=with_watchdog)

    def stop(self, cause: Trouble, parts: tuple[Part, ...], lasts_ms: int) -> None:
        """These parts do nothing for so long of true time, then find all that has come meanwhile."""
        if self.is_dark or self.is_gone:
            return
        self._trouble(cause, lasts_ms)
        agent = self.agent
        for part in parts:
            if part is Part.PROGRAMS and not self._stops[part]:
                self._since_ms = self.clock.now_ms
            self._stops[part] += 1
        self.clock.after(lasts_ms, lambda: self._go_on(parts))
        if Part.SPAWNER in parts and agent is not None:
            self._end_stuck(agent)

    def lose_power(self, cause: Trouble, off_ms: int) -> None:
        """All processes die; of what was written last some is gone, or all that it knew of jobs (``LOSES_DISK``)."""
        if self.is_dark or self.is_gone:
            return
        self._trouble(cause, off_ms)
        self._go_dark(cause)
        if not self.is_gone:
            self.clock.after(off_ms, self._power_on)

    def take_away(self) -> None:
        """Its provider was asked to."""
        if not self.is_gone:
            self.clock.say(f"{self.id} is given back to its provider")
            self._go_dark(Trouble.SPOT_LOST)

    def _go_dark(self, cause: Trouble) -> None:
        self._lose_agent()
        for part in EVERYTHING:
            self.drop_late(part)
        rng = self.clock.numbers("power", self.id)
        self.spawner.lose_power(self.clock.numbers("power of its table", self.id))
        if cause is Trouble.LOSES_DISK:
            self.disk.lose_all()
            self.spawner.processes.clear()
        self.disk.lose_power(rng)
        self.kept_ms = None
        self.is_dark = True
        self.is_gone = cause is Trouble.SPOT_LOST
        if self.is_gone:
            self.clock.trouble(self.id, FOR_EVER_MS)

    def fill_disk(self, lasts_ms: int) -> None:
        """Nothing can be written for so long."""
        self._trouble(Trouble.DISK_FULL, lasts_ms)
        self.disk.is_full = True
        self.clock.went_wrong("disk", self.id)
        self.clock.after(lasts_ms, self.make_room)
        agent, rng = self.agent, self.clock.numbers("full disk", self.id)
        if agent is not None:
            for key in [key for key, held in agent.state.held.items() if held.started_ms is not None]:
                if rng.random() < STUMBLES:
                    agent.feed(m.DiskFilled(key, "no space left on device"))

    def make_room(self) -> None:
        """It can be written again."""
        self.disk.is_full = False
        self.clock.over("disk", self.id, f"the disk of {self.id} has room again")

    def jump(self, ms: int) -> None:
        """Its wall clock does."""
        self.clock.fault(Trouble.WALL_JUMPS, self.id, after_ms=0)
        self.piece.wall_ms += ms

    def lie(self, kind: int, lasts_ms: int) -> None:
        """Its probe says what is not so, and then the truth again."""
        self._trouble(Trouble.PROBE_LIES, lasts_ms)
        truth = facts_of(self.plan, self.id)
        lies = (
            replace(truth, devices=truth.devices[:-1]),
            replace(truth, cpus=self.clock.numbers("lies", self.id).choice([1, 2, 4])),
            replace(truth, devices=truth.devices[1:]),
            replace(truth, devices=()),
        )
        turns = 9 if kind == 2 else 1
        for turn in range(turns):
            at_ms = lasts_ms * turn // turns
            is_lie = turn % 2 == 0
            self.clock.after(
                at_ms,
                lambda is_lie=is_lie: self._claim(lies[kind]) if is_lie else self.be_honest(),  # type: ignore[misc]
            )
        if self.plan.gpus or kind == 1:
            self.clock.went_wrong("probe", self.id)

        def well() -> None:
            self.be_honest()
            self.clock.over("probe", self.id, f"the probe of {self.id} is right again")

        self.clock.after(lasts_ms, well)

    def be_honest(self) -> None:
        """Its probe says what is so."""
        self._claim(facts_of(self.plan, self.id))

    def rest(self) -> None:
        """Nothing goes wrong here any more."""
        self.staging_failure = self.launch_failure = 0.0
        self._strangers = 0
        self.make_room()
        self.be_honest()
        while any(self._stops.values()):
            self._go_on(tuple(part for part in EVERYTHING if self._stops[part]))

    # ---------------------------------------------------------------------------------------------------------------

    def _trouble(self, kind: Trouble, lasts_ms: int) -> None:
        self.clock.fault(kind, self.id, lasts_ms=lasts_ms)

    def _go_on(self, parts: tuple[Part, ...]) -> None:
        if not any(self._stops[part] for part in parts):
            return
        there = [part for part in parts if part is not Part.AGENT or self.agent is not None]
        go_on = [part for part in there if self._stops[part] == 1]
        if go_on:
            is_all = len(parts) == len(EVERYTHING) and go_on == there
            who = f"everything on {self.id}" if is_all else f"the {listed(go_on)} of {self.id}"
            self.clock.say(f"{who} {'goes' if is_all or len(go_on) == 1 else 'go'} on")
        for part in parts:
            if self._stops[part]:
                self._stops[part] -= 1
                self.went_on_ms[part] = self.clock.now_ms
                if part is Part.PROGRAMS and not self._stops[part]:
                    self.spawner.gone_on(self.clock.now_ms - self._since_ms)
        # Who goes on first is chance; here whoever ends things does, and programs last.
        for part in (Part.WATCHDOG, Part.SPAWNER, Part.AGENT):
            if not self._stops[part]:
                late, self._late[part] = self._late[part], []
                for what in late:
                    self.run(part, what)

    def _lose_agent(self) -> None:
        self.agent = None
        self.drop_late(Part.AGENT)

    def _start_in(self, delay_ms: int) -> None:
        self._starts += 1
        number = self._starts
        self.clock.after(delay_ms, lambda: self.start() if number == self._starts else None)

    def _power_on(self) -> None:
        self.is_dark = False
        self.clock.say(f"{self.id} has power again")
        self.piece.restart()
        self.contact_ms = 0
        self.start()

    def _end_stuck(self, agent: SimAgent) -> None:
        """The agent has heard nothing of the spawner for so long: it ends it."""

        def look() -> None:
            if self.agent is agent and self.is_stopped(Part.SPAWNER):
                self.clock.say(f"the agent of {self.id} ends a spawner that is stuck")
                self.spawner.die()

        self.piece.after(STUCK_MS, lambda: self.run(Part.AGENT, look))

    def _claim(self, facts: WorkerFacts) -> None:
        is_idle = not self.spawner.alive and self.agent is not None and not self.agent.is_at_work
        self.most_cpus = facts.cpus if is_idle else max(self.most_cpus, facts.cpus)
        if getattr(self, "facts", None) == facts:
            return
        self.facts, self.facts_digest = facts, Digest(sha256(repr(facts).encode()).hexdigest())
        agent = self.agent
        if agent is not None and agent.is_begun:
            agent.feed(m.FactsChanged(facts.cpus, facts.memory_bytes, facts.resources))
