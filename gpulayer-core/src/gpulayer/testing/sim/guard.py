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
    _starts: dict[JobId, NodeKey] = field(default_factory=dict)

    def started_on(self, host: SimHost) -> list[NodeKey]:
        """Ever."""
        return [key for key, there in self.where.items() if there is host]

    def started(self, host: SimHost, new: Process) -> None:
        """One live process tree per device; an exclusive job on one worker at a time; an attempt once, and a job
        without retries too; no more than a machine has cores, or of what it counts by name."""
        assignment, alive = new.assignment, host.spawner.alive
        key, job_id = assignment.key, assignment.job_id
        cpus = [process.assignment.cpus for process in alive]
        if cpus and sum(cpus) + assignment.cpus > host.most_cpus:
            raise Violation(f"{key} starts on {host.id}, where {cpus} cores are in use of {host.most_cpus}")
        for name, count in host.facts.resources:
            shares = [dict(process.assignment.resources).get(name, 0) for process in alive]
            if sum(shares) and sum(shares) + dict(assignment.resources).get(name, 0) > count:
                raise Violation(f"{key} starts on {host.id}, where there is no {name} left: {shares}")
        for process in alive:
            if set(process.assignment.devices) & set(assignment.devices):
                raise Violation(f"{key} starts on a device that {process.assignment.key} still uses")
        before = self._starts.get(job_id)
        if key in self.where and self.is_known(key):
            raise Violation(f"attempt {key} of job {job_id} starts a second time, on {host.id}")
        if before is not None and self.entries[job_id].retries == 0 and self.is_known(before):
            raise Violation(f"job {job_id} has no retries, and starts again as {key} after {before}")
        self.where[key] = host
        host.forgotten.discard(key)
        self._starts[job_id] = key
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
            raise Violation(f"{assignment.key} was given up on {host.id} after {long_ms} ms, not {keep_ms}, alone")

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
                    raise Violation(f"{process.assignment.key} was void {VOID_MS} ms ago, and runs on at {host.id}")

        self.clock.after(VOID_MS, look)

    def given_up(self, worker: WorkerId, epoch: Epoch) -> None:
        """The control plane says that its worker must have ended it by now: where an agent sees to that, it has."""
        host = next(host for host in self.hosts if host.id == worker and host.has_seat)
        if not host.is_whole or any(self.clock.now_ms < ms + AWAKE_MS for ms in host.went_on_ms.values()):
            return
        for process in host.spawner.alive:
            if process.assignment.key.epoch == epoch and not process.is_orphan:
                raise Violation(f"{process.assignment.key} was given up for want of contact, and runs on at {worker}")

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
                    raise Violation(f"{process.assignment.key} runs on at {host.id}, {over_ms} ms too long, alone")

    def cancelled(self, plane: SimPlane, job_id: JobId) -> None:
        """It ends within its grace time and a little, where nothing is wrong with its worker and the way there; at
        once, where it has not been lent."""
        assert plane.state is not None
        job = plane.state.jobs[job_id]
        epoch = job.tasks[0].epoch
        if epoch is None:
            raise Violation(f"job {job_id} was cancelled while it waited, and waits on")
        worker = plane.state.attempts[epoch].nodes[0].allocation.worker
        at_ms = self.clock.now_ms
        limit_ms = int((job.stop_grace_ms + CANCEL_MS) * 1.06 + WAYS * self.message_ms)

        def look() -> None:
            if max(self.clock.troubled_ms.get(name, 0) for name in (worker, PLANE)) > at_ms:
                return
            self.judged += 1
            if plane.state is None or job_id not in plane.state.jobs:
                return
            raise Violation(f"job {job_id} was cancelled {limit_ms} ms ago, and has not ended on {worker}")

        self.clock.after(limit_ms, look)

    def check_fenced(self, plane: SimPlane) -> None:
        """No tree lives on without a lease once its worker has been in contact."""
        for host in self.hosts:
            for process in host.spawner.alive:
                key = process.assignment.key
                if not host.is_gone and not plane.is_lent(host.id, key.epoch):
                    raise Violation(f"{key} runs on {host.id}, which has been in contact and does not hold its lease")

    def check_empty(self) -> None:
        """When all is over nothing runs, and nothing waits to be told."""
        for host in self.hosts:
            alive = [str(process.assignment.key) for process in host.spawner.alive]
            if not host.is_gone and (alive or host.disk.folders):
                raise Stuck(f"{host.id} still has {alive or list(host.disk.folders)} when all is over")

    def is_known(self, key: NodeKey) -> bool:
        """Whether anybody still knows that it was started: its host does unless it has lost its disk, or the folder
        with it, and the control plane does once that was committed."""
        if key not in self.where[key].forgotten:
            return True
        image = self.plane.disk.attempts.get(key.epoch) if self.plane is not None else None
        return image is not None and image.started_wall_ms is not None

    def _check_exclusive(self, host: SimHost, assignment: Assignment) -> None:
        for other in self.hosts:
            # What is stopped does nothing, and is ended as soon as it goes on; without a watchdog nothing is promised.
            if other.is_stopped(Part.PROGRAMS):
                continue
            for process in other.spawner.alive:
                if process.assignment.job_id == assignment.job_id and not process.is_orphan:
                    raise Violation(
                        f"exclusive job {assignment.job_id} starts on {host.id} while it runs on {other.id}"
                    )

    def _check_overlaps(self) -> None:
        """What was stopped when another began is ended soon after it goes on."""
        runs: dict[JobId, SimHost] = {}
        for host in self.hosts:
            if host.is_stopped(Part.PROGRAMS) or self.clock.now_ms < host.went_on_ms[Part.PROGRAMS] + AWAKE_MS:
                continue
            for process in host.spawner.alive:
                entry, job_id = process.assignment, process.assignment.job_id
                if entry.exclusive and not process.is_orphan:
                    if job_id in runs:
                        raise Violation(f"exclusive job {job_id} runs on {host.id} and on {runs[job_id].id}")
                    runs[job_id] = host


def _keep(assignment: Assignment) -> tuple[int, int]:
    """How long a job may go on alone, and its grace time then, as the promise has it."""
    if not assignment.exclusive:
        return assignment.keep_for_ms, assignment.grace_ms
    grace_ms = min(assignment.grace_ms, LEASE_MS // 3)
    return min(assignment.keep_for_ms, LEASE_MS - grace_ms - MARGIN_MS), grace_ms
