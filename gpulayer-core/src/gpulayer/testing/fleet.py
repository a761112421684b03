"""Workers of any shape, joined to a live plane over real HTTP, without processes: they do what the test says.

Nothing happens between calls: a worker that is told nothing takes nothing, ends nothing and does not even beat. So a
test decides what the control plane knows, and when.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpulayer.errors import Blame
from gpulayer.ids import Epoch
from gpulayer.sdk import Job
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.machine import Device, Framework, Locality, WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.testing.plane import LivePlane, until
from gpulayer.testing.wire_worker import WireWorker
from gpulayer.wire.convert import assignment_from_wire
from gpulayer.wire.facts import facts_to_wire
from gpulayer.wire.workers import AssignCommand

__all__ = ["Fleet", "SimulatedWorker"]


class Fleet:
    """``add`` makes workers; ``turn`` lets all of them do what they were asked."""

    def __init__(self, plane: LivePlane) -> None:
        self.plane = plane
        self.workers: dict[str, SimulatedWorker] = {}

    def add(
        self,
        name: str,
        *,
        cpus: int = 4,
        memory_bytes: int = 2**34,
        devices: Sequence[Device] = (),
        frameworks: Sequence[Framework] = (),
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, int] | None = None,
        capabilities: Sequence[str] = (),
        platform: str = "linux-x86_64",
        disk_bytes: int | None = None,
        zone: str = "",
        region: str = "",
    ) -> "SimulatedWorker":
        """It is ready when this returns. capabilities: ``launcher:torch``, ``environment:NAME``, ``stager:SCHEME``."""
        facts = WorkerFacts(
            platform=platform,
            version="0.1.0",
            cpus=cpus,
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            devices=tuple(devices),
            frameworks=tuple(frameworks),
            labels=tuple(sorted((labels or {}).items())),
            locality=Locality(zone=zone, region=region),
            resources=tuple(sorted((resources or {}).items())),
            capabilities=tuple(sorted(capabilities)),
        )
        worker = self.workers[name] = SimulatedWorker(self.plane, name, facts)
        return worker

    def turn(self) -> None:
        """Every worker beats, takes what it was given, and ends what it was told to end."""
        for worker in self.workers.values():
            worker.turn()

    def worker_of(self, job: Job | str) -> "SimulatedWorker":
        """The one that was given the job. Waits for that, and fails after ten seconds."""

        def find() -> SimulatedWorker | None:
            self.turn()
            return next((worker for worker in self.workers.values() if worker.holds(job)), None)

        return cast("SimulatedWorker", until(find))


class SimulatedWorker:
    """One that behaves: what it is given it starts and holds, until the test says how it ended."""

    def __init__(self, plane: LivePlane, name: str, facts: WorkerFacts) -> None:
        fields: Any = facts_to_wire(facts)  # Any: a TypedDict can't be keywords of any name
        self.name = name
        self.facts = facts
        self.wire = WireWorker(plane, name, **fields)
        self._held: dict[Epoch, Assignment] = {}
        self.wire.report()

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """What it runs now, oldest first."""
        return tuple(self._held.values())

    def holds(self, job: Job | str) -> bool:
        """Whether it runs that job, as far as it has been told."""
        return any(held.job_id == _id(job) for held in self._held.values())

    def take(self, job: Job | str) -> Assignment:
        """What it was given to run for the job, which then runs. Waits for that, and fails after ten seconds."""

        def find() -> Assignment | None:
            self.turn()
            return next((held for held in self._held.values() if held.job_id == _id(job)), None)

        return cast("Assignment", until(find))

    def finish(self, job: Job | str, *, exit_code: int = 0, output: bytes = b"") -> None:
        """The program printed ``output`` and exited."""
        self._end(self.take(job), ended_by=EndedBy.PROGRAM, exit_code=exit_code, output=output)

    def lose(
        self, job: Job | str, *, evidence: str = "the machine failed", blame: Blame = Blame.INFRASTRUCTURE
    ) -> None:
        """The program is gone, and not by its own doing: it runs again elsewhere where a retry is left."""
        self._end(self.take(job), ended_by=EndedBy.WORKER_LOST, exit_code=None, evidence=evidence, blame=blame)

    def turn(self) -> None:
        """Beat once: take what it was given, end what it was told to end."""
        for command in self.wire.commands():
            epoch = Epoch(command["epoch"])
            match command["type"]:
                case "assign" if epoch not in self._held:
                    self._held[epoch] = assignment_from_wire(cast("AssignCommand", command))
                    self.wire.holding = list(self._held)
                    self.wire.report(self.wire.running(epoch))
                case "stop" if epoch in self._held:
                    self._end(self._held[epoch], ended_by=EndedBy(command["ended_by"]), exit_code=None, signal=15)
                case _:
                    pass  # it has started already what somebody would have back
        for epoch in self.wire.report()["void"]:
            self._held.pop(Epoch(epoch), None)
        self.wire.holding = list(self._held)

    def report(self, facts: WorkerFacts) -> None:
        """Its machine has changed."""
        self.facts = facts
        self.wire.report(facts=facts_to_wire(facts))

    def leave(self) -> None:
        """It goes, and says so. What it ran is lost."""
        for held in self.assignments:
            self._end(held, ended_by=EndedBy.WORKER_STOPPED, exit_code=None, blame=Blame.INFRASTRUCTURE)
        self.wire.report(leaving=True)

    def _end(
        self,
        held: Assignment,
        *,
        ended_by: EndedBy,
        exit_code: int | None,
        signal: int | None = None,
        evidence: str = "",
        blame: Blame = Blame.USER,
        output: bytes = b"",
    ) -> None:
        epoch = held.key.epoch
        answer = self.wire.put_log(epoch, 0, output, final=True)
        assert answer.is_success, answer.text
        outcome = {"ended_by": str(ended_by), "signal": signal, "evidence": evidence, "blame": str(blame)}
        del self._held[epoch]
        self.wire.holding = list(self._held)
        self.wire.report(self.wire.ended(epoch, exit_code, of_outcome=outcome))


def _id(job: Job | str) -> str:
    return job if isinstance(job, str) else job.id
