"""One connection of the sync shell: TCP, a proxy's tunnel where one is asked for, TLS with its pin. Blocks.

Nothing of a request can be sent before ``open_connection`` has returned. Environment proxy variables are not looked at.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from typing import IO, Any

from gpulayer.client.answers import CHUNK, Failed, plain_reason, unreachable
from gpulayer.client.limits import LIMITS, Limits, Pace
from gpulayer.client.reach import Route, Way
from gpulayer.net import (
    HEAD_LIMIT,
    connect_request,
    head_is_whole,
    socket_options,
    trust_failure,
    tunnel_refusal,
)
from gpulayer.protocol.retry import Failure, FailureKind

__all__ = ["Connection", "keep_pace", "open_connection"]


class _NoTunnel(OSError):
    """Its text is for people."""


class Connection(http.client.HTTPConnection):
    """A connection that belongs to a route. idle_since: when it was given back, by the owner's clock. pace: what its
    answers may take; its user says which part of one is next."""

    sock: socket.socket

    def __init__(self, route: Route, sock: socket.socket, limits: Limits = LIMITS) -> None:
        address = route.address
        super().__init__(address.host, address.port, blocksize=CHUNK)
        self.auto_open = 0  # a connection that was closed is not opened again behind our back
        self.route = route
        self.sock = sock
        self.idle_since = 0.0
        self.pace = Pace(limits)
        keep_pace(self, self.pace)


def keep_pace(connection: http.client.HTTPConnection, pace: Pace) -> None:
    """Bind the answers that this connection gets to ``pace``."""

    def answer(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
        # Any: http.client's own arguments, handed on.
        return http.client.HTTPResponse(_Readable(sock, pace), *args, **options)  # type: ignore[arg-type]

    connection.response_class = answer  # type: ignore[assignment]


class _Readable:
    """All that an answer asks of a socket."""

    def __init__(self, sock: socket.socket, pace: Pace) -> None:
        self._sock, self._pace = sock, pace

    def makefile(self, mode: str) -> IO[bytes]:
        return io.BufferedReader(_Paced(self._sock, self._pace))


class _Paced(io.RawIOBase):
    """The bytes of an answer, each wait for some no longer than the pace allows."""

    def __init__(self, sock: socket.socket, pace: Pace) -> None:
        super().__init__()
        self._sock, self._pace = sock, pace
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open for as long as there is an answer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # Any: a writable buffer, for which 3.11 has no name
        self._sock.settimeout(self._pace.left_s())
        began = time.monotonic()
        count = self._raw.readinto(buffer)
        self._pace.came(count or 0, waited_s=time.monotonic() - began)
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def open_connection(way: Way, context: Callable[[], ssl.SSLContext], limits: Limits = LIMITS) -> Connection:
    """Connect within ``way.connect_s``. context: asked for where TLS is needed; limits: of the answers.

    Raises Failed (nothing was sent) and UntrustedServer.
    """
    route = way.route
    ends = time.monotonic() + way.connect_s
    first = route.proxy or route.address
    try:
        sock = socket.create_connection((first.host, first.port), timeout=way.connect_s)
    except (OSError, ValueError) as error:  # ValueError: a name that can't be asked for
        why = plain_reason(error)
        raise _not_sent(route, why if route.proxy is None else f"the proxy {route.proxy}: {why}") from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for level, option, value in socket_options():
            sock.setsockopt(level, option, value)
        if route.proxy is not None:
            _tunnel(sock, route, ends)
        if route.address.is_secure:
            sock.settimeout(max(0.1, ends - time.monotonic()))
            sock = context().wrap_socket(sock, server_hostname=route.address.name)
        return Connection(route, sock, limits)
    except (OSError, ValueError) as error:
        sock.close()
        untrusted = trust_failure(error, route.address)
        if untrusted is not None:
            raise untrusted from None
        raise _not_sent(route, plain_reason(error)) from None
    except BaseException:
        sock.close()
        raise


def _tunnel(sock: socket.socket, route: Route, ends: float) -> None:
    proxy = route.proxy
    if proxy is None:
        return
    sock.sendall(connect_request(route.address))
    received = b""
    while not head_is_whole(received):
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise _NoTunnel(f"the proxy {proxy} opened no tunnel in time")
        sock.settimeout(left_s)
        try:
            piece = sock.recv(HEAD_LIMIT)
        except TimeoutError:
            continue
        if not piece:
            break
        received += piece
    refused = tunnel_refusal(received, proxy=proxy, address=route.address)
    if refused is not None:
        raise _NoTunnel(refused)


def _not_sent(route: Route, why: str) -> Failed:
    return Failed(Failure(FailureKind.NOT_SENT), unreachable(str(route.address), why))
