"""What makes each thing happen at which a control plane may die, and what it promised when it answered.

A stir is asked for again and again until the control plane has died over it; whatever was answered meanwhile is a
promise, and ``check`` looks at each. A thing that has no stir of its own happens while jobs come and go.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from gpulayer.client import calls
from gpulayer.client.embedded import find_plane
from gpulayer.errors import GpulayerError
from gpulayer.spec.logs import gap_line
from gpulayer.testing.wire_worker import WireWorker
from gpulayer.wire.trail import ChainCheck
from tests.e2e.kills.scene import EXIT_CODE, Scene, Sent

WIDTH = 2


@dataclass
class Traffic:
    """All kinds of it. worker: the one that runs the jobs. told: by a sink, if there is one."""

    scene: Scene
    worker: str = "steady"
    told: set[tuple[str, str]] | None = None
    jobs: list[Sent] = field(default_factory=list)
    secret_jobs: list[Sent] = field(default_factory=list)
    wrecked: list[Sent] = field(default_factory=list)
    cancelled: list[Sent] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    is_draining: bool = False
    count: int = 0

    def stir(self, thing: str) -> None:
        """Returns when it was answered, or has failed: then it is to be asked for again."""
        self.scene.jobs_to_come(self.jobs, width=WIDTH, worker=self.worker, retries=len(self.jobs) % 2)
        self.count += 1
        STIRS.get(thing, lambda _: None)(self)

    # What must hold ---------------------------------------------------------------------------------------------------

    def check(self, *, has_logs: bool = True) -> None:
        """All that was promised is there, nothing twice, and nothing runs any more. has_logs: they are still kept."""
        scene = self.scene
        if self.is_draining:
            scene.ask(lambda client: client.resume_worker(self.worker))
        for sent in (*self.jobs, *self.secret_jobs) if has_logs else ():
            scene.check(sent, attempts=[1])
        for sent in (*self.jobs, *self.secret_jobs):
            record = scene.ended(sent)
            assert (record["state"], record["exit_code"], len(record["attempts"])) == ("failed", EXIT_CODE, 1), record
            assert sent.starts.read_text().split() == ["1"], f"{sent.id} was started more than once"
            scene.until(lambda sent=sent: not scene.left_of(sent), f"the tree of {sent.id} is gone")
        for sent in self.wrecked:
            self._check_wrecked(sent)
        for sent in self.cancelled:
            assert scene.ended(sent)["state"] == "cancelled", scene.record(sent.id)
            scene.until(lambda sent=sent: not scene.left_of(sent), f"the tree of {sent.id} is gone")
        self._check_keys()
        self._check_tokens()
        self._check_workers()
        self._check_trail()
        if self.told is not None:
            ended = {sent.id for sent in self.jobs}
            scene.until(lambda: ended <= {job for job, kind in self.told if kind == "job.ended"}, "its sink was told")

    def _check_wrecked(self, sent: Sent) -> None:
        record = self.scene.ended(sent)
        assert (record["state"], record["exit_code"]) == ("failed", EXIT_CODE), record
        log, rest = self.scene.log(sent, 1), gap_line(None)
        if "did not come home whole" in record["attempts"][0]["evidence"]:
            # On a disk that takes no mark the evidence alone says so.
            is_marked = log.endswith(rest)
            assert log.count(rest) == is_marked, log
            assert is_marked or any("log_mark" in one for one in self.scene.plane.failed), log
            log = log.removesuffix(rest)
            assert sent.log.startswith(log) or sent.log.startswith(log.removesuffix(b"\n")), log
        else:  # all of it had been sent before
            assert log == sent.log, log

    def _check_keys(self) -> None:
        """The same keys are the same jobs."""
        for place, sent in list(enumerate(self.jobs))[-3:]:
            env = {"MARK": sent.mark, "STARTS": str(sent.starts), "LINES": str(sent.lines), "PAUSE": "0.05"}
            options = {"env": env, "idempotency_key": sent.mark, "worker": self.worker, "retries": place % 2}
            again = self.scene.ask(
                lambda client, options=options: client.submit(
                    ["./job.sh"], source=str(self.scene.source), cpus=1, **options
                )
            )
            assert again.id == sent.id

    def _check_tokens(self) -> None:
        listed = self.scene.ask(lambda client: client.transport.send(calls.list_tokens()))["tokens"]
        tokens = {one["id"]: one["state"] for one in listed}
        assert {id_ for id_ in self.valid if tokens.get(id_) != "valid"} == set()
        assert {id_ for id_ in self.revoked if tokens.get(id_) != "revoked"} == set()

    def _check_workers(self) -> None:
        there = {worker["id"] for worker in self.scene.ask(lambda client: client.workers())}
        assert self.known - there == set()
        assert self.removed & there == set()

    def _check_trail(self) -> None:
        chain, after = ChainCheck(), 0
        while True:
            page = self.scene.ask(lambda c, after=after: c.transport.send(calls.list_audit(after=after, limit=1000)))
            if not page["entries"]:
                break
            for entry in page["entries"]:
                assert chain.take(entry), entry
            after = page["next"]
        assert chain.seq > 0


def check_store(scene: Scene) -> None:
    """Of a control plane that has ended: its file is sound, and no blob is left half written."""
    with closing(sqlite3.connect(f"file:{scene.state / 'store.db'}?mode=ro", uri=True)) as store:
        assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert store.execute("PRAGMA foreign_key_check").fetchall() == []


# Stirs ----------------------------------------------------------------------------------------------------------------


def _secret(traffic: Traffic) -> None:
    sent = traffic.scene.submit(secrets={"HIDDEN": "swordfish"}, worker=traffic.worker, retries=0)
    traffic.secret_jobs.append(sent)


def _cancel(traffic: Traffic) -> None:
    sent = traffic.scene.submit(lines=2_000, worker=traffic.worker)
    traffic.scene.ask(lambda client: client.transport.send(calls.cancel_job(sent.id, grace_ms=100)))
    traffic.cancelled.append(sent)
    traffic.scene.ended(sent)


def _log_mark(traffic: Traffic) -> None:
    """A job that destroys its own spool: the end of its log can't come home."""
    scene = traffic.scene
    sent, env = scene.plan(lines=2)
    options = {"source": str(scene.source), "env": {**env, "WRECK": "yes"}, "cpus": 1, "worker": traffic.worker}
    job = scene.ask(lambda client: client.submit(["./job.sh"], idempotency_key=sent.mark, **options))
    sent = replace(sent, id=job.id)
    traffic.wrecked.append(sent)
    scene.ended(sent)


def _token(traffic: Traffic) -> None:
    made = traffic.scene.ask(lambda client: client.transport.send(calls.create_token("reader", name="somebody")))
    traffic.valid.add(made["token_id"])
    if traffic.count % 2:
        traffic.valid.discard(made["token_id"])
        traffic.scene.ask(lambda client: client.transport.send(calls.revoke_token(made["token_id"])))
        traffic.revoked.add(made["token_id"])


def _drain(traffic: Traffic) -> None:
    if traffic.worker not in traffic.scene.ask(lambda client: {worker["name"] for worker in client.workers()}):
        return  # it has not joined yet
    traffic.is_draining = True
    traffic.scene.ask(lambda client: client.drain_worker(traffic.worker))
    traffic.scene.ask(lambda client: client.resume_worker(traffic.worker))
    traffic.is_draining = False


def _worker(traffic: Traffic) -> None:
    """One that joins, starts, tells of another machine, and is removed; all over the wire, without a process."""

    def live(worker: WireWorker) -> None:
        worker.open_session(start=(1, f"{traffic.count:032x}"))
        worker.report()
        # Of a machine that is like no other: what all know already is not written again.
        worker.report(facts={**worker.facts, "memory_bytes": worker.facts["memory_bytes"] + traffic.count})
        traffic.known.discard(worker.id)
        try:
            traffic.scene.ask(lambda client: client.remove_worker(worker.id, force=True))
        except GpulayerError as error:
            if error.code != "not_found":  # removed when the control plane died
                raise
        traffic.removed.add(worker.id)

    _joined(traffic, live)


def _silence(traffic: Traffic) -> None:
    """One that joins and is not heard of again, for longer than its lease."""

    def live(worker: WireWorker) -> None:
        worker.report()
        deaths = len(traffic.scene.plane.deaths)

        def is_silent() -> bool:
            if len(traffic.scene.plane.deaths) > deaths:
                return True
            return bool(traffic.scene.ask(lambda client: client.worker(worker.id))["state"] == "silent")

        traffic.scene.until(is_silent, "a silent worker is called so")

    _joined(traffic, live)


def _joined(traffic: Traffic, live: Callable[[WireWorker], None]) -> None:
    with httpx.Client(timeout=30) as bare:
        try:
            worker = WireWorker(_Way(traffic.scene, bare), f"wire{traffic.count}")  # type: ignore[arg-type]
            traffic.known.add(worker.id)
            live(worker)
        except httpx.TransportError:  # it has died over it
            return
        except AssertionError as error:  # an answer of its next life, which knows no sessions, or of a full disk
            if not any(code in str(error) for code in ("unauthenticated", "storage_unavailable")):
                raise


class _Way:
    """What a wire worker wants to know of a control plane."""

    def __init__(self, scene: Scene, bare: httpx.Client) -> None:
        self.scene = scene
        self.bare = bare

    @property
    def url(self) -> str:
        found = self.scene.until(lambda: find_plane(self.scene.state), "the control plane serves")
        return str(found.url)

    def new_token(self, _kind: object) -> str:
        return str(self.scene.ask(lambda client: client.transport.send(calls.create_token()))["token"])


STIRS: dict[str, Callable[[Traffic], None]] = {
    "secret": _secret,
    "key": _secret,  # the key for secrets; that of a submission comes with it
    "cancel": _cancel,
    "log_mark": _log_mark,
    "token": _token,
    "audit": _token,
    "drain": _drain,
    "enrol": _worker,
    "enrolment": _worker,
    "session": _worker,
    "start": _worker,
    "facts": _worker,
    "removal": _worker,
    "expiry": _silence,
}


# A sink ---------------------------------------------------------------------------------------------------------------


def hook_variables(url: str) -> dict[str, str]:
    """What makes a control plane tell events to this URL."""
    return {"GPULAYER_PLUGIN_WEBHOOK_URL": url, "GPULAYER_PLUGIN_WEBHOOK_SECRET": "whsec_" + "QUJD" * 8}


@contextmanager
def sink() -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """A URL that takes events: with the jobs and kinds that it was told of."""
    told: set[tuple[str, str]] = set()

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            sent = self.rfile.read(size)
            if len(sent) < size:
                return  # killed amid it
            event: Any = json.loads(sent)
            job = event["data"].get("job")
            if job is not None:
                told.add((job["id"], event["type"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/told", told
        finally:
            server.shutdown()
            serving.join()
