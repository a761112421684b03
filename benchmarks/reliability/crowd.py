"""1,000 workers that beat every 10 s over real HTTP, and their way back after kill -9 of their control plane.

The workers are one process (``gpulayer.testing.crowd``), which shares the cores with the control plane: what is
measured at its end includes its own lateness, which is noted. Nobody may be called silent meanwhile.
"""

import asyncio
import json
import os
import signal
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.harness import OURS, Row
from benchmarks.plane import Plane
from benchmarks.processes import cpu_s
from gpulayer.testing.crowd import Crowd

WORKERS = 1_000
STEADY_S = 60.0
JOIN_S = 300.0
BACK_S = 120.0


def rows(rounds: int) -> list[Row]:
    """Three rows of the same runs."""
    report = Row(f"report of one of {WORKERS:,} workers that beat every 10 s, p99", "ms", "lower", "< 250 ms", 250)
    back = Row(f"{WORKERS:,} workers back after kill -9 of their control plane", "s", "lower", "≤ 15 s", 15)
    load = Row(f"control plane with {WORKERS:,} workers that beat", "% of a core", "lower")
    for _ in range(rounds):
        asyncio.run(_measure(report, back, load))
    return [report, back, load]


async def _measure(report: Row, back: Row, load: Row) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name, Plane(Path(name)) as plane:
        plane.run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", "0")
        endpoint = _endpoint(plane)
        made = json.loads(plane.run("token", "create", "--role", "join", "--uses", str(WORKERS), "--json"))
        async with Crowd(endpoint["url"]) as crowd:
            began = time.monotonic()
            await crowd.join(WORKERS, made["token"])
            joined_s = time.monotonic() - began
            await crowd.all_answered(since=began, timeout_s=JOIN_S)
            crowd.told.report_ms.clear()
            crowd.told.lag_ms.clear()
            before = cpu_s(endpoint["pid"])
            await asyncio.sleep(STEADY_S)
            load.figures.setdefault(OURS, []).append((cpu_s(endpoint["pid"]) - before) / STEADY_S * 100)
            report.figures.setdefault(OURS, []).append(_p99(crowd.told.report_ms))
            report.notes.append(
                f"{len(crowd.told.report_ms):,} reports, median {statistics.median(crowd.told.report_ms):.1f} ms; the "
                f"crowd's own lateness p99 {_p99(crowd.told.lag_ms):.1f} ms; all joined within {joined_s:.0f} s"
            )
            killed = time.monotonic()
            os.kill(endpoint["pid"], signal.SIGKILL)
            port = endpoint["url"].rpartition(":")[2]
            again = ("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", port)
            await asyncio.to_thread(plane.run, *again)
            serves_s = time.monotonic() - killed
            back_s = await crowd.all_answered(since=killed, timeout_s=BACK_S)
            back.figures.setdefault(OURS, []).append(back_s)
            back.notes.append(f"it was away for {serves_s:.1f} s of these; {_silent(plane)} called silent in all")
            crowd.check()


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _endpoint(plane: Plane) -> dict[str, object]:
    return json.loads((plane.state / "endpoint.json").read_bytes())


def _silent(plane: Plane) -> int:
    with closing(sqlite3.connect(f"file:{plane.state / 'store.db'}?mode=ro", uri=True)) as store:
        return store.execute("SELECT count(*) FROM events WHERE kind = 'worker_went_silent'").fetchone()[0]
