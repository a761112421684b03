"""A plainly written scorer is asked for 1,000 kinds of machines × 200 classes of requests, in one batch."""

import time

from benchmarks.harness import Contestant, Row, compare
from gpulayer.clock import SystemClock
from gpulayer.plugins.contracts.scorer import SCORER_DEADLINE_S, Mark, Pair, Refusal, ScoreBatch
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Request

MACHINES = 1_000
REQUESTS = 200
OPINION = Mark | Refusal | None


class Cheapest:
    """Prices by label, refused where there is none for a large request: what somebody writes first."""

    name = "cheapest"
    lifetime_s = 60.0

    def score(self, batch: ScoreBatch) -> list[Mark | Refusal | None]:
        opinions: list[Mark | Refusal | None] = []
        for pair in batch.pairs:
            machine, request = batch.machines[pair.machine], batch.requests[pair.request]
            price = dict(machine.labels).get("usd")
            if price is None:
                opinions.append(Refusal("its price is not known") if request.cpus > 100 else None)
            else:
                opinions.append(Mark(1 / (1 + float(price) * request.cpus)))
        return opinions


def batch(rounds: int) -> Row:
    row = Row(
        f"a scorer's batch, {MACHINES:,} workers × {REQUESTS} classes, through the host",
        "s",
        "lower",
        goal=f"≤ {SCORER_DEADLINE_S:g} s",
        limit=SCORER_DEADLINE_S,
    )
    asked = _batch()
    guard = Guard(clock=SystemClock())
    host = Host(Registry(), guard, lambda: ())
    registered = Registered("cheapest", Cheapest())
    try:
        return compare(
            row,
            [
                Contestant("gpulayer", lambda: _asked(host, registered, asked)),
                Contestant("a bare call", lambda: _bare(registered.thing, asked)),
            ],
            rounds=rounds,
        )
    finally:
        guard.close()


def _batch() -> ScoreBatch:
    machines = tuple(
        WorkerFacts("linux-x86_64", "0", 64, 2**36, labels=(("usd", f"{number % 90 / 10}"), ("zone", "a")))
        if number % 10
        else WorkerFacts("linux-x86_64", "0", 64, 2**36)
        for number in range(MACHINES)
    )
    requests = tuple(Request(cpus=1 + number) for number in range(REQUESTS))
    pairs = tuple(Pair(request, machine) for request in range(REQUESTS) for machine in range(MACHINES))
    return ScoreBatch(requests, machines, pairs, wall_ms=1_764_514_800_000)


def _asked(host: Host, registered: Registered[Cheapest], asked: ScoreBatch) -> float:
    def ask(scorer: Cheapest) -> list[Mark | Refusal | None]:
        opinions = list(scorer.score(asked))
        if len(opinions) != len(asked.pairs):
            raise ValueError("an opinion a pair is due")
        for opinion in opinions:
            if not isinstance(opinion, OPINION):
                raise TypeError("a Mark, a Refusal or None is due")
        return opinions

    started = time.perf_counter()
    host.call(registered, "Scorer.score", ask, deadline_s=10 * SCORER_DEADLINE_S)
    return time.perf_counter() - started


def _bare(scorer: Cheapest, asked: ScoreBatch) -> float:
    started = time.perf_counter()
    scorer.score(asked)
    return time.perf_counter() - started
