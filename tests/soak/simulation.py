"""What the simulated world proves: the same worlds serve all promises but the last, which has planted faults in them.

All rules are checked in each world, and the first that breaks ends it: what it would have shown of the others, nobody
knows. So a world that breaks counts in every row, whatever it broke by, and whichever rows were asked for.
"""

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from gpulayer.engine.invariants import InvariantViolated
from gpulayer.testing.sim import Course, Scenario, Violation, play, run
from gpulayer.testing.sim.mutants import MUTANTS, planted
from tests.soak.frame import Proof, Say, Tally

WORLDS: Final = 10_000
SEEDS_A_MUTANT: Final = 1_000  # within so many it must be found
FLEETS: Final = (1, 2, 3, 4, 6, 8, 10, 13)  # the promises that they prove something of
CANCELS: Final = 8
MANY: Final = 100  # in so many worlds some cancel meets nothing that is wrong
SAMPLE: Final = 10
MATRIX: Final = Path(".cache/mutants.txt")
AT_A_TIME: Final = 20  # seeds a task, some seconds

Task = TypeVar("Task")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Worlds:
    """``faults``: of all, also of those that are ``broken``, which are sentences. judged: see ``Report``."""

    runs: int
    faults: int
    broken: tuple[str, ...]
    judged: int = 0


@dataclass(frozen=True)
class Search:
    """Of a mutant. ``seed``: the first one at which it was noticed; None with a ``how``: it does not fit the code."""

    name: str
    tried: int
    seed: int | None
    how: str

    @property
    def is_stale(self) -> bool:
        """What it broke is no rule but the program: nothing is proven by that."""
        return self.seed is None and bool(self.how)


def try_seeds(seeds: range) -> Worlds:
    """Play them all, here; a broken one is no reason to stop, nor is one that ends with what nobody foresaw."""
    course, broken, judged = Course(), [], 0
    for seed in seeds:
        try:
            judged += play(Scenario.of_seed(seed), course=course).judged
        except Exception as error:
            broken.append(f"{type(error).__name__}: {error}\nagain: python -m gpulayer.testing.sim --seed {seed}")
    return Worlds(len(seeds), course.faults.total(), tuple(broken), judged)


def find_mutant(task: tuple[str, range]) -> Search:
    """Until a rule is broken, and by a rule alone; how is a sentence."""
    name, seeds = task
    seed = seeds.start
    try:
        with planted(name):
            for seed in seeds:
                try:
                    run(seed)
                except (Violation, InvariantViolated) as error:
                    how = f"{type(error).__name__}: {error}".partition("\n")[0]
                    return Search(name, seed - seeds.start + 1, seed, how)
    except Exception as error:
        return Search(name, seed - seeds.start + 1, None, f"{type(error).__name__}: {error}".partition("\n")[0])
    return Search(name, len(seeds), None, "")


class _Simulation:
    """Several proofs are of the same worlds and the same mutants: the first one asks for them, the others find them."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[int, int], Worlds] = {}
        self._searches: dict[tuple[int, int], list[Search]] = {}

    def prove(self, runs: int, *, seed: int, say: Say, promise: int) -> Tally:
        """One promise in all worlds, and the mutants that break it. (CI has its own sample of those, in tests/sim.)"""
        worlds = self._worlds.get((runs, seed)) or self._play(runs, seed, say)
        tally = Tally(worlds.runs, worlds.faults, list(worlds.broken))
        if promise == CANCELS and runs >= MANY and not worlds.judged:
            tally.violations.append("no cancel was judged: there was an excuse for each")
        if runs > SAMPLE:
            found = [one for one in self.searches(_within(runs), seed, say) if MUTANTS[one.name].promise == promise]
            tally.mutants = (sum(one.seed is not None for one in found), len(found)) if found else None
            tally.violations += _stale(found)
        return tally

    def prove_mutants(self, runs: int, *, seed: int, say: Say) -> Tally:
        """``runs``: how many worlds there are to notice each in. Only with the full number it is a violation not to."""
        searches = self.searches(runs, seed, say)
        stale = _stale(searches)
        missed = [
            f"{one.name} was not noticed in {one.tried:,} worlds\n{_again(one, seed)}"
            for one in searches
            if one.seed is None and not one.is_stale
        ]
        caught = len(searches) - len(missed) - len(stale)
        return Tally(
            sum(one.tried for one in searches),
            len(searches) - len(stale),
            stale + (missed if runs >= SEEDS_A_MUTANT else []),
            (caught, len(searches)),
        )

    def searches(self, runs: int, seed: int, say: Say) -> list[Search]:
        """All mutants, by name. Which was noticed where, and how, is written to ``MATRIX`` as it goes."""
        known = self._searches.get((runs, seed))
        if known is not None:
            return known
        seeds, done = _seeds(runs, seed), []
        for one in spread(find_mutant, [(name, seeds) for name in MUTANTS]):
            done.append(one)
            MATRIX.parent.mkdir(exist_ok=True)
            lines = (f"{one.name:<28} {one.seed or '-':>10}  {one.how}\n" for one in sorted(done, key=_by_name))
            MATRIX.write_text("".join(lines))
            say(f"{len(done)} of {len(MUTANTS)} mutants, the last was {one.name}")
        self._searches[runs, seed] = sorted(done, key=_by_name)
        return self._searches[runs, seed]

    def _play(self, runs: int, seed: int, say: Say) -> Worlds:
        seeds, done = _seeds(runs, seed), []
        tasks = [seeds[at : at + AT_A_TIME] for at in range(0, runs, AT_A_TIME)]
        for worlds in spread(try_seeds, tasks):
            done.append(worlds)
            say(f"{sum(one.runs for one in done):,} of {runs:,} worlds")
        broken = tuple(one for worlds in done for one in worlds.broken)
        judged = sum(one.judged for one in done)
        self._worlds[runs, seed] = Worlds(
            sum(one.runs for one in done), sum(one.faults for one in done), broken, judged
        )
        return self._worlds[runs, seed]


def _again(search: Search, seed: int) -> str:
    seeds = _seeds(search.tried, seed)
    return f"again: python -m gpulayer.testing.sim --mutant {search.name} --seeds {seeds.start}:{seeds.stop}"


def _stale(searches: Iterable[Search]) -> list[str]:
    """At any scale: what does not fit the code proves nothing."""
    return [f"{one.name} does not fit the code: {one.how}" for one in searches if one.is_stale]


def _by_name(search: Search) -> str:
    return search.name


def _seeds(runs: int, seed: int) -> range:
    return range(seed * 1_000_000, seed * 1_000_000 + runs)  # CI has those from 0 on


def _within(runs: int) -> int:
    """So that a promise's own mutants are those of promise 14 at the same scale."""
    return max(1, round(runs * SEEDS_A_MUTANT / WORLDS))


def spread(what: Callable[[Task], Found], tasks: Iterable[Task]) -> Iterator[Found]:
    """Over all cores, as they end; here, where there is one task alone."""
    waiting = list(tasks)
    if len(waiting) < 2:
        yield from map(what, waiting)
        return
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
    ) as pool:
        left: set[Future[Found]] = {pool.submit(what, task) for task in waiting}
        try:
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C is for who asked: it takes no more results, and what is under way ends within seconds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_SIMULATION: Final = _Simulation()


PROOFS: Final = [
    *(
        Proof(
            promise,
            "simulated fleets, all rules at each step",
            functools.partial(_SIMULATION.prove, promise=promise),
            SAMPLE,
            WORLDS,
            "fleets",
            silence_s=1800,
            is_shared=True,
        )
        for promise in FLEETS
    ),
    Proof(
        14,
        "planted faults of the product's code",
        _SIMULATION.prove_mutants,
        0,
        SEEDS_A_MUTANT,
        "fleets",
        silence_s=1800,
    ),
]
