"""Answers without an end, by time or by size, to both shells: given up, whatever keeps them alive."""

import threading

import pytest

from gpulayer.client import calls
from gpulayer.client.diagnosis import Mark, examine
from gpulayer.client.limits import Limits, Pace
from gpulayer.client.location import Location
from gpulayer.client.transport import StreamBroken
from gpulayer.errors import ProtocolError, Unreachable

OK = b"HTTP/1.1 200 OK\r\n"
BLOB = calls.get_blob("ab" * 32)


@pytest.fixture
def dripping(listen):
    """A server that says ``first``, then ``piece`` over and over until the other side has gone; a pause between."""
    over = threading.Event()

    def start(first, piece, pause_s=0.01):
        def serve(connection):
            connection.recv(65536)
            connection.sendall(first)
            while not over.wait(pause_s):
                connection.sendall(piece)

        return f"http://127.0.0.1:{listen(serve).port}"

    yield start
    over.set()


HEADS = {
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "status": (b"HTTP/1.1 200 ", b"O"),
    "header": (OK + b"X-A: ", b"a"),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_head_that_drips_without_end_is_given_up(dripping, shell, head):
    client = shell(dripping(*head), retry_for_s=0.0, limits=Limits(answer_s=0.3))
    with pytest.raises(Unreachable, match="no answer in time"):
        client.send(calls.get_plane())
    with pytest.raises(Unreachable, match="no answer in time"):
        client.read(BLOB)


def test_a_head_that_pours_without_end_is_given_up(dripping, shell):
    url = dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, pause_s=0)
    client = shell(url, retry_for_s=0.0, limits=Limits(answer_s=1.0, head_bytes=10_000))
    with pytest.raises(Unreachable):
        client.send(calls.get_plane())


BODIES = {
    "counted": (OK + b"Content-Length: 1000000\r\n\r\n", b" "),
    "chunked": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "until closed": (OK + b"\r\n", b" "),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_trickles_is_cut_off(dripping, shell, body):
    limits = Limits(answer_s=1.0, bytes_a_second=1_000_000)
    client = shell(dripping(*body), retry_for_s=0.0, limits=limits)
    with pytest.raises(Unreachable, match="no answer in time"):
        client.send(calls.get_plane())


def test_a_blob_that_trickles_is_cut_off(dripping, shell):
    limits = Limits(answer_s=1.0, bytes_a_second=1_000_000)
    client = shell(dripping(*BODIES["counted"]), retry_for_s=0.0, limits=limits)
    with pytest.raises(StreamBroken, match="no answer in time"):
        client.read(BLOB)


def test_a_followed_log_may_trickle_for_ever(listen, shell):
    def serve(connection):
        connection.recv(65536)
        connection.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(40):
            connection.sendall(b"1\r\nx\r\n")
            pause.wait(0.02)
        connection.sendall(b"0\r\n\r\n")

    pause = threading.Event()
    limits = Limits(answer_s=0.3, bytes_a_second=1_000_000)
    client = shell(f"http://127.0.0.1:{listen(serve).port}", retry_for_s=10.0, limits=limits)
    assert client.read(calls.read_logs("j", follow=True))[0] == b"x" * 40


@pytest.mark.parametrize("status", [b"200 OK", b"500 No"])
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"Content-Length: 100000000\r\n\r\n", b" " * 10_000),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"2710\r\n" + b" " * 10_000 + b"\r\n"),
        (b"\r\n", b" " * 10_000),
    ],
    ids=BODIES,
)
def test_an_answer_that_is_too_large_to_be_read_as_a_whole_is_refused(dripping, shell, status, head, piece):
    url = dripping(b"HTTP/1.1 " + status + b"\r\n" + head, piece, pause_s=0)
    with pytest.raises(ProtocolError, match="more than 100,000 bytes"):
        shell(url, limits=Limits(whole_bytes=100_000)).send(calls.get_plane())


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_doctor_gives_up_a_head_without_end(dripping, monkeypatch, head):
    monkeypatch.setattr("gpulayer.client.diagnosis._WAIT_S", 0.3)
    location = Location.of(dripping(*head), "glc_" + "a" * 12 + "_secret")
    *_, found = examine(location, version="0.1.0", client="test")
    assert (found.check, found.mark) == ("answer", Mark.FAIL)


def test_only_waiting_for_bytes_counts_and_bytes_earn_time():
    pace = Pace(Limits(answer_s=10.0, bytes_a_second=100))
    assert pace.left_s() == 10.0
    pace.came(500, waited_s=12.0)
    assert pace.left_s() == pytest.approx(3.0)
    pace.came(0, waited_s=3.0)
    with pytest.raises(TimeoutError):
        pace.left_s()
    pace.head(5.0)
    assert pace.left_s() == 15.0
    pace.followed()
    pace.came(1, waited_s=1000.0)
    assert pace.left_s() == 60.0


def test_the_usual_limits_hold_for_usual_answers():
    limits = Limits()
    assert (limits.answer_s, limits.quiet_s, limits.whole_bytes) == (60.0, 60.0, 64 * 2**20)
