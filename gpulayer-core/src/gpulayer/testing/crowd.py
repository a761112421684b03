"""Very many workers in one process, over real HTTP against any control plane: for load, not for cases.

Each has an identity and a session of its own, beats, holds a request for commands and behaves: what it is lent it
starts at once, and ends after as many seconds as the command's last word says (``["sleep", "0.2"]``; else at once).
What is lost it tries again as agents do. Nothing runs, and no log is sent but what ``write_log`` is given; a worker
costs two sockets.

The crowd shares one core with whatever else its process does: ``lag_ms`` says by how much its own clock was late, and
so how much of what it measured is its own.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.errors import GpulayerError
from gpulayer.net import parse_url
from gpulayer.protocol.retry import backoff_ms
from gpulayer.server.tokens import parse_token
from gpulayer.testing.wire_worker import enrolment, wire_facts
from gpulayer.wire.sessions import session_text
from gpulayer.worker.http import HttpClient

__all__ = ["Crowd", "CrowdWorker", "Told"]

_ENROLLING: Final = 32  # at once
_LOOK_S: Final = 0.1
_OUTCOME: Final = {"ended_by": "program", "exit_code": 0, "signal": None, "evidence": "", "blame": "user"}

Json = dict[str, Any]  # Any: what is on the wire


@dataclass(slots=True)
class Told:
    """What a crowd saw. report_ms: of each report that was answered. failures: requests that were not, by why."""

    report_ms: list[float] = field(default_factory=list)
    lag_ms: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)  # job → how often

    def failed(self, why: str) -> None:
        self.failures[why] = self.failures.get(why, 0) + 1


class CrowdWorker:
    """One of them. ``answered_at``: when its newest answered report was sent, by ``time.monotonic``."""

    def __init__(self, url: str, name: str, told: Told, *, facts: Mapping[str, Any], hold_s: float) -> None:
        self.name = name
        self.answered_at = 0.0
        self._address = parse_url(url)
        self._http = HttpClient()
        self._told = told
        self._facts = wire_facts(**facts)
        self._hold_s = hold_s
        self._key = Ed25519PrivateKey.generate()
        self._counter = 0
        self._seq = 0
        self._token = ""
        self._minting = asyncio.Lock()
        self._heartbeat_s = 10.0
        self._id = ""
        self._held: dict[int, asyncio.Task[None]] = {}
        self._epochs: dict[str, int] = {}  # of jobs it holds
        self._items: list[Json] = []
        self._is_due = asyncio.Event()
        self._is_first = True

    async def join(self, join_token: str) -> None:
        """Enrol and get a session, however often that takes."""
        body = enrolment(self._key, join_token, self.name, facts=self._facts)
        reply = await self._until_answered("POST", "/v1/workers:enrol", body, token=join_token)
        self._id = reply["worker_id"]
        await self._mint("")

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat())
                group.create_task(self._listen(group))
        finally:
            await self._http.aclose()

    async def leave(self) -> None:
        """Say that it goes, once ``run`` has ended; what it held is lost."""
        with suppress(GpulayerError, _Refused):
            await self._report(leaving=True)
        await self._http.aclose()

    def holds(self, job_id: str) -> bool:
        """Whether it runs this job."""
        return self._epochs.get(job_id) in self._held

    async def write_log(self, job_id: str, offset: int, piece: bytes) -> None:
        """A piece of the log of a job that it holds. Raises what the exchange does."""
        path = f"/v1/workers/{self._id}/attempts/{self._epochs[job_id]}/logs?offset={offset}&node=0"
        await self._exchange("PUT", path, piece, token=self._token)

    async def _beat(self) -> None:
        tries, rest_s = 0, _drawn() * self._heartbeat_s  # they joined together, and shall not beat in step
        while True:
            self._is_due.clear()
            items, self._items = self._items, []
            sent_at = time.monotonic()
            try:
                reply = await self._report(items)
            except (GpulayerError, _Refused) as error:
                self._items = items + self._items
                tries += 1
                self._told.failed(f"report: {error}"[:100])
                await asyncio.sleep(_rest_s(tries))
                continue
            tries = 0
            self._told.report_ms.append((time.monotonic() - sent_at) * 1000)
            self.answered_at = sent_at
            for epoch in reply["void"]:
                self._drop(epoch)
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):  # not wait_for, which may swallow the end of this task
                    await self._is_due.wait()
            rest_s = self._heartbeat_s

    async def _report(self, items: list[Json] | None = None, *, leaving: bool = False) -> Json:
        self._seq += 1
        body: Json = {
            "schema": 1,
            "boot": 1,
            "seq": self._seq,
            "sent_ms": int(time.monotonic() * 1000),
            "holding": list(self._held),
            "items": items or [],
        }
        if leaving:
            body["leaving"] = True
        return await self._call("POST", f"/v1/workers/{self._id}/reports", body)

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        tries, cursor = 0, ""
        while True:
            path = f"/v1/workers/{self._id}/commands?hold_s={self._hold_s}" + (f"&after={cursor}" if cursor else "")
            try:
                reply = await self._call("GET", path, timeout_s=self._hold_s + 10)
            except (GpulayerError, _Refused) as error:
                tries += 1
                self._told.failed(f"commands: {error}"[:100])
                await asyncio.sleep(_rest_s(tries))
                continue
            tries, cursor = 0, reply["cursor"]
            for command in reply["commands"]:
                epoch = command["epoch"]
                match command["type"]:
                    case "assign" if epoch not in self._held:
                        self._told.started[command["job_id"]] = self._told.started.get(command["job_id"], 0) + 1
                        self._say({"epoch": epoch, "node": 0, "state": "running"})
                        self._epochs[command["job_id"]] = epoch
                        self._held[epoch] = group.create_task(self._work(epoch, _seconds(command["command"])))
                    case "stop" if epoch in self._held:
                        self._drop(epoch)
                        self._end(epoch, {**_OUTCOME, "ended_by": command["ended_by"], "exit_code": None, "signal": 15})
                    case _:
                        pass  # of one that has ended, or that it has started already

    async def _work(self, epoch: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._held.pop(epoch, None)
        self._end(epoch, _OUTCOME)

    def _end(self, epoch: int, outcome: Json) -> None:
        self._epochs = {job: held for job, held in self._epochs.items() if held != epoch}
        self._say({"epoch": epoch, "node": 0, "state": "ended", "outcome": outcome})

    def _say(self, item: Json) -> None:
        self._items.append(item)
        self._is_due.set()

    def _drop(self, epoch: int) -> None:
        work = self._held.pop(epoch, None)
        if work is not None:
            work.cancel()

    async def _mint(self, refused: str) -> None:
        async with self._minting:
            if self._token != refused:
                return
            self._counter += 1
            signature = self._key.sign(session_text(self._id, self._counter).encode()).hex()
            body = {"schema": 1, "counter": self._counter, "signature": signature}
            path = f"/v1/workers/{self._id}/sessions"
            reply = await self._exchange("POST", path, body, token="", is_once=True)
            self._heartbeat_s = reply["heartbeat_ms"] / 1000
            self._token = reply["token"]
            self._is_due.set()  # a control plane that was started again hears of everybody at once

    async def _call(self, method: str, path: str, body: Json | None = None, *, timeout_s: float = 30.0) -> Json:
        token = self._token
        try:
            return await self._exchange(method, path, body, token=token, timeout_s=timeout_s)
        except _Refused as error:
            if error.status != 401:
                raise
        await self._mint(token)
        return await self._exchange(method, path, body, token=self._token, timeout_s=timeout_s)

    async def _until_answered(self, method: str, path: str, body: Json, *, token: str) -> Json:
        tries = 0
        while True:
            try:
                return await self._exchange(method, path, body, token=token)
            except GpulayerError:
                tries += 1
            await asyncio.sleep(_rest_s(tries))

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Json | bytes | None,
        *,
        token: str,
        timeout_s: float = 30.0,
        is_once: bool = False,
    ) -> Json:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        answer = await self._http.request(
            self._address, method, path, headers=headers, body=content, timeout_s=timeout_s, is_once=is_once
        )
        if answer.status >= 400:
            raise _Refused(answer.status, answer.body)
        reply: Json = json.loads(answer.body)
        return reply


class Crowd:
    """``join`` them, then they run until the context is left. facts: of each, by its number; None: four cores."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "crowd",
        facts: Callable[[int], Mapping[str, Any]] = lambda _: {},
        hold_s: float = 25.0,
    ) -> None:
        self.told = Told()
        self.workers: dict[str, CrowdWorker] = {}
        self._url = url
        self._prefix = prefix
        self._facts = facts
        self._hold_s = hold_s
        self._running: dict[str, asyncio.Task[None]] = {}
        self._number = 0
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._measure_lag())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._running.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def join(self, count: int, join_token: str) -> None:
        """So many more; returns when all have a session."""
        gate = asyncio.Semaphore(_ENROLLING)
        parse_token(join_token)

        async def one(worker: CrowdWorker) -> None:
            async with gate:
                await worker.join(join_token)
            self.workers[worker.name] = worker
            self._running[worker.name] = asyncio.create_task(worker.run(), name=worker.name)

        async with asyncio.TaskGroup() as group:
            for number in range(self._number, self._number + count):
                name, facts = f"{self._prefix}-{number}", self._facts(number)
                group.create_task(one(CrowdWorker(self._url, name, self.told, facts=facts, hold_s=self._hold_s)))
        self._number += count

    async def dismiss(self, name: str, *, says_so: bool = True) -> None:
        """It goes; without a word where ``says_so`` is false."""
        worker, running = self.workers.pop(name), self._running.pop(name)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if says_so:
            await worker.leave()

    async def all_answered(self, *, since: float, timeout_s: float) -> float:
        """Seconds from ``since`` until each has had a report answered that it sent later. Raises TimeoutError that
        says how many have not."""
        while True:
            waiting = sum(worker.answered_at < since for worker in self.workers.values())
            passed_s = time.monotonic() - since
            if not waiting:
                return passed_s
            if passed_s > timeout_s:
                raise TimeoutError(f"{waiting} of {len(self.workers)} workers are not back after {passed_s:.0f} s")
            await asyncio.sleep(_LOOK_S)

    def holder(self, job_id: str) -> CrowdWorker | None:
        """Who runs this job now."""
        return next((worker for worker in self.workers.values() if worker.holds(job_id)), None)

    def check(self) -> None:
        """Raises what ended a worker by itself; nothing should."""
        for name, task in self._running.items():
            if task.done():
                raise RuntimeError(f"{name} ended: {task.exception() if not task.cancelled() else 'cancelled'}")

    async def _measure_lag(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(_LOOK_S)
            self.told.lag_ms.append((time.monotonic() - began - _LOOK_S) * 1000)


class _Refused(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body[:80].decode(errors='replace')}")
        self.status = status


def _rest_s(tries: int) -> float:
    return backoff_ms(tries, random=_drawn()) / 1000


def _drawn() -> float:
    return random.random()  # noqa: S311 - for waits


def _seconds(command: list[str]) -> float:
    try:
        return min(3600.0, max(0.0, float(command[-1])))
    except ValueError:
        return 0.0
