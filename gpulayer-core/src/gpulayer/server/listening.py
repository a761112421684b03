"""The sockets of a control plane, and the HTTP server on them.

``Listeners`` has one plain listener for this machine's own commands and worker, on loopback; and where other machines
may come, those for them, on the port that was asked for. All belong to one server with one end: held requests are let
go together, whatever they came in by.
"""

import errno
import os
import resource
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gpulayer.errors import UsageError
from gpulayer.net.address import LOOPBACK, host_of
from gpulayer.net.liveness import socket_options

if TYPE_CHECKING:
    import uvicorn

    from gpulayer.server.settings import CertificateFiles

__all__ = ["EVERYWHERE", "Listeners", "http_server", "open_listeners"]

EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - what people write for all interfaces
_LOCAL: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_BACKLOG: Final = 1024
_PORT_TRIES: Final = 20
_MISSING: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


@dataclass(frozen=True, slots=True)
class Listeners:
    """own: for this machine, plain. others: for everybody, with TLS or not; none where only this machine is served.

    Without TLS, one that listens everywhere may be both.
    """

    own: socket.socket
    others: tuple[socket.socket, ...] = ()

    @property
    def port(self) -> int:
        """The one that was asked for, or what 0 became."""
        return int((self.others or (self.own,))[0].getsockname()[1])

    @property
    def own_port(self) -> int:
        return int(self.own.getsockname()[1])

    @property
    def url(self) -> str:
        host, port = self.own.getsockname()[:2]
        return f"http://{host_of(_LOCAL.get(host, host))}:{port}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of ``others``, numeric; empty where they listen everywhere."""
        found = tuple(str(each.getsockname()[0]) for each in self.others)
        return () if EVERYWHERE.intersection(found) else found


@contextmanager
def open_listeners(
    host: str, port: int, *, tls: "Literal['auto', 'off'] | CertificateFiles", own_port: int = 0, is_trial: bool = False
) -> Iterator[Listeners]:
    """Listen as ``ServeSettings`` says. Raises UsageError where that can't be.

    own_port: that of the plane before, taken again for this machine where any would do and it is still free: programs
    that were told of it go on. 0: there was none. is_trial: only see whether that can be: nobody gets a connection, and
    whoever begins to listen there meanwhile is not hindered.
    """
    backlog = None if is_trial else _BACKLOG
    with ExitStack() as stack:
        if host in LOOPBACK and tls in ("auto", "off"):
            (own,) = _bound(stack, host, port, backlog, wished=own_port)
            yield Listeners(own)
        elif host in EVERYWHERE:
            others = _everywhere(stack, port, backlog)
            yield Listeners(others[0] if tls == "off" else _own(stack, own_port, backlog), tuple(others))
        else:
            others = _bound(stack, host, port, backlog)
            yield Listeners(_own(stack, own_port, backlog), tuple(others))


def http_server(
    app: object,
    listeners: Listeners,
    *,
    tls: ssl.SSLContext | None,
    headers: Sequence[tuple[str, str]],
    graceful_s: float,
) -> "uvicorn.Server":
    """One server for all ``listeners``, ``tls`` on those for others; no signal handlers of its own. headers: of every
    answer."""
    import uvicorn  # noqa: PLC0415 - heavy: see ``serve``

    from gpulayer.server.gate import Gate, GatedServer, GateLimits  # noqa: PLC0415

    config = uvicorn.Config(
        app,  # type: ignore[arg-type] # an ASGI application
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        headers=list(headers),
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(graceful_s)),
    )
    gate = Gate(GateLimits.within(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    own: dict[socket.socket, ssl.SSLContext | None] = {listeners.own: None}
    return GatedServer(config, gate, own | dict.fromkeys(listeners.others, tls))


def _own(stack: ExitStack, wished: int, backlog: int | None) -> socket.socket:
    try:
        return _any_port(stack, "127.0.0.1", wished, backlog)
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return _any_port(stack, "::1", wished, backlog)


def _any_port(stack: ExitStack, address: str, wished: int, backlog: int | None) -> socket.socket:
    """On the port that is wished for, or on any."""
    if wished:
        try:
            return _listener(stack, address, wished, backlog)
        except OSError as error:
            if error.errno in _MISSING:
                raise
    return _listener(stack, address, 0, backlog)


def _everywhere(stack: ExitStack, port: int, backlog: int | None) -> list[socket.socket]:
    """IPv4 and IPv6 on one port; a machine may lack either."""
    for _ in range(_PORT_TRIES):
        with ExitStack() as attempt:
            found: list[socket.socket] = []
            lacking: OSError | None = None
            chosen = port
            for address in ("0.0.0.0", "::"):  # noqa: S104 - asked for
                try:
                    found.append(_listener(attempt, address, chosen, backlog))
                except OSError as error:
                    if error.errno in _MISSING:
                        lacking = error
                        continue
                    if found and port == 0 and error.errno == errno.EADDRINUSE:
                        break  # free for IPv4 alone: take another
                    raise _unusable("", port, error) from None
                chosen = found[0].getsockname()[1]
            else:
                if not found and lacking is not None:
                    raise _unusable("", port, lacking)
                stack.enter_context(attempt.pop_all())
                return found
    raise UsageError("no port is free for both IPv4 and IPv6", hint="choose one with --port N")


def _bound(stack: ExitStack, host: str, port: int, backlog: int | None, *, wished: int = 0) -> list[socket.socket]:
    """wished: as of ``_any_port``, where ``port`` is 0."""
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise UsageError(
            f"--host {host}: no such address or name", hint="leave --host out to serve on all addresses"
        ) from None
    failure: OSError | None = None
    for _, _, _, _, address in known:
        try:
            text = str(address[0])
            return [_listener(stack, text, port, backlog) if port else _any_port(stack, text, wished, backlog)]
        except OSError as error:
            failure = failure or error
    raise _unusable(host, port, failure or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL)))


def _listener(stack: ExitStack, address: str, port: int, backlog: int | None) -> socket.socket:
    """backlog: None: it has the address, and does not listen there."""
    is_v6 = ":" in address
    # The protocol is named because asyncio sets TCP_NODELAY only then: without it every answer takes 40 ms.
    made = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        for level, option, value in socket_options():  # Linux hands them on to what is accepted
            made.setsockopt(level, option, value)
        made.bind((address, port))
        if backlog is not None:
            made.listen(backlog)
    except OSError:
        made.close()
        raise
    return stack.enter_context(made)


def _unusable(host: str, port: int, error: OSError) -> UsageError:
    where = f"port {port} on {host}" if host else f"port {port}"
    hint = "choose another with --port N, or end what listens there"
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "leave --host out to serve on all addresses of this machine"
    return UsageError(f"{where} can't be used: {(error.strerror or str(error)).lower()}", hint=hint)
