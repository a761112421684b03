"""The async shell: the same ``Call``s, errors and retries as ``transport``, over httpx."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import httpx

from gpulayer.client.answers import (
    BACKOFF,
    CHUNK,
    Failed,
    parse_json,
    raise_for_answer,
    repeatable,
    request_headers,
    unreachable,
)
from gpulayer.client.calls import Call, FileBody
from gpulayer.client.location import Location
from gpulayer.client.transport import StreamBroken
from gpulayer.protocol.retry import Failure, FailureKind, next_try_ms

__all__ = ["AsyncByteStream", "AsyncTransport"]

_Reply = TypeVar("_Reply")


@dataclass(frozen=True, slots=True)
class AsyncByteStream:
    """The twin of ``ByteStream``."""

    chunks: AsyncIterator[bytes]
    start: int = 0
    attempt: int = 0
    is_timed: bool = True


class AsyncTransport:
    """Requests to one control plane from an event loop; see ``Transport`` for what the parameters mean."""

    def __init__(
        self,
        location: Location,
        *,
        client: str = "gpulayer",
        retry_for_s: float = 5.0,
        relocate: Callable[[], Location | None] = lambda: None,
        random01: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._location = location
        self._address = location.addresses[0]
        self._client = client
        self._retry_for_s = retry_for_s
        self._relocate = relocate
        self._random01, self._monotonic, self._sleep = random01, monotonic, sleep
        # verify is always given: loading the system's certificates for plain http would cost 57 ms.
        self._http = httpx.AsyncClient(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            timeout=httpx.Timeout(60.0, connect=10.0),
        )

    @property
    def url(self) -> str:
        return str(self._address)

    async def send(self, call: Call[_Reply], *, retry_for_s: float | None = None) -> _Reply:
        """Repeated within ``retry_for_s`` as the call allows it. Raises the control plane's error, or Unreachable."""

        async def once() -> _Reply:
            response = await self._exchange(call)
            try:
                body = await self._read_all(response)
            finally:
                await response.aclose()
            if response.status_code not in call.endpoint.statuses:
                raise_for_answer(call, response.status_code, body, response.headers)
            return cast("_Reply", parse_json(call, body))

        return await self._retrying(call, once, retry_for_s)

    @asynccontextmanager
    async def stream(self, call: Call[bytes], *, retry_for_s: float | None = None) -> AsyncIterator[AsyncByteStream]:
        """As ``send`` until the answer begins; after that nothing is repeated, and a break is StreamBroken."""

        async def once() -> httpx.Response:
            response = await self._exchange(call)
            if response.status_code not in call.endpoint.statuses:
                try:
                    body = await self._read_all(response)
                finally:
                    await response.aclose()
                raise_for_answer(call, response.status_code, body, response.headers)
            return response

        response = await self._retrying(call, once, retry_for_s)
        try:
            yield AsyncByteStream(
                chunks=_chunks(response),
                start=_header_number(response, "X-Gpulayer-Log-Start"),
                attempt=_header_number(response, "X-Gpulayer-Attempt"),
                is_timed=response.headers.get("X-Gpulayer-Log-Timed", "") != "0",
            )
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Give connections back. May be repeated."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _retrying(
        self, call: Call[Any], once: Callable[[], Awaitable[_Reply]], retry_for_s: float | None
    ) -> _Reply:  # Any: retries do not look at the reply
        started = self._monotonic()
        manner = repeatable(call)
        tries = 1
        while True:
            try:
                return await once()
            except Failed as failed:
                left_s = (self._retry_for_s if retry_for_s is None else retry_for_s) - (self._monotonic() - started)
                delay_ms = next_try_ms(
                    failed.failure,
                    repeatable=manner,
                    tries=tries,
                    random=self._random01(),
                    left_ms=max(0, int(left_s * 1000)),
                    backoff=BACKOFF,
                )
                if delay_ms is None:
                    raise failed.error from None
                is_lost = failed.failure.kind is not FailureKind.ANSWERED
            if is_lost:
                await self._move()
            await self._sleep(delay_ms / 1000)
            tries += 1

    async def _move(self) -> None:
        found = await asyncio.to_thread(self._relocate)
        if found is not None:
            self._location, self._address = found, found.addresses[0]

    async def _exchange(self, call: Call[Any]) -> httpx.Response:
        headers = request_headers(call, token=self._location.token, client=self._client)
        content: bytes | AsyncIterator[bytes] | None
        if isinstance(call.body, FileBody):
            headers["Content-Length"] = str(call.body.size)
            content = _file_chunks(call.body.path)
        else:
            content = call.body
        request = self._http.build_request(
            call.endpoint.method,
            str(self._address) + call.target,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(None if call.hold_s is None else 60.0 + call.hold_s, connect=10.0),
        )
        try:
            return await self._http.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Failed(
                Failure(FailureKind.NOT_SENT), unreachable(self.url, str(error) or "connection refused")
            ) from None
        except httpx.TransportError as error:
            raise Failed(
                Failure(FailureKind.NO_ANSWER), unreachable(self.url, str(error) or type(error).__name__)
            ) from None

    async def _read_all(self, response: httpx.Response) -> bytes:
        try:
            return await response.aread()
        except httpx.TransportError as error:
            raise Failed(
                Failure(FailureKind.NO_ANSWER), unreachable(self.url, str(error) or type(error).__name__)
            ) from None


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.TransportError as error:
        raise StreamBroken(str(error) or type(error).__name__) from None


async def _file_chunks(path: str) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(open, path, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
    finally:
        file.close()


def _header_number(response: httpx.Response, name: str) -> int:
    text = response.headers.get(name, "")
    return int(text) if text.isdigit() else 0
