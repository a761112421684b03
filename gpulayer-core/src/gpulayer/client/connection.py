"""One connection of the sync shell: TCP, a proxy's tunnel where one is asked for, TLS with its pin. Blocks.

Nothing of a request can be sent before ``open_connection`` has returned. Environment proxy variables are not looked at.
"""

import http.client
import io
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, Final

from gpulayer.client.answers import CHUNK, Failed, plain_reason, unreachable
from gpulayer.client.limits import LIMITS, Limits, Pace
from gpulayer.client.reach import Route, Way
from gpulayer.net import (
    HEAD_LIMIT,
    Address,
    connect_request,
    head_is_whole,
    socket_options,
    trust_failure,
    tunnel_refusal,
)
from gpulayer.protocol.retry import Failure, FailureKind

__all__ = ["Connection", "Opening", "Step", "open_connection"]

_LEAST_S: Final = 0.1  # for a step that is left when the time is over: what answers at once still does


class Step(StrEnum):
    """The steps of opening a connection, in their order; a tunnel and TLS only where the route has them."""

    NAME = "name"
    ADDRESS = "address"
    TUNNEL = "tunnel"
    TLS = "tls"
    OPEN = "open"  # nothing is left to do


@dataclass(slots=True)
class Opening:
    """How far the opening of one connection has come, for whoever tells it to people; filled in on the way.

    step: the one that is or was under way. numeric: the addresses that the name stands for, of the proxy's where there
    is one. connected_s: how long it took until TCP stood, the name's look-up not counted. error: what ended it, as it
    was met.
    """

    step: Step = Step.NAME
    numeric: tuple[str, ...] = ()
    connected_s: float = 0.0
    error: Exception | None = None


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
        _keep_pace(self, self.pace)

    def is_readable(self, within_s: float) -> bool:
        """Whether anything has come within that time, if only the connection's end. Blocks until then."""
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            return bool(selector.select(within_s))


def _keep_pace(connection: http.client.HTTPConnection, pace: Pace) -> None:
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


def open_connection(
    way: Way,
    context: Callable[[], ssl.SSLContext],
    limits: Limits = LIMITS,
    *,
    opening: Opening | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Connection:
    """Connect within ``way.connect_s`` once the name is looked up, which the system's resolver limits by itself.

    context: asked for where TLS is needed. limits: of the answers. opening: told how far it came.
    Raises Failed (nothing was sent) and UntrustedServer.
    """
    route = way.route
    opening = opening or Opening()
    first = route.proxy or route.address
    try:
        found = socket.getaddrinfo(first.host, first.port, type=socket.SOCK_STREAM)
        opening.numeric = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
        opening.step = Step.ADDRESS
        began = monotonic()
        ends = began + way.connect_s
        sock = _connected(found, ends, monotonic)
        opening.connected_s = monotonic() - began
    except (OSError, ValueError) as error:  # ValueError: a name that can't be one, which is encoded first
        opening.error = error
        why = plain_reason(error)
        raise _not_sent(route, why if route.proxy is None else f"the proxy {route.proxy}: {why}") from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for level, option, value in socket_options():
            sock.setsockopt(level, option, value)
        if route.proxy is not None:
            opening.step = Step.TUNNEL
            _tunnel(sock, route.proxy, route.address, ends, monotonic)
        if route.address.is_secure:
            opening.step = Step.TLS
            sock.settimeout(max(_LEAST_S, ends - monotonic()))
            sock = context().wrap_socket(sock, server_hostname=route.address.name)
        opening.step = Step.OPEN
        return Connection(route, sock, limits)
    except (OSError, ValueError) as error:
        sock.close()
        opening.error = error
        untrusted = trust_failure(error, route.address)
        if untrusted is not None:
            raise untrusted from None
        raise _not_sent(route, plain_reason(error)) from None
    except BaseException:
        sock.close()
        raise


def _connected(
    found: Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]],  # Any: each family's own form
    ends: float,
    monotonic: Callable[[], float],
) -> socket.socket:
    """To the first that answers. Each has an equal share of the time that is left, so that one whose packets are
    dropped, as IPv6 often is, does not use up that of the next. Raises what the last one failed with."""
    failed: OSError = OSError("no address")
    for tried, (family, kind, protocol, _, address) in enumerate(found):
        share_s = (ends - monotonic()) / (len(found) - tried)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this machine has not
            failed = error
            continue
        try:
            sock.settimeout(max(_LEAST_S, share_s))
            sock.connect(address)
        except OSError as error:
            failed = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


def _tunnel(sock: socket.socket, proxy: Address, address: Address, ends: float, monotonic: Callable[[], float]) -> None:
    sock.settimeout(max(_LEAST_S, ends - monotonic()))
    sock.sendall(connect_request(address))
    received = b""
    while not head_is_whole(received):
        left_s = ends - monotonic()
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
    refused = tunnel_refusal(received, proxy=proxy, address=address)
    if refused is not None:
        raise _NoTunnel(refused)


def _not_sent(route: Route, why: str) -> Failed:
    return Failed(Failure(FailureKind.NOT_SENT), unreachable(str(route.address), why))
