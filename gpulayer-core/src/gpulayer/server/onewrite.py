"""HTTP answers that leave in one piece.

uvicorn writes an answer's head and its body one after the other, and with TCP_NODELAY each is a packet and a system
call of its own, which wakes whoever waits for it twice. Here what is written in one turn of the event loop is sent
at its end, together. A body that comes in large pieces is passed on as it is: joining would copy it.
"""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["OneWriteProtocol"]

_JOINED: Final = 64 * 1024


class OneWriteProtocol(H11Protocol):
    """uvicorn's protocol over a transport that gathers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # narrower in uvicorn
        super().connection_made(cast("asyncio.Transport", _Gathering(transport, self.loop)))


class _Gathering:
    """A transport that keeps small writes until the turn ends. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._kept: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if self._size + len(data) > _JOINED:
            self._flush()  # also of many small pieces: it is the transport that tells a sender to wait
        if len(data) > _JOINED:
            self._transport.write(data)
            return
        if not self._kept:
            self._loop.call_soon(self._flush)
        self._kept.append(data)
        self._size += len(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        kept, self._kept, self._size = self._kept, [], 0
        if kept and not self._transport.is_closing():
            self._transport.write(b"".join(kept))

    def __getattr__(self, name: str) -> Any:  # Any: whatever the transport has
        return getattr(self._transport, name)
