"""How a worker gets a connection: whom it trusts, which way it goes, and what it does when nobody answers."""

import asyncio
import socket
import ssl
import threading
from contextlib import asynccontextmanager

import pytest

from gpulayer.errors import Unreachable, UntrustedServer
from gpulayer.net import Address
from gpulayer.worker import dialing
from gpulayer.worker.http import HttpClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


@asynccontextmanager
async def listening(handle, *, host="127.0.0.1", context=None):
    """An address where every connection is handled so; and the connections' tasks end with it."""
    tasks = []

    async def guarded(reader, writer):
        tasks.append(asyncio.current_task())
        try:
            await handle(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(guarded, host, 0, ssl=context)
    try:
        yield Address(host, server.sockets[0].getsockname()[1], is_secure=context is not None)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def answering(seen):
    async def handle(reader, writer):
        while True:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK)
            await writer.drain()

    return handle


def proxying(seen, *, answer=b"HTTP/1.1 200 Connection established\r\n\r\n"):
    """An HTTP proxy: CONNECT alone, then bytes both ways."""

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head)
        writer.write(answer)
        await writer.drain()
        if b" 200 " not in answer.split(b"\r\n")[0]:
            return
        host, port = head.split(b" ")[1].rsplit(b":", 1)
        there_reader, there_writer = await asyncio.open_connection(host.decode(), int(port))

        async def copy(source, sink):
            while piece := await source.read(65536):
                sink.write(piece)
                await sink.drain()

        try:
            await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))
        finally:
            there_writer.transport.abort()

    return handle


@pytest.mark.parametrize("days", [30, -1])
def test_a_pinned_certificate_is_trusted_also_when_it_has_expired(certify, days):
    certificate, seen = certify(days=days), []

    async def main():
        async with listening(answering(seen), context=certificate.server_context()) as address:
            async with HttpClient(pins=[certificate.pin]) as client:
                assert (await client.request(address, "GET", "/")).body == b"ok"
                assert (await client.request(address, "GET", "/")).body == b"ok"
        assert len(seen) == 2

    run(main())


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_server_with_another_certificate_gets_no_byte_of_a_request(certify, is_pinned):
    theirs, seen = certify(), []

    async def main():
        async with listening(answering(seen), context=theirs.server_context()) as address:
            async with HttpClient(pins=[certify().pin] if is_pinned else []) as client:
                with pytest.raises(UntrustedServer) as caught:
                    await client.request(address, "POST", "/", headers={"Authorization": "Bearer canary"}, body=b"x")
        assert caught.value.details.get("shown") == (theirs.pin if is_pinned else None)
        assert "fingerprint" in caught.value.hint
        assert seen == []

    run(main())


def test_either_of_two_pins_will_do(certify):
    old, new = certify(), certify()

    async def main():
        for certificate in (old, new):
            async with listening(answering([]), context=certificate.server_context()) as address:
                async with HttpClient(pins=[old.pin, new.pin]) as client:
                    assert (await client.request(address, "GET", "/")).status == 200

    run(main())


def test_https_goes_through_the_proxy_that_was_given_and_the_pin_is_checked_inside(certify):
    ours, theirs, asked, seen = certify(), certify(), [], []

    async def main():
        async with (
            listening(answering(seen), context=ours.server_context()) as address,
            listening(proxying(asked)) as proxy,
        ):
            async with HttpClient(pins=[ours.pin], proxy=proxy) as client:
                assert (await client.request(address, "GET", "/x")).body == b"ok"
            assert asked[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % address.port)
            assert b"GET /x" in seen[0]
            async with HttpClient(pins=[theirs.pin], proxy=proxy) as client:
                with pytest.raises(UntrustedServer):
                    await client.request(address, "GET", "/x")
            assert len(seen) == 1

    run(main())


def test_a_proxy_that_refuses_is_named_with_what_it_said(certify):
    async def main():
        refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"
        async with listening(proxying([], answer=refusal)) as proxy, HttpClient(pins=[certify().pin], proxy=proxy) as c:
            with pytest.raises(Unreachable, match=rf"the proxy {proxy} wants a name and a password") as caught:
                await c.request(Address("192.0.2.1", 8470, is_secure=True), "GET", "/")
            assert caught.value.details == {"is_sent": False}

    run(main())


def test_a_proxy_that_drops_the_answer_is_given_up(certify):
    async def silent(reader, writer):
        await reader.read()

    async def main():
        async with listening(silent) as proxy:
            async with HttpClient(pins=[certify().pin], proxy=proxy, connect_timeout_s=0.2) as client:
                with pytest.raises(Unreachable, match="it takes too long"):
                    await client.request(Address("192.0.2.1", 8470, is_secure=True), "GET", "/")

    run(main())


def test_proxy_variables_of_the_environment_lead_nowhere(certify, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    certificate = certify()

    async def main():
        async with listening(answering([]), context=certificate.server_context()) as address:
            async with HttpClient(pins=[certificate.pin]) as client:
                assert (await client.request(address, "GET", "/")).status == 200

    run(main())


def test_a_server_without_tls_on_that_port_is_told_from_a_dead_one(certify):
    async def plain(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async def main():
        async with listening(plain) as address, HttpClient(pins=[certify().pin]) as client:
            with pytest.raises(Unreachable, match="speaks no TLS"):
                await client.request(Address(address.host, address.port, is_secure=True), "GET", "/")

    run(main())


def test_a_handshake_that_never_ends_is_given_up(certify):
    async def silent(reader, writer):
        await reader.read()
        await asyncio.Event().wait()

    async def main():
        async with listening(silent) as address:
            async with HttpClient(pins=[certify().pin], connect_timeout_s=0.2) as client:
                with pytest.raises(Unreachable, match="it takes too long") as caught:
                    await client.request(Address(address.host, address.port, is_secure=True), "GET", "/")
            assert caught.value.details == {"is_sent": False}

    run(main())


def test_closing_does_not_wait_for_the_goodbye_of_a_peer_that_is_gone(certify):
    certificate = certify()

    async def answers_and_reads_no_more(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        writer.transport.pause_reading()
        await asyncio.Event().wait()

    async def main():
        async with listening(answers_and_reads_no_more, context=certificate.server_context()) as address:
            client = HttpClient(pins=[certificate.pin])
            answer = await client.request(address, "GET", "/")
            async with asyncio.timeout(5):  # asyncio's own patience with such a peer is 30 s
                await client.aclose()
            assert answer.status == 200

    run(main())


def test_the_kernel_is_told_to_end_silent_connections():
    async def main():
        async with listening(answering([])) as address:
            reader, writer = await dialing.Dialer().dial(address, limit=1000)
            sock = writer.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 25_000
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 15
            writer.transport.abort()
            assert await reader.read() == b""

    run(main())


def test_an_ipv6_address_is_reached():
    async def main():
        try:
            async with listening(answering([]), host="::1") as address, HttpClient() as client:
                assert (await client.request(address, "GET", "/")).status == 200
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")

    run(main())


def resolving(monkeypatch, answer):
    asked = []

    def getaddrinfo(host, port, **options):
        asked.append(host)
        return answer(host, port)

    monkeypatch.setattr(dialing.socket, "getaddrinfo", getaddrinfo)
    return asked


def found(*addresses):
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]


def test_of_several_addresses_of_a_name_the_one_that_answers_is_used(monkeypatch):
    async def main():
        async with listening(answering([])) as address, HttpClient() as client:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                dead = free.getsockname()[1]
            resolving(monkeypatch, lambda _, port: found(("127.0.0.1", dead), ("127.0.0.1", port)))
            assert (await client.request(Address("localhost", address.port), "GET", "/")).status == 200

    run(main())


def test_a_name_that_is_not_known_is_unreachable_and_named(monkeypatch):
    def fails(host, port):
        raise socket.gaierror(-2, "Name or service not known")

    resolving(monkeypatch, fails)

    async def main():
        async with HttpClient() as client:
            with pytest.raises(Unreachable, match="gpu-box: Name or service not known"):
                await client.request(Address("gpu-box", 1, is_secure=True), "GET", "/")

    run(main())


def test_a_resolver_that_hangs_holds_up_neither_a_request_for_long_nor_the_end(monkeypatch):
    release = threading.Event()

    def hangs(host, port):
        release.wait(30)
        return found(("127.0.0.1", port))

    asked = resolving(monkeypatch, hangs)

    async def main():
        async with HttpClient(connect_timeout_s=0.1) as client:
            for _ in range(5):
                with pytest.raises(Unreachable, match="it takes too long"):
                    await client.request(Address("gpu-box", 1), "GET", "/")

    try:
        run(main())
        assert asked == ["gpu-box"]
    finally:
        release.set()


def test_what_a_name_meant_before_stands_in_while_nobody_can_look_it_up(monkeypatch):
    is_up = True

    def answer(host, port):
        if not is_up:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return found(("127.0.0.1", port))

    resolving(monkeypatch, answer)

    async def main():
        nonlocal is_up
        async with listening(answering([])) as address, HttpClient() as client:
            named = Address("gpu-box", address.port)
            await client.request(named, "GET", "/")
            is_up = False
            client.forget_connections()
            assert (await client.request(named, "GET", "/")).status == 200

    run(main())


def test_a_context_without_pins_asks_the_public_authorities():
    assert dialing.tls_context(()).verify_mode is ssl.CERT_REQUIRED


def test_an_address_with_a_zone_is_named_without_it_to_the_server(certify, monkeypatch):
    certificate, seen, look_up = certify(), [], socket.getaddrinfo

    def here(host, *args, **options):  # no machine is sure to have an interface with such an address
        return look_up("127.0.0.1" if "%" in str(host) else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", here)

    async def main():
        async with listening(answering(seen), context=certificate.server_context()) as there:
            address = Address("fe80::1%no0", there.port, is_secure=True)
            async with HttpClient(pins=[certificate.pin]) as client:
                assert (await client.request(address, "GET", "/")).body == b"ok"
        (head,) = seen
        assert f"\r\nHost: [fe80::1]:{there.port}\r\n".encode() in head
        assert b"%" not in head

    run(main())
