"""Promise 5: one job a key, however often it is asked for, across kill -9; another body is refused; for 7 days."""

import random
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpulayer.client import calls
from gpulayer.clock import ManualClock
from gpulayer.errors import GpulayerError
from gpulayer.sdk import Client
from gpulayer.server.store import IDEMPOTENCY_KEPT_MS
from gpulayer.testing.plane import LivePlane
from tests.soak.frame import Proof, Say, Tally
from tests.soak.served import Served, serving

KEYS: Final = 50
KILLS: Final = 3
_PASSING: Final = ("unreachable", "timed_out", "storage_unavailable", "overloaded")


def prove_across_kills(runs: int, *, seed: int, say: Say) -> Tally:
    """So many threads, each with all keys in an order of its own; the control plane is killed while they ask."""
    tally = Tally(runs)
    rng = random.Random(seed)
    keys = [f"key-{number}" for number in range(KEYS)]
    orders = [rng.sample(keys, len(keys)) for _ in range(runs)]
    at = [runs * KEYS * (number + 1) // (KILLS + 1) for number in range(KILLS)]
    with _folder() as folder, serving(folder) as plane:
        asked = _Asked(plane.url, _lasting_token(plane))
        threads = [threading.Thread(target=asked.all_of, args=(order,), name="submits") for order in orders]
        for thread in threads:
            thread.start()
        for count in at:
            asked.until(count, say)
            plane.kill()
            plane.start()
            tally.faults += 1
        for thread in threads:
            thread.join()
        tally.violations += asked.wrong
        with asked.client() as client:
            tally.violations += _jobs_of(client, keys, asked.found)
            plane.kill()
            plane.start()
            tally.faults += 1
        with asked.client() as client:
            tally.violations += [wrong for key in keys for wrong in _refused(client, key)]
            tally.violations += [
                f"key {key} gave job {found}, and after a restart another one"
                for key in keys
                for found in asked.found[key]
                if _submit(client, key) != found
            ]
    return tally


def _lasting_token(plane: Served) -> str:
    """That of the endpoint file is another one after each start."""
    with plane.client() as client:
        return client.transport.send(calls.create_token(role="admin", name="keys"))["token"]


class _Asked:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._lock = threading.Lock()
        self._count = 0
        self.found: dict[str, set[str]] = defaultdict(set)
        self.wrong: list[str] = []

    def client(self) -> Client:
        return Client(url=self._url, token=self._token)

    def all_of(self, keys: list[str]) -> None:
        with self.client() as client:
            for key in keys:
                try:
                    job = _submit(client, key)
                except Exception as error:
                    with self._lock:
                        self.wrong.append(f"key {key} was answered {type(error).__name__}: {error}")
                    continue
                finally:
                    with self._lock:
                        self._count += 1
                with self._lock:
                    self.found[key].add(job)

    def until(self, count: int, say: Say) -> None:
        pause = threading.Event()
        while self._count < count:
            say(f"{self._count:,} submissions")
            pause.wait(0.02)


def _submit(client: Client, key: str, *, word: str = "") -> str:
    """Asked again by hand for as long as it takes: a client gives up sooner than a proof."""
    while True:
        try:
            return client.submit(["echo", key + word], idempotency_key=key).id
        except GpulayerError as error:
            if error.code not in _PASSING:
                raise


def _refused(client: Client, key: str) -> Iterator[str]:
    try:
        job = _submit(client, key, word=" and more")
    except GpulayerError as error:
        if error.code != "idempotency_mismatch":
            yield f"another body under {key} was answered {error.code}: {error.message}"
    else:
        yield f"another body under {key} was taken, as job {job}"


def _jobs_of(client: Client, keys: list[str], found: dict[str, set[str]]) -> Iterator[str]:
    for key in keys:
        if len(found[key]) != 1:
            yield f"key {key} gave {len(found[key])} jobs: {sorted(found[key])}"
    there = {job["id"] for job in client.jobs(limit=1000)}
    known = {job for jobs in found.values() for job in jobs}
    if there != known:
        yield f"{len(there)} jobs are there, and {len(known)} were answered"


def prove_seven_days(runs: int, *, seed: int, say: Say) -> Tally:
    """A clock that the proof moves: just before the end of the seventh day a key still counts, over restarts."""
    tally = Tally(runs)
    rng = random.Random(seed)
    for number in range(runs):
        say(f"{number} of {runs} weeks")
        clock = ManualClock()
        with _folder() as folder, _live(folder, clock) as plane:
            job = _submit(plane.client, "weekly")
            left_ms = IDEMPOTENCY_KEPT_MS
            for _ in range(rng.randint(1, 4)):
                part_ms = rng.randint(1, left_ms)
                clock.advance(min(part_ms, left_ms - 1))
                left_ms -= min(part_ms, left_ms - 1)
                if rng.random() < 0.7:
                    plane.restart()
                    tally.faults += 1
                if _submit(plane.client, "weekly") != job:
                    tally.violations.append(f"the key is another job {left_ms} ms before its time (seed {seed})")
                tally.violations += _refused(plane.client, "weekly")
    return tally


@contextmanager
def _live(folder: Path, clock: ManualClock) -> Iterator[LivePlane]:
    plane = LivePlane(folder, clock=clock).start()
    try:
        yield plane
    finally:
        plane.stop()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpulayer-keys-") as name:
        yield Path(name)


PROOFS: Final = [
    Proof(5, f"each sends {KEYS} keys, kill -9 amid them", prove_across_kills, 6, 200, "threads"),
    Proof(5, "7 days of a key, over restarts", prove_seven_days, 3, 100, "weeks"),
]
