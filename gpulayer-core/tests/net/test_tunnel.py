"""A proxy's tunnel: what is asked, and every answer that is none."""

import pytest

from gpulayer.net import Address, connect_request, head_is_whole, tunnel_refusal
from gpulayer.net.tunnel import HEAD_LIMIT

PROXY = Address("proxy.example", 3128)
BOX = Address("box.example", 8470, is_secure=True)


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("box.example", b"box.example:8470"),
        ("2001:db8::1", b"[2001:db8::1]:8470"),
        ("bücher.example", b"xn--bcher-kva.example:8470"),
    ],
)
def test_a_tunnel_is_asked_for_by_host_and_port(host, named):
    asked = connect_request(Address(host, 8470, is_secure=True))
    assert asked == b"CONNECT " + named + b" HTTP/1.1\r\nHost: " + named + b"\r\n\r\n"


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200\r\n\r\n", b"HTTP/1.1 299 x\nA: b\n\n"])
def test_any_answer_of_success_is_a_tunnel(answer):
    assert head_is_whole(answer)
    assert not any(head_is_whole(answer[:n]) for n in range(len(answer)))
    assert tunnel_refusal(answer, proxy=PROXY, address=BOX) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 x\r\n\r\n", "wants a name and a password (407)"),
        (b"HTTP/1.1 403 \x1b[31mno\r\n\r\n", "it answered 403"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://login\r\n\r\n", "it answered 302 Found"),
        (b"HTTP/1.1 200 OK\r\n\r\nmore", "something that is no tunnel"),
        (b"HTTP/2 200\r\n\r\n", "no HTTP: 'HTTP/2 200"),
        (b"HTTP/1.1 twice\r\n\r\n", "no HTTP"),
        (b"SSH-2.0-x\r\n", "no HTTP: 'SSH-2.0-x"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_every_other_answer_is_told_in_words(answer, words):
    told = tunnel_refusal(answer, proxy=PROXY, address=BOX)
    assert words in told
    assert "http://proxy.example:3128" in told


def test_an_answer_without_an_end_is_not_waited_for():
    assert head_is_whole(b"HTTP/1.1 200 OK\r\nA: " + b"a" * HEAD_LIMIT)
    assert head_is_whole(b"SSH")
    assert not head_is_whole(b"")
