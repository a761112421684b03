"""Two workloads of GPU clusters, drawn from what was published of them.

``alibaba``: sizes and run times of the 7,064 tasks with GPUs of a production cluster of Alibaba, by size, from its
cluster-trace-gpu-v2023 (openb_pod_list_default.csv; Weng et al., "Beware of Fragmentation", USENIX ATC 2023). A task
that shared a GPU has one here.

``helios``: run times of 83,154 jobs of Microsoft's Philly cluster (Jeon et al., USENIX ATC 2019) as published beside
Alibaba's cluster-trace-gpu-v2020 (philly_runtime.csv); sizes as in SenseTime's Helios (Hu et al., SC 2021, and its
artifact's helios_cluster_summary.csv): the median job has 1 GPU and the mean one 3.7. The histogram between is not
published there; powers of two that halve in number from 1 on are ours. What has more than 8 GPUs is a gang of machines.

Run times are drawn between the published quantiles (in seconds), and are a day at most, so that it is not a single job
of weeks that decides. When jobs come, whose
they are and which limit their owner gave is ours as well: at random moments, at a load of 95 %; a third of them by one
of 20 owners; two of three have a limit, the next of 10 min, 1 h, 4 h, 24 h or a week above 1.3 × their run time.
"""

import random
from bisect import bisect_left
from dataclasses import dataclass, replace

__all__ = ["GPUS_A_WORKER", "MOST", "WORKLOADS", "Work", "draw"]

GPUS_A_WORKER = 8
MOST = "owner 0"  # a third of all jobs is his
_LOAD = 0.95
_OWNERS = 20
_DAY_S = 86_400
_LIMITS_S = (600, 3_600, 14_400, 86_400, 604_800)
_AT = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)

_ALIBABA_SIZES = {1: 6_989, 2: 16, 4: 15, 8: 44}
_ALIBABA_TIMES = {
    1: (4, 67, 184, 655, 2_280, 7_231, 133_432),
    2: (40, 62, 450, 2_267, 4_319, 14_526, 27_368),
    4: (22, 23, 36, 542, 2_361, 6_710, 23_925),
    8: (58, 136, 217, 525, 9_106, 77_604, 977_323),
}
_PHILLY_TIMES = (1, 61, 131, 1_186, 3_340, 12_858, 287_239)
_HELIOS_SIZES = {1: 64, 2: 32, 4: 16, 8: 8, 16: 6, 32: 2}  # median 1, mean 3.7
WORKLOADS = ("alibaba", "helios")


@dataclass(frozen=True, slots=True)
class Work:
    """A job: ``nodes`` machines with ``gpus`` GPUs each. limit_s: None where its owner gave none."""

    number: int
    owner: str
    nodes: int
    gpus: int
    arrives_s: int
    runs_s: int
    limit_s: int | None

    @property
    def width(self) -> int:
        return self.nodes * self.gpus


def draw(workload: str, *, jobs: int, workers: int, seed: int) -> list[Work]:
    """In the order in which they come, for so many machines."""
    rng = random.Random(f"{workload} {seed}")
    sizes = _ALIBABA_SIZES if workload == "alibaba" else _HELIOS_SIZES
    drawn = []
    for width in rng.choices(list(sizes), list(sizes.values()), k=jobs):
        runs_s = min(_DAY_S, round(_between(_ALIBABA_TIMES[width] if workload == "alibaba" else _PHILLY_TIMES, rng)))
        owner = MOST if rng.random() < 1 / 3 else f"owner {rng.randrange(1, _OWNERS)}"
        limit_s = _limit(runs_s) if rng.random() < 2 / 3 else None
        nodes = max(1, width // GPUS_A_WORKER)
        drawn.append(Work(0, owner, nodes, width // nodes, 0, runs_s, limit_s))
    window_s = sum(work.width * work.runs_s for work in drawn) / (workers * GPUS_A_WORKER * _LOAD)
    moments = sorted(int(rng.random() * window_s) for _ in drawn)
    return [
        replace(work, number=number, arrives_s=moment)
        for number, (work, moment) in enumerate(zip(drawn, moments, strict=True))
    ]


def _between(quantiles: tuple[int, ...], rng: random.Random) -> float:
    """Straight lines between them, in logarithms: run times span five orders of magnitude."""
    place = rng.random() * _AT[-1]
    upper = max(1, bisect_left(_AT, place))
    share = (place - _AT[upper - 1]) / (_AT[upper] - _AT[upper - 1])
    low, high = quantiles[upper - 1], quantiles[upper]
    return float(low * (high / low) ** share)


def _limit(runs_s: int) -> int:
    return next((limit_s for limit_s in _LIMITS_S if limit_s > 1.3 * runs_s), 2 * runs_s)
