"""Promise 11, its other half: whoever reads a log slowly, or not at all, slows neither its writer nor other readers.

Followers are plain connections over real HTTP: half of them on one job, the others over ten; every fourth takes nothing
once it has asked. The writer goes on as fast as it is answered, without followers first.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.processes import proportional_bytes
from gpulayer.net import Address, parse_url
from gpulayer.testing.crowd import Crowd
from tests.soak.frame import Proof, Say, Tally
from tests.soak.served import Served, serving

FOLLOWERS: Final = 200
JOBS: Final = 10
PIECE: Final = bytes(range(256)) * 256  # 64 KiB
PIECES: Final = 32
DEADLINE_S: Final = 120.0
GROWTH: Final = 100 * 2**20  # of the control plane, with 50 that take nothing


def slow_readers(runs: int, *, seed: int, say: Say) -> Tally:
    """``runs`` followers."""
    del seed  # nothing is drawn
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, serving(Path(name)) as served:
        asyncio.run(_follow_all(served, runs, tally, say))
    return tally


async def _follow_all(served: Served, count: int, tally: Tally, say: Say) -> None:
    address = parse_url(served.url)
    async with Crowd(served.url) as crowd, asyncio.timeout(DEADLINE_S + 60):
        await crowd.join(JOBS, await asyncio.to_thread(served.join_token, JOBS))
        jobs = await asyncio.to_thread(_submit, served, JOBS + 1)
        while any(crowd.holder(job) is None for job in jobs):
            await asyncio.sleep(0.05)
        alone, jobs = jobs[-1], jobs[:-1]
        alone_s = await _write(crowd, alone, PIECES)
        before = proportional_bytes(served.pid)
        followers = [
            _Follower(jobs[0] if number % 2 else jobs[number // 2 % JOBS], takes=number % 4 != 3)
            for number in range(count)
        ]
        readers = [asyncio.create_task(one.run(address, served.token)) for one in followers]
        await asyncio.gather(*(one.began.wait() for one in followers))
        written_s = 0.0
        for job in jobs:
            written_s += await _write(crowd, job, PIECES if job == jobs[0] else 4)
        pieces = PIECES + 4 * (JOBS - 1)
        ends = time.monotonic() + DEADLINE_S
        while behind := [one for one in followers if one.takes and one.taken < one.due(jobs[0])]:
            if time.monotonic() > ends:
                tally.violations.append(f"{len(behind)} of {count} followers had not all bytes after {DEADLINE_S:g} s")
                break
            await asyncio.sleep(0.05)
        growth = max(0, proportional_bytes(served.pid) - before)
        stuck = sum(not one.takes for one in followers)
        say(
            f"{count} followers, {stuck} of which take nothing: a piece of 64 KiB is written in "
            f"{written_s / pieces * 1000:.0f} ms, {alone_s / PIECES * 1000:.0f} ms without them; "
            f"the control plane grew by {growth / 2**20:.0f} MiB"
        )
        if growth > GROWTH:
            tally.violations.append(f"the control plane grew by {growth / 2**20:.0f} MiB for {stuck} that take nothing")
        broken = [one.broken for one in followers if one.broken]
        tally.violations += broken[:5]
        tally.runs, tally.faults = count, stuck
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        crowd.check()


def _submit(served: Served, count: int) -> list[str]:
    with served.client() as client:
        return [job.id for job in client.submit_batch([["sleep", "600"]] * count)]


async def _write(crowd: Crowd, job_id: str, pieces: int) -> float:
    worker = crowd.holder(job_id)
    assert worker is not None
    began = time.monotonic()
    for number in range(pieces):
        await worker.write_log(job_id, number * len(PIECE), PIECE)
    return time.monotonic() - began


class _Follower:
    """taken: bytes of the log. broken: what was wrong with them, as a sentence."""

    def __init__(self, job_id: str, *, takes: bool) -> None:
        self.job_id = job_id
        self.takes = takes
        self.taken = 0
        self.broken = ""
        self.began = asyncio.Event()

    def due(self, first: str) -> int:
        return (PIECES if self.job_id == first else 4) * len(PIECE)

    async def run(self, address: Address, token: str) -> None:
        reader, writer = await asyncio.open_connection(
            address.host, address.port, limit=4096 if not self.takes else 2**18
        )
        try:
            target = f"/v1/jobs/{self.job_id}/logs?follow=1"
            head = f"GET {target} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                self.broken = f"a follower of {self.job_id} was answered {json.dumps(answer.decode()[:80])}"
            self.began.set()
            if not self.takes:
                await asyncio.Event().wait()
            while True:  # chunks
                size = int((await reader.readuntil(b"\r\n"))[:-2], 16)
                piece = (await reader.readexactly(size + 2))[:-2]
                start = self.taken % len(PIECE)
                if piece[:64] != (PIECE + PIECE)[start : start + 64][: len(piece)]:
                    self.broken = self.broken or f"a follower of {self.job_id} got other bytes at {self.taken:,}"
                self.taken += size
        finally:
            writer.transport.abort()


PROOFS: Final = [Proof(11, "logs followed, some readers take nothing", slow_readers, 80, FOLLOWERS, "readers")]
