"""``plane``: a real control plane on loopback (uvicorn, SQLite), in a thread; and what tests need to talk to it."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer import testing
from gpulayer.clock import ManualClock
from gpulayer.plugins.host import Host
from gpulayer.server.gate import GateLimits
from gpulayer.server.onewrite import HeadLimits
from gpulayer.server.store import Side
from gpulayer.server.tokens import Role, TokenKind, parse_token
from gpulayer.testing.wire_worker import WireWorker, enrolment
from tests.raw_lines import Line
from tests.served import Served


class LivePlane(testing.LivePlane):
    """With what only tests of the server need. host: its plugins; None: those that are installed."""

    def __init__(self, state_dir: Path, **options: Any) -> None:
        super().__init__(state_dir, **options)
        self.host: Callable[[], Host | None] = lambda: None

    def start(self) -> Self:
        super().start()
        self.http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=20,
            trust_env=False,
            verify=False,
        )
        return self

    def stop(self) -> None:
        super().stop()
        self.http.close()

    @staticmethod
    def enrolment(key: Ed25519PrivateKey, join_token: str, name: str, **fields: Any) -> dict[str, Any]:
        return enrolment(key, join_token, name, **fields)

    @staticmethod
    def check_envelope(answer: httpx.Response) -> dict[str, Any]:
        return check_envelope(answer)

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

    def worker(self, name: str = "box", **facts: Any) -> WireWorker:
        return WireWorker(self, name, **facts)


def check_envelope(answer: httpx.Response) -> dict[str, Any]:
    """The one form of every error."""
    assert answer.headers["content-type"] == "application/json", answer.text
    document = json.loads(answer.content)
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == {"code", "message", "hint", "blame", "details"}
    assert error["message"]
    return error


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


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    made: list[Line] = []

    def make(live, sent: bytes = b"") -> Line:
        made.append(Line(live, sent))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def hasty(make_plane):
    """Short times, so that tests need not wait; all else as ever."""

    def make(
        *,
        strangers: int = 1024,
        connections: int = 10_000,
        head_s: float = 0.3,
        tls=None,
        still_s: float = 20,
        **settings,
    ):
        live = make_plane(body_piece_s=0.3, **settings)
        live.tls = tls
        live.limits = GateLimits(connections, strangers, HeadLimits(head_s=head_s, linger_s=0.5, still_s=still_s))
        return live.start()

    return make


@pytest.fixture
def serving(tmp_path) -> Iterator[Callable[..., Served]]:
    """``serving(…)``: a served plane as a process, ended in the end; with these settings."""
    made: list[Served] = []

    def start(**options: object) -> Served:
        served = Served(tmp_path / "state", **options)
        made.append(served)
        return served

    yield start
    for served in made:
        served.end()
