"""The async shell: the same ``Call``s, errors and retries as ``transport``, over httpx."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import httpx

from gpulayer.client.answers import (
    CHUNK,
    NO_HTTP,
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
from gpulayer.client.async_tunnel import NoTunnel, PlaneTransport
from gpulayer.client.calls import Call, FileBody
from gpulayer.client.limits import LIMITS, Limits, Pace
from gpulayer.client.location import Location
from gpulayer.client.reach import Awaited, Reach, Route, Tries, Way
from gpulayer.client.transport import StreamBroken, StreamQuiet
from gpulayer.errors import GpulayerError
from gpulayer.net import Address, Pin, tls_context, trust_failure
from gpulayer.protocol.retry import Failure, FailureKind

__all__ = ["AsyncByteStream", "AsyncTransport"]

_Reply = TypeVar("_Reply")
# Of both these kinds the other side has seen nothing.
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class AsyncByteStream:
    """The twin of ``ByteStream``."""

    chunks: AsyncIterator[bytes]
    start: int = 0
    attempt: int | None = None
    is_timed: bool = True


class AsyncTransport:
    """Requests to one control plane from an event loop; see ``Transport`` for what the parameters mean."""

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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reach = Reach(location)
        self._client = client
        self._retry_for_s = retry_for_s
        self._relocate = relocate
        self._limits = limits
        self._random01, self._monotonic, self._sleep = random01, monotonic, sleep
        # A pool for each trust, so that a connection is used again only by those who would have made the same.
        self._pools: dict[tuple[tuple[Pin, ...], Address | None, bool], httpx.AsyncClient] = {}

    @property
    def url(self) -> str:
        """Of the address that is used now."""
        return self._reach.url

    async def send(
        self, call: Call[_Reply], *, retry_for_s: float | None = None, within_s: float | None = None
    ) -> _Reply:
        """Repeated within ``retry_for_s`` as the call allows it. Raises the control plane's error, or Unreachable.
        within_s: see ``Transport.send``."""

        async def once(way: Way) -> _Reply:
            response = await self._exchange(call, way)
            body = await self._read_all(call, response, way.route)
            if response.status_code not in call.endpoint.statuses:
                raise_for_answer(call, response.status_code, body, response.headers)
            return cast("_Reply", parse_json(call, body))

        return await self._retrying(call, once, retry_for_s, within_s)

    @asynccontextmanager
    async def stream(self, call: Call[bytes], *, retry_for_s: float | None = None) -> AsyncIterator[AsyncByteStream]:
        """As ``send`` until the answer begins; after that nothing is repeated, and a break is StreamBroken."""

        async def once(way: Way) -> httpx.Response:
            response = await self._exchange(call, way)
            if response.status_code not in call.endpoint.statuses:
                body = await self._read_all(call, response, way.route)
                raise_for_answer(call, response.status_code, body, response.headers)
            return response

        response = await self._retrying(call, once, retry_for_s)
        try:
            yield AsyncByteStream(
                chunks=_chunks(response, None if call.hold_s is None else Pace(self._limits)),
                start=_header_number(response, "X-Gpulayer-Log-Start") or 0,
                attempt=_header_number(response, "X-Gpulayer-Attempt"),
                is_timed=response.headers.get("X-Gpulayer-Log-Timed", "") != "0",
            )
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Give connections back. May be repeated."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _retrying(
        self,
        call: Call[Any],
        once: Callable[[Way], Awaitable[_Reply]],
        retry_for_s: float | None,
        within_s: float | None = None,
    ) -> _Reply:  # Any: retries do not look at the reply
        patience_s = self._retry_for_s if retry_for_s is None else retry_for_s
        tries = Tries(
            self._reach, repeatable(call), started=self._monotonic(), retry_for_s=patience_s, within_s=within_s
        )
        while True:
            began = self._monotonic()
            way = tries.way(now=began)
            try:
                return await _limited(once, way)
            except Failed as failed:
                then = tries.after(failed, way, began=began, now=self._monotonic(), random01=self._random01())
            if then.is_lost:
                tries.looked_up(then, await asyncio.to_thread(self._relocate), now=self._monotonic())
            await self._sleep(then.wait_s)

    async def _exchange(self, call: Call[Any], way: Way) -> httpx.Response:
        headers = request_headers(call, address=way.route.address, token=way.token, client=self._client)
        content: bytes | AsyncIterator[bytes] | None
        if isinstance(call.body, FileBody):
            headers["Content-Length"] = str(call.body.size)
            content = _file_chunks(call.body.path)
        else:
            content = call.body
        head_s = self._limits.answer_s + (call.hold_s or 0.0)
        piece_s = self._limits.quiet_s if call.hold_s is None else head_s
        pool = await self._pool(way.route)
        address = way.route.address
        loop = asyncio.get_running_loop()

        async def begin(step: str, _: object) -> None:
            if step.endswith("receive_response_headers.started"):  # the body of the request has been sent
                limit.reschedule(loop.time() + head_s)

        request = pool.build_request(
            call.endpoint.method,
            str(address) + call.target,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(piece_s, connect=way.connect_s),
            extensions={"trace": begin} | ({"sni_hostname": address.name} if address.name != address.host else {}),
        )
        try:
            # Each wait of httpx is limited, but not their number: a head could come by a byte a minute.
            async with asyncio.timeout(None) as limit:
                response = await pool.send(request, stream=True)
        except TimeoutError as error:
            raise _late(way.route, error) from None
        except _NOT_SENT as error:
            untrusted = trust_failure(error, way.route.address)
            if untrusted is not None:
                raise untrusted from None
            raise Failed(Failure(FailureKind.NOT_SENT), _unreachable(way.route, error)) from None
        except httpx.TransportError as error:
            raise _no_answer(way.route, error) from None
        try:
            check_length(call, response.headers.get("Content-Length", ""))
        except BaseException:
            await response.aclose()
            raise
        return response

    async def _read_all(self, call: Call[Any], response: httpx.Response, route: Route) -> bytes:
        """The body, and the end of the answer."""
        body, limit = bytearray(), self._limits.whole_bytes
        try:
            if (whole_number(response.headers.get("Content-Length", "")) or 0) > limit:
                raise too_large(call, limit)
            async for piece in _moving(response, Pace(self._limits)):
                body += piece
                if len(body) > limit:
                    raise too_large(call, limit)
        except TimeoutError as error:
            raise _late(route, error) from None
        except httpx.TransportError as error:
            raise _no_answer(route, error) from None
        finally:
            await response.aclose()
        return bytes(body)

    async def _pool(self, route: Route) -> httpx.AsyncClient:
        key = (route.pins, route.proxy, route.address.is_secure)
        if key not in self._pools:
            # For plain http no certificates are loaded: that takes 57 ms.
            context = (
                await asyncio.to_thread(tls_context, route.pins)
                if route.address.is_secure
                else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
            # Another task may have been quicker. A transport of its own keeps proxy variables out.
            if key not in self._pools:
                transport = PlaneTransport(context, proxy=route.proxy)
                self._pools[key] = httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)
        return self._pools[key]


async def _chunks(response: httpx.Response, pace: Pace | None) -> AsyncIterator[bytes]:
    """pace: None for a followed body, which may stand still."""
    try:
        async for chunk in response.aiter_raw() if pace is None else _moving(response, pace):
            yield chunk
    except httpx.ReadTimeout as error:
        raise (StreamQuiet if pace is None else StreamBroken)(_reason(error)) from None
    except TimeoutError as error:
        raise StreamBroken(plain_reason(error)) from None
    except httpx.TransportError as error:
        raise StreamBroken(_reason(error)) from None


async def _moving(response: httpx.Response, pace: Pace) -> AsyncIterator[bytes]:
    """Raises TimeoutError where the body does not move as it must."""
    pieces, clock = response.aiter_raw(), asyncio.get_running_loop().time
    while True:
        began = clock()
        try:
            async with asyncio.timeout(pace.left_s()):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        pace.came(len(piece), waited_s=clock() - began)
        yield piece


async def _limited(once: Callable[[Way], Awaitable[_Reply]], way: Way) -> _Reply:
    try:
        async with asyncio.timeout(way.within_s):
            return await once(way)
    except TimeoutError as error:
        raise _late(way.route, error) from None


def _late(route: Route, error: TimeoutError) -> Failed:
    return Failed(Failure(FailureKind.NO_ANSWER), unreachable(str(route.address), plain_reason(error)), is_late=True)


def _no_answer(route: Route, error: httpx.TransportError) -> Failed:
    is_late = isinstance(error, httpx.TimeoutException)
    return Failed(Failure(FailureKind.NO_ANSWER), _unreachable(route, error), is_late=is_late)


def _unreachable(route: Route, error: httpx.TransportError) -> GpulayerError:
    return unreachable(str(route.address), _reason(error))


def _reason(error: BaseException) -> str:
    """As the sync shell says it: httpx wraps what the socket said."""
    # The pool raises "from None", so what is behind an error stands in its context alone.
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, NoTunnel):
            return str(seen)
        if isinstance(seen, OSError):  # also what TLS says
            several = seen.__cause__  # a host of several addresses
            return plain_reason(several.exceptions[0] if isinstance(several, ExceptionGroup) else several or seen)
        seen = seen.__cause__ or seen.__context__
    match error:
        case httpx.TimeoutException():
            return "no answer in time"
        case httpx.RemoteProtocolError() if "disconnected" in str(error):
            return "the connection was closed before the answer"
        case httpx.RemoteProtocolError() if "complete" in str(error) or "closed" in str(error):
            return "the connection was closed before the end"
        case httpx.RemoteProtocolError():
            return NO_HTTP
        case _:
            return str(error) or type(error).__name__


async def _file_chunks(path: str) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(open, path, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
    finally:
        file.close()


def _header_number(response: httpx.Response, name: str) -> int | None:
    return whole_number(response.headers.get(name, ""))
