"""One call of a plugin's hook through the host: thread, deadline, breaker, all of it; against the bare call."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness import Contestant, Row, compare
from gpulayer.clock import SystemClock
from gpulayer.plugins.guard import Guard

CALLS = 2_000
DEADLINE_S = 10.0


def nothing() -> None:
    """What the plugin does."""


def call(rounds: int) -> Row:
    row = Row(f"one hook call that does nothing, mean of {CALLS:,}", "µs", "lower")
    with ThreadPoolExecutor(1) as pool:
        return compare(
            row,
            [
                Contestant("gpulayer", _guarded),
                Contestant(
                    "a thread pool, no guard", lambda: _each_us(lambda: pool.submit(nothing).result(DEADLINE_S))
                ),
                Contestant("a bare call", lambda: _each_us(nothing)),
            ],
            rounds=rounds,
        )


def acall(rounds: int) -> Row:
    row = Row(f"the same from an event loop, mean of {CALLS:,}", "µs", "lower")
    return compare(
        row,
        [
            Contestant("gpulayer", lambda: asyncio.run(_guarded_from_loop())),
            Contestant("asyncio.to_thread, no guard", lambda: asyncio.run(_threads_from_loop())),
        ],
        rounds=rounds,
    )


def _guarded() -> float:
    guard = Guard(clock=SystemClock())
    try:
        return _each_us(lambda: guard.call("plugin", "hook", nothing, deadline_s=DEADLINE_S))
    finally:
        guard.close()


async def _guarded_from_loop() -> float:
    guard = Guard(clock=SystemClock())
    started = time.perf_counter()
    for _ in range(CALLS):
        await guard.acall("plugin", "hook", nothing, deadline_s=DEADLINE_S)
    taken = time.perf_counter() - started
    guard.close()
    return taken / CALLS * 1e6


async def _threads_from_loop() -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.to_thread(nothing)
    return (time.perf_counter() - started) / CALLS * 1e6


def _each_us(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        work()
    return (time.perf_counter() - started) / CALLS * 1e6
