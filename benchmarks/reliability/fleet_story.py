"""``python -m benchmarks.reliability.fleet_story [--workers N]``: a fleet on one machine, of which three workers die.

Real workers, half of them in each of two regions, with four slots each: they are told that their machine has so many
cores, which it need not have.
5,000 tiny jobs, 2,000 shards of one computation and a sweep of 480 runs are submitted, the sweep's halves bound to a
region each; in the middle of it three workers are killed with -9, each with all of its processes, as by a power cut.
Everything must succeed once: jobs that failed and jobs with two results are counted, and there may be none.

The functions of the story are commands as yet. All workers share the cores of one machine, so jobs a second say what
starting and recording costs, not what 30 machines do. The lease is the usual one: what died is missed after 33 s.
"""

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import OURS, Row
from benchmarks.plane import Plane
from benchmarks.processes import with_word
from gpulayer.sdk import Client
from gpulayer.variables import background_variables

WORKERS = 30
SLOTS = 4  # of each
KILLED = 3
TINY, SHARDS, SWEEP = 5_000, 2_000, 480
REGIONS = ("europe", "america")
JOIN_S = 300.0
# ``gpulayer join`` becomes this program, but for the cores.
WORKER = """
import os, sys
slots = int(sys.argv.pop(1))
os.sched_getaffinity = lambda pid: set(range(slots))
from gpulayer.cli.background import main
sys.exit(main())
"""
END_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Story:
    """failed: jobs that did not succeed. doubled: jobs with more than one result. again: attempts beyond the first."""

    jobs: int
    slots: int
    wall_s: float
    failed: int
    doubled: int
    again: int


def rows(rounds: int) -> list[Row]:
    """Rows of the same runs."""
    speed = Row(f"the fleet story: {WORKERS} workers, {KILLED} of them killed -9", "jobs/s", "higher")
    wall = Row("the fleet story, from the first submission to the last end", "s", "lower")
    failed = Row("the fleet story: jobs that failed, or had two results", "jobs", "lower", "0", 0)
    for _ in range(rounds):
        story = tell(WORKERS)
        speed.figures.setdefault(OURS, []).append(story.jobs / story.wall_s)
        wall.figures.setdefault(OURS, []).append(story.wall_s)
        failed.figures.setdefault(OURS, []).append(story.failed + story.doubled)
        speed.notes.append(
            f"{story.jobs:,} jobs on {story.slots} slots, all on the cores of this machine; {story.again} were begun "
            f"again because their worker had died"
        )
    return [speed, wall, failed]


def tell(workers: int) -> Story:
    """One run. Raises RuntimeError where it does not come to its end."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name, Plane(Path(name)) as plane:
        folder = Path(name)
        plane.run("up", "--detach", "--no-worker", "--port", "0")
        endpoint = json.loads((plane.state / "endpoint.json").read_bytes())
        fleet = _Fleet(plane, folder, endpoint["url"])
        try:
            with Client(url=endpoint["url"], token=endpoint["token"]) as client:
                slots = fleet.join(client, workers)
                began = time.monotonic()
                jobs = _submit(client)
                ends = _Store(plane.state / "store.db")
                ends.until(jobs // 3, "a third has ended")
                fleet.kill(KILLED)
                ends.until(jobs, "all have ended")
                wall_s = time.monotonic() - began
        finally:
            fleet.end()
        failed, doubled, again = ends.verdict()
        return Story(jobs, slots, wall_s, failed, doubled, again)


def _submit(client: Client) -> int:
    """All of it, in the order in which three people would: the sweep last, each half for its region."""
    client.submit_batch([["true"]] * TINY)
    shard = "i=0; sum=0; while [ $i -lt 100 ]; do sum=$((sum + $0 * 100 + i)); i=$((i + 1)); done; echo $sum"
    client.submit_batch([["sh", "-c", shard, str(number)] for number in range(SHARDS)])
    for place, region in enumerate(REGIONS):
        runs = [["sh", "-c", "sleep 0.1; echo loss $0", f"{number / SWEEP:.4f}"] for number in range(place, SWEEP, 2)]
        client.submit_batch([{"command": run, "labels": {"region": region}} for run in runs])
    return TINY + SHARDS + SWEEP


class _Fleet:
    def __init__(self, plane: Plane, folder: Path, url: str) -> None:
        self._plane = plane
        self._folder = folder
        self._url = url
        self._started: dict[Path, subprocess.Popen[bytes]] = {}

    def join(self, client: Client, count: int) -> int:
        """Returns how many slots they have, once all are ready."""
        made = json.loads(self._plane.run("token", "create", "--role", "join", "--uses", str(count), "--json"))
        token = self._folder / "join-token"
        token.touch(mode=0o600)
        token.write_text(made["token"], "ascii")
        for number in range(count):
            work = self._folder / f"worker-{number}"
            command = [
                sys.executable,
                "-P",
                "-c",
                WORKER,
                str(SLOTS),
                "worker",
                "--url",
                self._url,
                "--token-file",
                token,
                "--name",
                f"fleet-{number}",
                "--work-dir",
                work,
            ]
            command += ["--label", f"region={REGIONS[number % len(REGIONS)]}"]
            self._started[work] = subprocess.Popen(
                command,
                env=background_variables({**self._plane.env, "GPULAYER_PLUGINS": "none"}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        ends = time.monotonic() + JOIN_S
        while True:
            ready = [record for record in client.workers() if record["state"] == "ready"]
            if len(ready) == count:
                return sum(record["cpus"] for record in ready)
            if time.monotonic() > ends:
                raise RuntimeError(f"{len(ready)} of {count} workers joined within {JOIN_S:g} s")
            time.sleep(0.2)

    def kill(self, count: int) -> None:
        """So many at once, each with its spawner, its watchdog and what they run."""
        for work in list(self._started)[:count]:
            process = self._started.pop(work)
            for pid in (*with_word(str(work)), process.pid):
                _kill(pid)
            process.wait()

    def end(self) -> None:
        for process in self._started.values():
            process.terminate()
        for work, process in self._started.items():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                for pid in (*with_word(str(work)), process.pid):
                    _kill(pid)
                process.wait()


class _Store:
    """What became of the jobs, asked of the file: nobody is kept from work by the question."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def until(self, count: int, what: str) -> None:
        ends = time.monotonic() + END_S
        while self._ask("SELECT count(*) FROM jobs WHERE NOT is_live")[0][0] < count:
            if time.monotonic() > ends:
                raise RuntimeError(f"waited {END_S:g} s until {what}")
            time.sleep(0.1)

    def verdict(self) -> tuple[int, int, int]:
        """Jobs that did not succeed; jobs with several results; attempts beyond each job's first."""
        (failed,) = self._ask("SELECT count(*) FROM jobs WHERE state != 'succeeded'")[0]
        results: dict[str, int] = {}
        attempts = 0
        ended = self._ask("SELECT job_id, body FROM events WHERE kind = 'attempt_ended'")
        for job_id, body in ended:
            attempts += 1
            if json.loads(body)["exit_code"] == 0:
                results[job_id] = results.get(job_id, 0) + 1
        return failed, sum(count > 1 for count in results.values()), attempts - len({job_id for job_id, _ in ended})

    def _ask(self, query: str) -> Sequence[tuple[int, ...]]:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=30)) as store:
            return store.execute(query).fetchall()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it went with the others


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.fleet_story", description=__doc__)
    parser.add_argument("--workers", type=int, default=WORKERS)
    story = tell(parser.parse_args().workers)
    print(
        f"{story.jobs:,} jobs on {story.slots} slots in {story.wall_s:.0f} s ({story.jobs / story.wall_s:.0f}/s): "
        f"{story.failed} failed, {story.doubled} with two results, {story.again} begun again"
    )
    return 1 if story.failed or story.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
