"""What must be true of the hosts' side of the world, whatever happens to it: counted and timed apart from the code that
decides it."""

from dataclasses import dataclass, field
from typing import Final

from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.job import JobEntry
from gpulayer.testing.sim.clockwork import Clockwork
from gpulayer.testing.sim.host import SimHost
from gpulayer.testing.sim.parts import Part
from gpulayer.testing.sim.plane import PLANE, SimPlane
from gpulayer.testing.sim.rules import Stuck, Violation
from gpulayer.testing.sim.spawner import Process
from gpulayer.testing.sim.words import attempt_name, element_of, job_name, lasting, listed

__all__ = ["Guard"]

LEASE_MS: Final = 30_000
MARGIN_MS: Final = 1_000  # of an exclusive job, for SIGKILL (``protocol.leases``)
LATER: Final = 16  # the part of its keep time after which the spawner ends a job by itself
WATCHED_MS: Final = 5_000  # a watchdog's patience, and then some
AWAKE_MS: Final = 4_000  # what went on a moment ago is ended within that
CANCEL_MS: Final = 5_000
WAYS: Final = 30  # so many messages may take their mean time until a cancelled job has ended; most of a few long ones
SAVED_MS: Final = 5_000  # how far the contact that an agent saves may lie behind
VOID_MS: Final = 10_000  # so long after its worker was told what is void is dead


@dataclass(slots=True)
class Guard:
    """message_ms: what one takes on average. ``hosts``: all that ever were. judged: how often the end of a cancelled
    job was asked for, and not excused."""

    clock: Clockwork
    message_ms: float = 0.0
    plane: SimPlane | None = None
    hosts: list[SimHost] = field(default_factory=list)
    entries: dict[JobId, JobEntry] = field(default_factory=dict)
    where: dict[NodeKey, SimHost] = field(default_factory=dict)  # started there
    judged: int = 0
    _starts: dict[tuple[JobId, int], NodeKey] = field(default_factory=dict)  # of each task

    def started(self, host: SimHost, new: Process) -> None:
        """One live process tree per device; an exclusive job on one worker at a time; an attempt once, and a job
        without retries too; no more than a machine has cores, or of what it counts by name."""
        assignment, alive = new.assignment, host.spawner.alive
        key, job_id, begins = assignment.key, assignment.job_id, f"{attempt_name(assignment)} starts"
        cpus = [process.assignment.cpus for process in alive]
        if cpus and sum(cpus) + assignment.cpus > host.most_cpus:
            raise Violation(f"{begins} on {host.id}, where {sum(cpus)} of {host.most_cpus} cores are in use", promise=2)
        for name, count in host.facts.resources:
            shares = [dict(process.assignment.resources).get(name, 0) for process in alive]
            if sum(shares) and sum(shares) + dict(assignment.resources).get(name, 0) > count:
                raise Violation(f"{begins} on {host.id}, where there is no {name} left: {shares}", promise=2)
        for process in alive:
            if set(process.assignment.devices) & set(assignment.devices):
                raise Violation(
                    f"{begins} on a device of {host.id} that {attempt_name(process.assignment)} still uses", promise=2
                )
        task = job_id, element_of(assignment)
        before = self._starts.get(task)
        if key in self.where:
            raise Violation(f"{begins} a second time, on {host.id}", promise=4)
        if before is not None and self.entries[job_id].retries == 0:
            raise Violation(
                f"{begins} on {host.id}, and it has no retries and was started on {self.where[before].id} before",
                promise=4,
            )
        self.where[key] = host
        self._starts[task] = key
        if assignment.exclusive:
            self._check_exclusive(host, assignment)

    def gave_up(self, host: SimHost, assignment: Assignment) -> None:
        """A worker that has lost contact goes on for as long as was asked for; a spawner that was itself stopped does
        not know yet what it was told meanwhile."""
        if self.clock.now_ms < host.went_on_ms[Part.SPAWNER] + AWAKE_MS:
            return
        contact_ms = host.contact_ms if host.kept_ms is None else min(host.contact_ms, host.kept_ms)
        keep_ms = _keep(assignment)[0]
        if host.piece.now_ms < contact_ms + keep_ms:
            long_ms = host.piece.now_ms - contact_ms
            raise Violation(
                f"{host.id} gives {attempt_name(assignment)} up {lasting(long_ms)} after its last contact, and is to"
                f" keep it for {lasting(keep_ms)}",
                promise=6,
            )

    def answered(self, host: SimHost, void: tuple[Epoch, ...], *, has_work: bool) -> None:
        """A report of a host was: an agent that has work keeps that in mind for its successor, not much behind; and
        what is void is dead soon."""
        saved_ms = host.contact_ms - SAVED_MS
        if has_work and not host.disk.is_full and saved_ms >= host.disk.missed_ms:
            host.kept_ms = saved_ms if host.kept_ms is None else max(host.kept_ms, saved_ms)
        told = set(void)
        alive = [process for process in host.spawner.alive if process.assignment.key.epoch in told]
        if not alive:
            return
        at_ms = self.clock.now_ms

        def look() -> None:
            if self.clock.troubled_ms.get(host.id, 0) > at_ms:
                return
            for process in alive:
                if process.is_alive:
                    raise Violation(
                        f"{attempt_name(process.assignment)} runs on at {host.id}, which heard {lasting(VOID_MS)} ago"
                        " that it is not its own any more",
                        promise=3,
                    )

        self.clock.after(VOID_MS, look)

    def given_up(self, worker: WorkerId, epoch: Epoch) -> None:
        """The control plane says that its worker must have ended it by now: where an agent sees to that, it has."""
        host = next(host for host in self.hosts if host.id == worker and host.has_seat)
        if not host.is_whole or any(self.clock.now_ms < ms + AWAKE_MS for ms in host.went_on_ms.values()):
            return
        for process in host.spawner.alive:
            if process.assignment.key.epoch == epoch and not process.is_orphan:
                raise Violation(
                    f"{attempt_name(process.assignment)} runs on at {worker}, which should have ended it by now: it has"
                    " been without contact for too long",
                    promise=3,
                )

    def sweep(self) -> None:
        """And no longer, agent or no agent: as long as somebody watches it."""
        self._check_overlaps()
        for host in self.hosts:
            if (
                host.is_dark
                or host.is_stopped(Part.PROGRAMS)
                or self.clock.now_ms < host.went_on_ms[Part.PROGRAMS] + AWAKE_MS
            ):
                continue
            for process in host.spawner.alive:
                keep_ms, grace_ms = _keep(process.assignment)
                late_ms = 0 if process.assignment.exclusive else keep_ms // LATER
                until_ms = host.contact_ms + keep_ms + grace_ms + late_ms + WATCHED_MS
                if not process.is_orphan and host.piece.now_ms > until_ms:
                    over_ms = host.piece.now_ms - until_ms
                    raise Violation(
                        f"{attempt_name(process.assignment)} runs on at {host.id}, {lasting(over_ms)} longer than"
                        " it may without contact",
                        promise=3,
                    )

    def cancelled(self, plane: SimPlane, job_id: JobId) -> None:
        """It ends within its grace time and a little, where nothing is wrong with its worker and the way there; at
        once, where it has not been lent."""
        assert plane.state is not None
        job = plane.state.jobs[job_id]
        epochs = [task.epoch for task in job.tasks.values() if task.epoch is not None]
        if len(epochs) < len(job.tasks):
            raise Violation(f"job {job_id} was cancelled while it waited, and waits on", promise=8)
        workers = {plane.state.attempts[epoch].nodes[0].allocation.worker for epoch in epochs}
        at_ms = self.clock.now_ms
        limit_ms = int((job.stop_grace_ms + CANCEL_MS) * 1.06 + WAYS * self.message_ms)

        def look() -> None:
            if max(self.clock.troubled_ms.get(name, 0) for name in (*workers, PLANE)) > at_ms:
                return
            self.judged += 1
            if plane.state is None or job_id not in plane.state.jobs:
                return
            raise Violation(
                f"job {job_id} was cancelled {lasting(limit_ms)} ago, and has not ended on {listed(sorted(workers))}",
                promise=8,
            )

        self.clock.after(limit_ms, look)

    def check_fenced(self, plane: SimPlane) -> None:
        """No tree lives on without a lease once its worker has been in contact."""
        for host in self.hosts:
            for process in host.spawner.alive:
                given = process.assignment
                if not host.is_gone and not plane.is_lent(host.id, given.key.epoch):
                    raise Violation(
                        f"{attempt_name(given)} runs on at {host.id}, which has been in contact; the control plane has"
                        " given the attempt up long ago",
                        promise=3,
                    )

    def check_empty(self) -> None:
        """When all is over nothing runs, and nothing waits to be told."""
        for host in self.hosts:
            alive = [attempt_name(process.assignment) for process in host.spawner.alive]
            kept = [attempt_name(assignment) for assignment, _ in host.disk.folders.values()]
            if not host.is_gone and (alive or kept):
                does = "runs" if alive else "keeps"
                raise Stuck(f"{host.id} still {does} work when all is over ({listed(alive or kept)})")

    def _check_exclusive(self, host: SimHost, assignment: Assignment) -> None:
        for other in self.hosts:
            # What is stopped does nothing, and is ended as soon as it goes on; without a watchdog nothing is promised.
            if other.is_stopped(Part.PROGRAMS):
                continue
            for process in other.spawner.alive:
                is_same = process.assignment.job_id == assignment.job_id
                if is_same and element_of(process.assignment) == element_of(assignment) and not process.is_orphan:
                    raise Violation(
                        f"exclusive {job_name(assignment.job_id)} starts on {host.id} while it runs on {other.id}",
                        promise=3,
                    )

    def _check_overlaps(self) -> None:
        """What was stopped when another began is ended soon after it goes on."""
        runs: dict[tuple[JobId, int], SimHost] = {}
        for host in self.hosts:
            if host.is_stopped(Part.PROGRAMS) or self.clock.now_ms < host.went_on_ms[Part.PROGRAMS] + AWAKE_MS:
                continue
            for process in host.spawner.alive:
                entry, job_id = process.assignment, process.assignment.job_id
                task = job_id, element_of(entry)
                if entry.exclusive and not process.is_orphan:
                    if task in runs:
                        raise Violation(
                            f"exclusive {job_name(job_id)} runs on {runs[task].id} and on {host.id} at once",
                            promise=3,
                        )
                    runs[task] = host


def _keep(assignment: Assignment) -> tuple[int, int]:
    """How long a job may go on alone, and its grace time then, as the promise has it."""
    if not assignment.exclusive:
        return assignment.keep_for_ms, assignment.grace_ms
    grace_ms = min(assignment.grace_ms, LEASE_MS // 3)
    return min(assignment.keep_for_ms, LEASE_MS - grace_ms - MARGIN_MS), grace_ms
