"""How one connection is opened: which of a name's addresses, in what time, and how far it came."""

import contextlib
import socket
import ssl

import pytest

from gpulayer.client.answers import Failed
from gpulayer.client.connection import Opening, Step, open_connection
from gpulayer.client.reach import Route, Way
from gpulayer.net import Address


def entry(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))


@pytest.fixture
def resolve(monkeypatch):
    """``resolve(entry, …)``: what each name stands for."""
    return lambda *entries: monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: list(entries))


@pytest.fixture
def silent():
    """The port of a listener that takes no more connections and refuses none, as behind a firewall that drops."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def way(connect_s=5.0, **options):
    return Way(Route(Address("box.example", 8470, **options)), "glc_x", connect_s)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_addresses_of_a_name_share_the_time_and_each_has_its_turn(resolve, monkeypatch, count):
    resolve(*(entry(f"192.0.2.{number}", 8470) for number in range(count)))
    now, asked = [100.0], []

    def connect(sock, address):
        asked.append((address[0], sock.gettimeout()))
        now[0] += sock.gettimeout()
        raise TimeoutError

    monkeypatch.setattr(socket.socket, "connect", connect)
    opening = Opening()
    with pytest.raises(Failed, match="no answer in time"):
        open_connection(way(10.0), ssl.create_default_context, opening=opening, monotonic=lambda: now[0])
    assert [address for address, _ in asked] == [f"192.0.2.{number}" for number in range(count)]
    assert [share_s for _, share_s in asked] == pytest.approx([10.0 / count] * count)
    assert now[0] == pytest.approx(110.0)
    assert (opening.step, len(opening.numeric), type(opening.error)) == (Step.ADDRESS, count, TimeoutError)


def test_what_an_address_that_refuses_at_once_left_is_the_next_ones(resolve, listen, silent):
    port = listen(lambda connection: connection.recv(1)).port
    resolve(entry("127.0.0.1", silent), entry("127.0.0.1", 1), entry("127.0.0.1", port))
    with contextlib.closing(open_connection(way(0.9), ssl.create_default_context)) as connection:
        assert connection.sock.getpeername() == ("127.0.0.1", port)


def test_a_family_that_this_machine_has_not_is_passed_over(resolve, listen):
    port = listen(lambda connection: connection.recv(1)).port
    resolve((255, socket.SOCK_STREAM, 0, "", ("x", 1)), entry("127.0.0.1", port))
    opening = Opening()
    with contextlib.closing(open_connection(way(), ssl.create_default_context, opening=opening)):
        assert (opening.step, opening.error) == (Step.OPEN, None)


@pytest.mark.parametrize(
    ("is_secure", "step", "said"),
    [(False, Step.OPEN, ""), (True, Step.TLS, "does not speak TLS")],
)
def test_how_far_it_came_is_told(resolve, listen, is_secure, step, said):
    port = listen(lambda connection: connection.sendall(b"220 mail.example ESMTP\r\n")).port
    resolve(entry("127.0.0.1", port))
    opening = Opening()
    with contextlib.ExitStack() as stack:
        if said:
            stack.enter_context(pytest.raises(Failed, match=said))
        with contextlib.closing(open_connection(way(is_secure=is_secure), ssl.create_default_context, opening=opening)):
            pass
    assert (opening.step, opening.numeric) == (step, ("127.0.0.1",))
    assert (opening.error is None) == (not said)


def test_a_name_that_is_none_is_told_as_such():
    opening = Opening()
    with pytest.raises(Failed):
        open_connection(Way(Route(Address("x" * 70 + ".example", 1)), ""), ssl.create_default_context, opening=opening)
    assert opening.step is Step.NAME
