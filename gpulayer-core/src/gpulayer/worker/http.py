"""A small HTTP/1.1 client over asyncio streams: what the worker's hot loop needs and nothing else.

Why not a library: an async client of the usual kind costs the control path several milliseconds a call and tens of
megabytes. Kept-alive connections are pooled by address; bodies go and come whole or in pieces; every wait has a time
limit. No redirects, cookies, proxies or content codings: both ends are ours. ``https`` is refused until TLS is there;
``_open`` is the one place where it will join.

Errors: ``Unreachable`` (no connection, cut short, too slow) and ``ProtocolError`` (an answer that is no HTTP).
``is_sent`` in the details tells whether the other side may have seen the request.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from gpulayer.errors import ProtocolError, TooLarge, Unreachable
from gpulayer.net import Address

__all__ = ["Body", "HttpClient", "Incoming", "Response"]

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # of an answer that is read whole
PIECE: Final = 256 * 1024
IDLE_LIMIT_S: Final = 4.0  # below the keep-alive time of usual servers (uvicorn: 5 s), so that reuse seldom fails


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body that comes in pieces. ``size``: their sum, known before. It can be sent once only."""

    pieces: AsyncIterator[bytes]
    size: int


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
    _connection: "_Connection"
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
    """Use as an async context, or ``aclose`` it. One event loop; requests may run side by side."""

    def __init__(self, *, connect_timeout_s: float = 5.0, idle_connections: int = 8) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle_connections = idle_connections
        self._idle: dict[Address, list[_Connection]] = {}
        self._is_closed = False

    async def request(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Body = b"",
        timeout_s: float = 30.0,
    ) -> Response:
        """One whole exchange within ``timeout_s``. Raises Unreachable, ProtocolError, TooLarge."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self.stream(
                    address, method, path, headers=headers, body=body, piece_timeout_s=timeout_s
                ) as incoming:
                    return Response(incoming.status, incoming.headers, await incoming.read())
        except TimeoutError:
            raise _unreachable(address, f"{method} {path}: no answer within {timeout_s:g} s", is_sent=True) from None

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
        """An exchange whose answer is read in pieces. Leaving early closes the connection."""
        size = len(body) if isinstance(body, bytes) else body.size
        head = _request_head(address, method, path, headers or {}, size)
        connection, incoming = await self._begin(address, f"{method} {path}", head, body, piece_timeout_s)
        try:
            yield incoming
        except (OSError, EOFError) as error:
            raise _unreachable(address, f"{method} {path}: {_reason(error)}", is_sent=True) from error
        finally:
            self._put_back(address, connection)

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

    async def _begin(
        self, address: Address, what: str, head: bytes, body: bytes | Body, piece_timeout_s: float
    ) -> tuple["_Connection", Incoming]:
        while True:
            connection = self._take_idle(address)
            is_reused = connection is not None
            if connection is None:
                connection = await self._open(address)
            try:
                async with asyncio.timeout(piece_timeout_s) as limit:
                    await connection.send(head, body, limit, piece_timeout_s)
                    status, answer = await connection.read_head()
                return connection, Incoming(status, answer, connection, piece_timeout_s)
            except (OSError, EOFError, TimeoutError) as error:
                connection.close()
                # The peer may close a kept connection at any time. Where it had not said a word yet, a new one is
                # tried at once; a body in pieces can't be sent twice.
                if is_reused and isinstance(body, bytes) and not isinstance(error, TimeoutError):
                    continue
                raise _unreachable(address, f"{what}: {_reason(error)}", is_sent=True) from error
            except BaseException:
                connection.close()
                raise

    async def _open(self, address: Address) -> "_Connection":
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                reader, writer = await asyncio.open_connection(address.host, address.port, limit=MAX_HEAD_BYTES)
        except (OSError, TimeoutError) as error:
            raise _unreachable(address, _reason(error), is_sent=False) from error
        return _Connection(reader, writer)

    def _take_idle(self, address: Address) -> "_Connection | None":
        idle = self._idle.get(address, [])
        now = asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            if connection.is_usable and now - connection.idle_since < IDLE_LIMIT_S:
                return connection
            connection.close()
        return None

    def _put_back(self, address: Address, connection: "_Connection") -> None:
        idle = self._idle.setdefault(address, [])
        if connection.is_usable and len(idle) < self._idle_connections and not self._is_closed:
            connection.idle_since = asyncio.get_running_loop().time()
            idle.append(connection)
        else:
            connection.close()


class _Connection:
    """One connection and the state of the answer on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since = 0.0
        self._is_keepable = False
        self._is_body_read = True
        self._left: int | None = 0  # bytes of the body still to come; None: until the end, or chunked
        self._is_chunked = False

    @property
    def is_usable(self) -> bool:
        return (
            self._is_keepable
            and self._is_body_read
            and not self._reader.at_eof()
            and self._reader.exception() is None
            and not self._writer.is_closing()
        )

    async def send(self, head: bytes, body: bytes | Body, limit: asyncio.Timeout, piece_timeout_s: float) -> None:
        try:
            if isinstance(body, bytes):
                self._writer.write(head + body if len(body) <= PIECE else head)
                if len(body) > PIECE:
                    self._writer.write(body)
                await self._writer.drain()
                return
            self._writer.write(head)
            sent = 0
            async for piece in body.pieces:
                self._writer.write(piece)
                await self._writer.drain()
                sent += len(piece)
                limit.reschedule(asyncio.get_running_loop().time() + piece_timeout_s)
            if sent != body.size:
                raise ConnectionAbortedError(f"the body has {sent} bytes, not the {body.size} announced")
        except (BrokenPipeError, ConnectionResetError):
            # The peer may have refused a large body before reading it all; its answer says why, where it still comes.
            self._is_keepable = False

    async def read_head(self) -> tuple[int, Mapping[str, str]]:
        while True:
            try:
                raw = await self._reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise ProtocolError(f"an answer's head is larger than {MAX_HEAD_BYTES} bytes") from None
            status, headers, version = _parse_head(raw)
            if status >= 200:
                break
        self._is_keepable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        self._is_body_read = False
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if status in (204, 304):
            self._left, self._is_chunked, self._is_body_read = 0, False, True
        elif self._is_chunked:
            self._left = None
        elif "content-length" in headers:
            self._left = _number(headers["content-length"], 10, "Content-Length")
            self._is_body_read = self._left == 0
        else:
            self._left, self._is_keepable = None, False
        return status, headers

    async def body(self, piece_timeout_s: float) -> AsyncIterator[bytes]:
        while not self._is_body_read:
            async with asyncio.timeout(piece_timeout_s):
                piece = await self._piece()
            if piece:
                yield piece

    async def _piece(self) -> bytes:
        if self._is_chunked:
            return await self._chunk_piece()
        if self._left is None:
            piece = await self._reader.read(PIECE)
            self._is_body_read = not piece
            return piece
        piece = await self._reader.read(min(PIECE, self._left))
        if not piece:
            raise EOFError(f"the answer was cut short, {self._left} bytes are missing")
        self._left -= len(piece)
        self._is_body_read = self._left == 0
        return piece

    async def _chunk_piece(self) -> bytes:
        if self._left is None:
            line = await self._line()
            self._left = _number(line.split(b";")[0].strip().decode("latin-1"), 16, "chunk size")
            if self._left == 0:
                while await self._line():
                    pass  # trailers
                self._is_body_read = True
                return b""
        piece = await self._reader.read(min(PIECE, self._left))
        if not piece:
            raise EOFError("the answer was cut short inside a chunk")
        self._left -= len(piece)
        if self._left == 0:
            if await self._line():
                raise ProtocolError("a chunk is longer than it says")
            self._left = None
        return piece

    async def _line(self) -> bytes:
        try:
            return (await self._reader.readuntil(b"\r\n"))[:-2]
        except asyncio.LimitOverrunError:
            raise ProtocolError("a chunk's head is too long") from None

    def close(self) -> None:
        self._is_keepable = False
        self._writer.close()

    async def wait_closed(self) -> None:
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # closed is closed


def _request_head(address: Address, method: str, path: str, headers: Mapping[str, str], size: int) -> bytes:
    lines = [f"{method} {address.prefix}{path} HTTP/1.1", f"Host: {address.netloc}"]
    if size or method != "GET":
        lines.append(f"Content-Length: {size}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header can't hold a line break")
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def _parse_head(raw: bytes) -> tuple[int, dict[str, str], str]:
    first, *rest = raw[:-4].decode("latin-1").split("\r\n")
    version, _, tail = first.partition(" ")
    status = tail[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not status.isdigit():
        raise ProtocolError(f"not an HTTP answer: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon:
            raise ProtocolError(f"not an HTTP header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return int(status), headers, version


def _number(text: str, base: int, what: str) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise ProtocolError(f"not a {what}: {text[:40]!r}")
    return number


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection was closed before an answer came"
    return str(error) or ("it takes too long" if isinstance(error, TimeoutError) else type(error).__name__)


def _unreachable(address: Address, reason: str, *, is_sent: bool) -> Unreachable:
    return Unreachable(
        f"the control plane at {address} can't be reached: {reason}",
        hint="check that it runs; gpulayer status",
        details={"is_sent": is_sent},
    )
