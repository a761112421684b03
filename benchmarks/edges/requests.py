"""What a connection, a request and a look at a token cost."""

import contextlib
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import Contestant, Row, compare
from benchmarks.plane import Plane

EACH: int = 200
_HEALTH = "/healthz"


@dataclass(frozen=True, slots=True)
class _Doors:
    """A served control plane: its TLS door with its pin, the plain one on loopback, and a token."""

    secure: str
    plain: str
    pin: str
    token: str


def connection(rounds: int) -> Row:
    """From nothing to the answer of an open route, a new connection each time. The peer is Python's own TLS client
    without any check of the certificate, so the difference is what the pin costs."""
    row = Row(f"new connection, TLS with the pin, one answer (median of {EACH})", "ms", "lower")
    with _served() as doors:
        from gpulayer.net import parse_pins, tls_context  # noqa: PLC0415 - only this measure works inside the program

        pinned, unchecked = tls_context(parse_pins([doors.pin])), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        return compare(
            row,
            [
                Contestant("gpulayer", lambda: _connections_ms(doors.secure, pinned)),
                Contestant("without a check", lambda: _connections_ms(doors.secure, unchecked)),
                Contestant("plain, on loopback", lambda: _connections_ms(doors.plain, None)),
            ],
            rounds=rounds,
        )


def request(rounds: int) -> Row:
    """On a connection that is kept: over TLS and with a token, against the same route's plain door."""
    row = Row(f"one request on a kept connection, TLS, with a token (median of {EACH})", "ms", "lower")
    path = "/v1/jobs?limit=1"
    with _served() as doors:
        from gpulayer.net import parse_pins, tls_context  # noqa: PLC0415

        pinned = tls_context(parse_pins([doors.pin]))
        return compare(
            row,
            [
                Contestant("gpulayer", lambda: _requests_ms(doors.secure, pinned, path, doors.token)),
                Contestant("plain, on loopback", lambda: _requests_ms(doors.plain, None, path, doors.token)),
                Contestant("plain, open route", lambda: _requests_ms(doors.plain, None, _HEALTH, "")),
            ],
            rounds=rounds,
        )


def authentication(rounds: int) -> Row:
    """The look at a token alone: found by its id, hashed, compared in constant time. In process."""
    from gpulayer.clock import SystemClock  # noqa: PLC0415
    from gpulayer.server.auth import Auth  # noqa: PLC0415
    from gpulayer.server.tokens import Role, TokenKind  # noqa: PLC0415

    auth = Auth(pepper=bytes(32), clock=SystemClock(), attempts=_NoAttempts())
    for _ in range(1_000):
        token, made = auth.new_token(TokenKind.CLIENT, name="bench", life_s=3600, role=Role.SUBMITTER)
        auth.keep_token(made)
    header, count = f"Bearer {token}", 10_000

    def once() -> float:
        started = time.perf_counter()
        for _ in range(count):
            with contextlib.suppress(StopIteration):
                auth.authenticate(header).send(None)  # it waits for nothing where the token is a client's
        return (time.perf_counter() - started) / count * 1e6

    row = Row("a look at one of 1,000 tokens, in process", "µs", "lower")
    return compare(row, [Contestant("gpulayer", once)], rounds=rounds)


class _NoAttempts:
    """No token of a job is looked at here."""

    async def live_job(self, epoch: object) -> None:
        return None

    async def grant_of(self, job_id: object) -> Any:  # Any: it is never asked
        raise AssertionError(job_id)


@contextmanager
def _served() -> Iterator[_Doors]:
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        with Plane(Path(folder)) as plane:
            plane.run("up", "--no-worker", "--detach", "--port", "0")
            found = json.loads((plane.state / "endpoint.json").read_bytes())
            port = urlsplit(found["urls"][0]).port
            yield _Doors(f"127.0.0.1:{port}", urlsplit(found["url"]).netloc, found["fingerprints"][0], found["token"])


def _connect(where: str, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if context is None:
        return http.client.HTTPConnection(where, timeout=10)
    return http.client.HTTPSConnection(where, timeout=10, context=context)


def _connections_ms(where: str, context: ssl.SSLContext | None) -> float:
    def once() -> None:
        with closing(_connect(where, context)) as connection:
            _ask(connection, _HEALTH, "")

    return _median_ms(once)


def _requests_ms(where: str, context: ssl.SSLContext | None, path: str, token: str) -> float:
    with closing(_connect(where, context)) as connection:
        return _median_ms(lambda: _ask(connection, path, token))


def _ask(connection: http.client.HTTPConnection, path: str, token: str) -> None:
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise ValueError(f"{path} answered {answer.status}")


def _median_ms(once: Callable[[], None]) -> float:
    taken = []
    for _ in range(EACH):
        started = time.perf_counter()
        once()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2] * 1000
