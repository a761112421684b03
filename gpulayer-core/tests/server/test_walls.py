"""Heads and bodies that no honest client sends: an answer in the one form, a closed connection, and everybody else is
served as if nothing had happened."""

import contextlib
import json
import resource
import socket
from urllib.parse import quote

import pytest

from tests.raw_lines import head_of, serves

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
    assert serves(plane)


def test_an_endless_head_is_not_kept(plane, line) -> None:
    sender = line(plane, b"GET /healthz HTTP/1.1\r\n")
    sent = 0
    while sender.send(b"X-A: " + b"a" * 60_000 + b"\r\n"):
        sent += 60_000
        assert sent < 200_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000  # KiB: of this process, which serves, too
    assert serves(plane)


def test_a_head_below_the_limits_is_served(plane, line) -> None:
    headers = [f"X-{number}: {'a' * 600}" for number in range(97)]
    assert line(plane, head_of(plane, "GET", "/v1/plane", *headers)).answer()[0] == 200


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
    assert serves(plane)


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
            request = head_of(plane, "GET", path, f"Authorization: Bearer {second}")
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
    assert serves(plane)


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
    sender.send(head_of(plane, "GET", "/v1/plane"))
    assert sender.answer()[0] == 200


def test_pipelined_requests_are_answered_in_order(plane, line) -> None:
    sender = line(plane, head_of(plane, "GET", "/healthz") + head_of(plane, "GET", "/nowhere") + head_of(plane))
    assert [sender.answer()[0] for _ in range(3)] == [200, 404, 200]


def test_a_request_hidden_in_a_body_is_no_request(plane, line) -> None:
    hidden = head_of(plane, "POST", "/v1/plane:shutdown")
    sender = line(plane, head_of(plane, "POST", "/v1/jobs", f"Content-Length: {len(hidden)}") + hidden)
    assert sender.answer()[0] == 400
    assert not plane.plane.shutdown_asked.is_set()
    sender.send(head_of(plane))
    assert sender.answer()[0] == 200


_PATHS = ("/v1/jobs/%2e%2e/plane", "/v1/../v1/plane", "//v1/plane", "/v1/plane/", "/V1/plane", "/v1/plane%00",
          "/v1/jobs/%c0%ae%c0%ae", "/v1/jobs/..%5c..", "http://localhost/v1/plane", "*", "/v1/plane;a=b",
          "/v1/blobs/%2e%2e%2f%2e%2e%2fpepper", "/v1/blobs/../pepper", "/v1/jobs/%ff%fe", "/v1/jobs/%", "/v1/jobs/%zz",
          "/v1/jobs/a%0d%0aX:b", "/v1/workers/%00", "/v1/jobs/%F0%9F%92%A9", "/v1/jobs/" + "a" * 30_000)  # fmt: skip


@pytest.mark.parametrize("path", _PATHS)
def test_tricks_with_paths_find_nothing(plane, line, path) -> None:
    status, _, body = line(plane, head_of(plane, "GET", path)).answer()
    assert status in (400, 404), body
    assert len(json.loads(body)["error"]["message"]) < 1000
    assert serves(plane)


_QUERIES = ("limit=1&limit=2", "limit=%00", "name=%ff", "name=%00", "cursor=99999999999999999999", "state=%F0%9F%92%A9",
            "&&&&=", "limit=1e3", "limit=٣", "name=" + "a" * 60_000, "a=b&" * 10_000, "cursor=9223372036854775807",
            "name=%ed%a0%80")  # fmt: skip


@pytest.mark.parametrize("query", _QUERIES, ids=range(len(_QUERIES)))
def test_tricks_with_queries_are_answered(plane, line, query) -> None:
    path = "/v1/jobs?" + quote(query, safe="&=%")
    status, _, body = line(plane, head_of(plane, "GET", path)).answer()
    assert status in (200, 400), body
    assert serves(plane)


def test_a_body_without_end_is_refused_at_its_limit(plane, line) -> None:
    sender = line(plane, head_of(plane, "POST", "/v1/jobs", "Transfer-Encoding: chunked"))
    sent, chunk = 0, b"10000\r\n" + b"a" * 65_536 + b"\r\n"
    while sent < 400_000_000 and sender.send(chunk):
        sent += 65_536
    assert sent < 200_000_000
    with contextlib.suppress(ConnectionError):  # the answer may be lost: it did not stop sending to read it
        assert sender.answer()[0] == 413
    assert serves(plane)


def test_a_stranger_may_send_little(plane, line) -> None:
    for body in (b"[" * 70_000, b'{"a": "' + b"b" * 70_000):
        lines = f"Content-Length: {len(body)}"
        sender = line(plane, head_of(plane, "POST", "/v1/workers/x/sessions", lines, token=False) + body)
        assert sender.answer()[0] == 413


def test_a_chunk_that_says_nonsense_closes_the_connection(plane, line) -> None:
    for nonsense in (b"zz\r\n", b"-1\r\n", b"1;" + b"a" * 100_000, b"99999999999999999999999\r\n", b"2\r\nabc\r\n"):
        sender = line(plane, head_of(plane, "POST", "/v1/jobs", "Transfer-Encoding: chunked") + nonsense)
        assert sender.refusal()[0] in (400, 431)
    assert serves(plane)


def test_a_body_shorter_than_its_length_changes_nothing(plane, line) -> None:
    body = b'{"schema": 1, "command": ["true"]}'
    sender = line(plane, head_of(plane, "POST", "/v1/jobs", f"Content-Length: {len(body) + 1}") + body)
    sender.socket.shutdown(socket.SHUT_WR)
    assert sender.is_closed()
    assert plane.http.get("/v1/jobs").json()["jobs"] == []
