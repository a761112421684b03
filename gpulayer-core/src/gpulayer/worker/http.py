"""A small HTTP/1.1 client over asyncio streams: what the worker's hot loop needs and nothing else.

Why not a library: an async client of the usual kind costs the control path several milliseconds a call and tens of
megabytes. Kept-alive connections are pooled by address; bodies go and come whole or in pieces; every wait has a time
limit. No redirects, cookies or content codings: both ends are ours. ``dialing`` opens connections and decides whom to
trust, ``exchange`` speaks on one.

Networks lose connections without a word: a NAT forgets, an address changes, a machine sleeps. So silence on one
connection makes all others to that address suspect: what is idle is dropped, what stands still and may be repeated
(``asks_again``) is ended and asked again, on a new connection. So does everything after a suspend.

Errors: ``Unreachable`` (no connection, cut short, too slow), ``UntrustedServer`` (nothing was sent) and
``ProtocolError`` (an answer that is no HTTP). ``is_sent`` in the details tells whether the other side may have seen the
request.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from gpulayer.clock import suspended_ms
from gpulayer.errors import TooLarge, Unreachable
from gpulayer.net import Address, Pin, trust_failure
from gpulayer.worker.dialing import Dialer
from gpulayer.worker.exchange import MAX_HEAD_BYTES, Body, Connection, request_head

__all__ = ["Body", "HttpClient", "Incoming", "Response"]

MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # of an answer that is read whole
# A heartbeat's connection is kept until the next one, so that TLS costs a handshake now and then. What can't be sent
# twice goes over one that was busy just now: no server or box in between has dropped that yet.
IDLE_LIMIT_S: Final = 25.0
FRESH_S: Final = 4.0
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"})
_STILL_S: Final = 1.0  # what moved since then is as alive as can be
_SUSPEND_MS: Final = 1_000  # a jump of the clocks that is no noise


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Incoming:
    """An answer whose body is read by ``pieces``, once."""

    status: int
    headers: Mapping[str, str]
    _connection: Connection
    _piece_timeout_s: float

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes; each wait is limited on its own, so a long transfer that moves is never cut off."""
        async for piece in self._connection.body(self._piece_timeout_s):
            yield piece

    async def read(self, *, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises TooLarge past the limit."""
        parts: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise TooLarge(f"an answer is larger than {limit} bytes")
            parts.append(piece)
        return b"".join(parts)


class HttpClient:
    """Use as an async context, or ``aclose`` it. One event loop; requests may run side by side.

    pins, proxy: as of ``dialing.Dialer``. connect_timeout_s: for the connection with its handshake. suspended_ms: a
    clock that moves while the machine sleeps, and only then.
    """

    def __init__(
        self,
        *,
        pins: Collection[Pin] = (),
        proxy: Address | None = None,
        connect_timeout_s: float = 5.0,
        idle_connections: int = 8,
        suspended_ms: Callable[[], int] = suspended_ms,
    ) -> None:
        self.pins, self.proxy = tuple(pins), proxy
        self._dialer = Dialer(pins=pins, proxy=proxy)
        self._connect_timeout_s = connect_timeout_s
        self._idle_connections = idle_connections
        self._suspended_ms = suspended_ms
        self._idle: dict[Address, list[Connection]] = {}
        self._held: dict[Address, set[Connection]] = {}
        self._is_closed = False
        self.local_address = ""

    async def request(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Body = b"",
        timeout_s: float = 30.0,
        asks_again: bool = False,
        is_once: bool = False,
    ) -> Response:
        """One whole exchange within ``timeout_s``, counted from when the body last moved. Raises Unreachable,
        UntrustedServer, ProtocolError, TooLarge.

        asks_again: broken off and asked again where it stands still while another request finds the way there dead;
        for what is held by the other side, and for what may be sent twice. is_once: never sent twice, not even where a
        kept connection was closed before a word came.
        """
        head = request_head(address, method, path, headers or {}, body)
        asked = _Asked(address, f"{method} {path}", head, body, timeout_s, asks_again, is_once)
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                connection, incoming = await self._begin(asked, limit)
                try:
                    return Response(incoming.status, incoming.headers, await incoming.read())
                except (OSError, EOFError) as error:
                    raise asked.unanswered(_reason(error)) from error
        except TimeoutError:
            self._suspect(address)
            raise asked.unanswered(f"no answer within {timeout_s:g} s") from None
        finally:
            if connection is not None:
                self._put_back(address, connection)

    @asynccontextmanager
    async def stream(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Body = b"",
        piece_timeout_s: float = 30.0,
    ) -> AsyncIterator[Incoming]:
        """An exchange whose answer is read in pieces, each within the limit. Leaving early closes the connection."""
        head = request_head(address, method, path, headers or {}, body)
        asked = _Asked(address, f"{method} {path}", head, body, piece_timeout_s)
        try:
            async with asyncio.timeout(piece_timeout_s) as limit:
                connection, incoming = await self._begin(asked, limit)
        except TimeoutError:
            self._suspect(address)
            raise asked.unanswered(f"no answer within {piece_timeout_s:g} s") from None
        try:
            yield incoming
        except (OSError, EOFError) as error:
            self._suspect(address)
            raise asked.unanswered(_reason(error)) from error
        finally:
            self._put_back(address, connection)

    def forget_connections(self) -> None:
        """After something that no connection survives: what is idle is closed, what is held is asked again."""
        for address in {*self._idle, *self._held}:
            self._suspect(address, still_s=0.0)

    async def aclose(self) -> None:
        """Closes what is idle and takes nothing back from then on. May be repeated."""
        self._is_closed = True
        connections = [connection for idle in self._idle.values() for connection in idle]
        self._idle.clear()
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _begin(self, asked: "_Asked", limit: asyncio.Timeout) -> tuple[Connection, Incoming]:
        loop = asyncio.get_running_loop()

        def moved() -> None:
            limit.reschedule(loop.time() + asked.timeout_s)
            if connection is not None:
                connection.moved_at = loop.time()

        connection: Connection | None = None
        may_repeat = isinstance(asked.body, bytes) and not asked.is_once  # what comes in pieces is sent once
        while True:
            connection = self._take_idle(asked.address, IDLE_LIMIT_S if may_repeat else FRESH_S)
            is_reused = connection is not None
            if connection is None:
                connection = await self._open(asked.address)
            held = self._held.setdefault(asked.address, set()) if asked.asks_again else set()
            held.add(connection)
            moved()
            try:
                await connection.send(asked.head, asked.body, moved)
                status, answer = await connection.read_head()
                return connection, Incoming(status, answer, connection, asked.timeout_s)
            except (OSError, EOFError) as error:
                was_given_up = connection not in held
                connection.close()
                # The peer may close a kept connection at any time. Where it had not said a word yet, a new one is
                # tried at once.
                if may_repeat and (is_reused or was_given_up):
                    continue
                self._suspect(asked.address)
                raise asked.unanswered(_reason(error)) from error
            except BaseException:
                connection.close()
                raise
            finally:
                held.discard(connection)

    async def _open(self, address: Address) -> Connection:
        suspended = self._suspended_ms()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                reader, writer = await self._dialer.dial(address, limit=MAX_HEAD_BYTES)
        except (OSError, TimeoutError) as error:
            self._suspect(address)
            untrusted = trust_failure(error, address)
            if untrusted is not None:
                raise untrusted from error
            raise _unreachable(address, _reason(error), is_sent=False) from error
        connection = Connection(reader, writer, suspended_ms=suspended)
        self.local_address = connection.local_address
        return connection

    def _suspect(self, address: Address, *, still_s: float = _STILL_S) -> None:
        for connection in self._idle.pop(address, ()):
            connection.close()
        loop = asyncio.get_running_loop()
        held, now = self._held.get(address, set()), loop.time()
        spared: dict[Connection, float] = {}
        for connection in list(held):
            if still_s <= now - connection.moved_at:
                self._give_up(address, connection)
            else:
                spared[connection] = connection.moved_at
        if spared:  # what was asked just now may stand on a dead connection, too
            loop.call_later(still_s, self._look_again, address, spared)

    def _look_again(self, address: Address, spared: Mapping[Connection, float]) -> None:
        held = self._held.get(address, set())
        for connection, moved_at in spared.items():
            if connection in held and connection.moved_at == moved_at:
                self._give_up(address, connection)

    def _give_up(self, address: Address, connection: Connection) -> None:
        self._held[address].discard(connection)  # so that it is told from one that the other side has ended
        connection.close()

    def _take_idle(self, address: Address, limit_s: float) -> Connection | None:
        idle = self._idle.get(address, [])
        now, suspended = asyncio.get_running_loop().time(), self._suspended_ms()
        while idle:
            connection = idle.pop()
            is_fresh = now - connection.idle_since < limit_s and suspended - connection.suspended_ms < _SUSPEND_MS
            if connection.is_usable and is_fresh:
                return connection
            connection.close()
        return None

    def _put_back(self, address: Address, connection: Connection) -> None:
        idle = self._idle.setdefault(address, [])
        if connection.is_usable and len(idle) < self._idle_connections and not self._is_closed:
            connection.idle_since = asyncio.get_running_loop().time()
            idle.append(connection)
        else:
            connection.close()


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request on its way."""

    address: Address
    what: str
    head: bytes
    body: bytes | Body
    timeout_s: float
    asks_again: bool = False
    is_once: bool = False

    def unanswered(self, reason: str) -> Unreachable:
        return _unreachable(self.address, f"{self.what}: {reason}", is_sent=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection was closed before an answer came"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return f"what answers there speaks no TLS ({error.reason}): is it an http:// address, or another program?"
    return str(error) or ("it takes too long" if isinstance(error, TimeoutError) else type(error).__name__)


def _unreachable(address: Address, reason: str, *, is_sent: bool) -> Unreachable:
    return Unreachable(
        f"the control plane at {address} can't be reached: {reason}",
        hint="check that it runs; gpulayer status",
        details={"is_sent": is_sent},
    )
