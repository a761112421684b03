"""Connections that are slow: what does not come, or is not taken, in its time is ended; what only takes long is not."""

import contextlib
import socket
import time

import pytest

from gpulayer.net import bytes_taken
from gpulayer.server import gate as gate_module
from tests.raw_lines import head_of, serves


def test_a_head_that_does_not_come_in_time_is_answered_408_and_closed(hasty, line) -> None:
    live = hasty()
    slow, idle = line(live, b"GET /healthz HTTP/1.1\r\nHost: local"), line(live)
    assert slow.refusal() == (408, "too_slow")
    assert idle.is_closed()  # without a word: it asked nothing
    second = line(live, head_of(live, "GET", "/healthz"))
    assert second.answer()[0] == 200
    second.send(b"GET /hea")  # the clock runs from the first byte of each request
    assert second.refusal() == (408, "too_slow")


def test_a_head_that_drips_gets_no_more_time(hasty, line) -> None:
    live = hasty()
    sender = line(live)
    head = head_of(live)
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
        sender = line(live, head_of(live, method, path, "Content-Length: 1000") + b"{")
        assert sender.refusal() == (408, "too_slow")
    assert list((live.settings.layout.blobs / "tmp").iterdir()) == []


def test_a_body_that_drips_is_ended_by_its_rate(hasty, line) -> None:
    live = hasty(body_bytes_a_second=1000)
    sender = line(live, head_of(live, "POST", "/v1/jobs", "Content-Length: 100000"))
    ends = time.monotonic() + 30
    while sender.send(b"a"):
        time.sleep(0.02)
        assert time.monotonic() < ends, "it is still taken"


def test_a_connection_whose_body_nobody_wants_is_closed(hasty, line) -> None:
    live = hasty()
    sender = line(live, head_of(live, "POST", "/v1/jobs", "Content-Length: 100000", token=False) + b"{")
    assert sender.answer()[0] == 401
    ends = time.monotonic() + 30
    while sender.send(b"a"):  # dripping keeps nothing open
        time.sleep(0.02)
        assert time.monotonic() < ends, "it is still open"


def test_200_slow_senders_keep_nobody_waiting(hasty, line) -> None:
    live = hasty(head_s=60)
    slow = [line(live, b"GET /v1/plane HTTP/1.1\r\nHost: loc") for _ in range(100)]
    slow += [line(live, head_of(live, "POST", "/v1/jobs", "Content-Length: 9", token=False)) for _ in range(100)]
    worker = live.worker()
    for number in range(20):
        for each in slow[:100]:
            each.send(b"a")
        assert serves(live)
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
    made.send(head_of(live, "GET", path))
    while b"\r\n\r\n" not in made.left:
        made.left += made.socket.recv(1000)
    return made


@pytest.mark.parametrize("kind", ["blob", "log", "followed log"])
def test_an_answer_of_which_nothing_is_taken_is_ended(hasty, line, kind) -> None:
    live = hasty(still_s=0.3)
    serves(live)
    reader = _reader(live, line, kind)
    protocol = _protocol_of(live, reader)
    live.until(protocol.transport.is_closing, 20)
    live.until(lambda: live.plane.clients_now == 0)  # nobody waits for it any more
    got = 0
    with contextlib.suppress(ConnectionError):
        while piece := reader.socket.recv(2**20):
            got += len(piece)
    assert got < _BIG
    assert serves(live)


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
    live.until(lambda: live.call(lambda: _look(protocol))[0])  # for a moment the next piece may not have been read yet
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
