"""``plane``: a real control plane on loopback (uvicorn, SQLite), in a thread; and what tests need to talk to it."""

import asyncio
import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.clock import Clock, ManualClock
from gpulayer.plugins.host import Host
from gpulayer.server import PlaneSettings
from gpulayer.server.app import create_app
from gpulayer.server.gate import Gate, GatedServer, GateLimits
from gpulayer.server.plane import Plane
from gpulayer.server.store import Side
from gpulayer.server.tokens import Role, TokenKind, parse_token
from gpulayer.wire.sessions import session_text


class LivePlane:
    """One state folder, served. ``restart`` stops and starts it, as after an upgrade."""

    def __init__(self, state_dir: Path, *, clock: Clock | None = None, **settings: Any) -> None:
        self.settings = PlaneSettings(state_dir=state_dir, **settings)
        self.clock = clock
        self.wrap_store: Callable[[Any], Any] = lambda store: store
        self.host: Callable[[], Host | None] = lambda: None
        self.token = ""
        self.limits = GateLimits()
        self.tls: ssl.SSLContext | None = None

    def start(self) -> "LivePlane":
        self.loop = asyncio.new_event_loop()
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self.thread.start()
        assert self._ready.wait(20)
        if self._failure:
            raise self._failure
        if not self.token:
            self.token = self.new_token(TokenKind.CLIENT)
        self.bare = httpx.Client(timeout=30, trust_env=False, verify=False)
        self.http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=20,
            trust_env=False,
            verify=False,
        )
        return self

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()
            self.loop.close()

    async def _serve(self) -> None:
        settings = replace(self.settings, url=self.url)
        self.plane = Plane(settings, clock=self.clock, wrap_store=self.wrap_store, host=self.host())
        try:
            await self.plane.start()
            config = uvicorn.Config(
                create_app(self.plane),
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=3,
            )
            self.gate = Gate(self.limits)
            self.server = GatedServer(config, self.gate, {self.listener: self.tls})
            self._ready.set()
            await self.server.serve()
        finally:
            await self.plane.close()

    def call(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine in the plane's loop."""
        return asyncio.run_coroutine_threadsafe(make(), self.loop).result(20)

    def new_token(self, kind: TokenKind, **options: Any) -> str:
        async def make() -> str:
            role = Role.ADMIN if kind is TokenKind.CLIENT else None
            of_row = {name: options.pop(name) for name in ("max_uses", "labels", "max_devices") if name in options}
            token, row = self.plane.auth.new_token(kind, **{"name": "test", "life_s": 900, "role": role, **options})
            row = replace(row, **of_row)
            await self.plane.driver.submit(side=Side(tokens=(row,)))
            self.plane.auth.keep_token(row)
            return token

        return self.call(make)

    def stop(self) -> None:
        def end() -> None:
            self.plane.stop_holding()
            self.server.should_exit = True

        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(end)
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.http.close()
        self.bare.close()
        self.listener.close()

    @staticmethod
    def enrolment(key: Ed25519PrivateKey, join_token: str, name: str, **fields: Any) -> dict[str, Any]:
        return enrolment(key, join_token, name, **fields)

    @staticmethod
    def check_envelope(answer: httpx.Response) -> dict[str, Any]:
        return check_envelope(answer)

    @staticmethod
    def until(check: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        return until(check, timeout_s)

    def restart(self) -> None:
        self.stop()
        self.start()

    def submit(self, *command: str, **fields: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/jobs", json={"schema": 1, "command": list(command) or ["true"], **fields})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def job(self, ref: str, **query: Any) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{ref}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put_blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        assert self.http.put(f"/v1/blobs/{digest}", content=content).status_code == 201
        return digest

    def client_token(self, name: str, role: Role) -> str:
        """Of a person of this name."""
        return self.new_token(TokenKind.CLIENT, name=name, owner=name, role=role)

    def revoke(self, token: str) -> None:
        async def change() -> None:
            row = self.plane.auth.token(parse_token(token)[1])
            assert row is not None
            async with self.plane.enrolling:
                await self.plane.driver.submit(side=Side(tokens=(replace(row, is_revoked=True),)))
                self.plane.auth.keep_token(replace(row, is_revoked=True))

        self.call(change)

    def worker(self, name: str = "box", **facts: Any) -> "FakeWorker":
        return FakeWorker(self, name, **facts)


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "platform": "linux-x86_64",
        "version": "0.1.0",
        "cpus": 4,
        "memory_bytes": 2**34,
        "disk_bytes": None,
        "devices": [],
        "frameworks": [],
        "labels": {},
        "locality": {"zone": "", "region": "", "network_group": ""},
        **changes,
    }


def enrolment(key: Ed25519PrivateKey, join_token: str, name: str, **fields: Any) -> dict[str, Any]:
    """The body of an enrolment that is signed as it must be."""
    signature = key.sign(f"gpulayer-enrol:{parse_token(join_token)[1]}:{name}".encode()).hex()
    public_key = key.public_key().public_bytes_raw().hex()
    return {"schema": 1, "public_key": public_key, "signature": signature, "facts": facts(), **fields, "name": name}


class FakeWorker:
    """A worker's side of the wire, scripted by the test: over real HTTP, with a real key."""

    def __init__(self, live: LivePlane, name: str, *, join_token: str | None = None, **changes: Any) -> None:
        self.live = live
        self.name = name
        self.facts = facts(**changes)
        self.key = Ed25519PrivateKey.generate()
        self.join_token = join_token or live.new_token(TokenKind.JOIN)
        self.boot, self.seq, self.counter = 1, 0, 0
        self.cursor = ""
        self.holding: list[int] = []
        answer = self.enrol()
        assert answer.status_code == 201, answer.text
        self.id = answer.json()["worker_id"]
        self.open_session()

    @property
    def public_key(self) -> str:
        return self.key.public_key().public_bytes_raw().hex()

    def enrol(self, **changes: Any) -> httpx.Response:
        body = enrolment(self.key, self.join_token, **{"name": self.name, "facts": self.facts, **changes})
        return self.http_post("/v1/workers:enrol", body, self.join_token)

    def session(self, counter: int | None = None, *, start: tuple[int, str] | None = None) -> httpx.Response:
        """start: boot and instance of the agent that asks; None: as an agent of before."""
        if counter is None:
            self.counter += 1
            counter = self.counter
        named = {} if start is None else {"boot": start[0], "instance": start[1]}
        signature = self.key.sign(session_text(self.id, counter, **named).encode()).hex()
        body = {"schema": 1, "counter": counter, "signature": signature, **named}
        return self.live.bare.post(f"{self.live.url}/v1/workers/{self.id}/sessions", json=body)

    def open_session(self, *, start: tuple[int, str] | None = None) -> None:
        answer = self.session(start=start)
        assert answer.status_code == 201, answer.text
        self.token = answer.json()["token"]
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def http_post(self, path: str, body: object, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return self.live.bare.post(self.live.url + path, json=body, headers=headers)

    def report(self, *items: dict[str, Any], **changes: Any) -> dict[str, Any]:
        answer = self.try_report(*items, **changes)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def try_report(self, *items: dict[str, Any], **changes: Any) -> httpx.Response:
        self.seq += 1
        body = {
            "schema": 1,
            "boot": self.boot,
            "seq": self.seq,
            "sent_ms": int(time.monotonic() * 1000),
            "holding": self.holding,
            "items": list(items),
            **changes,
        }
        return self.http_post(f"/v1/workers/{self.id}/reports", body)

    def commands(self, hold_s: float = 0, after: str | None = None) -> list[dict[str, Any]]:
        answer = self.live.bare.get(
            f"{self.live.url}/v1/workers/{self.id}/commands",
            params={"after": self.cursor if after is None else after, "hold_s": hold_s},
            headers=self.headers,
        )
        assert answer.status_code == 200, answer.text
        self.cursor = answer.json()["cursor"]
        return answer.json()["commands"]

    def put_log(
        self, epoch: int, offset: int, piece: bytes, *, final: bool = False, stream: str = ""
    ) -> httpx.Response:
        return self.live.bare.put(
            f"{self.live.url}/v1/workers/{self.id}/attempts/{epoch}/logs",
            params={"offset": offset, "final": int(final), **({"stream": stream} if stream else {})},
            content=piece,
            headers=self.headers,
        )

    def put_outputs(self, epoch: int, tree: str) -> httpx.Response:
        return self.http_post(f"/v1/workers/{self.id}/attempts/{epoch}/outputs", {"tree": tree})

    @staticmethod
    def running(epoch: int) -> dict[str, Any]:
        return {"epoch": epoch, "node": 0, "state": "running"}

    def ended(self, epoch: int, exit_code: int = 0, **changes: Any) -> dict[str, Any]:
        outcome = {"ended_by": "program", "exit_code": exit_code, "signal": None, "evidence": "", "blame": "user"}
        return {"epoch": epoch, "node": 0, "state": "ended", "outcome": outcome, **changes}


def check_envelope(answer: httpx.Response) -> dict[str, Any]:
    """The one form of every error."""
    assert answer.headers["content-type"] == "application/json", answer.text
    document = json.loads(answer.content)
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == {"code", "message", "hint", "blame", "details"}
    assert error["message"]
    return error


def until(check: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Poll until ``check`` gives something true."""
    ends = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < ends, "deadline passed"
        time.sleep(0.01)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[LivePlane]:
    live = LivePlane(tmp_path / "state").start()
    yield live
    live.stop()


@pytest.fixture(scope="module")
def shared_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePlane]:
    """One for all tests of a module, which must not mind what the others left there. Its time stands still, so that no
    lease runs out however long they take."""
    live = LivePlane(tmp_path_factory.mktemp("shared") / "state", clock=ManualClock()).start()
    yield live
    live.stop()


@pytest.fixture
def make_plane(tmp_path: Path) -> Iterator[Callable[..., LivePlane]]:
    """Planes with other settings; started, and stopped at the end."""
    made: list[LivePlane] = []

    def make(**settings: Any) -> LivePlane:
        live = LivePlane(tmp_path / f"state{len(made)}", **settings)
        made.append(live)
        return live

    yield make
    for live in made:
        live.stop()
