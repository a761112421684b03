"""One HTTP/1.1 connection: what may come in, how long it may take, and answers that leave in one piece.

uvicorn's h11 protocol does the work. Added here are limits that it lacks (the head's size, count and time, and an end
for a connection whose body is not wanted any more), refusal of heads that two readers could read differently, and
the one form of errors for what never becomes a request.

uvicorn writes an answer's head and its body one after the other, and with TCP_NODELAY each is a packet and a system
call of its own, which wakes whoever waits for it twice. Here what is written in one turn of the event loop is sent
at its end, together. A body that comes in large pieces is passed on as it is: joining would copy it.
"""

import asyncio
import json
import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from gpulayer.errors import BadRequest, GpulayerError, TooLarge, TooSlow
from gpulayer.net.liveness import GONE_AFTER_S, bytes_taken
from gpulayer.wire.errors import envelope

if TYPE_CHECKING:
    from gpulayer.server.gate import Entry

__all__ = ["KNOWN", "HeadLimits", "OneWriteProtocol"]

KNOWN: Final = "gpulayer.known"
"""Where in a request's ``state`` the app finds what to call once the caller has shown a good token: with the party
whose connection it is, and ``is_worker``."""

_JOINED: Final = 64 * 1024
_DROPPED: Final = 4 * 1024 * 1024
_PHRASES: Final = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}

_KINDS: Final = (
    ("header line", "a header line is malformed"),
    ("header name", "a header's name is malformed"),
    ("header value", "a header's value is malformed"),
    ("continuation line", "a header line is malformed"),
    ("request line", "its first line is malformed"),
    ("target characters", "its target is malformed"),
    ("method characters", "its method is malformed"),
    ("Missing mandatory Host", "it has no Host header"),
    ("multiple Host", "it has several Host headers"),
    ("beside Content-Length", "it has Transfer-Encoding beside Content-Length, or in HTTP/1.0"),
    ("Content-Length", "its Content-Length is malformed, or there are several"),
    ("Transfer-Encoding", "its Transfer-Encoding is not chunked"),
    ("chunk", "its body is not in chunks as it should be"),
    ("another version", "it is not HTTP/1.0 or HTTP/1.1"),
)
"""What of a refusal tells which it is, and what it is called."""

_log = logging.getLogger(__name__)
_log.setLevel(logging.ERROR)  # uvicorn warns of what strangers send: a log that they can fill is none


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """bytes, headers: of a request line and its headers together. head_s: from the acceptance of a connection, or the
    first byte of a further request, to the end of the head. linger_s: how long what still comes, up to 4 MiB,
    is thrown away after an answer that did not wait for it: closing at once would reset the connection, and the sender
    would see that instead of the answer. still_s: how long an answer waits for a reader that takes nothing of it."""

    bytes: int = 64 * 1024
    headers: int = 100
    head_s: float = 10.0
    linger_s: float = 2.0
    still_s: float = GONE_AFTER_S


class OneWriteProtocol(H11Protocol):
    """See the module. ``deadline``: when its time is over, by the loop's clock; whoever looks calls ``run_out``."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # Any: uvicorn's
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        entry: "Entry | None" = None,
        limits: HeadLimits | None = None,
    ) -> None:
        state = app_state if entry is None else {**app_state, KNOWN: entry.recognise}
        super().__init__(config, server_state, state, _loop)
        self._limits = limits or HeadLimits()
        self.conn: _Connection = _Connection(self._limits)
        self.logger = _log
        self.deadline = math.inf
        self._entry = entry
        self._is_first = True
        self._is_leaving = False
        self._dropped = 0
        self._taken: tuple[int, float] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # narrower in uvicorn
        self._wire = transport
        super().connection_made(cast("asyncio.Transport", _Gathering(transport, self.loop)))
        self.deadline = self.loop.time() + self._limits.head_s
        if self._entry is not None:
            self._entry.protocol = self
            self._entry.drop = self.transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline = math.inf
        if self._entry is not None:
            self._entry.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_leaving or (self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY):
            self._dropped += len(data)  # of a body that was answered before it had come
            if self._dropped > _DROPPED:
                self.transport.abort()
                return
        if self._is_leaving:
            return
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self.deadline = self.loop.time() + self.timeout_keep_alive  # for whoever does not take what is left
        elif self.conn.their_state is h11.SEND_BODY:
            # Answered before all of it came, and nobody will read the rest.
            self.deadline = self.loop.time() + self._limits.linger_s
        else:
            self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """What h11 can't read. uvicorn calls this where the connection has no further use."""
        refusal = self.conn.refusal
        if refusal is not None and refusal.error_status_hint == 431:
            limit = f"{self._limits.bytes // 1024} KiB or {self._limits.headers} headers"
            self._refuse(431, TooLarge(f"the head of the request is over the limit of {limit}"))
        else:
            self._refuse(400, BadRequest(f"this is no HTTP request that can be read: {_kind(str(refusal or msg))}"))

    @property
    def is_idle(self) -> bool:
        """Whether nothing was asked that is not answered."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def is_stuck(self, now: float) -> bool:
        """Whether something waits for the reader and it has taken nothing for ``still_s``. Call it now and then: what
        counts is movement from one look to the next, so a reader that is slow is not stuck."""
        waiting = self._wire.get_write_buffer_size()
        if not waiting:
            self._taken = None
            return False
        taken = bytes_taken(self._wire.get_extra_info("socket"))
        mark = -waiting if taken is None else taken
        if self._taken is None or self._taken[0] != mark:
            self._taken = (mark, now)
        return now - self._taken[1] > self._limits.still_s

    def run_out(self) -> None:
        """The deadline has passed."""
        self.deadline = math.inf
        if self.transport.is_closing() or self._is_leaving or self.conn.their_state is not h11.IDLE:
            self.transport.abort()
        elif not self._has_begun():
            self.transport.close()
        else:
            limit = f"{self._limits.head_s:g} s"
            self._refuse(408, TooSlow(f"the head of the request took longer than {limit}", hint="send it again"))

    def _unsupported_upgrade_warning(self) -> None:
        """Silent: the request is answered as if nobody had asked for an upgrade."""

    def _set_deadline(self) -> None:
        if self._is_leaving:
            return
        if self.conn.their_state is not h11.IDLE:
            self._is_first = False
            if self.conn.our_state is not h11.DONE:
                self.deadline = math.inf  # the app minds the body's time
            return
        self._dropped = 0
        if self._is_first:
            return  # counted from the acceptance
        if self._has_begun():
            if self.deadline == math.inf:
                self.deadline = self.loop.time() + self._limits.head_s
        elif self.timeout_keep_alive_task is None:
            self.deadline = self.loop.time() + self.timeout_keep_alive
        else:
            self.deadline = math.inf

    def _has_begun(self) -> bool:
        return bool(self.conn.trailing_data[0])

    def _refuse(self, status: int, error: GpulayerError) -> None:
        """Answer in the one form if nothing was answered yet, and take no more."""
        self._is_leaving = True
        self.deadline = self.loop.time() + self._limits.linger_s
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the handler that waits for the rest of a body
            cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = json.dumps(envelope(error), separators=(",", ":")).encode("ascii")
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *self.server_state.default_headers,
        ]
        self.transport.write(
            self.conn.send(h11.Response(status_code=status, headers=headers, reason=_PHRASES[status]))
            + self.conn.send(h11.Data(data=body))
            + self.conn.send(h11.EndOfMessage())
        )
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _kind(reason: str) -> str:
    """What is wrong, in words of our own: h11 repeats what was sent, and that may be a token in the wrong place."""
    return next((kind for known, kind in _KINDS if known in reason), "its form is not that of HTTP/1.1")


class _Connection(h11.Connection):
    """h11's, which also refuses heads that are too large, or that two readers could read differently."""

    def __init__(self, limits: HeadLimits) -> None:
        super().__init__(h11.SERVER, limits.bytes)
        self._limits = limits
        self.refusal: h11.RemoteProtocolError | None = None

    def next_event(self) -> Any:  # Any: as h11 says
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check(event)
        except h11.RemoteProtocolError as error:
            self.refusal = error
            raise
        return event

    def _check(self, request: h11.Request) -> None:
        size = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
        if size > self._limits.bytes or len(request.headers) > self._limits.headers:
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        if request.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("HTTP of another version")
        names = [name for name, _ in request.headers]
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
            # A proxy in front may go by the other one, and take the rest for a request of its own.
            raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")


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

    def write_eof(self) -> None:
        self._flush()
        with suppress(OSError):  # the other side has gone
            self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        kept, self._kept, self._size = self._kept, [], 0
        if kept and not self._transport.is_closing():
            self._transport.write(b"".join(kept))

    def __getattr__(self, name: str) -> Any:  # Any: whatever the transport has
        return getattr(self._transport, name)
