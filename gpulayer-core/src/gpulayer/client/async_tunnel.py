"""httpx's transport with this project's connections: probes against silence, and a proxy's tunnel by ``net.tunnel``.

httpx has tunnels of its own. They write an IPv6 address without its brackets and wait for a proxy's answer as long as
for a job's; and both shells shall say the same of the same proxy.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore
import httpx

from gpulayer.net import Address, connect_request, head_is_whole, socket_options, tunnel_refusal

__all__ = ["NoTunnel", "PlaneTransport"]

_PIECE: Final = 4096
# Kept for less than usual servers keep them (uvicorn: 5 s), so that reuse seldom fails.
_LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=4.0)


class NoTunnel(httpcore.ConnectError):
    """Its text is for people."""


class PlaneTransport(httpx.AsyncHTTPTransport):
    """Looks at no environment variable. proxy: every connection goes through it."""

    def __init__(self, context: ssl.SSLContext, *, proxy: Address | None) -> None:
        super().__init__(verify=context, trust_env=False, limits=_LIMITS, socket_options=socket_options())
        if proxy is not None:
            # The pool that the class above made has no connection yet, so nothing of it has to be closed.
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=context,
                max_connections=_LIMITS.max_connections,
                max_keepalive_connections=_LIMITS.max_keepalive_connections,
                keepalive_expiry=_LIMITS.keepalive_expiry,
                socket_options=socket_options(),
                network_backend=_Tunnels(proxy),
            )


class _Tunnels(httpcore.AsyncNetworkBackend):
    """Opens a connection by asking the proxy for it; TLS comes on top of what this gives."""

    def __init__(self, proxy: Address) -> None:
        self._proxy = proxy
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own form
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,  # Any: httpcore's forms of an option
    ) -> httpcore.AsyncNetworkStream:
        proxy, address = self._proxy, Address(host, port, is_secure=True)
        try:
            stream = await self._backend.connect_tcp(proxy.host, proxy.port, timeout, local_address, socket_options)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            why = "no answer in time" if isinstance(error, httpcore.ConnectTimeout) else "no connection"
            raise NoTunnel(f"the proxy {proxy}: {why}") from None
        try:
            async with asyncio.timeout(timeout):  # in all, however its pieces come
                await stream.write(connect_request(address), timeout)
                received = b""
                while not head_is_whole(received):
                    piece = await stream.read(_PIECE, timeout)
                    if not piece:
                        break
                    received += piece
        except (TimeoutError, httpcore.NetworkError, httpcore.TimeoutException):
            await stream.aclose()
            raise NoTunnel(f"the proxy {proxy} opened no tunnel in time") from None
        except BaseException:
            await stream.aclose()
            raise
        refused = tunnel_refusal(received, proxy=proxy, address=address)
        if refused is not None:
            await stream.aclose()
            raise NoTunnel(refused)
        return stream

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)
