"""Who may be connected, for how long, and who goes when there are too many.

A connection is a stranger until it has carried a request with a good token, or a worker's good signature. Strangers are
limited in number, and when one too many comes, the address that has most of them gives up its oldest one that waits for
no answer, or else its oldest: whoever opens thousands of idle sockets closes its own. A worker or client sends its
token within a round trip of being connected, and is then no stranger any more. After a restart no worker has a good
token: all come at once, perhaps from behind one address, and each must get its answer to get one. A connection counts
from its acceptance, so that a TLS handshake that never ends counts too.

The known ones belong to parties: the owner of a token, a worker, a join token. All but workers share three quarters of
the room, so that no client's token keeps a worker out; and where room is lacking, the party with most connections
gives one up, an idle one if it has such. Whoever has few never does. What is cut off asks again: a followed log goes on
from its offset, a request that is repeated is answered once.

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
_FEW: Final = 8  # more than one worker or command needs
_ACCEPTS_A_TURN: Final = 64
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WAIT_FOR_DESCRIPTORS_S: Final = 1.0
_TICKS_A_SWEEP: Final = 5
_GOODBYE_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GateLimits:
    """connections: in all. strangers: of them, those without a good token so far. few: a party with no more than that
    gives none up. head: see ``HeadLimits``."""

    connections: int = _MOST_CONNECTIONS
    strangers: int = _MOST_STRANGERS
    head: HeadLimits = field(default_factory=HeadLimits)
    few: int = _FEW

    @property
    def clients(self) -> int:
        """Of the connections, those that may be other than workers'."""
        return self.connections - self.connections // 4

    @classmethod
    def within(cls, descriptors: int) -> "GateLimits":
        """What a process that may open so many files can hold: a quarter of them is for its blobs, logs and store."""
        connections = max(32, descriptors - max(64, descriptors // 4))
        return cls(min(_MOST_CONNECTIONS, connections), min(_MOST_STRANGERS, connections // 2))


class Entry:
    """One connection, from its acceptance on. It keeps no connection alive once that is over."""

    __slots__ = ("_gate", "address", "drop", "is_worker", "party", "protocol")

    def __init__(self, gate: "Gate", address: str, drop: Callable[[], None]) -> None:
        self._gate = gate
        self.address = address
        self.drop = drop
        self.protocol: OneWriteProtocol | None = None
        self.party = ""  # of a stranger
        self.is_worker = False

    def recognise(self, party: str, *, is_worker: bool) -> None:
        """It carries a request with a good token of this party; behind a proxy, the next may be another's."""
        if self.party != party:
            self._gate.make_known(self, party, is_worker=is_worker)

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
        self._clients: dict[str, dict[Entry, None]] = {}
        self._client_count = 0
        self._workers: dict[str, dict[Entry, None]] = {}

    @property
    def connections(self) -> int:
        """How many there are now, handshakes included."""
        return len(self._entries)

    @property
    def strangers(self) -> int:
        return self._count

    def admit(self, address: str, drop: Callable[[], None]) -> Entry | None:
        """A new connection; ``drop`` ends it. None: there is no room, and nobody to be sent away for it."""
        is_full = len(self._entries) >= self.limits.connections
        if self._count and (self._count >= self.limits.strangers or is_full):
            crowd = max(self._strangers.values(), key=len)
            asks_nothing = (entry for entry in crowd if entry.protocol is None or entry.protocol.is_idle)
            _end(next(asks_nothing, next(iter(crowd))))
        elif is_full:
            self._drop_known(*self._clients.values(), *self._workers.values())
        if len(self._entries) >= self.limits.connections:
            return None
        entry = Entry(self, _group(address), drop)
        self._entries.add(entry)
        self._strangers.setdefault(entry.address, {})[entry] = None
        self._count += 1
        return entry

    def make_known(self, entry: Entry, party: str, *, is_worker: bool) -> None:
        """It counts as this party's from now on. Where there are too many that are no workers', one of them goes."""
        if entry not in self._entries:  # over, while its token was looked at
            return
        self._leave_group(entry)
        entry.party, entry.is_worker = party, is_worker
        (self._workers if is_worker else self._clients).setdefault(party, {})[entry] = None
        if not is_worker:
            self._client_count += 1
            if self._client_count > self.limits.clients and not self._drop_known(*self._clients.values()):
                _end(entry)

    def forget(self, entry: Entry) -> None:
        """It is over."""
        if entry in self._entries:
            self._entries.discard(entry)
            self._leave_group(entry)

    def _leave_group(self, entry: Entry) -> None:
        if not entry.party:
            _take_out(self._strangers, entry.address, entry)
            self._count -= 1
        elif entry.is_worker:
            _take_out(self._workers, entry.party, entry)
        else:
            _take_out(self._clients, entry.party, entry)
            self._client_count -= 1

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

    def _drop_known(self, *parties: dict[Entry, None]) -> bool:
        """The party with most gives up its oldest one that is idle, or else its oldest. False: all have few."""
        group = max(parties, key=len, default={})
        if len(group) <= self.limits.few:
            return False
        idle = (entry for entry in group if entry.protocol is not None and entry.protocol.is_idle)
        _end(next(idle, next(iter(group))))
        return True


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


def _end(entry: Entry) -> None:
    drop = entry.drop
    entry.leave()
    drop()


def _take_out(groups: dict[str, dict[Entry, None]], name: str, entry: Entry) -> None:
    group = groups[name]
    del group[entry]
    if not group:
        del groups[name]


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()


def _nothing() -> None:
    """What there is to do when all is done."""
