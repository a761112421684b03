"""Every route, every method, every kind of credential: who gets in, with which status, and in which form the others
are refused.

``RIGHTS`` is written by hand, as people were promised it; a route that is not in it fails, and so does one in it that
is not served.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.routing import compile_path

from gpulayer.server.app import create_app
from gpulayer.server.routes import ROUTES
from gpulayer.server.tokens import Role, TokenKind, form_token, make_token
from gpulayer.server.web import Route
from gpulayer.spec.tree import Entry, EntryKind, encode_tree
from gpulayer.wire.packs import frame

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

NOBODY = frozenset({"none", "malformed", "foreign", "expired", "revoked", "job ended"})
CLIENTS = frozenset({"reader", "submitter", "other submitter", "admin"})
SUBMITTERS = CLIENTS - {"reader"} | {"job parent", "job other"}
JOBS = frozenset({"job own", "job parent", "job other"})
WORKERS = frozenset({"worker", "other worker"})
STATES = NOBODY | CLIENTS | JOBS | WORKERS | {"join"}

# The job that is named belongs to "submitter", was submitted by "job parent", and is lent to "worker"; the blobs that
# are read are of its source. "job own" is its token (it may only read), "job other" that of another owner's job.
RIGHTS: dict[tuple[str, str], frozenset[str]] = {
    ("GET", "/healthz"): STATES,
    ("GET", "/readyz"): STATES,
    ("GET", "/openapi.json"): CLIENTS | WORKERS | JOBS,
    ("GET", "/v1/plane"): CLIENTS,
    ("POST", "/v1/plane:shutdown"): frozenset({"admin"}),
    ("POST", "/v1/plane:backup"): frozenset({"admin"}),
    ("POST", "/v1/tokens"): frozenset({"admin"}),
    ("GET", "/v1/tokens"): frozenset({"admin"}),
    ("POST", "/v1/tokens/{ref}:revoke"): frozenset({"admin"}),
    ("POST", "/v1/tokens:rotate"): CLIENTS,
    ("GET", "/v1/audit"): frozenset({"admin"}),
    ("POST", "/v1/jobs"): SUBMITTERS,
    ("POST", "/v1/jobs:batch"): SUBMITTERS,
    ("GET", "/v1/jobs"): CLIENTS,
    ("GET", "/v1/jobs/{ref}"): CLIENTS | {"job own", "job parent"},
    ("GET", "/v1/jobs/{ref}/events"): CLIENTS | {"job own", "job parent"},
    ("GET", "/v1/jobs/{ref}/why"): CLIENTS | {"job own", "job parent"},
    ("GET", "/v1/jobs/{ref}/elements"): CLIENTS | {"job own", "job parent"},
    ("GET", "/v1/jobs/{ref}/outputs"): CLIENTS | {"job own", "job parent"},
    ("GET", "/v1/jobs/{ref}/logs"): CLIENTS | {"job own", "job parent"},
    ("POST", "/v1/jobs/{ref}:cancel"): frozenset({"submitter", "admin", "job parent"}),
    ("POST", "/v1/jobs/{ref}:retry"): frozenset({"submitter", "admin", "job parent"}),
    ("POST", "/v1/explain"): CLIENTS,
    ("POST", "/v1/workers:enrol"): frozenset({"join"}),
    ("POST", "/v1/workers/{id}/sessions"): STATES,
    ("POST", "/v1/workers/{id}/reports"): frozenset({"worker"}),
    ("GET", "/v1/workers/{id}/commands"): frozenset({"worker"}),
    ("PUT", "/v1/workers/{id}/attempts/{epoch}/logs"): frozenset({"worker"}),
    ("POST", "/v1/workers/{id}/attempts/{epoch}/outputs"): frozenset({"worker"}),
    ("GET", "/v1/workers/{id}/attempts/{epoch}/credentials"): frozenset({"worker"}),
    ("GET", "/v1/workers"): CLIENTS,
    ("GET", "/v1/workers/{ref}"): CLIENTS,
    ("POST", "/v1/workers/{ref}:drain"): frozenset({"admin"}),
    ("POST", "/v1/workers/{ref}:resume"): frozenset({"admin"}),
    ("POST", "/v1/workers/{ref}:remove"): frozenset({"admin"}),
    ("GET", "/v1/plugins"): CLIENTS,
    ("POST", "/v1/sources:missing"): SUBMITTERS | WORKERS,
    ("PUT", "/v1/blobs/{digest}"): SUBMITTERS | WORKERS,
    ("POST", "/v1/blobs:pack"): SUBMITTERS | WORKERS,
    ("GET", "/v1/blobs/{digest}"): CLIENTS | {"worker", "job own"},
    ("POST", "/v1/blobs:fetch"): CLIENTS | {"worker", "job own"},
}

# What is not 200 for whoever may; what a route says besides (a worker that holds leases can't be removed).
ANSWERS = {
    ("POST", "/v1/tokens"): 201,
    ("POST", "/v1/tokens:rotate"): 201,
    ("POST", "/v1/jobs"): 201,
    ("POST", "/v1/jobs:batch"): 201,
    ("POST", "/v1/jobs/{ref}:retry"): 201,
    ("POST", "/v1/workers:enrol"): 201,
    ("POST", "/v1/workers/{id}/sessions"): 201,
    ("PUT", "/v1/blobs/{digest}"): 201,
    ("POST", "/v1/blobs:pack"): 201,
    ("POST", "/v1/workers/{ref}:remove"): 409,
}


@dataclass
class World:
    """One plane with a job of each owner, each lent to its worker; the names in it as ``RIGHTS`` uses them."""

    live: Any
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    job: str = ""
    ended: str = ""
    worker: Any = None
    epoch: int = 0
    tree: str = ""
    blob: str = ""
    spare: str = ""
    enrolled: int = 0

    def ask(self, route: Route, methods: tuple[str, ...]) -> list[tuple[str, str, httpx.Response]]:
        """Everybody, with every method, in the plane's own loop: without a socket it takes a fifth of the time."""

        async def all_of_them() -> list[tuple[str, str, httpx.Response]]:
            transport = httpx.ASGITransport(create_app(self.live.plane))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return [
                    (method, who, await client.request(method, self.url(route), headers=headers, **self.sent(route)))
                    for method in methods
                    for who, headers in self.headers.items()
                ]

        return self.live.call(all_of_them)

    def url(self, route: Route) -> str:
        job = self.ended if ":" in route.path else self.job
        path = route.path.replace("/v1/jobs/{ref}", f"/v1/jobs/{job}").replace("/tokens/{ref}", f"/tokens/{self.spare}")
        path = path.replace("{ref}", self.worker.id)
        path = path.replace("{id}", self.worker.id).replace("{epoch}", str(self.epoch)).replace("{digest}", self.blob)
        return f"{path}?hold_s=0" if path.endswith("/commands") else path

    def sent(self, route: Route) -> dict[str, Any]:
        job = {"schema": 1, "command": ["true"], "request": {"labels": {"no": "such"}}}
        match route.path:
            case "/v1/jobs":
                return {"json": job}
            case "/v1/jobs:batch":
                return {"json": {"schema": 1, "jobs": [job]}}
            case "/v1/explain":
                return {"json": {"request": {}}}
            case "/v1/tokens":
                return {"json": {"role": "join"}}
            case "/v1/workers:enrol":
                self.enrolled += 1
                join_token = self.headers["join"]["Authorization"].removeprefix("Bearer ")
                name = f"enrolled-{self.enrolled}"
                return {"json": self.live.enrolment(Ed25519PrivateKey.generate(), join_token, name)}
            case "/v1/workers/{id}/sessions":
                self.worker.counter += 1
                text = f"gpulayer-session:{self.worker.id}:{self.worker.counter}"
                signature = self.worker.key.sign(text.encode()).hex()
                return {"json": {"schema": 1, "counter": self.worker.counter, "signature": signature}}
            case "/v1/workers/{id}/reports":
                holding = {"holding": self.worker.holding, "items": []}
                return {"json": {"schema": 1, "boot": 1, "seq": 1000, "sent_ms": 0, **holding}}
            case "/v1/workers/{id}/attempts/{epoch}/outputs":
                return {"json": {"tree": self.tree}}
            case "/v1/sources:missing" | "/v1/blobs:fetch":
                return {"json": {"digests": [self.blob]}}
            case "/v1/blobs:pack":
                return {"content": frame(hashlib.sha256(b"packed").hexdigest(), b"packed")}
            case "/v1/blobs/{digest}":
                return {"content": b"print(1)"}
            case _:
                return {}


def _lend(live: Any, worker: Any, token: str, **fields: Any) -> tuple[str, int]:
    """A job that this worker runs."""
    body = {"schema": 1, "command": ["true"], "request": {"worker": worker.name}, **fields}
    answer = live.bare.post(f"{live.url}/v1/jobs", json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 201, answer.text
    (command,) = worker.commands(hold_s=10)
    worker.holding.append(command["epoch"])
    worker.report(worker.running(command["epoch"]))
    return answer.json()["id"], command["epoch"]


def _job_token(live: Any, job: str, epoch: int) -> str:
    return live.plane.auth.job_token(epoch, job)


@pytest.fixture(scope="module")
def world(shared_plane) -> World:
    live = shared_plane
    made = World(live)
    made.blob = live.put_blob(b"print(1)")
    made.tree = live.put_blob(encode_tree([Entry("a.py", EntryKind.FILE, digest=made.blob, size=8)]))
    source = {"digest": made.tree, "files": 1, "size_bytes": 8}
    alice, bob = live.client_token("alice", Role.SUBMITTER), live.client_token("bob", Role.SUBMITTER)
    made.worker, other = live.worker("one"), live.worker("two")
    made.worker.report()
    other.report()
    parent = _job_token(live, *_lend(live, made.worker, alice, grant="submit"))
    made.job, made.epoch = _lend(live, made.worker, parent, grant="own", source=source)
    theirs = _lend(live, other, bob, grant="submit")
    lost, epoch = _lend(live, other, bob, grant="submit")
    other.report(other.ended(epoch))
    body = {"schema": 1, "command": ["true"], "request": {"labels": {"no": "such"}}}
    answer = live.bare.post(f"{live.url}/v1/jobs", json=body, headers={"Authorization": f"Bearer {parent}"})
    made.ended = answer.json()["id"]
    live.http.post(f"/v1/jobs/{made.ended}:cancel")
    tokens = {
        "malformed": "glc_cut-off",
        "foreign": make_token(TokenKind.CLIENT),
        "expired": live.new_token(TokenKind.CLIENT, life_s=0),
        "revoked": live.new_token(TokenKind.CLIENT),
        "join": live.new_token(TokenKind.JOIN, max_uses=1000),
        "worker": made.worker.token,
        "other worker": other.token,
        "job own": _job_token(live, made.job, made.epoch),
        "job parent": parent,
        "job other": _job_token(live, *theirs),
        "job ended": _job_token(live, lost, epoch),
        "reader": live.client_token("eve", Role.READER),
        "submitter": alice,
        "other submitter": bob,
        "admin": live.client_token("root", Role.ADMIN),
    }
    live.revoke(tokens["revoked"])
    made.spare = live.new_token(TokenKind.JOIN)[4:16]
    made.headers = {"none": {}} | {who: {"Authorization": f"Bearer {token}"} for who, token in tokens.items()}
    assert set(made.headers) == STATES
    return made


def _id(route: Route) -> str:
    return f"{route.method} {route.path}"


def _expected(route: Route, method: str, url: str, who: str) -> int:
    """405 for a method that nobody declared; where another route has this very address, that one's rights."""
    reached = route
    if method != route.method:
        path = url.partition("?")[0]
        found = [other for other in ROUTES if other.method == method and compile_path(other.path)[0].match(path)]
        if not found:
            return 405
        reached = found[0]
    allowed = RIGHTS[reached.method, reached.path]
    if reached is route or reached.path == route.path:
        if who in allowed:
            return ANSWERS.get((reached.method, reached.path), 200)
    elif who in allowed & CLIENTS:
        return 404  # `GET /v1/jobs/abc:cancel` asks for a job of that name
    return 401 if who in NOBODY else 403


def test_the_table_names_every_route_that_is_served_and_no_other() -> None:
    assert set(RIGHTS) == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=_id)
def test_a_route_opens_to_whom_the_table_says_and_to_nobody_else(world, route) -> None:
    wrong = []
    for method, who, answer in world.ask(route, METHODS):
        expected = _expected(route, method, world.url(route), who)
        if answer.status_code != expected:
            wrong.append((method, who, expected, answer.status_code, answer.text[:200]))
        elif expected >= 400 and method != "HEAD":
            error = world.live.check_envelope(answer)
            code = {401: "unauthenticated", 403: "forbidden", 404: "not_found", 405: "bad_request", 409: "conflict"}
            assert error["code"] == code[expected], (method, who, answer.text)
            assert answer.headers.get("www-authenticate") == ("Bearer" if expected == 401 else None)
    assert wrong == []


def test_no_refusal_repeats_a_token_or_tells_one_secret_from_another(world) -> None:
    route = next(route for route in ROUTES if route.path == "/v1/plane")
    answers = {who: answer for _, who, answer in world.ask(route, ("GET",))}
    for who, answer in answers.items():
        token = world.headers[who].get("Authorization", "Bearer ")[7:]
        assert not token or token not in answer.text
    same = [make_token(TokenKind.CLIENT)]
    same += [  # the right id, with another secret
        form_token(TokenKind.CLIENT, world.headers[who]["Authorization"][11:23], bytes(32))
        for who in ("admin", "revoked", "expired")
    ]
    messages = set()
    for token in same:
        answer = world.live.bare.get(f"{world.live.url}/v1/plane", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401
        messages.add(json.dumps(world.live.check_envelope(answer)))
    assert len(messages) == 1
