"""The best subset of a machine's free devices, never asked before, beside exhaustive search for the same one.

Of each set of questions the slowest counts, in processor time: a driver that has one such question must not stand still
for it. Each answer is compared with the exhaustive one; a benchmark whose answers differ has no figures.
"""

import random
import time
from collections.abc import Callable, Sequence
from itertools import combinations

from benchmarks.family import ROOT
from benchmarks.harness import OURS, Contestant, Row, compare
from gpulayer.ids import WorkerId
from gpulayer.placement import subsets
from gpulayer.placement.capacity import allocate, usable_capacity
from gpulayer.placement.subsets import Topology, best_subset, topology_of
from gpulayer.plugins.builtin.nvidia.topo import parse_topo, with_topology
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator, Request

__all__ = ["of_eight", "of_sixteen", "share"]

_RECORDED = ROOT / "gpulayer-core/tests/data/topo"
_EIGHT = (
    "8x_2080ti_pix_sys_mlx4",
    "8x_a100pcie_slurm_partial_affinity",
    "8x_h100_in_slurm_1cpu",
    "dgx_a100_12nic_mlx5names",
    "dgx_h100_glued_cells_GPUrows",
)
_STRENGTHS = (10, 20, 30, 40, 50, 101, 112)
_Question = tuple[Topology, int]


def of_eight(rounds: int) -> list[Row]:
    """All counts of each topology."""
    recorded = [(topology_of(_cards(name)), count) for name in _EIGHT for count in range(1, 8)]
    by_chance = [(_by_chance(8, seed), count) for seed in range(10) for count in range(1, 8)]
    return [
        _row(f"best subset of 8 devices, {len(_EIGHT)} recorded machines", recorded, rounds, limit=1),
        _row("best subset of 8 devices, links at random", by_chance, rounds, limit=1),
    ]


def of_sixteen(rounds: int) -> list[Row]:
    """Half of them, of which there are most subsets, and a quarter."""
    joined = [(_islands(size), count) for size in (2, 4, 8) for count in (4, 8)]
    by_chance = [(_by_chance(16, seed), count) for seed in range(3) for count in (4, 8)]
    return [
        _row("best subset of 16 devices, islands of 2, 4 and 8", joined, rounds, limit=5),
        _row("best subset of 16 devices, links at random", by_chance, rounds, limit=5),
    ]


def share(rounds: int) -> Row:
    """A request's share of a machine that was asked for before: the rule where many are placed."""
    facts = WorkerFacts("linux-x86_64", "0.1.0", 64, 10**12, devices=_cards("8x_a100pcie_slurm_partial_affinity"))
    free, worker, times = usable_capacity(facts), WorkerId("w"), 1000

    def taking(devices: int) -> Callable[[], float]:
        request = Request(accelerators=(Accelerator.CUDA,), devices=devices)

        def once() -> float:
            started = time.thread_time()
            for _ in range(times):
                allocate(request, worker, facts, free)
            return (time.thread_time() - started) / times * 1e6

        return once

    row = Row("2 of 8 free devices, asked for before", "µs", "lower")
    return compare(row, [Contestant(OURS, taking(2)), Contestant("all 8, no choice", taking(8))], rounds=rounds)


def _row(what: str, questions: Sequence[_Question], rounds: int, *, limit: float) -> Row:
    row = Row(what, "ms", "lower", goal=f"≤ {limit:g} ms", limit=limit)
    row.notes.append(f"the slowest of {len(questions)} questions, in processor time, nothing remembered")
    contestants = [
        Contestant(OURS, lambda: max(_timed(_ours, question) for question in questions)),
        Contestant("exhaustive search", lambda: max(_timed(_exhaustive, question) for question in questions)),
    ]
    for question in questions:
        if (found := _ours(question)) != (best := _exhaustive(question)):
            raise ValueError(f"{found} instead of {best} of {question}")
    return compare(row, contestants, rounds=rounds)


def _timed(choose: Callable[[_Question], tuple[int, ...]], question: _Question) -> float:
    """Milliseconds, the better of two: what else the machine does is not ours."""
    taken = []
    for _ in range(2):
        subsets.forget()
        started = time.thread_time()
        choose(question)
        taken.append((time.thread_time() - started) * 1000)
    return min(taken)


def _ours(question: _Question) -> tuple[int, ...]:
    topology, count = question
    return best_subset(topology, free=(1 << len(topology.links)) - 1, count=count)


def _exhaustive(question: _Question) -> tuple[int, ...]:
    """The formula over every subset, lowest indices first; the weights of pairs are looked up."""
    topology, count = question
    places = range(len(topology.links))
    links = topology.links
    weights = [[topology.weight(one, other) for other in places] for one in places]
    best: tuple[int, ...] = ()
    best_mark = (-1, -1, -1)
    for chosen in combinations(places, count):
        least = min([links[one][other] for one, other in combinations(chosen, 2)], default=0)
        if least < best_mark[0]:
            continue
        total = sum([weights[one][other] for one, other in combinations(chosen, 2)])
        if (least, total) < best_mark[:2]:
            continue
        left = [place for place in places if place not in chosen]
        mark = least, total, sum([weights[one][other] for one, other in combinations(left, 2)])
        if mark > best_mark:
            best, best_mark = chosen, mark
    return best


def _cards(name: str) -> tuple[Device, ...]:
    cards = [Device(f"GPU-{index}", index, Accelerator.CUDA, "any") for index in range(8)]
    return with_topology(cards, parse_topo((_RECORDED / f"{name}.out").read_text("utf-8")))


def _islands(size: int) -> Topology:
    links = [
        [112 if one // size == other // size else 20 if one // 8 == other // 8 else 10 for other in range(16)]
        for one in range(16)
    ]
    return Topology(tuple(map(tuple, links)), tuple(place // 8 for place in range(16)))


def _by_chance(size: int, seed: int) -> Topology:
    rng = random.Random(seed)
    links = [[0] * size for _ in range(size)]
    for one, other in combinations(range(size), 2):
        links[one][other] = links[other][one] = rng.choice(_STRENGTHS)
    return Topology(tuple(map(tuple, links)), tuple(rng.randrange(2) for _ in range(size)))
