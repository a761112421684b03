"""What placing costs at size, in processor time of the engine: a full fleet on which something ends all the time.

A thousand mixed workers, 200 requests, 5 % of the jobs gangs, 20 owners, a queue of 100,000. Each round ends attempts
one after the other, and for each one that ends a job is submitted; counted is what begins, and only the time in
``step``.
"""

import random
import time
from functools import cache

from benchmarks.harness import OURS, Contestant, Row, compare
from gpulayer.clock import Instant
from gpulayer.engine import State, step
from gpulayer.engine.effects import Assign
from gpulayer.engine.events import Event, JobSubmitted, NodePhase, NodeReport, WorkerJoined, WorkerReported
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.job import Gang, JobEntry, JobSpec, Single
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Accelerator, Request

__all__ = ["decisions", "steady"]

_REQUESTS = 200
_OWNERS = 20
_GANGS = 0.05
_MODELS = ("H100", "A100", "L4")
_GB = 10**9


def steady(rounds: int) -> Row:
    """Placements a second, everything included that the engine does for a job."""
    row = Row("placements, 1,000 workers, 100,000 queued", "1/s", "higher", goal="≥ 15,000", limit=15_000)
    row.notes.append(f"{_REQUESTS} requests, {_OWNERS} owners, {_GANGS:.0%} gangs; ends and submissions included")
    fleet = _fleet(1_000, 100_000)
    return compare(row, [Contestant(OURS, lambda: fleet.play(2_000)[0])], rounds=rounds)


def decisions(rounds: int) -> Row:
    """The 99th of 100 events, by how long the driver has to do with it."""
    row = Row("one decision, 1,000 workers, 99th of 100", "ms", "lower", goal="≤ 2 ms", limit=2)
    row.notes.append("the goal is one for 10,000 workers, which are not measured: to fill them takes too long yet")
    fleet = _fleet(1_000, 100_000)
    return compare(row, [Contestant(OURS, lambda: fleet.play(2_000)[1] * 1000)], rounds=rounds)


@cache
def _fleet(workers: int, queued: int) -> "_Fleet":
    return _Fleet(workers=workers, queued=queued)


class _Fleet:
    """Workers that do at once what they are told. It is full, and so many wait, once it is made."""

    def __init__(self, *, workers: int, queued: int) -> None:
        self.state = State()
        self.now_ms = 0
        self.begun = 0
        self._rng = random.Random(8)
        self._live: list[Epoch] = []
        self._seqs: dict[WorkerId, int] = {}
        self._submitted = 0
        self._requests = _requests(self._rng)
        for at in range(workers):
            worker = WorkerId(f"w{at:05}")
            self._step(WorkerJoined(self._at, worker, str(worker), _facts(at), Digest(f"{at:064x}")))
            self._report(worker, recovered=())
        while len(self.state.jobs) - len(self.state.attempts) < queued:
            self.submit()

    @property
    def _at(self) -> Instant:
        return Instant(self.now_ms, 1_700_000_000_000 + self.now_ms)

    def play(self, ends: int) -> tuple[float, float]:
        """Placements a second, and the 99th of 100 events in seconds."""
        begun, taken = self.begun, []
        for _ in range(ends):
            self.now_ms += 1_000  # too slow for anything to be lent ahead
            taken += self.end()
            taken.append(self.submit())
        return (self.begun - begun) / sum(taken), sorted(taken)[len(taken) * 99 // 100]

    def submit(self) -> float:
        self._submitted += 1
        request = self._rng.choice(self._requests)
        is_gang = self._rng.random() < _GANGS
        shape = Gang(self._rng.choice([2, 2, 4])) if is_gang else Single()
        spec = JobSpec(("run",), request=request, shape=shape, grace_ms=0)
        owner = f"owner{self._rng.randrange(_OWNERS)}"
        return self._step(JobSubmitted(self._at, JobEntry.of(JobId(f"{self._submitted:016x}"), owner, spec)))

    def end(self) -> list[float]:
        """One attempt, by chance."""
        at = self._rng.randrange(len(self._live))
        self._live[at], self._live[-1] = self._live[-1], self._live[at]
        epoch = self._live.pop()
        done = Outcome(EndedBy.PROGRAM, 0)
        nodes = list(self.state.attempts[epoch].nodes)
        return [
            self._report(node.allocation.worker, NodeReport(epoch, index, NodePhase.ENDED, done))
            for index, node in enumerate(nodes)
        ]

    def _report(self, worker: WorkerId, *items: NodeReport, recovered: tuple[Epoch, ...] | None = None) -> float:
        seq = self._seqs[worker] = self._seqs.get(worker, -1) + 1
        holding = tuple(self.state.workers[worker].leases)
        return self._step(WorkerReported(self._at, worker, 1, seq, holding, recovered, items))

    def _step(self, event: Event) -> float:
        started = time.thread_time()
        effects = step(self.state, event).effects
        taken = time.thread_time() - started
        for effect in effects:
            if isinstance(effect, Assign) and effect.node == 0:
                self._live.append(effect.epoch)
                self.begun += 1
        return taken


def _requests(rng: random.Random) -> list[Request]:
    found: dict[Request, None] = {}
    while len(found) < _REQUESTS:
        devices = rng.choice([0, 1, 1, 1, 2, 4, 8])
        models = tuple(rng.sample(_MODELS, 1)) if devices and rng.random() < 0.5 else ()
        request = Request(
            accelerators=(Accelerator.CUDA,) if devices else (),
            devices=devices,
            device_models=models,
            cpus=rng.choice([1, 2, 4, 8, 12]),
            memory_bytes=rng.choice([1, 4, 8, 16, 32]) * _GB,
        )
        found[request] = None
    return list(found)


def _facts(at: int) -> WorkerFacts:
    """Of ten machines four have no GPU, and the others 1, 4 or 8 of one model."""
    count = (0, 8, 0, 4, 8, 0, 1, 8, 0, 4)[at % 10]
    model = _MODELS[at % 3]
    cards = tuple(Device(f"GPU-{at}-{n}", n, Accelerator.CUDA, model, 80 * _GB) for n in range(count))
    return WorkerFacts("linux-x86_64", "0.1.0", 16 + 12 * count, (64 + 64 * count) * _GB, devices=cards)
