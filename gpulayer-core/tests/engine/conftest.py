"""A scripted control plane without IO: give it events, look at records and effects, invariants checked each time."""

from dataclasses import dataclass, field

import pytest

from gpulayer.clock import Instant
from gpulayer.engine import Policy, State, Step, check, due, rebuild, step
from gpulayer.engine.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodePhase,
    NodeReport,
    WorkerJoined,
    WorkerReported,
)
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.job import JobEntry, JobSpec
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for
from gpulayer.spec.request import Accelerator


@dataclass
class Script:
    state: State = field(default_factory=lambda: State(policy=Policy(lease_ttl_ms=30_000)))
    now_ms: int = 1000
    seqs: dict[str, int] = field(default_factory=dict)
    records: dict[tuple[str, object], object] = field(default_factory=dict)
    last: Step = field(default_factory=lambda: Step((), ()))

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, self.now_ms + 1_700_000_000_000)

    def step(self, event: Event) -> Step:
        self.last = step(self.state, event)
        check(self.state, self.last.effects)
        for record in self.last.records:
            key = getattr(record, "id", getattr(record, "epoch", getattr(record, "digest", None)))
            if type(record).__name__ == "TaskImage":
                key = (record.job_id, record.index)
            self.records[type(record).__name__, key] = record
        return self.last

    def images(self, kind: str) -> list:
        """The last of each of these."""
        return [record for (name, _), record in self.records.items() if name == kind]

    def rebuilt(self, *, tasks=None, heard=()) -> State:
        """What a start makes of the last images. tasks: others than all; heard: who reports at once."""
        entries = {job.entry.id: job.entry for job in self.state.jobs.values()}
        return rebuild(
            self.state.policy,
            self.images("CounterImage")[0],
            jobs=[(entries[image.id], image) for image in self.images("JobImage") if image.id in entries],
            tasks=[one for one in (self.images("TaskImage") if tasks is None else tasks) if one.job_id in entries],
            attempts=self.images("AttemptImage"),
            workers=self.images("WorkerImage"),
            facts=self.images("FactsImage"),
            heard=list(heard),
        )

    def pass_time(self, ms: int) -> list[Event]:
        """Let time pass and step all that has become due, until nothing more is."""
        self.now_ms += ms
        happened: list[Event] = []
        for _ in range(10):
            events = due(self.state, self.at)
            if not events:
                return happened
            for event in events:
                self.step(event)
            happened.extend(events)
        raise AssertionError(f"due() never comes to rest: {happened[-3:]}")

    def join(
        self, name: str = "w1", *, cpus: int = 2, gpus: int = 0, labels=(), resources=(), ready: bool = True
    ) -> WorkerId:
        facts = WorkerFacts(
            platform="linux-x86_64",
            version="0.1.0",
            cpus=cpus,
            memory_bytes=8 * 10**9,
            devices=tuple(
                Device(f"GPU-{name}-{i}", i, Accelerator.CUDA, "NVIDIA A100", 40 * 10**9) for i in range(gpus)
            ),
            labels=tuple(labels),
            resources=tuple(resources),
        )
        self.step(WorkerJoined(self.at, WorkerId(name), name, facts, Digest(f"{hash(facts) & (2**64 - 1):064x}")))
        if ready:
            self.report(name, recovered=())
        return WorkerId(name)

    def submit(self, name: str = "j1", *, owner: str = "me", **options) -> JobId:
        spec = JobSpec(command=("true",), **options)
        self.step(JobSubmitted(self.at, JobEntry.of(JobId(name), owner, spec)))
        return JobId(name)

    def report(self, worker: str, *items: NodeReport, boot: int = 1, recovered=None, holding=None, **more) -> Step:
        seq = self.seqs[worker] = self.seqs.get(worker, -1) + 1
        if holding is None:
            known = self.state.workers.get(WorkerId(worker))
            holding = tuple(known.leases) if known else ()
        return self.step(WorkerReported(self.at, WorkerId(worker), boot, seq, tuple(holding), recovered, items, **more))

    def epoch(self, job: str = "j1") -> Epoch:
        epoch = self.state.jobs[JobId(job)].tasks[0].epoch
        assert epoch is not None
        return epoch

    def run(self, worker: str, job: str = "j1", node: int = 0) -> Epoch:
        epoch = self.epoch(job)
        self.report(worker, NodeReport(epoch, node, NodePhase.RUNNING))
        return epoch

    def end(
        self, worker: str, epoch: Epoch, ended_by=EndedBy.PROGRAM, exit_code=0, node: int = 0, blame=None, **more
    ) -> Step:
        outcome = Outcome(ended_by, exit_code, blame=blame or blame_for(ended_by), **more)
        return self.report(worker, NodeReport(epoch, node, NodePhase.ENDED, outcome))

    def cancel(self, job: str = "j1") -> Step:
        return self.step(CancelRequested(self.at, JobId(job)))

    def job(self, job: str = "j1"):
        """The last stored image of a job."""
        return self.records["JobImage", JobId(job)]


@pytest.fixture
def plane() -> Script:
    return Script()
