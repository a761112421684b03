"""Promise 11: very many workers are heard in time, and none is lost falsely; slow readers of logs slow nobody.

The crowd is one process beside the control plane, on the same cores, so what it measures includes itself. Times are
said and, but for those that the promise names, not judged.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpulayer.testing.crowd import Crowd
from tests.soak.frame import Proof, Say, Tally
from tests.soak.served import Served, serving

FULL: Final = 1_000
STEADY_S: Final = 180.0  # for the full number; in proportion below it
BACK_S: Final = 15.0
BACK_LATE_S: Final = 120.0
P99_MS: Final = 250.0
SAMPLE: Final = 60


def crowds(runs: int, *, seed: int, say: Say) -> Tally:
    """``runs`` workers beat for a while, then their control plane dies with -9 and is started again."""
    del seed  # who comes when is the machine's to say
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, serving(Path(name)) as served:
        asyncio.run(_crowd(served, runs, tally, say))
    return tally


async def _crowd(served: Served, workers: int, tally: Tally, say: Say) -> None:
    is_full = workers >= FULL
    async with Crowd(served.url) as crowd:
        token = await asyncio.to_thread(served.join_token, workers)
        began = time.monotonic()
        await crowd.join(workers, token)
        say(f"{workers:,} workers joined in {time.monotonic() - began:.1f} s")
        await crowd.all_answered(since=began, timeout_s=BACK_LATE_S)
        crowd.told.report_ms.clear()
        crowd.told.lag_ms.clear()
        steady_s = max(3.0, STEADY_S * min(1.0, workers / FULL) - 8.0)
        ends = time.monotonic() + steady_s
        while (left_s := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, 20.0))
            say(f"{workers:,} workers beat, {max(0.0, ends - time.monotonic()):.0f} s to go: {said(crowd)}")
        crowd.check()
        p99_ms = percentile(crowd.told.report_ms, 99)
        if is_full and p99_ms > P99_MS:
            tally.violations.append(
                f"the p99 of a report is {p99_ms:.0f} ms with {workers:,} workers; {P99_MS:g} is promised"
            )
        tally.runs += workers
        await asyncio.to_thread(served.kill)
        killed = time.monotonic()
        await asyncio.to_thread(served.start)
        serves_s = time.monotonic() - killed
        tally.faults += 1
        try:
            back_s = await crowd.all_answered(since=killed, timeout_s=BACK_LATE_S)
        except TimeoutError as error:
            tally.violations.append(str(error))
        else:
            say(f"it served again after {serves_s:.1f} s, all {workers:,} were back after {back_s:.1f} s")
            if is_full and back_s > BACK_S:
                tally.violations.append(f"{workers:,} workers were back after {back_s:.1f} s; {BACK_S:g} is promised")
        crowd.check()
    silent = served.events("worker_went_silent")
    if silent:
        tally.violations.append(f"{silent} times a worker that beat was called silent")


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else max(values, default=0.0)


def said(crowd: Crowd) -> str:
    """Its figures so far, its own lateness among them."""
    told = crowd.told
    figures = [f"report p50 {percentile(told.report_ms, 50):.0f} ms, p99 {percentile(told.report_ms, 99):.0f} ms"]
    figures.append(f"the crowd's own lag p99 {percentile(told.lag_ms, 99):.0f} ms")
    if told.failures:
        figures.append(f"failures {told.failures}")
    return "; ".join(figures)


PROOFS: Final = [Proof(11, "they beat, their plane dies and comes back", crowds, SAMPLE, FULL, "workers")]
