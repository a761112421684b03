"""Promise 8: however a cancel races the program's own end, there is one terminal state, in time, and it stays."""

import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from gpulayer.sdk import Client
from tests.soak.frame import Proof, Say, Tally
from tests.soak.joined import joined
from tests.soak.served import serving

GRACE_S: Final = 1.0
MARGIN_S: Final = 5.0
TERMINAL: Final = ("job_cancelled", "job_failed", "job_succeeded", "job_lost", "job_timed_out", "job_rejected")
# What ends at once, what saves its work first, what does not listen, what lets its children wait: each exits with 7.
PROGRAMS: Final = (
    "sleep {after}; exit 7",
    "trap 'sleep 0.05; exit 7' TERM; sleep {after} & wait; exit 7",
    "trap '' TERM; sleep {after}; exit 7",
    "(setsid sleep 60 &); sleep {after}; exit 7",
)


def prove(runs: int, *, seed: int, say: Say) -> Tally:
    """Jobs that end within milliseconds, each cancelled at a moment of its own, over the real API and a real worker."""
    rng = random.Random(seed)
    done = itertools.count(1)

    def race(number: int) -> list[str]:
        found = list(_race(client, number, random.Random(f"{seed} {number}")))
        say_done(next(done))
        return found

    def say_done(count: int) -> None:
        counted[0] = count

    counted = [0]
    tally = Tally(runs, faults=runs)
    with tempfile.TemporaryDirectory(prefix="gpulayer-cancels-") as name:
        with serving(Path(name)) as plane, joined(plane, "one"), plane.client() as client:
            with ThreadPoolExecutor(4) as pool:
                races = [pool.submit(race, number) for number in rng.sample(range(runs), runs)]
                for one in races:
                    while not one.done():
                        say(f"{counted[0]:,} cancels")
                        time.sleep(0.05)
                    tally.violations += one.result()
            (worker,) = client.workers()
            if worker["leases"]:
                tally.violations.append(f"all have ended, and {len(worker['leases'])} leases are left")
    return tally


def _race(client: Client, number: int, rng: random.Random) -> Iterator[str]:
    after = f"0.0{rng.randrange(10)}"
    program = PROGRAMS[number % len(PROGRAMS)].format(after=after)
    again = f"(run {number}: {program})"
    job = client.submit(["sh", "-c", program], grace=GRACE_S)
    if rng.random() < 0.5:
        while job.record()["state"] == "queued":
            pass
    time.sleep(rng.random() * 0.1)
    asked = time.monotonic()
    job.cancel()
    record: Any = job.wait(timeout=60)  # Any: a record as JSON
    took_s = time.monotonic() - asked
    if took_s > GRACE_S + MARGIN_S:
        yield f"it took {took_s:.1f} s, with a grace time of {GRACE_S:g} s {again}"
    events = [event["event"] for event in job.events()]
    final = [event for event in events if event in TERMINAL]
    if final != [f"job_{record['state']}"]:
        yield f"it ended as {record['state']}, and its log says {final} {again}"
    if record["state"] not in ("cancelled", "failed"):
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
