"""The sync shell: sends ``Call``s over HTTP, sends them again where that is safe, and turns failures into errors.

It stands on ``http.client``, not httpx: measured side by side, a call costs 0.2 ms instead of 0.8, and a command
that makes one request is done in 0.16 s instead of 0.40, most of it httpx's import. The async shell is httpx.
Safe to use from several threads: each request takes a connection of its own out of a small pool.
"""

import http.client
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from gpulayer.client.answers import (
    CHUNK,
    Failed,
    check_length,
    parse_json,
    plain_reason,
    raise_for_answer,
    repeatable,
    request_headers,
    too_large,
    unreachable,
    whole_number,
)
from gpulayer.client.calls import Call, FileBody
from gpulayer.client.connection import Connection, open_connection
from gpulayer.client.limits import LIMITS, Limits
from gpulayer.client.location import Location
from gpulayer.client.reach import Awaited, Reach, Route, Tries, Way
from gpulayer.errors import GpulayerError, Overloaded
from gpulayer.faults import here
from gpulayer.net import Pin, tls_context
from gpulayer.protocol.retry import Failure, FailureKind, Repeatable

__all__ = ["ByteStream", "StreamBroken", "StreamQuiet", "Transport"]

_Reply = TypeVar("_Reply")
_POOLED: Final = 4
_IDLE_LIMIT_S: Final = 4.0  # below the keep-alive time of usual servers (uvicorn: 5 s), so that reuse seldom fails
_SAY_AFTER_S: Final = 1.0
_SLOW_AFTER_S: Final = 3.0


class StreamBroken(Exception):
    """A body ended before its end. What was read is good: go on from its length."""


class StreamQuiet(StreamBroken):
    """A followed body had nothing for so long that perhaps nobody is there any more: asking anew tells."""


@dataclass(frozen=True, slots=True)
class ByteStream:
    """A body as it comes. ``chunks`` raises StreamBroken where the connection is lost before the end.

    start: the offset of the first byte in its log; attempt: whose log it is (0: of none, for there
    is none yet; None: the answer did not say).
    is_timed: false where a time was asked for and the control plane does not know when the bytes came.
    size: of all of it; None where the answer did not say.
    """

    chunks: Iterator[bytes]
    start: int = 0
    attempt: int | None = None
    is_timed: bool = True
    size: int | None = None


class Transport:
    """Blocking requests to one control plane, at whichever of its addresses answers.

    retry_for_s: how long a call goes on trying when nothing answers or the answer is "not now"; then Unreachable,
    or the error of the last answer, is raised. Any other error answer is raised at once, and so is UntrustedServer:
    nothing was sent then, and nothing will be.
    relocate: asked for the location when nothing answers or the token is refused, because the control plane may have
    moved, or one is about to start in its place; it may raise what the call then raises.
    limits: of each answer.
    waiting: told after each failed try that is repeated, once a call has gone without an answer for a second.
    busy: told for how many seconds a call stands back, because the control plane has too much to do just now.
    slow: told, once a try, when an answer is 3 s late: who was asked, and for how many seconds more it is waited for.
    """

    def __init__(
        self,
        location: Location,
        *,
        client: str = "gpulayer",
        retry_for_s: float = 5.0,
        relocate: Callable[[], Location | Awaited | None] = lambda: None,
        limits: Limits = LIMITS,
        random01: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reach = Reach(location)
        self._client = client
        self._retry_for_s = retry_for_s
        self._relocate = relocate
        self._limits = limits
        self._random01, self._monotonic, self._sleep = random01, monotonic, sleep
        self.waiting: Callable[[GpulayerError], None] = lambda _: None
        self.busy: Callable[[float], None] = lambda _: None
        self.slow: Callable[[str, float], None] = lambda _, __: None
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._contexts: dict[tuple[Pin, ...], ssl.SSLContext] = {}

    @property
    def url(self) -> str:
        """Of the address that is used now."""
        return self._reach.url

    def send(self, call: Call[_Reply], *, retry_for_s: float | None = None, within_s: float | None = None) -> _Reply:
        """Send and return the reply. Blocks. Raises the answer's error, Unreachable or ProtocolError.

        within_s: of all tries together, whatever is said or found meanwhile. What looks for another address, which may
        start this machine's own control plane, is not cut short.
        """

        def once(way: Way, fresh: bool) -> _Reply:
            connection, response = self._exchange(call, way, fresh=fresh)
            body = self._read_all(call, connection, response)
            if response.status not in call.endpoint.statuses:
                self._refuse(call, response, body)
            return cast("_Reply", parse_json(call, body))

        return self._retrying(call, once, retry_for_s, within_s)

    @contextmanager
    def stream(self, call: Call[bytes], *, retry_for_s: float | None = None) -> Iterator[ByteStream]:
        """Open a body for reading. Only the opening is tried again: where to go on is the reader's to know."""

        def once(way: Way, fresh: bool) -> tuple[Connection, http.client.HTTPResponse]:
            connection, response = self._exchange(call, way, fresh=fresh)
            if response.status not in call.endpoint.statuses:
                self._refuse(call, response, self._read_all(call, connection, response))
            return connection, response

        connection, response = self._retrying(call, once, retry_for_s)
        try:
            yield ByteStream(
                size=_header_number(response, "Content-Length"),
                chunks=_chunks(response, is_followed=call.hold_s is None),
                start=_header_number(response, "X-Gpulayer-Log-Start") or 0,
                attempt=_header_number(response, "X-Gpulayer-Attempt"),
                is_timed=response.getheader("X-Gpulayer-Log-Timed", "") != "0",
            )
        finally:
            self._release(connection, response)

    def close(self) -> None:
        """Closes what is idle; a connection in use is its user's. May be repeated."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _retrying(
        self,
        call: Call[Any],
        once: Callable[[Way, bool], _Reply],
        retry_for_s: float | None,
        within_s: float | None = None,
    ) -> _Reply:
        # Any: retries do not look at the reply.
        manner = repeatable(call)
        patience_s = self._retry_for_s if retry_for_s is None else retry_for_s
        tries = Tries(self._reach, manner, started=self._monotonic(), retry_for_s=patience_s, within_s=within_s)
        is_first = True
        while True:
            began = self._monotonic()
            way = tries.way(now=began)
            try:
                # The other side may have closed a pooled connection: no risk taken where a repeat is unsafe.
                return once(way, not is_first or manner is Repeatable.ONCE)
            except Failed as failed:
                now = self._monotonic()
                then = tries.after(failed, way, began=began, now=now, random01=self._random01())
                if isinstance(failed.error, Overloaded):
                    self.busy(then.wait_s)
                elif then.wait_s and tries.lost_s(now=now) >= _SAY_AFTER_S:
                    self.waiting(failed.error)
            is_first = False
            if then.is_lost:
                tries.looked_up(then, self._relocate(), now=self._monotonic())
            self._sleep(then.wait_s)

    def _exchange(self, call: Call[Any], way: Way, *, fresh: bool) -> tuple[Connection, http.client.HTTPResponse]:
        connection, began = None if fresh else self._take(way.route), self._monotonic()
        if connection is None:
            connection = open_connection(way, lambda: self._context(way), self._limits)
        answer_s, left_s = self._limits.answer_s, way.left_s(self._monotonic() - began)
        connection.pace.within(left_s)
        try:
            connection.sock.settimeout(answer_s if left_s is None else min(answer_s, left_s))
            self._send(connection, call, way)
            here("client.after_send")
            connection.pace.head(call.hold_s or 0.0)
            self._await_answer(call, connection)
            response = connection.getresponse()
            if call.hold_s is None:
                connection.pace.followed()
            else:
                connection.pace.body()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _no_answer(way.route, error) from None
        except BaseException:
            connection.close()
            raise
        try:
            check_length(call, response.getheader("Content-Length", ""))
        except GpulayerError:
            self._drop(connection, response)
            raise
        return connection, response

    def _await_answer(self, call: Call[Any], connection: Connection) -> None:
        """Returns when an answer begins, or once it has been said that none does."""
        if call.hold_s is None:
            return  # may be held back until there is a log
        after_s = min(call.hold_s + _SLOW_AFTER_S, connection.pace.left_s())
        if not connection.is_readable(after_s):
            connection.pace.came(0, waited_s=after_s)
            self.slow(str(connection.route.address), connection.pace.left_s())

    def _send(self, connection: Connection, call: Call[Any], way: Way) -> None:
        headers = request_headers(call, address=way.route.address, token=way.token, client=self._client)
        method, target = call.endpoint.method, way.route.address.prefix + call.target
        if isinstance(call.body, FileBody):
            headers["Content-Length"] = str(call.body.size)
            with open(call.body.path, "rb") as file:
                connection.request(method, target, body=file, headers=headers)
        else:
            body = call.body if call.body is not None or method == "GET" else b""
            connection.request(method, target, body=body, headers=headers)

    def _read_all(self, call: Call[Any], connection: Connection, response: http.client.HTTPResponse) -> bytes:
        limit = self._limits.whole_bytes
        body = bytearray()
        connection.pace.body()
        try:
            if (response.length or 0) > limit:
                raise too_large(call, limit)
            while piece := response.read(CHUNK):
                body += piece
                if len(body) > limit:
                    raise too_large(call, limit)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._drop(connection, response)
            raise _no_answer(connection.route, error) from None
        except BaseException:
            self._drop(connection, response)
            raise
        self._release(connection, response)
        return bytes(body)

    def _refuse(self, call: Call[Any], response: http.client.HTTPResponse, body: bytes) -> None:
        headers = {name.lower(): value for name, value in response.getheaders()}
        raise_for_answer(call, response.status, body, headers)

    def _context(self, way: Way) -> ssl.SSLContext:
        """Made at the first connection that needs it: what CAs there are takes a while to load."""
        pins = way.route.pins
        with self._lock:
            if pins not in self._contexts:
                self._contexts[pins] = tls_context(pins)
            return self._contexts[pins]

    def _take(self, route: Route) -> Connection | None:
        """One that is open along this very route, and not for so long that the other side has closed it."""
        oldest = self._monotonic() - _IDLE_LIMIT_S
        found: Connection | None = None
        with self._lock:
            stale = [one for one in self._idle if one.route != route or one.idle_since < oldest]
            self._idle = [one for one in self._idle if one not in stale]
            if self._idle:
                found = self._idle.pop()
        for connection in stale:
            connection.close()
        return found

    def _release(self, connection: Connection, response: http.client.HTTPResponse) -> None:
        finished = response.isclosed() and connection.sock is not None
        if finished:
            connection.idle_since = self._monotonic()
            with self._lock:
                if len(self._idle) < _POOLED:
                    self._idle.append(connection)
                    return
        self._drop(connection, response)

    @staticmethod
    def _drop(connection: Connection, response: http.client.HTTPResponse) -> None:
        response.close()  # which holds the socket where its answer ends with the connection
        connection.close()


def _chunks(response: http.client.HTTPResponse, *, is_followed: bool) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read1(CHUNK)
        except (OSError, http.client.HTTPException, ValueError) as error:
            kind = StreamQuiet if is_followed and isinstance(error, TimeoutError) else StreamBroken
            raise kind(plain_reason(error)) from None
        if not chunk:
            if response.length:
                raise StreamBroken(f"{response.length} bytes are missing")
            return
        yield chunk


def _header_number(response: http.client.HTTPResponse, name: str) -> int | None:
    return whole_number(response.getheader(name, ""))


def _no_answer(route: Route, error: BaseException) -> Failed:
    is_late = isinstance(error, TimeoutError) and not error.errno  # with a number it is the system that gave it up
    why = unreachable(str(route.address), plain_reason(error))
    return Failed(Failure(FailureKind.NO_ANSWER), why, is_late=is_late)
