"""Promise 9: no room and a bad disk at every write of control plane, worker and spawner.

A run is one write that failed. Who asked was told or the write was made again; nothing was lost, and the store's file
is sound (``PRAGMA integrity_check``). fsync that fails, and a disk that stays full, have proofs of their own.
"""

import random
import tempfile
from pathlib import Path

from tests.e2e.kills import chains, writes
from tests.soak.frame import Proof, Say, Tally

SEEDS = 20
_REACHES = 4


def prove(runs: int, *, seed: int, say: Say) -> Tally:
    tally = Tally()
    number = 0
    while tally.runs < runs:
        for fail in (writes.fail_in_traffic, writes.fail_on_worker, writes.fail_in_setup, writes.fail_in_sweeps):
            if tally.runs >= runs:
                break
            rng = random.Random(f"{seed} {number}")
            more = {"count": lambda rng=rng: rng.randint(2, _REACHES)} if fail in _COUNTED else {}
            try:
                with tempfile.TemporaryDirectory(prefix="gpulayer-writes-") as folder:
                    done = fail(
                        Path(folder), rng=rng, say=lambda text: say(f"{tally.runs:,} writes in vain; {text}"), **more
                    )
            except AssertionError as error:
                tally.violations.append(f"round {number} of --seed {seed} ({fail.__name__}): {error}")
                done = 1
            tally.runs += done
            tally.faults += done
        number += 1
    return tally


_COUNTED = (writes.fail_in_traffic, writes.fail_on_worker)
_OF_PLANE = [*chains.setup_points(), *chains.traffic_points(), *chains.sweep_points()]
_ALL = len(writes.ACTIONS) * (len(writes.of(_OF_PLANE)) + len(writes.worker_writes("agent.", "spawner.", "watchdog.")))

PROOFS = [Proof(9, "no room, and a bad disk, at every write", prove, sample=0, full=SEEDS * _ALL, unit="errors")]
