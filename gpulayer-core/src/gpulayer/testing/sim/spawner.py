"""A simulated host's spawner, its watchdog, and the programs that they start and end.

The table of processes outlives both, as their files do. What the watchdog does when the spawner dies, and what the next
spawner does before it starts anything, is in ``gpulayer.spawner`` (``watchdog``, ``recovery``), which the tests there
prove on real processes; here it is the part that they play.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from gpulayer.protocol import messages as m
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.testing.sim.clockwork import spread_ms
from gpulayer.testing.sim.parts import Part

if TYPE_CHECKING:
    from gpulayer.testing.sim.host import SimHost

__all__ = ["WRITEBACK_MS", "Process", "SimSpawner"]

WATCHDOG_MS: Final = (
    2_250  # it sees that the spawner does not do what it should have done (``spawner.lifeline.Patience``)
)
_SIGKILL: Final = 9
WRITEBACK_MS: Final = 30_000  # what is older than that has reached the disk by itself


@dataclass(slots=True)
class Process:
    """A program's tree. ``end``: as the spawner or its watchdog has recorded it. ends_ms: true time at which it ends by
    itself. exit_code: of one that has ended, which nobody may have recorded yet. is_orphan: nobody watches it."""

    assignment: Assignment
    began_ms: int
    ends_ms: int
    exit_code: int
    kill_by_ms: int
    known_ms: int = 0  # true time at which the last was written down of it
    is_alive: bool = True
    is_orphan: bool = False
    is_signalled: bool = False
    end: m.ProcessExited | m.ProcessLost | None = None


@dataclass(slots=True)
class SimSpawner:
    """``is_up``: it takes requests. ``has_watchdog``: somebody ends everything when it dies, or is stuck."""

    host: "SimHost"
    is_up: bool = False
    has_watchdog: bool = False
    processes: dict[NodeKey, Process] = field(default_factory=dict)
    _life: int = 0
    _is_starting: bool = False
    _then: Callable[[], None] | None = None

    @property
    def alive(self) -> list[Process]:
        """What runs, or is stopped and would."""
        return [process for process in self.processes.values() if process.is_alive]

    def start(self, then: Callable[[], None]) -> None:
        """A new one: first it ends and records what is left of those before it. May be repeated. The folder's lock
        keeps it away for as long as the watchdog of the last one is at work."""
        if self.is_up:
            then()
            return
        self._then = then  # of the agent that asked last
        if self._is_starting:
            return
        if self.has_watchdog:
            self.host.piece.after(200, lambda: self.host.run(Part.AGENT, self._start_again))
            return
        self._is_starting = True
        self._life += 1
        life = self._life

        def ready() -> None:
            self._is_starting = False
            self.is_up = True
            self.host.clock.over("spawner", self.host.id, f"{self.host.id} has a spawner again")
            if self._then is not None:
                self._then()

        def end_leftovers() -> None:
            if life != self._life:
                return
            for key, process in self.processes.items():
                self._record(key, process, m.ProcessLost(key, "the spawner or the host died while it ran"))
            self.has_watchdog = True
            self._timer(spread_ms(self.host.numbers, 20), ready)

        self._timer(spread_ms(self.host.numbers, 150), end_leftovers)

    def _start_again(self) -> None:
        if self._then is not None:
            self.host.need_spawner(self._then)

    def die(self, *, with_watchdog: bool = False) -> None:
        """Its watchdog ends every tree at once and keeps the exit codes of those that had ended; else they live on."""
        self._life += 1
        self.is_up = self._is_starting = False
        self.host.drop_late(Part.SPAWNER)
        self.host.clock.went_wrong("spawner", self.host.id)
        if with_watchdog:
            self.has_watchdog = False
            for process in self.processes.values():
                process.is_orphan = process.is_alive
        else:
            self.host.run(Part.WATCHDOG, self._clean_up)
        self.host.spawner_lost()

    def lose_power(self, rng: Random) -> None:
        """Nothing is left, and nobody has written down how it ended. Neither the table nor what was recorded of an end
        is synced: of what is new some is gone."""
        self._life += 1
        self.is_up = self.has_watchdog = self._is_starting = False
        since_ms = self.host.clock.now_ms - WRITEBACK_MS
        for key, process in list(self.processes.items()):
            process.is_alive = False
            if process.began_ms > since_ms and rng.random() < 0.5:
                del self.processes[key]
            elif process.end is None or (process.known_ms > since_ms and rng.random() < 0.5):
                process.end = m.ProcessLost(key, "the machine lost power")

    # Requests of the agent: only while it is up ----------------------------------------------------------------------

    def spawn(self, assignment: Assignment, kill_by_ms: int) -> Process | None:
        """Once a key: repeated, it gives what is known. None: what should be over by now is not begun."""
        key, host = assignment.key, self.host
        known = self.processes.get(key)
        if known is not None:
            return known
        if host.piece.now_ms >= kill_by_ms:
            return None
        run_ms, exit_code, _ = host.programs(assignment)
        process = Process(assignment, host.clock.now_ms, host.clock.now_ms + run_ms, exit_code, kill_by_ms)
        if host.clock.story is not None:
            host.clock.story.began(host.clock.now_ms, host.id, assignment)
        host.guard.started(host, process)
        self.processes[key] = process
        self.extend(key, kill_by_ms)
        self._wait_for_end(key, process)
        return process

    def extend(self, key: NodeKey, kill_by_ms: int) -> bool:
        """It ends the tree at this time, whether or not the agent is there, or its watchdog does. False where it does
        not know it."""
        process = self.processes.get(key)
        if process is None:
            return False
        process.kill_by_ms = kill_by_ms
        piece = self.host.piece

        def is_over(late_ms: int = 0) -> bool:
            return process.is_alive and piece.now_ms >= process.kill_by_ms + late_ms

        def end_late() -> None:
            if is_over():
                self._end(key, m.ProcessLost(key, "the agent did not extend its time", is_expired=True))

        def look_after() -> None:
            if is_over(WATCHDOG_MS) and self.has_watchdog:
                self.host.clock.say(f"the watchdog of {self.host.id} ends the spawner, which is stuck")
                self.die()

        left_ms = kill_by_ms - piece.now_ms
        self._timer(left_ms, end_late)
        piece.after(left_ms + WATCHDOG_MS, lambda: self.host.run(Part.WATCHDOG, look_after))
        return True

    def signal(self, key: NodeKey) -> None:
        """SIGTERM to the tree."""
        process = self.processes.get(key)
        if process is not None and process.is_alive and not process.is_signalled:
            process.is_signalled = True
            after_term_ms = self.host.programs(process.assignment)[2]
            process.ends_ms = min(process.ends_ms, self.host.clock.now_ms + after_term_ms)
            self._wait_for_end(key, process)

    def kill(self, key: NodeKey) -> None:
        """SIGKILL; what is stopped dies of it as well."""
        self._end(key, m.ProcessExited(key, signal=_SIGKILL))

    def forget(self, key: NodeKey) -> bool:
        """False where it still runs."""
        process = self.processes.get(key)
        if process is not None and process.is_alive:
            return False
        self.processes.pop(key, None)
        return True

    def gone_on(self, stopped_ms: int) -> None:
        """The programs were stopped for so long of true time."""
        for key, process in self.processes.items():
            if process.is_alive:
                process.ends_ms += min(stopped_ms, self.host.clock.now_ms - process.began_ms)
                self._wait_for_end(key, process)

    # Ends ------------------------------------------------------------------------------------------------------------

    def _wait_for_end(self, key: NodeKey, process: Process) -> None:
        at_ms = process.ends_ms

        def ended() -> None:
            if not process.is_alive or process.ends_ms != at_ms or self.host.is_stopped(Part.PROGRAMS):
                return
            process.is_alive = False
            life = self._life
            if not process.is_orphan:
                self.host.run(Part.SPAWNER, lambda: self._reap(key, process) if life == self._life else None)

        self.host.clock.after(at_ms - self.host.clock.now_ms, ended)

    def _reap(self, key: NodeKey, process: Process) -> None:
        if process.end is None:
            ran_ms = int((self.host.clock.now_ms - process.began_ms) * self.host.piece.rate)
            process.end = m.ProcessExited(key, exit_code=process.exit_code, ran_ms=ran_ms)
            process.known_ms = self.host.clock.now_ms
            self.host.tell_agent(process.end)

    def _end(self, key: NodeKey, end: m.ProcessExited | m.ProcessLost) -> None:
        process = self.processes.get(key)
        if process is None or not process.is_alive:
            return
        process.is_alive, process.end, process.known_ms = False, end, self.host.clock.now_ms
        if isinstance(end, m.ProcessLost) and end.is_expired:
            self.host.guard.gave_up(self.host, process.assignment)
        self.host.tell_agent(end)

    def _clean_up(self) -> None:
        """What the watchdog does."""
        if not self.has_watchdog:
            return
        self.has_watchdog = False
        for key, process in self.processes.items():
            if not process.is_alive and process.end is None:
                process.end, process.known_ms = (
                    m.ProcessExited(key, exit_code=process.exit_code),
                    self.host.clock.now_ms,
                )
            self._record(key, process, m.ProcessLost(key, "the spawner died"))

    def _record(self, key: NodeKey, process: Process, lost: m.ProcessLost) -> None:
        process.is_alive = process.is_orphan = False
        if process.end is None:
            process.end, process.known_ms = lost, self.host.clock.now_ms

    def _timer(self, delay_ms: int, what: Callable[[], None]) -> None:
        life = self._life
        self.host.piece.after(
            delay_ms, lambda: self.host.run(Part.SPAWNER, lambda: what() if life == self._life else None)
        )
