"""One connection to the spawner: lines in, lines out, never blocking, never growing without bound."""

import os
import socket
from typing import Final

from gpulayer.spawner.messages import MAX_REQUEST_BYTES, BadMessage, Message, encode

__all__ = ["Connection", "ConnectionLost"]

_READ_BYTES: Final = 1 << 18
_BUSY_BYTES: Final = 1 << 18
_MOST_BYTES: Final = 32 << 20


class ConnectionLost(Exception):
    """The other side is gone, or reads nothing while replies pile up."""


class Connection:
    """Buffers of one non-blocking stream socket. role is empty until its ``Hello``."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self.stream = stream
        self.role = ""
        self.is_closing = False
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    @property
    def is_busy(self) -> bool:
        """The other side reads slowly: what can wait (output events) should."""
        return len(self._outgoing) > _BUSY_BYTES

    def receive(self) -> list[bytes]:
        """Complete lines that have come; raises ``ConnectionLost`` at the end, ``BadMessage`` on an endless line."""
        try:
            data = self.stream.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionLost(os.strerror(error.errno or 0)) from None
        if not data:
            raise ConnectionLost("closed by the other side")
        self._incoming += data
        if b"\n" not in data:
            if len(self._incoming) > MAX_REQUEST_BYTES:
                raise BadMessage(f"a request of more than {MAX_REQUEST_BYTES} bytes")
            return []
        *lines, rest = bytes(self._incoming).split(b"\n")
        self._incoming = bytearray(rest)
        return lines

    def queue(self, message: Message) -> None:
        """To be written by ``flush``: messages that go together wake the other side once."""
        self._outgoing += encode(message)

    def flush(self) -> None:
        """Send what the socket takes, without blocking. Raises ConnectionLost, also for a peer that does not read."""
        while self._outgoing:
            try:
                sent = self.stream.send(self._outgoing)
            except BlockingIOError:
                break
            except OSError as error:
                raise ConnectionLost(os.strerror(error.errno or 0)) from None
            del self._outgoing[:sent]
        if len(self._outgoing) > _MOST_BYTES:
            raise ConnectionLost("it does not read")

    def close(self) -> None:
        self.stream.close()
