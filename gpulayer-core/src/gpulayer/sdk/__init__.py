"""The Python face: ``import gpulayer as gl``.

Functions here use one default client, made at the first call from ``configure``'s values or the environment.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from gpulayer.sdk.client import Client
from gpulayer.sdk.job import Job
from gpulayer.sdk.options import BatchItem, JobOptions, RequestOptions

if TYPE_CHECKING:
    import os

    from gpulayer.sdk.async_client import AsyncClient as AsyncClient
    from gpulayer.sdk.async_client import AsyncJob as AsyncJob
    from gpulayer.wire.jobs import ExplainReply

__all__ = ["AsyncClient", "AsyncJob", "Client", "Job", "configure", "explain", "submit", "submit_batch"]


class _Default:
    """The one module-level state of the face: which client its functions use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None

    def get(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client()
            return self._client

    def replace(self, client: Client) -> None:
        with self._lock:
            before, self._client = self._client, client
        if before is not None:
            before.close()


_default = _Default()


def configure(*, url: str = "", token: str = "", fingerprint: str = "", target: str = "") -> None:
    """Choose the control plane for the functions here, as ``Client`` does; what is left out is looked up as usual."""
    _default.replace(Client(url=url, token=token, fingerprint=fingerprint, target=target))


def submit(command: "Sequence[str | os.PathLike[str]]", **options: Unpack[JobOptions]) -> Job:
    """``Client.submit`` on the default client."""
    return _default.get().submit(command, **options)


def submit_batch(jobs: "Iterable[BatchItem | Sequence[str]]") -> list[Job]:
    """``Client.submit_batch`` on the default client."""
    return _default.get().submit_batch(jobs)


def explain(**options: Unpack[RequestOptions]) -> "ExplainReply":
    """``Client.explain`` on the default client."""
    return _default.get().explain(**options)


def __getattr__(name: str) -> Any:  # Any: hands on whatever the module defines
    if name in ("AsyncClient", "AsyncJob"):
        from gpulayer.sdk import async_client  # noqa: PLC0415 - httpx costs 0.3 s

        return getattr(async_client, name)
    raise AttributeError(f"module 'gpulayer.sdk' has no attribute {name!r}")
