"""Promises 2, 3, 4, 10 and 14 in the simulated world: the same worlds serve all but the last.

A world's rules are all checked in each run; what breaks is counted in the row of the promise that it belongs to.
"""

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, TypeVar

from gpulayer.testing.sim import run
from gpulayer.testing.sim.mutants import MUTANTS, planted
from tests.soak.frame import Proof, Say, Tally

WORLDS: Final = 10_000
SEEDS_A_MUTANT: Final = 1_000  # within so many it must be found
AT_A_TIME: Final = 20  # seeds a task, some seconds

Task = TypeVar("Task")
Found = TypeVar("Found")

# Which promise a broken rule belongs to, by a part of what it says; what is in no list counts as 4, where most are.
_RULES: Final = {
    "starts on a device": 2,
    "cores are in use": 2,
    "exclusive job": 3,
    "does not hold its lease": 3,
    "counts as given back": 3,
}


@dataclass(frozen=True)
class Broken:
    promise: int
    text: str


@dataclass(frozen=True)
class Worlds:
    runs: int
    faults: int
    broken: tuple[Broken, ...]


def try_seeds(seeds: range) -> Worlds:
    """Run them all, here; a broken one is no reason to stop."""
    faults, broken = 0, []
    for seed in seeds:
        try:
            faults += run(seed).faults
        except AssertionError as error:
            broken.append(
                Broken(_promise_of(str(error)), f"{error}\nagain: python -m gpulayer.testing.sim --seed {seed}")
            )
    return Worlds(len(seeds), faults, tuple(broken))


def find_mutant(task: tuple[str, range]) -> tuple[str, int | None]:
    """(name, first seed at which it is noticed)."""
    name, seeds = task
    with planted(name):
        for seed in seeds:
            try:
                run(seed)
            except Exception:  # a mutant may break anything
                return name, seed
    return name, None


def _promise_of(text: str) -> int:
    return next((promise for part, promise in _RULES.items() if part in text), 4)


class _Worlds:
    """Four proofs are of the same worlds: the first one asks for them, the others find them done."""

    def __init__(self) -> None:
        self._done: dict[tuple[int, int], Worlds] = {}

    def prove(self, runs: int, *, seed: int, say: Say, promise: int) -> Tally:
        if (runs, seed) not in self._done:
            self._done[(runs, seed)] = self._all(runs, seed, say)
        worlds = self._done[(runs, seed)]
        return Tally(worlds.runs, worlds.faults, [one.text for one in worlds.broken if one.promise == promise])

    @staticmethod
    def _all(runs: int, seed: int, say: Say) -> Worlds:
        first = seed * 1_000_000  # CI has those from 0 on
        tasks = [range(at, min(at + AT_A_TIME, first + runs)) for at in range(first, first + runs, AT_A_TIME)]
        done: list[Worlds] = []
        for worlds in spread(try_seeds, tasks):
            done.append(worlds)
            say(f"{sum(one.runs for one in done):,} of {runs:,} worlds")
        broken = tuple(one for worlds in done for one in worlds.broken)
        return Worlds(sum(one.runs for one in done), sum(one.faults for one in done), broken)


def prove_mutants(runs: int, *, seed: int, say: Say) -> Tally:
    """``runs``: how many worlds there are to find each in. Not to be found is a violation only of the full number.

    CI has its own small sample, in tests/sim.
    """
    seeds = range(seed * 1_000_000, seed * 1_000_000 + runs)
    missed, tried, names = [], 0, list(MUTANTS)
    for number, (name, found) in enumerate(spread(find_mutant, [(name, seeds) for name in names])):
        tried += len(seeds) if found is None else found - seeds.start + 1
        if found is None:
            missed.append(f"{name} was not noticed in {len(seeds):,} worlds from {seeds.start:,} on")
        say(f"{number + 1} of {len(names)} mutants, the last was {name}")
    return Tally(tried, len(names), missed if runs >= SEEDS_A_MUTANT else [], (len(names) - len(missed), len(names)))


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


_WORLDS: Final = _Worlds()


def _of(promise: int) -> Callable[..., Tally]:
    return functools.partial(_WORLDS.prove, promise=promise)


PROOFS: Final = [
    Proof(2, "simulated fleets, rules after every step", _of(2), 10, WORLDS),
    Proof(3, "the same fleets", _of(3), 10, WORLDS),
    Proof(4, "the same; all messages lost, doubled, late", _of(4), 10, WORLDS),
    Proof(10, "the same fleets", _of(10), 10, WORLDS),
    Proof(14, "planted faults of the product's code", prove_mutants, 0, SEEDS_A_MUTANT, silence_s=1800),
]
