"""What durability costs: events through the driver, and the way back after kill -9."""

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.core.sources import Sources
from benchmarks.core.tiny import BATCH, Probe
from benchmarks.harness import Contestant, Row, compare
from benchmarks.plane import Plane

CALLERS = 1_000
EVENTS = 10_000
LIVE_JOBS = 100_000


def durable_events(_sources: Sources, rounds: int) -> Row:
    """In process, without HTTP: submissions of one job each, every one answered after its commit."""
    what = f"durable events through the driver, {CALLERS:,} callers at once, SQLite FULL"
    row = Row(what, "events/s", "higher", goal="≥ 10,000 events/s", limit=10_000)
    return compare(row, [Contestant("gpulayer", lambda: asyncio.run(_events_per_s()))], rounds=rounds)


def restart(sources: Sources, rounds: int) -> Row:
    """From starting ``gpulayer up --detach`` to its end, when the control plane answers."""
    row = Row(f"control plane back after kill -9, {LIVE_JOBS:,} jobs waiting", "s", "lower", goal="≤ 3 s", limit=3)
    up = ("up", "--no-worker", "--detach", "--port", "0")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))
        plane = stack.enter_context(Plane(folder))
        plane.run(*up)
        with Probe(sources.python, plane) as probe:
            for _ in range(LIVE_JOBS // BATCH):
                probe.batch(BATCH)

        def once() -> float:
            _kill(int(json.loads((folder / "state/endpoint.json").read_bytes())["pid"]))
            return plane.wall_s(*up)

        return compare(row, [Contestant("gpulayer", once)], rounds=rounds)


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
