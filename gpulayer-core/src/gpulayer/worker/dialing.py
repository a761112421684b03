"""From an address to a connection that may be trusted: names, sockets, a proxy, TLS; nothing of HTTP but CONNECT.

Every wait has an end, also for a network that swallows everything: a host name is looked up in a thread that nobody
has to wait for, addresses are tried side by side (RFC 8305), and the kernel gives a silent connection up by itself
(``net.liveness``). Proxies are taken from the settings alone, never from environment variables. With pins the
server's certificate is checked inside the handshake (``gpulayer.net.trust``): nothing is said to another server.
"""

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final

from gpulayer.net import Address, Pin, socket_options, tls_context
from gpulayer.net.tunnel import HEAD_LIMIT, connect_request, head_is_whole, tunnel_refusal

__all__ = ["Dialer", "Streams"]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Candidate = tuple[int, Any]  # family and socket address. Any: the form of the address differs by family

_STAGGER_S: Final = 0.25
# What the kernel takes at most beyond what it has sent: so "written" means "on its way", and a large body on a slow
# line shows that it moves instead of vanishing into megabytes of buffer.
_NOT_SENT_BYTES: Final = 128 * 1024


class Dialer:
    """Opens connections to one control plane. pins: as of ``net.tls_context``; proxy: for ``https`` alone, since plain
    ``http`` never leaves this machine."""

    def __init__(self, *, pins: Collection[Pin] = (), proxy: Address | None = None) -> None:
        self._pins = tuple(pins)
        self._proxy = proxy
        self._context: ssl.SSLContext | None = None
        self._names = _Names()

    async def dial(self, address: Address, *, limit: int) -> Streams:
        """An open connection, after the handshake where there is one. limit: of the reader's lines, bytes.

        Raises OSError; what its ``net.trust_failure`` says is about a server that is not the right one. Ends when it is
        cancelled, and leaves nothing open then.
        """
        if not address.is_secure:
            return await _over(await self._connect(address), limit)
        # Before the connection: the CA's certificates take their time to load, and a handshake has a limit.
        context = self._context = self._context or tls_context(self._pins)
        if self._proxy is None:
            sock = await self._connect(address)
        else:
            sock = await _tunnel(await self._connect(self._proxy), self._proxy, address)
        return await _over(sock, limit, context, address.name)

    async def _connect(self, address: Address) -> socket.socket:
        return await _race(await self._names.look_up(address.host, address.port))


class _Names:
    """Host names to socket addresses. A resolver without a network may take half a minute, and can't be interrupted:
    of one name at most one look-up is on its way, in a thread that nothing waits for at the end of the process. What a
    name meant before stands in where it can't be looked up now."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[_Candidate]]] = {}
        self._known: dict[tuple[str, int], Sequence[_Candidate]] = {}

    async def look_up(self, host: str, port: int) -> Sequence[_Candidate]:
        """Raises OSError (gaierror) for a name that is not known."""
        numeric = _numeric(host, port)
        if numeric is not None:
            return (numeric,)
        key = (host, port)
        if key not in self._running:
            self._running[key] = self._start(key)
        future = self._running[key]
        known = self._known.get(key)
        done, _ = await asyncio.wait({future}, timeout=None if known is None else 1.0)
        if not done:
            assert known is not None
            return known
        error = future.exception()
        if error is None:
            return future.result()
        if known is None:
            raise OSError(f"{host}: {error.strerror if isinstance(error, OSError) else error}") from error
        return known

    def _start(self, key: tuple[str, int]) -> "asyncio.Future[Sequence[_Candidate]]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[_Candidate]] = loop.create_future()

        def found(result: Sequence[_Candidate] | OSError) -> None:
            del self._running[key]
            if isinstance(result, OSError):
                future.set_exception(result)
                future.exception()  # heard, also where everybody who asked has gone
            else:
                self._known[key] = result
                future.set_result(result)

        def look() -> None:
            result: Sequence[_Candidate] | OSError
            try:
                infos = socket.getaddrinfo(key[0], key[1], type=socket.SOCK_STREAM)
                result = tuple(dict.fromkeys((int(family), address) for family, _, _, _, address in infos))
            except (OSError, UnicodeError) as error:
                result = error if isinstance(error, OSError) else OSError(str(error))
            try:
                loop.call_soon_threadsafe(found, result)
            except RuntimeError:
                pass  # the loop has ended meanwhile: nobody wants to know

        threading.Thread(target=look, name=f"looking up {key[0]}", daemon=True).start()
        return future


async def _race(candidates: Sequence[_Candidate]) -> socket.socket:
    """The first that connects, the next one tried when one has failed or after a moment: a host with an IPv6 address
    on a network without IPv6 is no slower for it. Raises the last one's OSError."""
    waiting, tries, failure = list(candidates), set[asyncio.Task[socket.socket]](), OSError("it has no address")
    try:
        while waiting or tries:
            if waiting:
                tries.add(asyncio.create_task(_connect_one(waiting.pop(0))))
            done, _ = await asyncio.wait(
                tries, timeout=_STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                if error is None:
                    tries.discard(task)
                    return task.result()
                tries.discard(task)
                if not isinstance(error, OSError):
                    raise error
                failure = error
        raise failure
    finally:
        for task in tries:
            task.cancel()
        for late in await asyncio.gather(*tries, return_exceptions=True):
            if isinstance(late, socket.socket):
                late.close()


async def _connect_one(candidate: _Candidate) -> socket.socket:
    family, address = candidate
    # asyncio sets TCP_NODELAY only where the protocol is named.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        _prepare(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _prepare(sock: socket.socket) -> None:
    """So that the kernel ends a connection whose other end is gone, wherever this system has words for it."""
    for level, option, value in socket_options():
        sock.setsockopt(level, option, value)
    not_sent = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if not_sent is not None:
        sock.setsockopt(socket.IPPROTO_TCP, not_sent, _NOT_SENT_BYTES)


async def _tunnel(sock: socket.socket, proxy: Address, address: Address) -> socket.socket:
    """Through an HTTP proxy to the address, on the bare socket: what follows the proxy's answer is the handshake's.
    Raises OSError where the proxy refuses; closes the socket then."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(sock, connect_request(address))
        answer = piece = await loop.sock_recv(sock, HEAD_LIMIT)
        while piece and not head_is_whole(answer):
            piece = await loop.sock_recv(sock, HEAD_LIMIT)
            answer += piece
        refusal = tunnel_refusal(answer, proxy=proxy, address=address)
        if refusal is not None:
            raise ConnectionRefusedError(refusal)
    except BaseException:
        sock.close()
        raise
    return sock


async def _over(
    sock: socket.socket, limit: int, context: ssl.SSLContext | None = None, host: str | None = None
) -> Streams:
    try:
        return await asyncio.open_connection(sock=sock, limit=limit, ssl=context, server_hostname=host)
    except BaseException:
        sock.close()  # asyncio has closed its transport, which may not yet have closed this
        raise


def _numeric(host: str, port: int) -> _Candidate | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if address.version == 4:
        return socket.AF_INET, (host, port)
    scope = host.partition("%")[2]
    try:
        number = int(scope) if scope.isdigit() else socket.if_nametoindex(scope) if scope else 0
    except OSError:
        return None  # no such interface: looking it up says so
    return socket.AF_INET6, (str(address).partition("%")[0], port, 0, number)
