"""Heads and bodies that no honest client sends: an answer in the one form, a closed connection, and everybody else is
served as if nothing had happened."""

import contextlib
import gc
import json
import resource
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest

from gpulayer.ids import JobId, WorkerId
from gpulayer.net import bytes_taken
from gpulayer.server import gate as gate_module
from gpulayer.server.auth import Caller
from gpulayer.server.certificates import own_certificate, server_context
from gpulayer.server.gate import Entry, Gate, GateLimits
from gpulayer.server.onewrite import HeadLimits
from gpulayer.server.tokens import Role, TokenKind


class _Line:
    """A connection of raw bytes."""

    def __init__(self, live, sent: bytes = b"") -> None:
        self.live = live
        self.socket = socket.create_connection(("127.0.0.1", live.listener.getsockname()[1]), timeout=20)
        self.left = b""
        if sent:
            self.send(sent)

    def send(self, sent: bytes) -> bool:
        """False once the other side takes nothing any more."""
        try:
            self.socket.sendall(sent)
        except ConnectionError:
            return False
        return True

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer; its body by its length."""
        while b"\r\n\r\n" not in self.left:
            piece = self.socket.recv(65_536)
            assert piece, f"closed without an answer: {self.left!r}"
            self.left += piece
        head, _, self.left = self.left.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(self.left) < int(headers.get("content-length", 0)):
            piece = self.socket.recv(65_536)
            assert piece
            self.left += piece
        length = int(headers.get("content-length", 0))
        body, self.left = self.left[:length], self.left[length:]
        return int(first.split()[1]), headers, body

    def refusal(self) -> tuple[int, str]:
        """Status and code of an error in the one form, after which nothing more comes."""
        status, headers, body = self.answer()
        assert headers["content-type"] == "application/json"
        error = json.loads(body)["error"]
        assert set(error) == {"code", "message", "hint", "blame", "details"}
        assert self.is_closed()
        return status, error["code"]

    def is_closed(self) -> bool:
        try:
            return self.left == b"" and self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def line() -> Iterator[Callable[..., _Line]]:
    made: list[_Line] = []

    def make(live, sent: bytes = b"") -> _Line:
        made.append(_Line(live, sent))
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


def _head(live, method: str = "GET", path: str = "/v1/plane", *lines: str, token: bool = True) -> bytes:
    given = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines]
    if token:
        given.append(f"Authorization: Bearer {live.token}")
    return "\r\n".join([*given, "", ""]).encode("latin-1")


def _serves(live) -> bool:
    return live.http.get("/v1/plane").status_code == 200


_BOMBS = {
    "one header of 80 KiB": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 80_000 + b"\r\n\r\n",
    "101 headers": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100 + b"\r\n",
    "70 KiB in many": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"A: %s\r\n" % (b"b" * 990) * 71 + b"\r\n",
    "a request line of 1 MB": b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a query of 70 KiB": b"GET /healthz?" + b"a=b&" * 17_500 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header that never ends": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 3_000_000,
    "headers that never end": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 300_000,
}


@pytest.mark.parametrize("bomb", _BOMBS.values(), ids=_BOMBS.keys())
def test_a_head_over_a_limit_is_refused_and_the_connection_closed(plane, line, bomb) -> None:
    sender = line(plane)
    sender.send(bomb)
    assert sender.refusal() == (431, "too_large")
    assert _serves(plane)


def test_an_endless_head_is_not_kept(plane, line) -> None:
    sender = line(plane, b"GET /healthz HTTP/1.1\r\n")
    sent = 0
    while sender.send(b"X-A: " + b"a" * 60_000 + b"\r\n"):
        sent += 60_000
        assert sent < 200_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000  # KiB: of this process, which serves, too
    assert _serves(plane)


def test_a_head_below_the_limits_is_served(plane, line) -> None:
    headers = [f"X-{number}: {'a' * 600}" for number in range(97)]
    assert line(plane, _head(plane, "GET", "/v1/plane", *headers)).answer()[0] == 200


_CANARY = "glc_canary000000_" + "s" * 40

_MISPLACED = [
    "Authorization : Bearer {0}",
    "Authorization Bearer {0}",
    "Authorization: Bearer {0}\0",
    "Authorization: Bearer \x7f{0}",
    "{0}",
    "{0} x: y",
    "Host: localhost\r\n Authorization: Bearer {0}",
    "Host: {0} x",
    "Host: other\r\nAuthorization: Bearer {0}",
    "Content-Length: {0}",
    "Transfer-Encoding: {0}",
    "Origin: https://{0}",
    "Sec-Fetch-Site: {0}",
    "User-Agent: gpulayer/9.9.9{0}",
    "Authorization: Basic {0}",
    "Authorization: Bearer {0}",
    "Authorization: {0}",
    "Authorization: Bearer {0}\r\nAuthorization: Bearer {0}",
]


@pytest.mark.parametrize("misplaced", _MISPLACED)
@pytest.mark.parametrize("start", ["GET /v1/plane HTTP/1.1\r\n", "GET /v1/plane HTTP/1.1\r\nHost: localhost\r\n"])
def test_no_answer_and_no_log_repeats_a_token_that_stands_in_the_wrong_place(plane, line, caplog, start, misplaced):
    caplog.set_level(0)
    head = start + misplaced.format(_CANARY) + "\r\n\r\n"
    status, _, body = line(plane, head.encode("latin-1")).answer()
    assert status in (400, 401, 403)
    for text in (body.decode(), caplog.text):
        assert "canary" not in text
    assert _serves(plane)


@pytest.mark.parametrize(
    "first", [f"{_CANARY} /v1/plane HTTP/1.1", f"GET  {_CANARY} HTTP/1.1", f"{_CANARY}", f"GET / {_CANARY}"]
)
def test_no_answer_repeats_a_first_line_that_is_none(plane, line, first):
    status, _, body = line(plane, f"{first}\r\nHost: localhost\r\n\r\n".encode()).answer()
    assert status in (400, 405)
    assert b"canary" not in body


def test_two_authorizations_are_refused_whichever_is_good(plane, line):
    for second in (plane.token, "glc_other"):
        for path in ("/v1/plane", "/healthz"):
            request = _head(plane, "GET", path, f"Authorization: Bearer {second}")
            status, _, body = line(plane, request).answer()
            assert (status, json.loads(body)["error"]["code"]) == (400, "bad_request")


_UNREADABLE = {
    "no HTTP": b"hello\r\n\r\n",
    "a TLS client": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
    "NUL in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "a bare CR in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX : a\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes beyond ASCII in the target": b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "length and chunked": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /v1/jobs HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "two lengths in one": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4, 5\r\n\r\nabcde",
    "a negative length": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "a signed length": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: +4\r\n\r\nabcd",
    "a length in hex": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x4\r\n\r\nabcd",
    "an encoding of the body": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    "chunked twice": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked disguised": b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a version that is none": b"GET /healthz HTTP/1.1x\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("sent", _UNREADABLE.values(), ids=_UNREADABLE.keys())
def test_what_two_readers_could_read_differently_is_refused(plane, line, sent) -> None:
    sender = line(plane, sent)
    assert sender.refusal() == (400, "bad_request")
    assert _serves(plane)


_ONE_REQUEST = {
    "a folded header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n  b\r\n\r\n",
    "bare line feeds": b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    "equal lengths": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "an upgrade": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "an upgrade to HTTP/2": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
}


@pytest.mark.parametrize("sent", _ONE_REQUEST.values(), ids=_ONE_REQUEST.keys())
def test_what_is_odd_but_clear_is_one_request_and_the_next_one_is_its_own(plane, line, sent) -> None:
    sender = line(plane, sent)
    assert sender.answer()[0] == 200
    sender.send(_head(plane, "GET", "/v1/plane"))
    assert sender.answer()[0] == 200


def test_pipelined_requests_are_answered_in_order(plane, line) -> None:
    sender = line(plane, _head(plane, "GET", "/healthz") + _head(plane, "GET", "/nowhere") + _head(plane))
    assert [sender.answer()[0] for _ in range(3)] == [200, 404, 200]


def test_a_request_hidden_in_a_body_is_no_request(plane, line) -> None:
    hidden = _head(plane, "POST", "/v1/plane:shutdown")
    sender = line(plane, _head(plane, "POST", "/v1/jobs", f"Content-Length: {len(hidden)}") + hidden)
    assert sender.answer()[0] == 400
    assert not plane.plane.shutdown_asked.is_set()
    sender.send(_head(plane))
    assert sender.answer()[0] == 200


_PATHS = ("/v1/jobs/%2e%2e/plane", "/v1/../v1/plane", "//v1/plane", "/v1/plane/", "/V1/plane", "/v1/plane%00",
          "/v1/jobs/%c0%ae%c0%ae", "/v1/jobs/..%5c..", "http://localhost/v1/plane", "*", "/v1/plane;a=b",
          "/v1/blobs/%2e%2e%2f%2e%2e%2fpepper", "/v1/blobs/../pepper", "/v1/jobs/%ff%fe", "/v1/jobs/%", "/v1/jobs/%zz",
          "/v1/jobs/a%0d%0aX:b", "/v1/workers/%00", "/v1/jobs/%F0%9F%92%A9", "/v1/jobs/" + "a" * 30_000)  # fmt: skip


@pytest.mark.parametrize("path", _PATHS)
def test_tricks_with_paths_find_nothing(plane, line, path) -> None:
    status, _, body = line(plane, _head(plane, "GET", path)).answer()
    assert status in (400, 404), body
    assert len(json.loads(body)["error"]["message"]) < 1000
    assert _serves(plane)


_QUERIES = ("limit=1&limit=2", "limit=%00", "name=%ff", "name=%00", "cursor=99999999999999999999", "state=%F0%9F%92%A9",
            "&&&&=", "limit=1e3", "limit=٣", "name=" + "a" * 60_000, "a=b&" * 10_000, "cursor=9223372036854775807",
            "name=%ed%a0%80")  # fmt: skip


@pytest.mark.parametrize("query", _QUERIES, ids=range(len(_QUERIES)))
def test_tricks_with_queries_are_answered(plane, line, query) -> None:
    path = "/v1/jobs?" + quote(query, safe="&=%")
    status, _, body = line(plane, _head(plane, "GET", path)).answer()
    assert status in (200, 400), body
    assert _serves(plane)


def test_a_body_without_end_is_refused_at_its_limit(plane, line) -> None:
    sender = line(plane, _head(plane, "POST", "/v1/jobs", "Transfer-Encoding: chunked"))
    sent, chunk = 0, b"10000\r\n" + b"a" * 65_536 + b"\r\n"
    while sent < 400_000_000 and sender.send(chunk):
        sent += 65_536
    assert sent < 200_000_000
    with contextlib.suppress(ConnectionError):  # the answer may be lost: it did not stop sending to read it
        assert sender.answer()[0] == 413
    assert _serves(plane)


def test_a_stranger_may_send_little(plane, line) -> None:
    for body in (b"[" * 70_000, b'{"a": "' + b"b" * 70_000):
        lines = f"Content-Length: {len(body)}"
        sender = line(plane, _head(plane, "POST", "/v1/workers/x/sessions", lines, token=False) + body)
        assert sender.answer()[0] == 413


def test_a_chunk_that_says_nonsense_closes_the_connection(plane, line) -> None:
    for nonsense in (b"zz\r\n", b"-1\r\n", b"1;" + b"a" * 100_000, b"99999999999999999999999\r\n", b"2\r\nabc\r\n"):
        sender = line(plane, _head(plane, "POST", "/v1/jobs", "Transfer-Encoding: chunked") + nonsense)
        assert sender.refusal()[0] in (400, 431)
    assert _serves(plane)


def test_a_body_shorter_than_its_length_changes_nothing(plane, line) -> None:
    body = b'{"schema": 1, "command": ["true"]}'
    sender = line(plane, _head(plane, "POST", "/v1/jobs", f"Content-Length: {len(body) + 1}") + body)
    sender.socket.shutdown(socket.SHUT_WR)
    assert sender.is_closed()
    assert plane.http.get("/v1/jobs").json()["jobs"] == []


def test_a_head_that_does_not_come_in_time_is_answered_408_and_closed(hasty, line) -> None:
    live = hasty()
    slow, idle = line(live, b"GET /healthz HTTP/1.1\r\nHost: local"), line(live)
    assert slow.refusal() == (408, "too_slow")
    assert idle.is_closed()  # without a word: it asked nothing
    second = line(live, _head(live, "GET", "/healthz"))
    assert second.answer()[0] == 200
    second.send(b"GET /hea")  # the clock runs from the first byte of each request
    assert second.refusal() == (408, "too_slow")


def test_a_head_that_drips_gets_no_more_time(hasty, line) -> None:
    live = hasty()
    sender = line(live)
    head = _head(live)
    ends = time.monotonic() + 30
    for place in range(len(head)):
        if not sender.send(head[place : place + 1]):
            break
        time.sleep(0.02)
        assert time.monotonic() < ends
    else:
        assert sender.refusal() == (408, "too_slow")


def test_a_body_that_stands_still_is_answered_408_and_closed(hasty, line) -> None:
    live = hasty()
    for path in ("/v1/jobs", f"/v1/blobs/{'0' * 64}", "/v1/sources:missing", "/v1/blobs:pack"):
        method = "PUT" if path.startswith("/v1/blobs/") else "POST"
        sender = line(live, _head(live, method, path, "Content-Length: 1000") + b"{")
        assert sender.refusal() == (408, "too_slow")
    assert list((live.settings.layout.blobs / "tmp").iterdir()) == []


def test_a_body_that_drips_is_ended_by_its_rate(hasty, line) -> None:
    live = hasty(body_bytes_a_second=1000)
    sender = line(live, _head(live, "POST", "/v1/jobs", "Content-Length: 100000"))
    ends = time.monotonic() + 30
    while sender.send(b"a"):
        time.sleep(0.02)
        assert time.monotonic() < ends, "it is still taken"


def test_a_connection_whose_body_nobody_wants_is_closed(hasty, line) -> None:
    live = hasty()
    sender = line(live, _head(live, "POST", "/v1/jobs", "Content-Length: 100000", token=False) + b"{")
    assert sender.answer()[0] == 401
    ends = time.monotonic() + 30
    while sender.send(b"a"):  # dripping keeps nothing open
        time.sleep(0.02)
        assert time.monotonic() < ends, "it is still open"


def test_200_slow_senders_keep_nobody_waiting(hasty, line) -> None:
    live = hasty(head_s=60)
    slow = [line(live, b"GET /v1/plane HTTP/1.1\r\nHost: loc") for _ in range(100)]
    slow += [line(live, _head(live, "POST", "/v1/jobs", "Content-Length: 9", token=False)) for _ in range(100)]
    worker = live.worker()
    for number in range(20):
        for each in slow[:100]:
            each.send(b"a")
        assert _serves(live)
        assert worker.report()["seq"] == worker.seq, number
    assert live.submit()["id"]


_BIG = 24 * 1024 * 1024  # more than the kernel keeps for a reader that takes nothing


def _reader(live, line, kind: str):
    """Asks for something big, and has its head."""
    path = f"/v1/blobs/{live.put_blob(bytes(_BIG))}"
    if kind != "blob":
        worker = live.worker()
        worker.report()
        job = live.submit()
        (command,) = worker.commands(hold_s=5)
        for offset in range(0, _BIG, 2**20):
            worker.put_log(command["epoch"], offset, bytes(2**20)).raise_for_status()
        path = f"/v1/jobs/{job['id']}/logs?follow={int(kind == 'followed log')}"
    made = line(live)
    made.socket.close()
    made.socket = socket.socket()
    made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    made.socket.settimeout(20)
    made.socket.connect(live.listener.getsockname())
    made.send(_head(live, "GET", path))
    while b"\r\n\r\n" not in made.left:
        made.left += made.socket.recv(1000)
    return made


@pytest.mark.parametrize("kind", ["blob", "log", "followed log"])
def test_an_answer_of_which_nothing_is_taken_is_ended(hasty, line, kind) -> None:
    live = hasty(still_s=0.3)
    _serves(live)
    reader = _reader(live, line, kind)
    protocol = _protocol_of(live, reader)
    live.until(protocol.transport.is_closing, 20)
    live.until(lambda: live.plane.clients_now == 0)  # nobody waits for it any more
    got = 0
    with contextlib.suppress(ConnectionError):
        while piece := reader.socket.recv(2**20):
            got += len(piece)
    assert got < _BIG
    assert _serves(live)


def test_a_reader_that_is_slow_gets_all_of_it(hasty, line, monkeypatch) -> None:
    monkeypatch.setattr(gate_module, "_TICKS_A_SWEEP", 10**9)  # the sweeps are the test's, and so is their time
    live = hasty(still_s=20)
    reader = _reader(live, line, "log")
    protocol = _protocol_of(live, reader)
    live.until(lambda: live.call(lambda: _look(protocol))[0])  # it waits for the reader
    now, taken = 1000.0, None
    for _ in range(20):  # at each look some was acknowledged; in between nearly the whole limit passes
        while (found := live.call(lambda: _look(protocol))[1]) == taken:
            piece = reader.socket.recv(16_384)
            assert piece, "it was cut"
        taken = found
        _sweep(live, now)
        now += 19
    is_waiting, _ = live.call(lambda: _look(protocol))
    assert is_waiting
    _sweep(live, now)
    assert not protocol.transport.is_closing()
    _sweep(live, now + 25)  # nothing was taken since
    assert protocol.transport.is_closing()


def _protocol_of(live, reader):
    port = reader.socket.getsockname()[1]

    async def find():
        found = [entry.protocol for entry in live.gate._entries if entry.protocol is not None]
        return next(each for each in found if each.client[1] == port)

    return live.call(find)


async def _look(protocol) -> tuple[bool, int | None]:
    return protocol.transport.get_write_buffer_size() > 0, bytes_taken(protocol.transport.get_extra_info("socket"))


def _sweep(live, now: float) -> None:
    async def sweep() -> None:
        live.gate.sweep(now)

    live.call(sweep)


def test_5000_idle_sockets_displace_each_other_and_nobody_else(hasty) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    live = hasty(strangers=100, head_s=600)
    worker = live.worker()  # its connection, and ours, were there before and are known
    assert _serves(live)
    count = min(5000, hard - 500)
    with contextlib.ExitStack() as stack:
        idle = []
        for number in range(count):
            idle.append(stack.enter_context(socket.create_connection(live.listener.getsockname(), timeout=20)))
            if number % 500 == 0:
                assert worker.report()["seq"] == worker.seq
        live.until(lambda: live.gate.strangers <= 100)
        assert live.gate.connections <= 100 + 10
        assert live.bare.get(live.url + "/healthz").status_code == 200  # and one more newcomer
        assert worker.report()["seq"] == worker.seq
        assert idle[0].recv(1) == b""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_client_token_keeps_a_worker_or_anybody_else_out(hasty, line) -> None:
    live = hasty(connections=40, strangers=20)
    worker = live.worker()
    _serves(live)
    crowd = live.client_token("crowd", Role.READER)
    lines, job = [], live.submit()["id"]
    for number in range(80):  # held requests: none of them is idle
        path = f"/v1/jobs/{job}?wait_s=60" if number % 2 else "/v1/plane"
        lines.append(line(live, _head(live, "GET", path, f"Authorization: Bearer {crowd}", token=False)))
        live.until(lambda: live.gate.strangers == 0)
    assert live.gate.connections <= live.limits.clients + 2
    assert worker.report()["seq"] == worker.seq  # on the connection it has
    assert live.worker("other").report()["seq"] == 1  # and on new ones
    bob = live.client_token("bob", Role.READER)
    for _ in range(live.limits.few):
        friend = line(live, _head(live, "GET", "/v1/plane", f"Authorization: Bearer {bob}", token=False))
        assert friend.answer()[0] == 200
        lines.append(friend)
    for each in lines[-live.limits.few :]:
        each.send(_head(live, "GET", "/v1/plane", f"Authorization: Bearer {bob}", token=False))
        assert each.answer()[0] == 200
    assert _serves(live)


class _Room:
    """A gate, whose connections are named after their parties: ``alice 0``, ``alice 1``…"""

    def __init__(self, **limits: int) -> None:
        self.gate = Gate(GateLimits(**{"connections": 16, "strangers": 8, "few": 2, **limits}))
        self.entries: dict[str, Entry] = {}
        self.dropped: list[str] = []

    def enter(self, party: str, count: int = 1, *, is_worker: bool = False, is_idle: bool = True) -> bool:
        """Whether the last of them got in."""
        for _ in range(count):
            name = f"{party} {sum(each.startswith(party) for each in self.entries)}"
            entry = self.gate.admit("10.0.0.1", lambda name=name: self.dropped.append(name))
            if entry is None:
                return False
            entry.protocol = SimpleNamespace(is_idle=is_idle)
            self.entries[name] = entry
            entry.recognise(party, is_worker=is_worker)
        return name not in self.dropped


def test_the_party_that_has_most_gives_up_its_oldest_idle_one() -> None:
    room = _Room()
    assert room.enter("alice", 3, is_idle=False)
    assert room.enter("alice", 5)
    assert room.enter("bob", 4)
    assert room.dropped == []
    assert room.enter("bob", 2)  # one too many, twice
    assert room.dropped == ["alice 3", "alice 4"]
    assert room.enter("alice")
    assert room.dropped[2:] == ["alice 5"]  # of seven and six


def test_where_none_is_idle_the_oldest_of_the_crowd_goes() -> None:
    room = _Room()
    room.enter("alice", 20, is_idle=False)
    assert room.dropped == [f"alice {number}" for number in range(8)]


def test_who_has_few_never_gives_one_up() -> None:
    room = _Room()
    for number in range(6):
        assert room.enter(f"owner{number}", 2)
    assert not room.enter("late")  # there are twelve, of 2 each: it goes itself
    assert room.dropped == ["late 0"]
    for number in range(2):
        assert room.enter(f"worker{number}", 2, is_worker=True)
    assert not room.enter("worker3", is_worker=True)  # it is full, and all have few
    assert room.dropped == ["late 0"]
    assert (room.gate.connections, room.gate.strangers) == (16, 0)


def test_a_worker_that_takes_all_the_room_gives_way_too() -> None:
    room = _Room()
    room.enter("greedy", 16, is_worker=True)
    assert room.enter("alice", 2)
    assert room.enter("worker", 2, is_worker=True)
    assert room.dropped == [f"greedy {number}" for number in range(4)]


def test_a_connection_that_carries_several_callers_counts_once() -> None:
    room = _Room()
    room.enter("alice", 12)
    entry = room.entries["alice 0"]
    for party, is_worker in (("bob", False), ("w", True), ("alice", False), ("alice", False)):
        entry.recognise(party, is_worker=is_worker)
    assert room.dropped == []
    for each in list(room.entries.values()):
        each.leave()
        each.leave()
        each.recognise("late", is_worker=False)  # over meanwhile
    assert (room.gate.connections, room.gate.strangers) == (0, 0)
    room.enter("bob", 12)
    assert room.dropped == []


def test_callers_of_one_owner_are_one_party_and_each_worker_is_its_own() -> None:
    client = Caller(TokenKind.CLIENT, "t1", "alice", owner="alice")
    job = Caller(TokenKind.JOB, "t2", "alice (job 1)", owner="alice", job=JobId("1"))
    workers = [Caller(TokenKind.WORKER, f"s{number}", "worker", WorkerId(f"w{number % 2}")) for number in range(4)]
    joins = [Caller(TokenKind.JOIN, f"j{number}", "pool", owner="pool") for number in range(2)]
    assert client.party == job.party == "owner alice"
    assert len({each.party for each in (client, *workers, *joins)}) == 5


@pytest.mark.parametrize("address", ["10.0.0.1", "2001:db8::1", "::1", "fe80::1%eth0", "nonsense"])
def test_the_address_with_most_strangers_gives_one_up(address) -> None:
    dropped: list[str] = []
    gate = Gate(GateLimits(connections=10, strangers=4))
    for number in range(3):
        gate.admit("10.9.9.9", lambda number=number: dropped.append(f"crowd {number}"))
    gate.admit(address, lambda: dropped.append("lonely"))
    gate.admit("10.9.9.8", lambda: dropped.append("newcomer"))
    assert dropped == ["crowd 0"]
    assert gate.strangers == 4


def test_a_whole_network_of_ipv6_counts_as_one_party() -> None:
    dropped: list[int] = []
    gate = Gate(GateLimits(connections=10, strangers=3))
    gate.admit("2001:db8:9::1", lambda: dropped.append(-1))
    for number in range(4):
        gate.admit(f"2001:db8::{number}", lambda number=number: dropped.append(number))
    assert dropped == [0, 1]


def test_tls_handshakes_that_never_end_are_strangers_too(hasty) -> None:
    live = hasty(strangers=3, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(live.listener.getsockname(), timeout=20)) for _ in range(8)
        ]
        assert idle[0].recv(1) == b""
        live.until(lambda: live.gate.strangers == 0)  # the handshake's time is over
        assert all(each.recv(1) == b"" for each in idle)


def test_what_tls_connections_leave_behind_needs_no_collection(hasty, tmp_path) -> None:
    """Each has a quarter of a MiB of buffers, and a plane looks through its whole memory seldom: strangers that come
    and go by the thousand would fill it."""
    names = {"names": ("localhost",), "addresses": ("127.0.0.1",), "now_ms": 1_790_000_000_000}
    live = hasty(tls=server_context(own_certificate(tmp_path / "tls", **names).files))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", live.listener.getsockname()[1]), timeout=10)

    def come_and_go() -> None:
        for sent in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            with connect() as half:
                half.sendall(sent)
        with client.wrap_socket(connect()) as whole:
            whole.sendall(_head(live, "GET", "/healthz", token=False))
            assert whole.recv(12) == b"HTTP/1.1 200"

    def left() -> int:
        return sum(isinstance(each, SSLProtocol) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            come_and_go()
        live.until(lambda: live.gate.connections == 0)
        live.until(lambda: left() == 0)
    finally:
        gc.enable()


def test_a_stranger_that_waits_for_its_answer_is_not_sent_away_while_another_waits_for_none() -> None:
    """1,000 workers whose control plane was started again are all strangers at once: if those who sign were sent away
    by those who come, none would ever be known."""
    dropped: list[str] = []
    gate = Gate(GateLimits(connections=10, strangers=3))
    for name, is_idle in (("signs", False), ("idle", True), ("signs too", False), ("late", False), ("later", False)):
        entry = gate.admit("10.9.9.9", lambda name=name: dropped.append(name))
        assert entry is not None
        entry.protocol = SimpleNamespace(is_idle=is_idle)  # type: ignore[assignment] # what a gate asks of it
    assert dropped == ["idle", "signs"]


def test_whoever_signs_for_a_session_is_no_stranger_any_more(hasty) -> None:
    live = hasty()
    worker = live.worker()
    live.bare.close()
    live.bare = httpx.Client(timeout=20, trust_env=False)
    live.until(lambda: live.gate.connections == 0)
    assert worker.session().status_code == 201
    assert (live.gate.connections, live.gate.strangers) == (1, 0)
