"""Promise 1: kill -9 of the control plane at every point at which something durable changes or an answer leaves.

A run is one death. A round goes through all points, in an order of its own and each at a reach of its own, under
traffic of all kinds; then everything that was promised is looked for through the API, in the processes, and in the
store's file. The points are those of ``gpulayer.faults``, and so more with every commit that is added.
"""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.kills import chains
from tests.soak.frame import Proof, Say, Tally

SEEDS = 20
_AT_A_TIME = 20  # of one scene; what it has to check grows with its jobs
_REACHES = 4


def prove(runs: int, *, seed: int, say: Say) -> Tally:
    tally = Tally()
    number = 0
    while tally.runs < runs:
        rng = random.Random(f"{seed} {number}")
        points = chains.traffic_points()
        rng.shuffle(points)
        for start in range(0, len(points), _AT_A_TIME):
            if tally.runs < runs:
                _round(
                    tally,
                    chains.in_order(points[start : start + _AT_A_TIME][: runs - tally.runs]),
                    rng,
                    seed,
                    number,
                    say,
                )
        number += 1
    return tally


def prove_apart(runs: int, *, seed: int, say: Say) -> Tally:
    """Those of the first start, and of what time brings: each round is all of them, in their own order."""
    tally = Tally()
    number = 0
    while tally.runs < runs:
        for die in (chains.die_in_setup, chains.die_in_sweeps):
            rng = random.Random(f"{seed} {number}")
            try:
                with tempfile.TemporaryDirectory(prefix="gpulayer-points-") as folder:
                    done = die(Path(folder), rng=rng, say=lambda text: say(f"{tally.runs} of {runs} deaths; {text}"))
            except AssertionError as error:
                tally.violations.append(f"round {number} of --seed {seed} ({die.__name__}): {error}")
                done = 1
            tally.runs += done
            tally.faults += done
        number += 1
    return tally


def _round(tally: Tally, points: Sequence[str], rng: random.Random, seed: int, number: int, say: Say) -> None:
    before, died = tally.runs, 0

    def tell(text: str) -> None:
        nonlocal died
        died = int(text.partition(" ")[0])
        say(f"{before:,} deaths; {text}")

    try:
        with tempfile.TemporaryDirectory(prefix="gpulayer-points-") as folder:
            chains.die_in_traffic(
                Path(folder),
                points,
                rng=rng,
                count=lambda: rng.randint(1, _REACHES),
                say=tell,
            )
        died = len(points)
    except AssertionError as error:
        tally.violations.append(f"round {number} of --seed {seed}: {error}")
    tally.runs += len(points)
    tally.faults += died


_APART = len(chains.setup_points()) + len(chains.sweep_points())

PROOFS = [
    Proof(
        1,
        "kill -9 at each point of a control plane",
        prove,
        sample=3,
        full=SEEDS * len(chains.traffic_points()),
        unit="kills",
    ),
    Proof(1, "… of its first start, and of sweeps", prove_apart, sample=0, full=SEEDS * _APART, unit="kills"),
]
