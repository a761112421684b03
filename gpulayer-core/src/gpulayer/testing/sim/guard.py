"""What must be true of the hosts' side of the world, whatever happens to it: counted and timed apart from the code that
decides it."""

from dataclasses import dataclass, field
from typing import Final

from gpulayer.ids import JobId
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
CALM_MS: Final = 40_000  # what went wrong before that has no consequences any more
CANCEL_MS: Final = 5_000


@dataclass(slots=True)
class Guard:
    """``hosts``: all that ever were."""

    clock: Clockwork
    hosts: list[SimHost] = field(default_factory=list)
    entries: dict[JobId, JobEntry] = field(default_factory=dict)
    where: dict[NodeKey, tuple[SimHost, int]] = field(default_factory=dict)  # started there, and on which of its disks
    _starts: dict[JobId, NodeKey] = field(default_factory=dict)

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
        if key in self.where and self._is_known(key):
            raise Violation(f"attempt {key} of job {job_id} starts a second time, on {host.id}")
        if before is not None and self.entries[job_id].retries == 0 and self._is_known(before):
            raise Violation(f"job {job_id} has no retries, and starts again as {key} after {before}")
        self.where[key] = (host, host.disks)
        self._starts[job_id] = key
        if assignment.exclusive:
            self._check_exclusive(host, assignment)

    def gave_up(self, host: SimHost, assignment: Assignment) -> None:
        """A worker that has lost contact goes on for as long as was asked for; a spawner that was itself stopped does
        not know yet what it was told meanwhile."""
        if self.clock.now_ms < host.went_on_ms[Part.SPAWNER] + AWAKE_MS:
            return
        saved_ms = host.disk.contact_ms
        contact_ms = host.contact_ms if saved_ms is None else min(host.contact_ms, saved_ms)
        keep_ms = _keep(assignment)[0]
        if host.piece.now_ms < contact_ms + keep_ms:
            long_ms = host.piece.now_ms - contact_ms
            raise Violation(f"{assignment.key} was given up on {host.id} after {long_ms} ms, not {keep_ms}, alone")

    def sweep(self) -> None:
        """And no longer, agent or no agent: as long as somebody watches it."""
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
        """It ends within its grace time and a little, where nothing is wrong with its worker and the way there."""
        assert plane.state is not None
        job = plane.state.jobs[job_id]
        epoch = job.tasks[0].epoch
        if epoch is None:
            return
        worker = plane.state.attempts[epoch].nodes[0].allocation.worker
        at_ms = self.clock.now_ms
        limit_ms = int((job.stop_grace_ms + CANCEL_MS) * 1.06)

        def look() -> None:
            troubled_ms = max(self.clock.troubled_ms.get(name, 0) for name in (worker, PLANE))
            if troubled_ms > at_ms - CALM_MS or plane.state is None or job_id not in plane.state.jobs:
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

    def _is_known(self, key: NodeKey) -> bool:
        """A host that has lost its disk, or the folder with it, does not know what it had started."""
        host, disks = self.where[key]
        return host.disks == disks

    def _check_exclusive(self, host: SimHost, assignment: Assignment) -> None:
        for other in self.hosts:
            # What is stopped does nothing, and is ended as soon as it goes on; without a watchdog nothing is promised.
            if other is host or other.is_stopped(Part.PROGRAMS):
                continue
            for process in other.spawner.alive:
                if process.assignment.job_id == assignment.job_id and not process.is_orphan:
                    raise Violation(
                        f"exclusive job {assignment.job_id} starts on {host.id} while it runs on {other.id}"
                    )


def _keep(assignment: Assignment) -> tuple[int, int]:
    """How long a job may go on alone, and its grace time then, as the promise has it."""
    if not assignment.exclusive:
        return assignment.keep_for_ms, assignment.grace_ms
    grace_ms = min(assignment.grace_ms, LEASE_MS // 3)
    return min(assignment.keep_for_ms, LEASE_MS - grace_ms - MARGIN_MS), grace_ms
