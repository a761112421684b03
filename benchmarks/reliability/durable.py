"""What durability costs: events through the driver, memory of what waits, and the way back after kill -9."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.core.tiny import Probe
from benchmarks.harness import OURS, Contestant, Row, compare
from benchmarks.plane import Plane
from benchmarks.processes import proportional_bytes

CALLERS = 1_000
EVENTS = 10_000
LIVE_JOBS = 100_000


BATCH = 10_000  # of waiting jobs, submitted at once
GROUP = 200  # rows a commit of bare SQLite: about what the driver's come to with so many callers


def durable_events(rounds: int) -> Row:
    """In process, without HTTP: submissions of one job each, every one answered after its commit."""
    what = f"durable events through the driver, {CALLERS:,} callers at once, SQLite FULL"
    row = Row(what, "events/s", "higher", goal="≥ 10,000 events/s", limit=10_000)
    contestants = [
        Contestant(OURS, lambda: asyncio.run(_events_per_s())),
        Contestant(f"bare SQLite FULL, {GROUP} rows a commit", lambda: _bare_rows_per_s(EVENTS, GROUP)),
        Contestant("bare SQLite FULL, one row a commit", lambda: _bare_rows_per_s(500, 1)),
    ]
    return compare(row, contestants, rounds=rounds)


def waiting(rounds: int) -> list[Row]:
    """100,000 jobs that wait, in one control plane: what each costs it in memory, and how soon it is back."""
    memory = Row(
        f"memory of a waiting job, {LIVE_JOBS:,} of them in the control plane (PSS)",
        *("bytes", "lower"),
        goal="≤ 2 KB",
        limit=2_000,
    )
    loaded = Row("the same after a restart", "bytes", "lower", goal="≤ 2 KB", limit=2_000)
    back = Row(f"control plane back after kill -9, {LIVE_JOBS:,} jobs waiting", "s", "lower", goal="≤ 3 s", limit=3)
    up = ("up", "--no-worker", "--detach", "--port", "0")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))
        plane = stack.enter_context(Plane(folder))
        plane.run(*up)
        with Probe(Path(sys.executable), plane) as probe:
            probe.batch(1)  # what it loads at its first submission is not that job's
            empty = proportional_bytes(_pid(folder))
            for _ in range(LIVE_JOBS // BATCH):
                probe.batch(BATCH)
        memory.figures[OURS] = [(proportional_bytes(_pid(folder)) - empty) / LIVE_JOBS]

        def once() -> float:
            _kill(_pid(folder))
            return plane.wall_s(*up)

        compare(back, [Contestant(OURS, once)], rounds=rounds)
        loaded.figures[OURS] = [(proportional_bytes(_pid(folder)) - empty) / LIVE_JOBS]
    return [memory, loaded, back]


def _pid(folder: Path) -> int:
    return int(json.loads((folder / "state/endpoint.json").read_bytes())["pid"])


def _bare_rows_per_s(rows: int, group: int) -> float:
    """A table like the log's, an insert a row, as durable as ours; nothing else is done."""
    body = json.dumps({"command": ["true"], "schema": 1})
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        closing(sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)) as store,
    ):
        store.execute("PRAGMA journal_mode=WAL")
        store.execute("PRAGMA synchronous=FULL")
        store.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, at INTEGER, kind TEXT, body TEXT)")
        started = time.perf_counter()
        for first in range(0, rows, group):
            store.execute("BEGIN")
            store.executemany(
                "INSERT INTO events (at, kind, body) VALUES (?, 'job_submitted', ?)",
                [(number, body) for number in range(first, first + group)],
            )
            store.execute("COMMIT")
        return rows / (time.perf_counter() - started)


def _kill(pid: int) -> None:
    """It has gone when its descriptors have: until then it holds the lock of the state folder."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline and os.listdir(f"/proc/{pid}/fd"):
            time.sleep(0.005)


async def _events_per_s() -> float:
    from gpulayer.clock import SystemClock  # noqa: PLC0415 - only this measure works inside the program
    from gpulayer.engine.events import JobSubmitted  # noqa: PLC0415
    from gpulayer.ids import JobId  # noqa: PLC0415
    from gpulayer.server.driver import Driver, Make  # noqa: PLC0415
    from gpulayer.server.store import JobRow, Side, Store  # noqa: PLC0415
    from gpulayer.spec.job import JobEntry, JobSpec  # noqa: PLC0415

    class Nobody:
        def committed(self, *_: object) -> None: ...

        def annotate(self, *_: object) -> dict[JobId, str]:
            return {}

    spec = JobSpec(("true",))

    def submitted(number: int) -> tuple[Make, Side]:
        job_id = JobId(f"{number:016x}")
        entry = JobEntry.of(job_id, "bench", spec)
        row = JobRow(job_id, "bench", "bench", "", 0, spec, {"schema": 1, "command": ["true"]})
        return (lambda at: JobSubmitted(at, entry)), Side(jobs=(row,))

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        store = Store(str(Path(folder) / "store.db"))
        driver = Driver(store=store, clock=SystemClock(), observer=Nobody())
        await driver.load()
        driving = asyncio.create_task(driver.run())
        numbers: Iterator[int] = iter(range(EVENTS))

        async def caller() -> None:
            for number in numbers:
                make, side = submitted(number)
                await driver.submit(make, side=side)

        started = time.perf_counter()
        callers: Sequence[asyncio.Task[None]] = [asyncio.create_task(caller()) for _ in range(CALLERS)]
        await asyncio.gather(*callers)
        taken = time.perf_counter() - started
        driver.close()
        await driving
        store.close()
    return EVENTS / taken
