"""What an attempt that was given away may still do: nothing. Every route that a worker's session or a job's token
opens, asked for an epoch that is stale for each reason there is, and for one that becomes so while its body comes.

``ANSWERS`` is written by hand; a route that is not in it fails, and so does one in it that is not served.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gpulayer.server.app import create_app
from gpulayer.server.routes import ROUTES
from gpulayer.server.tokens import TokenKind
from gpulayer.server.web import Route
from gpulayer.spec.tree import Entry, EntryKind, encode_tree
from gpulayer.wire.packs import frame

PACKED = b"packed"

# By route, what a worker hears of an epoch that it does not hold. 200: of its other work, or of no attempt at all.
ANSWERS: dict[tuple[str, str], tuple[int, str]] = {
    ("POST", "/v1/workers/{id}/reports"): (200, "void"),
    ("GET", "/v1/workers/{id}/commands"): (200, "without it"),
    ("PUT", "/v1/workers/{id}/attempts/{epoch}/logs"): (409, "stale_attempt"),
    ("POST", "/v1/workers/{id}/attempts/{epoch}/outputs"): (409, "stale_attempt"),
    ("GET", "/v1/workers/{id}/attempts/{epoch}/credentials"): (409, "stale_attempt"),
    ("GET", "/v1/blobs/{digest}"): (403, "forbidden"),
    ("POST", "/v1/blobs:fetch"): (403, "forbidden"),
    # Content by its digest: it belongs to no attempt, and becomes an output only by a report that is taken.
    ("POST", "/v1/sources:missing"): (200, "content"),
    ("PUT", "/v1/blobs/{digest}"): (201, "content"),
    ("POST", "/v1/blobs:pack"): (201, "content"),
    ("GET", "/openapi.json"): (200, "content"),
}

# Whose token ends with its attempt: all that it opens is shut.
JOB_ROUTES = [route for route in ROUTES if route.access is not None and TokenKind.JOB in route.access.kinds]
WORKER_ROUTES = [route for route in ROUTES if route.access is not None and TokenKind.WORKER in route.access.kinds]
WITH_BODY = [route for route in WORKER_ROUTES if route.body or route.raw]
STALE = ("given to another", "ended", "never lent", "lent to another")


@dataclass
class Attempt:
    job: str
    epoch: int


class World:
    """A plane with two workers and a job whose source only the lease lets a worker read."""

    def __init__(self, live: Any) -> None:
        self.live = live
        self.one, self.other = live.worker("one"), live.worker("other")
        self.other.report()
        self.number = 0

    def lend(self, worker: Any, **fields: Any) -> Attempt:
        self.number += 1
        self.blob = self.live.put_blob(f"print({self.number})".encode())
        size = len(f"print({self.number})")
        self.tree = self.live.put_blob(encode_tree([Entry("a.py", EntryKind.FILE, digest=self.blob, size=size)]))
        source = {"digest": self.tree, "files": 1, "size_bytes": size}
        request = {"worker": worker.name}
        for waiting in self.live.http.get("/v1/jobs", params={"state": "queued"}).json()["jobs"]:
            self.live.http.post(f"/v1/jobs/{waiting['id']}:cancel")
        self.live.http.post(f"/v1/workers/{worker.id}:resume")
        job = self.live.submit("true", request=request, source=source, grant="submit", **fields)["id"]
        worker.report()
        (command,) = [one for one in worker.commands(hold_s=10) if one["type"] == "assign"]
        worker.report(worker.running(command["epoch"]))
        return Attempt(job, command["epoch"])

    def stale(self, why: str) -> Attempt:
        """An epoch that worker ``one`` knows and does not hold."""
        match why:
            case "given to another":
                attempt = self.lend(self.one, retries=1)
                self.live.http.post(f"/v1/workers/{self.one.id}:drain")
                self.one.report(self.one.ended(attempt.epoch, None, of_outcome={"ended_by": "worker_lost"}))
            case "ended":
                attempt = self.lend(self.one)
                self.one.report(self.one.ended(attempt.epoch))
            case "never lent":
                attempt = self.lend(self.one)
                self.one.report(self.one.ended(attempt.epoch))
                attempt = Attempt(attempt.job, attempt.epoch + 1_000_000)
            case "lent to another":
                attempt = self.lend(self.other)
        return attempt

    def token(self, attempt: Attempt) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.live.plane.auth.job_token(attempt.epoch, attempt.job)}"}

    def log(self, attempt: Attempt) -> bytes:
        folder = self.live.settings.state_dir / "logs" / attempt.job
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log"))) if folder.exists() else b""

    def seen(self, attempt: Attempt) -> Any:
        """All that is kept of a job: its record, its events, the bytes of its logs; how many jobs there are."""
        record = self.live.job(attempt.job)
        events = self.live.http.get(f"/v1/jobs/{attempt.job}/events").json()
        jobs = self.live.http.get("/v1/jobs", params={"limit": 500}).json()["jobs"]
        return record, events, self.log(attempt), len(jobs)

    def url(self, route: Route, attempt: Attempt) -> str:
        put = hashlib.sha256(PACKED).hexdigest()
        digest = put if route.method == "PUT" else self.blob
        path = route.path.replace("{id}", self.one.id).replace("{epoch}", str(attempt.epoch))
        path = path.replace("{digest}", digest).replace("{ref}", attempt.job)
        return f"{path}?hold_s=0" if path.endswith("/commands") else path

    def sent(self, route: Route, attempt: Attempt) -> dict[str, Any]:
        job = {"schema": 1, "command": ["true"], "request": {"labels": {"no": "such"}}}
        match route.path:
            case "/v1/jobs":
                return {"json": job}
            case "/v1/jobs:batch":
                return {"json": {"schema": 1, "jobs": [job]}}
            case "/v1/jobs/{ref}:cancel":
                return {"json": {"grace_ms": 5}}
            case "/v1/workers/{id}/reports":
                self.one.seq += 1
                evidence = {"evidence": "log.lost"}
                items = [self.one.ended(attempt.epoch, 0, outputs=self.tree, of_outcome=evidence)]
                said = {"holding": [attempt.epoch], "items": items}
                return {"json": {"schema": 1, "boot": 1, "seq": self.one.seq, "sent_ms": 0, **said}}
            case "/v1/workers/{id}/attempts/{epoch}/outputs":
                return {"json": {"tree": self.tree}}
            case "/v1/workers/{id}/attempts/{epoch}/logs" | "/v1/blobs/{digest}" if route.method == "PUT":
                return {"content": PACKED}
            case "/v1/sources:missing" | "/v1/blobs:fetch":
                return {"json": {"digests": [self.blob]}}
            case "/v1/blobs:pack":
                return {"content": frame(hashlib.sha256(PACKED).hexdigest(), PACKED)}
            case _:
                return {}


@pytest.fixture(scope="module")
def world(shared_plane) -> World:
    return World(shared_plane)


def _id(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_the_table_names_every_route_that_a_workers_session_opens_and_no_other() -> None:
    assert set(ANSWERS) == {(route.method, route.path) for route in WORKER_ROUTES}


@pytest.mark.parametrize("why", STALE)
def test_what_a_worker_says_of_an_attempt_that_is_not_lent_to_it_changes_nothing(world, why) -> None:
    attempt = world.stale(why)
    before = world.seen(attempt)
    for route in WORKER_ROUTES:
        status, what = ANSWERS[route.method, route.path]
        answer = world.live.bare.request(
            route.method,
            world.live.url + world.url(route, attempt),
            headers=world.one.headers,
            **world.sent(route, attempt),
        )
        assert answer.status_code == status, (_id(route), answer.text)
        if status >= 400:
            assert world.live.check_envelope(answer)["code"] == what, _id(route)
        elif what == "void":
            assert answer.json()["void"] == [attempt.epoch]
        elif what == "without it":
            assert attempt.epoch not in [command.get("epoch") for command in answer.json()["commands"]]
    assert world.seen(attempt) == before
    if why == "lent to another":
        world.other.report(world.other.ended(attempt.epoch))


def test_the_token_of_a_stale_attempt_opens_nothing_and_changes_nothing(world) -> None:
    for why in ("given to another", "ended", "never lent"):
        attempt = world.stale(why)
        before = world.seen(attempt)
        for route in JOB_ROUTES:
            answer = world.live.bare.request(
                route.method,
                world.live.url + world.url(route, attempt),
                headers=world.token(attempt),
                **world.sent(route, attempt),
            )
            assert answer.status_code == 401, (_id(route), why, answer.text)
        assert world.seen(attempt) == before


# While the body comes ------------------------------------------------------------------------------------------------


def _late(world: World, route: Route, attempt: Attempt, headers: dict[str, str], change: Any) -> httpx.Response:
    """The answer where ``change`` happens when half of the body is there."""
    sent = world.sent(route, attempt)
    request = httpx.Request(route.method, "http://127.0.0.1" + world.url(route, attempt), headers=headers, **sent)
    body = request.read()
    half = asyncio.Event()
    changed = asyncio.Event()

    async def halves() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        half.set()
        await changed.wait()
        yield body[len(body) // 2 :]

    async def begin() -> "asyncio.Task[httpx.Response]":
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(create_app(world.live.plane))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                kept = {**headers, "content-type": request.headers.get("content-type", "application/octet-stream")}
                return await client.request(route.method, str(request.url), headers=kept, content=halves())

        task = asyncio.get_running_loop().create_task(ask())
        await half.wait()
        for _ in range(20):  # it has read what there is
            await asyncio.sleep(0)
        return task

    task = world.live.call(begin)
    change()

    async def finish() -> httpx.Response:
        changed.set()
        return await task

    return world.live.call(finish)


@pytest.mark.parametrize("route", WITH_BODY, ids=_id)
def test_a_body_that_was_begun_while_the_lease_held_counts_for_nothing_after_it(world, route) -> None:
    attempt = world.lend(world.one, retries=1)
    lost = {"ended_by": "worker_lost"}
    seen = []

    def change() -> None:
        world.live.http.post(f"/v1/workers/{world.one.id}:drain")
        world.one.report(world.one.ended(attempt.epoch, None, of_outcome=lost))
        seen.append(world.seen(attempt))

    answer = _late(world, route, attempt, world.one.headers, change)
    assert world.seen(attempt) == seen[0], answer.text
    status, what = ANSWERS[route.method, route.path]
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert world.live.check_envelope(answer)["code"] == what


@pytest.mark.parametrize("route", [route for route in JOB_ROUTES if route.body or route.raw], ids=_id)
def test_what_a_job_was_asking_for_when_its_attempt_ended_is_not_done(world, route) -> None:
    attempt = world.lend(world.one)
    child = world.live.bare.post(
        f"{world.live.url}/v1/jobs", headers=world.token(attempt), **world.sent(_route("POST", "/v1/jobs"), attempt)
    ).json()["id"]
    seen = []

    def change() -> None:
        world.one.report(world.one.ended(attempt.epoch))
        seen.append((world.seen(attempt), world.live.job(child)))

    named = Attempt(child, attempt.epoch) if "{ref}" in route.path else attempt
    answer = _late(world, route, named, world.token(attempt), change)
    assert (world.seen(attempt), world.live.job(child)) == seen[0], answer.text
    assert answer.status_code == 401, answer.text


def _route(method: str, path: str) -> Route:
    return next(route for route in ROUTES if (route.method, route.path) == (method, path))
