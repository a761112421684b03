"""Promise 8: however a cancel races the program's own end, there is one terminal state, in time, and it stays."""

import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from gpulayer.errors import TimedOut
from gpulayer.sdk import Client
from tests.soak.frame import Proof, Say, Tally
from tests.soak.joined import joined
from tests.soak.served import serving

GRACE_S: Final = 1.0
MARGIN_S: Final = 5.0
MANY: Final = 50  # of so many races programs have won some
TERMINAL: Final = ("job_cancelled", "job_failed", "job_succeeded", "job_lost", "job_timed_out", "job_rejected")
# What ends at once, what saves its work first, what does not listen, what lets its children wait: each exits with 7.
PROGRAMS: Final = (
    "sleep {after}; exit 7",
    "trap 'sleep 0.05; exit 7' TERM; sleep {after} & wait; exit 7",
    "trap '' TERM; sleep {after}; exit 7",
    "(setsid sleep 60 &); sleep {after}; exit 7",
)
# What nothing but its cancel ends within the time of a proof: at once, at SIGKILL, and with all that it has begun.
LASTING: Final = (
    "exec sleep 600",
    "trap '' TERM; sleep 600; exit 7",
    "trap '' TERM; (setsid sleep 600 &); sleep 600; exit 7",
)
EACH: Final = 3  # of so many runs one is of such a program


def prove(runs: int, *, seed: int, say: Say) -> Tally:
    """Jobs that end within milliseconds, and some that do not end at all, each cancelled at a moment of its own, over
    the real API and a real worker. A fault is a cancel that found something to end."""
    rng = random.Random(seed)
    done = itertools.count(1)

    def race(number: int) -> list[str]:
        found = list(_race(client, number, random.Random(f"{seed} {number}"), ended_by))
        say_done(next(done))
        return found

    def say_done(count: int) -> None:
        counted[0] = count

    counted = [0]
    ended_by: Counter[str] = Counter()
    tally = Tally(runs)
    with tempfile.TemporaryDirectory(prefix="gpulayer-cancels-") as name:
        with serving(Path(name)) as plane, joined(plane, "one"), plane.client() as client:
            with ThreadPoolExecutor(4) as pool:
                races = [pool.submit(race, number) for number in rng.sample(range(runs), runs)]
                for one in races:
                    while not one.done():
                        say(f"{counted[0]:,} cancels")
                        time.sleep(0.05)
                    tally.violations += one.result()
            tally.faults = ended_by["cancel"]
            lasting = len(range(0, runs, EACH))
            if tally.faults < lasting or (runs >= MANY and ended_by["program"] == 0):
                tally.violations.append(f"of {runs} programs, {lasting} of them lasting, this ended: {dict(ended_by)}")
            (worker,) = client.workers()
            if worker["leases"]:
                tally.violations.append(f"all have ended, and {len(worker['leases'])} leases are left")
    return tally


def _race(client: Client, number: int, rng: random.Random, ended_by: Counter[str]) -> Iterator[str]:
    after = f"0.0{rng.randrange(10)}"
    is_lasting = number % EACH == 0
    if is_lasting:
        program = LASTING[number // EACH % len(LASTING)]
    else:
        program = PROGRAMS[number % len(PROGRAMS)].format(after=after)
    again = f"(run {number}: {program})"
    job = client.submit(["sh", "-c", program], grace=GRACE_S)
    if rng.random() < 0.5:
        while job.record()["state"] == "queued":
            pass
    time.sleep(rng.random() * 0.1)
    asked = time.monotonic()
    job.cancel()
    try:
        record: Any = job.wait(timeout=GRACE_S + 3 * MARGIN_S)  # Any: a record as JSON
    except TimedOut:
        yield f"it is {job.record()['state']} {time.monotonic() - asked:.0f} s after its cancel {again}"
        return
    ended_by[str(record["ended_by"])] += 1
    took_s = time.monotonic() - asked
    if took_s > GRACE_S + MARGIN_S:
        yield f"it took {took_s:.1f} s, with a grace time of {GRACE_S:g} s {again}"
    events = [event["event"] for event in job.events()]
    final = [event for event in events if event in TERMINAL]
    if final != [f"job_{record['state']}"]:
        yield f"it ended as {record['state']}, and its log says {final} {again}"
    if record["state"] not in (("cancelled",) if is_lasting else ("cancelled", "failed")):
        yield f"it ended as {record['state']} {again}"
    elif record["ended_by"] != {"cancelled": "cancel", "failed": "program"}[record["state"]]:
        yield f"it is {record['state']} and was ended by {record['ended_by']} {again}"
    if record["state"] == "failed" and record["exit_code"] != 7:
        yield f"it failed with {record['exit_code']} {again}"
    if not events.count("attempt_ended") == len(record["attempts"]) <= 1:
        yield f"{len(record['attempts'])} attempts, {events.count('attempt_ended')} ends {again}"
    afterwards = job.cancel()["state"]
    if afterwards != record["state"]:
        yield f"it was {record['state']}, and {afterwards} after another cancel {again}"


PROOFS: Final = [Proof(8, "cancels that race the program's own end", prove, 60, 1_000, "cancels")]
