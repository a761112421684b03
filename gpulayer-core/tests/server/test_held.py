"""What a token holds open ends with the token, however it ends."""

import socket
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from gpulayer.clock import ManualClock
from gpulayer.server.tokens import Role, TokenKind, parse_token

LIFE_S = 3_600


class Scene:
    """A running job of alice, whose log has a line; what is asked runs in a thread of its own."""

    def __init__(self, plane, pool) -> None:
        self.plane, self.pool = plane, pool
        self.worker = plane.worker()
        self.worker.report()
        self.alice = plane.new_token(TokenKind.CLIENT, name="alice", owner="alice", role=Role.SUBMITTER, life_s=LIFE_S)
        body = {"schema": 1, "command": ["true"], "grant": "submit", "request": {"cpus": 4}}
        self.job = self.ask(self.alice, "/v1/jobs", method="POST", json=body).json()["id"]
        (command,) = self.worker.commands(hold_s=10)
        self.epoch = command["epoch"]
        self.worker.holding.append(self.epoch)
        self.worker.report(self.worker.running(self.epoch))
        self.worker.put_log(self.epoch, 0, b"line\n")
        waiting = {"schema": 1, "command": ["true"], "request": {"cpus": 4}}
        self.waiting = self.ask(self.alice, "/v1/jobs", method="POST", json=waiting).json()["id"]

    def ask(self, token, path, method="GET", **options) -> httpx.Response:
        return self.plane.bare.request(
            method, self.plane.url + path, headers={"Authorization": f"Bearer {token}"}, **options
        )

    def held(self, token, what) -> "Future[int]":
        """Ask for it, and wait until it is held. Its result is the status, 0 for an answer that was broken off."""

        def ask() -> int:
            try:
                return self.ask(token, path, timeout=60).status_code
            except httpx.RemoteProtocolError:
                return 0

        path = {
            "log": f"/v1/jobs/{self.job}/logs?follow=1",
            "log to come": f"/v1/jobs/{self.waiting}/logs?follow=1",
            "end": f"/v1/jobs/{self.job}?wait_s=55",
            "commands": f"/v1/workers/{self.worker.id}/commands?hold_s=55&after={self.worker.cursor}",
        }[what]
        asked = self.pool.submit(ask)
        self.plane.until(lambda: self.plane.plane.hub.is_watched(("token", parse_token(token)[1])))
        return asked


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def patient(plane, pool) -> Scene:
    """Looks again so seldom that only a wake-up can tell."""
    return Scene(plane, pool)


@pytest.fixture
def curious(make_plane, pool) -> Scene:
    """Looks again all the time, by a clock that the test moves."""
    return Scene(make_plane(clock=ManualClock(), look_again_s=0.02, session_life_s=LIFE_S).start(), pool)


HELD = [("log", 0), ("log to come", 401), ("end", 401)]


@pytest.mark.parametrize(("what", "answer"), HELD)
def test_a_revocation_ends_what_the_token_holds_at_once(patient, what, answer):
    asked = patient.held(patient.alice, what)
    other = patient.held(patient.plane.token, what)
    revoked = patient.plane.http.post(f"/v1/tokens/{parse_token(patient.alice)[1]}:revoke")
    assert revoked.status_code == 200
    assert asked.result(9) == answer  # before it would have looked by itself
    assert not other.done()
    patient.plane.http.post(f"/v1/jobs/{patient.waiting}:cancel")
    patient.worker.report(patient.worker.ended(patient.epoch))
    assert other.result(30) == 200


@pytest.mark.parametrize(("what", "answer"), HELD)
def test_a_token_that_expires_ends_what_it_holds(curious, what, answer):
    asked = curious.held(curious.alice, what)
    curious.plane.clock.advance(LIFE_S * 1000)
    assert asked.result(30) == answer


def test_a_log_that_never_pauses_ends_with_its_readers_token(patient):
    with patient.plane.bare.stream(
        "GET",
        f"{patient.plane.url}/v1/jobs/{patient.job}/logs?follow=1",
        headers={"Authorization": f"Bearer {patient.alice}"},
    ) as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"line\n"
        patient.plane.revoke(patient.alice)  # without a wake-up: as if it were busy sending
        patient.worker.put_log(patient.epoch, 5, b"secret\n")
        with pytest.raises(httpx.RemoteProtocolError):
            assert list(pieces) == []


@pytest.mark.parametrize("what", ["log to come", "end"])
def test_a_jobs_token_holds_nothing_beyond_its_attempt(curious, what):
    token = curious.plane.plane.auth.job_token(curious.epoch, curious.job)
    body = {"schema": 1, "command": ["true"], "request": {"cpus": 4}}
    curious.job = curious.waiting = curious.ask(token, "/v1/jobs", method="POST", json=body).json()["id"]
    asked = curious.held(token, what)
    curious.worker.report(curious.worker.ended(curious.epoch))
    assert asked.result(30) == 401


def test_a_session_that_expires_or_whose_worker_is_removed_gets_no_command(curious):
    curious.plane.clock.advance(LIFE_S * 1000 - 20_000)
    asked = curious.held(curious.worker.token, "commands")
    curious.plane.clock.advance(20_000)
    assert asked.result(30) == 401
    curious.worker.open_session()
    asked = curious.held(curious.worker.token, "commands")
    curious.plane.plane.auth.forget_worker(curious.worker.id)
    assert asked.result(30) == 401


def test_a_blob_that_is_being_read_ends_short_with_its_readers_token(patient):
    digest = patient.plane.put_blob(bytes(10 << 20))
    host, port = patient.plane.url.removeprefix("http://").split(":")
    admin = patient.plane.new_token(TokenKind.CLIENT, name="root", owner="root")
    request = f"GET /v1/blobs/{digest} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {admin}\r\n\r\n"
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((host, int(port)))
        reader.sendall(request.encode())
        assert reader.recv(100).startswith(b"HTTP/1.1 200")
        patient.plane.revoke(admin)
        came = 0
        while piece := reader.recv(1 << 20):
            came += len(piece)
        assert came < 10 << 20
