"""A worker's side of the wire, as the test says: over real HTTP, with a real key, without a process.

``gpulayer.testing.fleet`` builds on it workers that behave; this one may also be told to misbehave.
"""

import time
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.server.tokens import TokenKind, parse_token
from gpulayer.testing.plane import LivePlane
from gpulayer.wire.sessions import session_text

__all__ = ["WireWorker", "enrolment", "wire_facts"]

Json = dict[str, Any]  # Any: whatever a test wants to send


class WireWorker:
    """Enrolled, with a session, when it is made. changes: of its facts, as on the wire."""

    def __init__(self, live: LivePlane, name: str, *, join_token: str | None = None, **changes: Any) -> None:
        self.live = live
        self.name = name
        self.facts = wire_facts(**changes)
        self.key = Ed25519PrivateKey.generate()
        self.join_token = join_token or live.new_token(TokenKind.JOIN)
        self.boot, self.seq, self.counter = 1, 0, 0
        self.cursor = ""
        self.holding: list[int] = []
        answer = self.enrol()
        assert answer.status_code == 201, answer.text
        self.id: str = answer.json()["worker_id"]
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
        named: Json = {} if start is None else {"boot": start[0], "instance": start[1]}
        signature = self.key.sign(session_text(self.id, counter, **named).encode()).hex()
        body = {"schema": 1, "counter": counter, "signature": signature, **named}
        return self.live.bare.post(f"{self.live.url}/v1/workers/{self.id}/sessions", json=body)

    def open_session(self, *, start: tuple[int, str] | None = None) -> None:
        answer = self.session(start=start)
        assert answer.status_code == 201, answer.text
        self.token: str = answer.json()["token"]
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def http_post(self, path: str, body: object, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return self.live.bare.post(self.live.url + path, json=body, headers=headers)

    def report(self, *items: Json, **changes: Any) -> Json:
        answer = self.try_report(*items, **changes)
        assert answer.status_code == 200, answer.text
        reply: Json = answer.json()
        return reply

    def try_report(self, *items: Json, **changes: Any) -> httpx.Response:
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

    def commands(self, hold_s: float = 0, after: str | None = None) -> list[Json]:
        """What came since the last call; blocks for ``hold_s`` at most until something has."""
        answer = self.live.bare.get(
            f"{self.live.url}/v1/workers/{self.id}/commands",
            params={"after": self.cursor if after is None else after, "hold_s": hold_s},
            headers=self.headers,
        )
        assert answer.status_code == 200, answer.text
        self.cursor = answer.json()["cursor"]
        commands: list[Json] = answer.json()["commands"]
        return commands

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
    def running(epoch: int) -> Json:
        return {"epoch": epoch, "node": 0, "state": "running"}

    @staticmethod
    def ended(epoch: int, exit_code: int | None = 0, *, of_outcome: Json | None = None, **changes: Any) -> Json:
        outcome = {"ended_by": "program", "exit_code": exit_code, "signal": None, "evidence": "", "blame": "user"}
        return {"epoch": epoch, "node": 0, "state": "ended", "outcome": {**outcome, **(of_outcome or {})}, **changes}


def wire_facts(**changes: Any) -> Json:
    """Of a small machine without devices."""
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


def enrolment(key: Ed25519PrivateKey, join_token: str, name: str, **fields: Any) -> Json:
    """The body of an enrolment that is signed as it must be."""
    signature = key.sign(f"gpulayer-enrol:{parse_token(join_token)[1]}:{name}".encode()).hex()
    public_key = key.public_key().public_bytes_raw().hex()
    return {
        "schema": 1,
        "public_key": public_key,
        "signature": signature,
        "facts": wire_facts(),
        **fields,
        "name": name,
    }
