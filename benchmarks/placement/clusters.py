"""What becomes of a workload on machines with 8 GPUs, in virtual time: by the engine, and by two simple rules.

``FIFO``: strictly in order; where the first does not fit, nobody goes before it. ``first-fit``: in order, whoever fits
now, on the first machines that can take it; nothing is kept for who is wide. The engine is the one that serves users:
jobs come in as events, and its own decisions say when and where they begin.
"""

import heapq
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from benchmarks.harness import OURS, Contestant, Row, compare
from benchmarks.placement.workloads import GPUS_A_WORKER, MOST, WORKLOADS, Work, draw
from gpulayer.clock import Instant
from gpulayer.engine import State, step
from gpulayer.engine.effects import Assign
from gpulayer.engine.events import Event, JobSubmitted, NodePhase, NodeReport, WorkerJoined, WorkerReported
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.job import Gang, JobEntry, JobSpec, Single
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Accelerator, Request

__all__ = ["shared"]

_WORKERS = 16
_JOBS = 4_000
_WIDE = 8


@dataclass(frozen=True, slots=True)
class Story:
    """What came of it. in_use: the share of GPU time that was used until the last job came. waits_s: of each job."""

    works: tuple[Work, ...]
    waits_s: tuple[int, ...]
    in_use: float

    def used_percent(self) -> float:
        return self.in_use * 100

    def mean_wait_min(self) -> float:
        return statistics.fmean(self.waits_s) / 60

    def wide_wait_min(self) -> float:
        wide = [wait for work, wait in zip(self.works, self.waits_s, strict=True) if work.width >= _WIDE]
        return statistics.fmean(wide) / 60

    def others_wait_min(self) -> float:
        """Of all but the owner who has a third of the jobs."""
        others = [wait for work, wait in zip(self.works, self.waits_s, strict=True) if work.owner != MOST]
        return statistics.fmean(others) / 60

    def slowdown(self) -> float:
        """The mean of (wait + run time) / run time, of ten seconds at least, without the worst 5 %."""
        each = [1 + wait / max(work.runs_s, 10) for work, wait in zip(self.works, self.waits_s, strict=True)]
        return statistics.fmean(sorted(each)[: round(len(each) * 0.95)])


Place = Callable[["Fleet"], None]


@dataclass(slots=True)
class Fleet:
    """What the simple rules see: who waits, in order, and what each machine has free."""

    free: list[int]
    waiting: list[Work] = field(default_factory=list)
    begun: list[tuple[Work, list[int]]] = field(default_factory=list)

    def fit(self, work: Work) -> list[int] | None:
        """The first machines that can take it."""
        there = [at for at, free in enumerate(self.free) if free >= work.gpus][: work.nodes]
        return there if len(there) == work.nodes else None

    def begin(self, work: Work, there: list[int]) -> None:
        for at in there:
            self.free[at] -= work.gpus
        self.begun.append((work, there))


def fifo(fleet: Fleet) -> None:
    while fleet.waiting and (there := fleet.fit(fleet.waiting[0])) is not None:
        fleet.begin(fleet.waiting.pop(0), there)


def first_fit(fleet: Fleet) -> None:
    still = []
    for work in fleet.waiting:
        there = fleet.fit(work)
        if there is None:
            still.append(work)
        else:
            fleet.begin(work, there)
    fleet.waiting = still


def shared(rounds: int) -> list[Row]:
    """Both workloads, by all three; each round draws them anew."""
    rows = []
    for workload in WORKLOADS:
        for what, unit, figure in (
            ("GPU time used", "%", Story.used_percent),
            ("mean wait", "min", Story.mean_wait_min),
            (f"mean wait of jobs of {_WIDE} GPUs or more", "min", Story.wide_wait_min),
            ("mean wait of all but the busiest owner's jobs", "min", Story.others_wait_min),
            ("mean slowdown, without the worst 5 %", "times", Story.slowdown),
        ):
            row = Row(f"{workload}: {what}", unit, "higher" if unit == "%" else "lower")
            rows.append(_measured(row, workload, figure, rounds))
    of_both = f"{_JOBS:,} jobs on {_WORKERS} machines with {GPUS_A_WORKER} GPUs each, in virtual time"
    rows[0].notes.append(f"{of_both}; where the figures come from: benchmarks/placement/workloads.py")
    return rows


def _measured(row: Row, workload: str, figure: Callable[[Story], float], rounds: int) -> Row:
    def by(play: Callable[[str, int], Story]) -> Callable[[], float]:
        seeds = iter(range(rounds))
        return lambda: figure(play(workload, next(seeds)))

    rules = {OURS: _by_engine, "FIFO": _by_fifo, "first-fit": _by_first_fit}
    return compare(row, [Contestant(name, by(play)) for name, play in rules.items()], rounds=rounds, warm_up=0)


@cache
def _by_fifo(workload: str, seed: int) -> Story:
    return _by_rule(draw(workload, jobs=_JOBS, workers=_WORKERS, seed=seed), fifo)


@cache
def _by_first_fit(workload: str, seed: int) -> Story:
    return _by_rule(draw(workload, jobs=_JOBS, workers=_WORKERS, seed=seed), first_fit)


def _by_rule(works: list[Work], place: Place) -> Story:
    fleet, waits = Fleet([GPUS_A_WORKER] * _WORKERS), [0] * len(works)
    ends: list[tuple[int, int, list[int]]] = []
    coming = iter(works)
    arriving = next(coming, None)
    while arriving is not None or ends:
        now = min([work.arrives_s for work in [arriving] if work] + [end[0] for end in ends[:1]])
        while ends and ends[0][0] == now:
            _, number, there = heapq.heappop(ends)
            for at in there:
                fleet.free[at] += works[number].gpus
        while arriving is not None and arriving.arrives_s == now:
            fleet.waiting.append(arriving)
            arriving = next(coming, None)
        place(fleet)
        for work, there in fleet.begun:
            waits[work.number] = now - work.arrives_s
            heapq.heappush(ends, (now + work.runs_s, work.number, there))
        fleet.begun.clear()
    return _story(works, waits)


@cache
def _by_engine(workload: str, seed: int) -> Story:
    works = draw(workload, jobs=_JOBS, workers=_WORKERS, seed=seed)
    plane, waits = _Plane(), [0] * len(works)
    ends: list[tuple[int, int]] = []
    begun: dict[int, Epoch] = {}
    coming = iter(works)
    arriving = next(coming, None)
    while arriving is not None or ends:
        now = min([work.arrives_s for work in [arriving] if work] + [end[0] for end in ends[:1]])
        plane.now_s = now
        while ends and ends[0][0] == now:
            number = heapq.heappop(ends)[1]
            plane.end(begun.pop(number))
        while arriving is not None and arriving.arrives_s == now:
            plane.submit(arriving)
            arriving = next(coming, None)
        for number, epoch in plane.begin():
            begun[number] = epoch
            waits[number] = now - works[number].arrives_s
            heapq.heappush(ends, (now + works[number].runs_s, number))
    if plane.state.jobs:
        raise ValueError(f"{len(plane.state.jobs)} jobs never ran")
    return _story(works, waits)


class _Plane:
    """The engine with workers that do at once what they are told; they never fall silent, since nobody looks."""

    def __init__(self) -> None:
        self.state = State()
        self.now_s = 0
        self._assigned: dict[Epoch, int] = {}
        self._seqs: dict[WorkerId, int] = {}
        for at in range(_WORKERS):
            worker, devices = WorkerId(f"w{at:03}"), range(GPUS_A_WORKER)
            cards = tuple(Device(f"GPU-{at}-{n}", n, Accelerator.CUDA, "any", 80 * 10**9) for n in devices)
            facts = WorkerFacts("linux-x86_64", "0.1.0", 1_000, 10**13, devices=cards)
            self._step(WorkerJoined(self._at, worker, str(worker), facts, Digest(f"{at:064x}")))
            self._report(worker, recovered=())

    @property
    def _at(self) -> Instant:
        ms = self.now_s * 1_000
        return Instant(ms, 1_700_000_000_000 + ms)

    def submit(self, work: Work) -> None:
        request = Request(accelerators=(Accelerator.CUDA,), devices=work.gpus)
        spec = JobSpec(
            ("run",),
            request=request,
            shape=Gang(work.nodes) if work.nodes > 1 else Single(),
            timeout_ms=None if work.limit_s is None else work.limit_s * 1_000,
            grace_ms=0,
        )
        self._step(JobSubmitted(self._at, JobEntry.of(JobId(f"{work.number:016x}"), work.owner, spec)))

    def begin(self) -> Iterator[tuple[int, Epoch]]:
        """What has been assigned since, reported as running. Its first report may let others begin."""
        while self._assigned:
            epoch, number = self._assigned.popitem()
            for index, node in enumerate(self.state.attempts[epoch].nodes):
                self._report(node.allocation.worker, NodeReport(epoch, index, NodePhase.RUNNING))
            yield number, epoch

    def end(self, epoch: Epoch) -> None:
        done = Outcome(EndedBy.PROGRAM, 0)
        for index, node in enumerate(list(self.state.attempts[epoch].nodes)):
            self._report(node.allocation.worker, NodeReport(epoch, index, NodePhase.ENDED, done))

    def _report(self, worker: WorkerId, *items: NodeReport, recovered: tuple[Epoch, ...] | None = None) -> None:
        seq = self._seqs[worker] = self._seqs.get(worker, -1) + 1
        holding = tuple(self.state.workers[worker].leases)
        self._step(WorkerReported(self._at, worker, 1, seq, holding, recovered, items))

    def _step(self, event: Event) -> None:
        for effect in step(self.state, event).effects:
            if isinstance(effect, Assign):
                self._assigned[effect.epoch] = int(effect.job_id, 16)


def _story(works: list[Work], waits: list[int]) -> Story:
    until_s = works[-1].arrives_s
    used = 0
    for work, wait in zip(works, waits, strict=True):
        begins = work.arrives_s + wait
        used += work.width * max(0, min(begins + work.runs_s, until_s) - min(begins, until_s))
    return Story(tuple(works), tuple(waits), used / (until_s * _WORKERS * GPUS_A_WORKER))
