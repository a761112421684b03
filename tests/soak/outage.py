"""Promise 6: while the control plane is away nothing stops; what ended meanwhile is told when it is back, once.

Most workers are light: real HTTP, real keys, no processes. They do what agents do: go on, keep what they could not
tell, and try again. A few are real ones with real programs.
"""

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.sdk import Client
from gpulayer.sdk.options import BatchItem
from gpulayer.testing.wire_worker import enrolment, wire_facts
from gpulayer.wire.sessions import session_text
from tests.soak.frame import Proof, Say, Tally
from tests.soak.joined import joined
from tests.soak.served import Served, serving, until

FULL: Final = 1_000
FULL_S: Final = 600.0  # so long the control plane is away then; less with fewer jobs
REAL: Final = 2
BEAT_S: Final = 1.0
Json = dict[str, Any]  # Any: as the wire has it


def prove(runs: int, *, seed: int, say: Say) -> Tally:
    """So many jobs, a tenth as many workers. Some jobs end while the control plane is away, the others after that."""
    tally = Tally(runs, faults=1)
    rng = random.Random(seed)
    outage_s = max(4.0, FULL_S * min(1.0, runs / FULL))
    with tempfile.TemporaryDirectory(prefix="gpulayer-outage-") as name, ExitStack() as stack:
        plane = stack.enter_context(serving(Path(name)))
        for number in range(REAL):
            stack.enter_context(joined(plane, f"real{number}"))
        bare = stack.enter_context(httpx.Client(timeout=30, trust_env=False))
        count = max(2, min(100, runs // 10))
        token = plane.join_token(count)
        workers = [_Light(plane, bare, f"light{number}", token) for number in range(count)]
        fleet = stack.enter_context(_Fleet(workers, say))
        with plane.client() as client:
            until(lambda: len(client.workers()) == count + REAL, "all workers have joined")
            lasting = [outage_s * rng.uniform(0.05, 1.5) for _ in range(runs - REAL * 2)]
            for start in range(0, len(lasting), 100):
                client.submit_batch([_light(seconds) for seconds in lasting[start : start + 100]])
            until(lambda: len(fleet.begun()) == len(lasting), "all light jobs have begun", timeout_s=300)
            real = [
                _submit(client, f"sleep {5 + outage_s * part:.1f}; echo done", worker=f"real{number}")
                for part in (0.3, 1.2)
                for number in range(REAL)
            ]
            until(lambda: all(client.job(one).record()["state"] == "running" for one in real), "all real ones too")
        everything = [*real, *fleet.begun()]
        plane.kill()
        fleet.let_end()
        fleet.wait(outage_s)
        while_away = fleet.ended()
        plane.start()
        with plane.client() as client:
            left = set(everything)
            while left:
                say(f"the control plane is back; {len(left):,} jobs left")
                left -= {one for one in list(left)[:200] if client.job(one).record()["state"] in _FINAL}
                time.sleep(0.2)
            with ThreadPoolExecutor(4) as pool:
                for found in pool.map(lambda one: list(_wrong(client, one)), everything):
                    tally.violations += found
        if not while_away:
            tally.violations.append("no job ended while the control plane was away: nothing was proven")
        tally.violations += fleet.wrong
    return tally


def _light(seconds: float) -> BatchItem:
    return {"command": ["sh", "-c", f"{seconds:.2f}"], "labels": {"light": "1"}, "cpus": 1}


def _submit(client: Client, script: str, **options: Any) -> str:  # Any: of ``JobOptions``
    return client.submit(["sh", "-c", script], cpus=1, **options).id


_FINAL: Final = ("succeeded", "failed", "cancelled", "lost", "timed_out", "rejected")


def _wrong(client: Client, job_id: str) -> Iterator[str]:
    record: Any = client.job(job_id).record()  # Any: a record as JSON
    if record["state"] != "succeeded":
        yield f"job {job_id} is {record['state']}: {record['reason']}"
    if len(record["attempts"]) != 1:
        yield f"job {job_id} ran {len(record['attempts'])} times: {[one['evidence'] for one in record['attempts']]}"
    log = b"".join(client.job(job_id).logs())
    if log != b"done\n":
        yield f"the log of job {job_id} is {log[:80]!r}"


@dataclass(slots=True)
class _Run:
    job_id: str
    lasts_s: float
    has_ended: bool = False
    is_log_sent: bool = False


@dataclass(slots=True)
class _Light:
    """One worker that behaves as an agent does. Not thread-safe: one thread turns it."""

    plane: Served
    bare: httpx.Client
    name: str
    join_token: str
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    id: str = ""
    token: str = ""
    counter: int = 0
    seq: int = 0
    cursor: str = ""
    next_at: float = 0.0
    runs: dict[int, _Run] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    ended: int = 0
    since: float | None = None  # from when on programs end; until then none does
    is_away: bool = True
    wrong: list[str] = field(default_factory=list)

    def turn(self) -> None:
        """What is due: never raises for a control plane that is not there."""
        now = time.monotonic()
        for run in self.runs.values():
            if self.since is not None and not run.has_ended and now >= self.since + run.lasts_s:
                run.has_ended = True
                self.ended += 1
        if now < self.next_at:
            return
        self.next_at = now + BEAT_S
        try:
            self._open()
            self._report()
            self._take()
        except httpx.TransportError:
            self.is_away = True

    def _open(self) -> None:
        if not self.id:
            answer = self._post(
                ":enrol", enrolment(self.key, self.join_token, self.name, facts=_facts()), self.join_token
            )
            self.id = answer.json()["worker_id"]
        if self.is_away or not self.token:
            self.counter += 1
            signature = self.key.sign(session_text(self.id, self.counter).encode()).hex()
            answer = self._post(
                f"/{self.id}/sessions", {"schema": 1, "counter": self.counter, "signature": signature}, ""
            )
            self.token, self.is_away, self.cursor = answer.json()["token"], False, ""

    def _report(self) -> None:
        now = time.monotonic()
        items: list[Json] = []
        for epoch, run in self.runs.items():
            if not run.has_ended:
                items.append({"epoch": epoch, "node": 0, "state": "running"})
                continue
            self._send_log(epoch, run)
            outcome = {"ended_by": "program", "exit_code": 0, "signal": None, "evidence": "", "blame": "user"}
            items.append({"epoch": epoch, "node": 0, "state": "ended", "outcome": outcome})
        self.seq += 1
        body = {"schema": 1, "boot": 1, "seq": self.seq, "sent_ms": int(now * 1000), "holding": list(self.runs)}
        answer = self._post(f"/{self.id}/reports", {**body, "items": items}, self.token)
        void = set(answer.json()["void"])
        over = {item["epoch"] for item in items if item["state"] == "ended"}
        self.wrong += [
            f"{self.name}: job {self.runs[epoch].job_id} was taken away" for epoch in void - over if epoch in self.runs
        ]
        for epoch in over | void:
            self.runs.pop(epoch, None)

    def _send_log(self, epoch: int, run: _Run) -> None:
        if not run.is_log_sent:
            answer = self.bare.put(
                f"{self.plane.url}/v1/workers/{self.id}/attempts/{epoch}/logs",
                params={"offset": 0, "final": 1},
                content=b"done\n",
                headers={"Authorization": f"Bearer {self.token}"},
            )
            self._check(answer)
            run.is_log_sent = True

    def _take(self) -> None:
        answer = self.bare.get(
            f"{self.plane.url}/v1/workers/{self.id}/commands",
            params={"after": self.cursor, "hold_s": 0},
            headers={"Authorization": f"Bearer {self.token}"},
        )
        self._check(answer)
        self.cursor = answer.json()["cursor"]
        for command in answer.json()["commands"]:
            if command["type"] == "assign" and command["epoch"] not in self.runs:
                if command["job_id"] in self.begun:
                    self.wrong.append(f"{self.name} was given job {command['job_id']} a second time")
                self.begun.add(command["job_id"])
                self.runs[command["epoch"]] = _Run(command["job_id"], float(command["command"][2]))
                self.next_at = 0.0

    def _post(self, path: str, body: Json, token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = self.bare.post(f"{self.plane.url}/v1/workers{path}", json=body, headers=headers)
        self._check(answer)
        return answer

    def _check(self, answer: httpx.Response) -> None:
        """A control plane that was started again knows no sessions: as if it were away. Anything else is wrong."""
        if answer.is_success:
            return
        if answer.status_code not in (401, 503):
            self.wrong.append(f"{self.name} was answered {answer.status_code}: {answer.text[:200]}")
        self.is_away = True
        raise httpx.TransportError(answer.text)


class _Fleet:
    """Turns them all, in a few threads, until the context is left."""

    def __init__(self, workers: list[_Light], say: Say) -> None:
        self._workers = workers
        self._say = say
        self._is_over = threading.Event()
        parts = [workers[number::4] for number in range(4)]
        self._threads = [threading.Thread(target=self._turn, args=(part,), name="workers") for part in parts]

    def __enter__(self) -> "_Fleet":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def begun(self) -> set[str]:
        begun = {job for worker in self._workers for job in worker.begun}
        self._say(f"{len(begun):,} jobs have begun")
        return begun

    def let_end(self) -> None:
        for worker in self._workers:
            worker.since = time.monotonic()

    def ended(self) -> int:
        return sum(worker.ended for worker in self._workers)

    @property
    def wrong(self) -> list[str]:
        return [wrong for worker in self._workers for wrong in worker.wrong]

    def wait(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self._say(f"the control plane is away for {left:.0f} s more; {self.ended():,} jobs have ended")
            self._is_over.wait(min(left, 1.0))

    def _turn(self, workers: list[_Light]) -> None:
        while not self._is_over.wait(0.05):
            for worker in workers:
                worker.turn()


def _facts() -> Json:
    return wire_facts(cpus=16, labels={"light": "1"})


PROOFS: Final = [Proof(6, "jobs over an outage of 10 min", prove, 10, FULL, "jobs")]
