"""Who may be connected, for how long, and who goes when there are too many.

A connection is a stranger until it has carried a request with a good token. Strangers are limited in number, and when
one too many comes, the oldest of the address that has most of them is closed: whoever opens thousands of idle sockets
closes its own. A worker or client sends its token within a round trip of being connected, and is then no stranger any
more. A connection counts from its acceptance, so that a TLS handshake that never ends counts too.

Times are looked at in one sweep over all connections: a timer for each request would cost more than the request's head.
"""

import asyncio
import errno
import logging
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

import uvicorn

from gpulayer.server.onewrite import HeadLimits, OneWriteProtocol

__all__ = ["Entry", "Gate", "GateLimits", "GatedServer"]

_MOST_CONNECTIONS: Final = 10_000
_MOST_STRANGERS: Final = 1024
_ACCEPTS_A_TURN: Final = 64
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WAIT_FOR_DESCRIPTORS_S: Final = 1.0
_TICKS_A_SWEEP: Final = 5
_GOODBYE_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GateLimits:
    """connections: in all. strangers: of them, those without a good token so far. head: see ``HeadLimits``."""

    connections: int = _MOST_CONNECTIONS
    strangers: int = _MOST_STRANGERS
    head: HeadLimits = field(default_factory=HeadLimits)

    @classmethod
    def within(cls, descriptors: int) -> "GateLimits":
        """What a process that may open so many files can hold: a quarter of them is for its blobs, logs and store."""
        connections = max(32, descriptors - max(64, descriptors // 4))
        return cls(min(_MOST_CONNECTIONS, connections), min(_MOST_STRANGERS, connections // 2))


class Entry:
    """One connection, from its acceptance on. It keeps no connection alive once that is over."""

    __slots__ = ("_gate", "address", "drop", "is_known", "protocol")

    def __init__(self, gate: "Gate", address: str, drop: Callable[[], None]) -> None:
        self._gate = gate
        self.address = address
        self.drop = drop
        self.protocol: OneWriteProtocol | None = None
        self.is_known = False

    def recognise(self) -> None:
        """It has carried a request with a good token. May be repeated."""
        if not self.is_known:
            self.is_known = True
            self._gate.forget_stranger(self)

    def leave(self) -> None:
        """The connection is over. May be repeated."""
        self._gate.forget(self)
        self.drop = _nothing
        self.protocol = None


class Gate:
    """All connections of a control plane, over all its listeners. Lives in one event loop."""

    def __init__(self, limits: GateLimits) -> None:
        self.limits = limits
        self._entries: set[Entry] = set()
        self._strangers: dict[str, dict[Entry, None]] = {}
        self._count = 0  # of strangers

    @property
    def connections(self) -> int:
        """How many there are now, handshakes included."""
        return len(self._entries)

    @property
    def strangers(self) -> int:
        return self._count

    def admit(self, address: str, drop: Callable[[], None]) -> Entry | None:
        """A new connection; ``drop`` ends it. None: there is no room, and nobody to be sent away for it."""
        if self._count and (self._count >= self.limits.strangers or len(self._entries) >= self.limits.connections):
            self._drop_one()
        if len(self._entries) >= self.limits.connections:
            return None
        entry = Entry(self, _group(address), drop)
        self._entries.add(entry)
        self._strangers.setdefault(entry.address, {})[entry] = None
        self._count += 1
        return entry

    def forget_stranger(self, entry: Entry) -> None:
        """It is known now, or gone."""
        group = self._strangers.get(entry.address, {})
        if entry in group:
            del group[entry]
            self._count -= 1
            if not group:
                del self._strangers[entry.address]

    def forget(self, entry: Entry) -> None:
        self._entries.discard(entry)
        self.forget_stranger(entry)

    def sweep(self, now: float) -> None:
        """End the connections whose time is over, by the loop's clock."""
        for entry in list(self._entries):
            protocol = entry.protocol
            if protocol is None:
                continue
            if protocol.is_stuck(now):
                entry.drop()
            elif protocol.deadline < now:
                protocol.run_out()

    def _drop_one(self) -> None:
        group = max(self._strangers.values(), key=len)
        entry = next(iter(group))
        drop = entry.drop
        entry.leave()
        drop()


class GatedServer(uvicorn.Server):
    """uvicorn's server, behind a gate: it accepts the connections itself. listeners: sockets that listen already, and
    the TLS of each. Signals are left to whoever runs it."""

    def __init__(
        self, config: uvicorn.Config, gate: Gate, listeners: Mapping[socket.socket, ssl.SSLContext | None]
    ) -> None:
        super().__init__(config)
        self._gate = gate
        self._listeners = dict(listeners)
        self._arriving: set[asyncio.Task[None]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: what a signal does is decided elsewhere."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept from now on. uvicorn's own way gives all sockets TLS, or none, and takes in everybody."""
        await super().startup(sockets=[])
        for listener in self._listeners:
            listener.setblocking(False)
            self._open(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nobody any more, and let go those who are there."""
        listeners, self._listeners = self._listeners, {}
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for task in self._arriving:
            task.cancel()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_A_SWEEP == 0:
            self._gate.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_A_TURN):  # not all that wait: whoever is connected already has a turn in between
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._rest(listener, error)
                return
            arrival = self._arrive(accepted, str(address[0]), self._listeners[listener])
            task = asyncio.get_running_loop().create_task(arrival)
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _arrive(self, accepted: socket.socket, address: str, tls: ssl.SSLContext | None) -> None:
        task = asyncio.current_task()
        entry = self._gate.admit(address, lambda: None if task is None else _cancel(task))
        if entry is None:
            accepted.close()
            return
        protocol = OneWriteProtocol(
            self.config, self.server_state, self.lifespan.state, entry=entry, limits=self._gate.limits.head
        )
        handshake_s, goodbye_s = (None, None) if tls is None else (self._gate.limits.head.head_s, _GOODBYE_S)
        try:
            accepted.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=goodbye_s,
            )
        except (OSError, EOFError) as error:  # the other side's doing, seen while shaking hands
            _log.debug("a connection from %s came to nothing: %s", address, error)
            # The error holds its frames, they hold it, and the TLS buffers too, a quarter of a MiB: a circle that only
            # a full collection would find, which is rare here (see ``serve``).
            traceback.clear_frames(error.__traceback__)
        finally:
            if entry.protocol is None:  # also where it was sent away in the middle of a handshake
                entry.leave()

    def _rest(self, listener: socket.socket, error: OSError) -> None:
        """No descriptors left: what is connected goes on, others wait at the door."""
        loop = asyncio.get_running_loop()
        _log.error("no connection can be accepted for a moment: %s", error.strerror)
        loop.remove_reader(listener)
        loop.call_later(_WAIT_FOR_DESCRIPTORS_S, self._open, listener)

    def _open(self, listener: socket.socket) -> None:
        if listener in self._listeners:  # not closed meanwhile
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)


def _group(address: str) -> str:
    """One party, as far as addresses tell: a whole /64 is in one hand."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(IPv6Address(int(found) >> 64 << 64))
    return str(found)


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


def _nothing() -> None:
    """What there is to do when all is done."""
