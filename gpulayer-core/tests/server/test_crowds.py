"""Many connections at once: whoever has most gives way, and everybody else is served as if nothing had happened."""

import contextlib
import gc
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from types import SimpleNamespace

import httpx
import pytest

from gpulayer.ids import JobId, WorkerId
from gpulayer.server.auth import Caller
from gpulayer.server.certificates import own_certificate, server_context
from gpulayer.server.gate import Entry, Gate, GateLimits
from gpulayer.server.tokens import Role, TokenKind
from tests.raw_lines import head_of, serves


def test_5000_idle_sockets_displace_each_other_and_nobody_else(hasty) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    live = hasty(strangers=100, head_s=600)
    worker = live.worker()  # its connection, and ours, were there before and are known
    assert serves(live)
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
    serves(live)
    crowd = live.client_token("crowd", Role.READER)
    lines, job = [], live.submit()["id"]
    for number in range(80):  # held requests: none of them is idle
        path = f"/v1/jobs/{job}?wait_s=60" if number % 2 else "/v1/plane"
        lines.append(line(live, head_of(live, "GET", path, f"Authorization: Bearer {crowd}", token=False)))
        live.until(lambda: live.gate.strangers == 0)
    assert live.gate.connections <= live.limits.clients + 2
    assert worker.report()["seq"] == worker.seq  # on the connection it has
    assert live.worker("other").report()["seq"] == 1  # and on new ones
    bob = live.client_token("bob", Role.READER)
    for _ in range(live.limits.few):
        friend = line(live, head_of(live, "GET", "/v1/plane", f"Authorization: Bearer {bob}", token=False))
        assert friend.answer()[0] == 200
        lines.append(friend)
    for each in lines[-live.limits.few :]:
        each.send(head_of(live, "GET", "/v1/plane", f"Authorization: Bearer {bob}", token=False))
        assert each.answer()[0] == 200
    assert serves(live)


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
            whole.sendall(head_of(live, "GET", "/healthz", token=False))
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
