"""HTTP/1.1 on one open connection: a request goes out, its answer is read, and it knows whether another may follow.

Raises OSError and EOFError where the connection breaks, ProtocolError for what is no HTTP. Time limits are the
caller's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpulayer.errors import ProtocolError
from gpulayer.net import Address

__all__ = ["MAX_HEAD_BYTES", "Body", "Connection", "request_head"]

MAX_HEAD_BYTES: Final = 64 * 1024
PIECE: Final = 256 * 1024
_STEP: Final = 64 * 1024  # of a body held whole; each is a sign that it moves


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body that comes in pieces. ``size``: their sum, known before. It can be sent once only."""

    pieces: AsyncIterator[bytes]
    size: int


class Connection:
    """One connection and the state of the answer on it. suspended_ms: of this machine, when it was opened."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, suspended_ms: int = 0) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since = self.moved_at = 0.0
        self.suspended_ms = suspended_ms
        self._is_keepable = False
        self._is_body_read = True
        self._left: int | None = 0  # bytes of the body still to come; None: until the end, or chunked
        self._is_chunked = False

    @property
    def local_address(self) -> str:
        """This machine's own end, numeric; empty where it is not known any more."""
        name = self._writer.get_extra_info("sockname")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    @property
    def is_usable(self) -> bool:
        return (
            self._is_keepable
            and self._is_body_read
            and not self._reader.at_eof()
            and self._reader.exception() is None
            and not self._writer.is_closing()
        )

    async def send(self, head: bytes, body: bytes | Body, moved: Callable[[], None]) -> None:
        """``moved`` is called as the body gets on its way: then a slow line is told from a dead one."""
        try:
            if isinstance(body, bytes):
                self._writer.write(head + body if len(body) <= _STEP else head)
                for start in range(0, len(body) if len(body) > _STEP else 0, _STEP):
                    self._writer.write(body[start : start + _STEP])
                    await self._writer.drain()
                    moved()
                await self._writer.drain()
                return
            self._writer.write(head)
            sent = 0
            async for piece in body.pieces:
                self._writer.write(piece)
                await self._writer.drain()
                sent += len(piece)
                moved()
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
        """At once: nothing that matters is on its way any more, and a goodbye (TLS) would wait for a peer that may be
        gone. Whoever reads here meets the end."""
        self._is_keepable = False
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # closed is closed


def request_head(address: Address, method: str, path: str, headers: Mapping[str, str], body: bytes | Body) -> bytes:
    """Raises ValueError for a line break in a header."""
    size = len(body) if isinstance(body, bytes) else body.size
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
