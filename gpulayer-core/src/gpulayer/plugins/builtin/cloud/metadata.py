"""Asks a metadata service, whatever answers there, within one deadline for all that is asked of it.

Over plain sockets: variables that name a proxy are not looked at, no redirect is followed, no name is looked up, and a
server that sends a byte now and then keeps nobody longer than one that is silent.
"""

import io
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Final, cast

from gpulayer.clock import Clock

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["Metadata"]

_MOST: Final = 64 * 1024
_MOST_OF_A_REASON: Final = 200  # it may hold what the server sent
_NOT_THERE: Final = 404


class Metadata:
    """Of one look. unanswered: (path, why) of what may be answered another time."""

    def __init__(self, address: tuple[str, int], *, deadline_s: float, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._until_ms = clock.monotonic_ms() + int(deadline_s * 1000)
        self.unanswered: list[tuple[str, str]] = []

    def text(
        self, path: str, *, headers: Mapping[str, str], method: str = "GET", echo: tuple[str, str] | None = None
    ) -> str:
        """As of ``vendors.AskedFor``."""
        try:
            return self._asked(path, headers, method, echo)
        except (OSError, HTTPException, ValueError) as error:
            self.unanswered.append((path.partition("?")[0], (str(error) or type(error).__name__)[:_MOST_OF_A_REASON]))
            return ""

    def _asked(self, path: str, headers: Mapping[str, str], method: str, echo: tuple[str, str] | None) -> str:
        host, _ = self._address
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "User-Agent: gpulayer", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Content-Length: 0"] if method == "PUT" else []
        with socket.create_connection(self._address, timeout=self._left_s()) as connection:
            connection.settimeout(self._left_s())
            connection.sendall("\r\n".join((*lines, "", "")).encode("ascii"))
            answer = _Answer(partial(self._receive, connection))
            with closing(HTTPResponse(cast("socket.socket", answer), method=method)) as response:
                response.begin()
                if response.status == _NOT_THERE:
                    return ""
                if response.status != 200:
                    raise ValueError(f"its answer is a {response.status}")
                if echo is not None and response.headers.get(echo[0]) != echo[1]:
                    raise ValueError(f"its answer has no {echo[0]}: {echo[1]}")
                body = response.read(_MOST + 1)
                is_whole = response.length in (None, 0) or len(body) > _MOST
                if not is_whole or response.headers.get("Content-Length", "").startswith("-"):
                    raise ValueError("its answer is cut short")
        if len(body) > _MOST:
            raise ValueError(f"its answer has more than {_MOST} bytes")
        return body.decode("utf-8").strip()

    def _receive(self, connection: socket.socket, buffer: "WriteableBuffer") -> int:
        connection.settimeout(self._left_s())
        return connection.recv_into(buffer)

    def _left_s(self) -> float:
        left_ms = self._until_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError("no answer in time")
        return left_ms / 1000


class _Answer(io.RawIOBase):
    """What ``HTTPResponse`` takes for a socket: it asks for the file alone."""

    def __init__(self, receive: Callable[["WriteableBuffer"], int]) -> None:
        super().__init__()
        self._receive = receive

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        return self._receive(buffer)
