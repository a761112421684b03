"""Promise 13: jobs, workers, tokens and followers come and go; memory and descriptors stay flat, nothing gets stuck.

A round is a few seconds in which more happens than in a minute of a busy day: workers join, some go with a word
and one without, jobs are submitted one by one and in batches, some are cancelled, logs are followed and left, a token
is made, used and revoked. It ends when all of its jobs have ended and what went has been removed.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpulayer.client import calls
from gpulayer.client.async_transport import AsyncTransport
from gpulayer.client.location import Location
from gpulayer.errors import GpulayerError
from gpulayer.server.tokens import parse_token
from gpulayer.testing.crowd import Crowd
from tests.soak.frame import Proof, Say, Tally
from tests.soak.served import Served, serving

ROUNDS: Final = 720  # an hour
ROUND_S: Final = 5.0
JOINING: Final = 4
JOBS: Final = 40
FOLLOWED: Final = 6
TOKEN_ROUNDS: Final = 25  # a token is remembered for a day after its end, on purpose: 58 an hour are a busy day's
STUCK_S: Final = 60.0
SLOPE: Final = 0.01  # an hour
JUDGED: Final = 240  # rounds: below that a slope is noise
SETTLED: Final = 4  # descriptors may differ by so many: a request, a log that is written just now
FINAL: Final = frozenset({"succeeded", "failed", "cancelled", "timed_out", "lost", "rejected"})


def churn(runs: int, *, seed: int, say: Say) -> Tally:
    """``runs`` rounds."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, serving(Path(name), lease_ttl="3s") as served:
        asyncio.run(_Churn(served, random.Random(seed), tally, say).run(runs))
    return tally


class _Churn:
    def __init__(self, served: Served, drawn: random.Random, tally: Tally, say: Say) -> None:
        self._served = served
        self._drawn = drawn
        self._tally = tally
        self._say = say
        self._pool = ""
        self._memory: list[tuple[float, int]] = []

    async def run(self, rounds: int) -> None:
        location = Location.of(self._served.url, self._served.token)
        async with Crowd(self._served.url, prefix="churn", hold_s=5.0) as crowd:
            async with AsyncTransport(location, retry_for_s=30.0) as shell:
                await crowd.join(2, await self._join_token(shell, 2))  # these stay
            stay, began = set(crowd.workers), time.monotonic()
            await crowd.all_answered(since=began, timeout_s=STUCK_S)
            before = self._served.descriptors()
            for number in range(rounds):
                async with AsyncTransport(location, retry_for_s=30.0) as shell:
                    await self._round(crowd, shell, stay)
                crowd.check()
                self._tally.runs += 1
                self._look(began)
                if rounds < JUDGED or number % 10 == 9:
                    self._say(self._figures(number + 1, rounds))
                left_s = began + (number + 1) * ROUND_S - time.monotonic()
                if rounds >= JUDGED and left_s > 0:
                    await asyncio.sleep(left_s)
            await self._judge_descriptors(before)
        self._judge_memory(rounds)

    async def _round(self, crowd: Crowd, shell: AsyncTransport, stay: set[str]) -> None:
        drawn = self._drawn
        if self._tally.runs % TOKEN_ROUNDS == 0:
            self._pool = await self._join_token(shell, JOINING * TOKEN_ROUNDS)
            await self._use_a_token(shell)
        await crowd.join(JOINING, self._pool)
        commands = [["sleep", f"{drawn.random():.2f}"] for _ in range(JOBS)]
        many, few = commands[FOLLOWED:], commands[:FOLLOWED]
        batch = [{"schema": 1, "command": command, "retries": 5} for command in many]
        reply = await shell.send(calls.submit_batch(batch, key=_key(drawn)))
        ids = list(reply["ids"])
        for command in few:
            job = {"schema": 1, "command": command, "retries": 5}
            ids.append((await shell.send(calls.submit_job(job, key=_key(drawn))))["id"])
        following = [asyncio.create_task(_follow(shell, job_id)) for job_id in ids[-FOLLOWED:]]
        for job_id in drawn.sample(ids, 5):
            await shell.send(calls.cancel_job(job_id, grace_ms=100))
        leaving = [name for name in crowd.workers if name not in stay]
        for name in leaving[:-1]:
            await crowd.dismiss(name)
        await crowd.dismiss(leaving[-1], says_so=False)
        self._tally.faults += 1
        for one in following[: FOLLOWED // 2]:
            one.cancel()
        await self._until_ended(shell, ids)
        _, waiting = await asyncio.wait(following, timeout=STUCK_S)
        if waiting:
            self._tally.violations.append(f"{len(waiting)} followers of ended jobs were not told of the end")
        for name in leaving:
            try:
                await shell.send(calls.remove_worker(name, force=True))
            except GpulayerError as error:
                if error.code != "not_found":
                    raise

    async def _until_ended(self, shell: AsyncTransport, ids: Sequence[str]) -> None:
        ends = time.monotonic() + STUCK_S
        for job_id in ids:
            record = await shell.send(calls.get_job(job_id))
            while record["state"] not in FINAL:
                if time.monotonic() > ends:
                    story = await shell.send(calls.list_events(job_id))
                    kinds = [event["kind"] for event in story["events"]]
                    self._tally.violations.append(f"job {job_id} is stuck in {record['state']}: {kinds}")
                    return
                record = await shell.send(calls.get_job(job_id, wait_s=5.0))

    async def _use_a_token(self, shell: AsyncTransport) -> None:
        made = await shell.send(calls.create_token("submitter", name="passer-by", expires_in_s=600))
        async with AsyncTransport(Location.of(self._served.url, made["token"])) as other:
            await other.send(calls.list_jobs(limit=5))
        await shell.send(calls.revoke_token(parse_token(made["token"])[1]))

    @staticmethod
    async def _join_token(shell: AsyncTransport, uses: int) -> str:
        made = await shell.send(calls.create_token(max_uses=uses, expires_in_s=3600))
        return str(made["token"])

    def _look(self, began: float) -> None:
        self._memory.append(((time.monotonic() - began) / 3600, _own_bytes(self._served.pid)))

    def _figures(self, number: int, rounds: int) -> str:
        memory, descriptors = self._memory[-1][1], self._served.descriptors()
        return f"{number} of {rounds} rounds, {memory / 2**20:.1f} MiB, {descriptors} descriptors"

    async def _judge_descriptors(self, before: int) -> None:
        """What came has gone, and its connections and logs with it."""
        ends = time.monotonic() + STUCK_S
        while (left := self._served.descriptors()) > before + SETTLED:
            if time.monotonic() > ends:
                self._tally.violations.append(f"{left} descriptors are open where {before} were at first")
                return
            await asyncio.sleep(0.1)

    def _judge_memory(self, rounds: int) -> None:
        if rounds >= JUDGED:
            warm = self._memory[rounds // 3 :]
            slope = slope_per_hour(warm)
            self._say(f"memory grows by {slope:.2%} an hour after the warm-up")
            if slope > SLOPE:
                self._tally.violations.append(f"memory grows by {slope:.2%} an hour; {SLOPE:.0%} is promised")


def _own_bytes(pid: int) -> int:
    """Memory that is its own: what it shares with other programs counts more for each as those come and go."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(kib) * 1024


async def _follow(shell: AsyncTransport, job_id: str) -> None:
    while True:
        async with shell.stream(calls.read_logs(job_id, follow=True)) as stream:
            async for _ in stream.chunks:
                pass
            if stream.attempt:
                return
        if (await shell.send(calls.get_job(job_id)))["state"] in FINAL:
            return


def slope_per_hour(points: Sequence[tuple[float, int]]) -> float:
    """Of a line through the points (hours, bytes), as a share of what there was at its beginning."""
    count = len(points)
    middle_h, middle = sum(hours for hours, _ in points) / count, sum(size for _, size in points) / count
    spread = sum((hours - middle_h) ** 2 for hours, _ in points)
    rise = sum((hours - middle_h) * (size - middle) for hours, size in points) / spread if spread else 0.0
    first = middle + rise * (points[0][0] - middle_h)
    return rise / first


def _key(drawn: random.Random) -> str:
    return f"churn-{drawn.getrandbits(96):x}"


PROOFS: Final = [Proof(13, "jobs, workers and followers come and go", churn, 2, ROUNDS, "rounds")]
