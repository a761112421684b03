"""``gl.AsyncClient`` and ``AsyncJob``: the methods of ``Client`` and ``Job``, awaited.

Requests go over httpx. Scanning and sending a source, and bringing outputs home, are blocking work on files: they run
in a thread, over a sync shell to the same control plane.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from gpulayer.client import calls
from gpulayer.client.async_transport import AsyncTransport
from gpulayer.client.connect import Settings, open_async_transport, open_transport
from gpulayer.client.following import FINAL_STATES, follow_logs_async, read_logs_async
from gpulayer.client.transport import Transport
from gpulayer.sdk.client import local_job_env, plan_batch, ship_plan
from gpulayer.sdk.job import Asking, Job, log_cursor, raise_unless_succeeded, still_runs
from gpulayer.sdk.options import BatchItem, JobOptions, JobPlan, RequestOptions, plan_job, plan_request
from gpulayer.sdk.settings import resolve_settings

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from gpulayer.client.upload import Transfer
    from gpulayer.wire.jobs import (
        ElementRecord,
        EventRecord,
        ExplainReply,
        JobRecord,
        JobSubmission,
        OutputRecord,
        ProblemRecord,
        SourceFields,
        WhyReply,
    )
    from gpulayer.wire.plane import PlaneRecord
    from gpulayer.wire.plugins import PluginRecord
    from gpulayer.wire.workers import WorkerRecord

__all__ = ["AsyncClient", "AsyncJob"]


class AsyncClient:
    """See ``Client``. Belongs to the event loop it is first used in."""

    def __init__(
        self,
        *,
        url: str = "",
        token: str = "",
        fingerprint: str = "",
        target: str = "",
        settings: Settings | None = None,
    ) -> None:
        self._settings = settings or resolve_settings(url=url, token=token, fingerprint=fingerprint, target=target)
        self._opening = asyncio.Lock()
        self._opened: AsyncTransport | None = None

    @property
    def transport(self) -> Awaitable[AsyncTransport]:
        """The shell under this client; opening it may start a control plane."""
        return self._open()

    @property
    def settings(self) -> Settings:
        return self._settings

    async def submit(
        self,
        command: "Sequence[str | os.PathLike[str]]",
        *,
        progress: "Callable[[Transfer], None]" = lambda _: None,
        **options: Unpack[JobOptions],
    ) -> "AsyncJob":
        """See ``Client.submit``. ``progress`` is called in another thread."""
        plan = plan_job(
            command,
            options,
            base_env=local_job_env(self._settings),
            environment=self._settings.environment,
        )
        transport = await self.transport
        submission = (await self._ship([plan], progress))[0]
        return AsyncJob(transport, await transport.send(calls.submit_job(submission, key=plan.key)), self._settings)

    async def submit_batch(self, jobs: "Iterable[BatchItem | Sequence[str]]") -> "list[AsyncJob]":
        """As ``Client.submit_batch``: all accepted or none, in one round trip."""
        plans = plan_batch(jobs, base_env=local_job_env(self._settings), environment=self._settings.environment)
        if not plans:
            return []
        transport = await self.transport
        submissions = await self._ship(plans, lambda _: None)
        reply = await transport.send(calls.submit_batch(submissions, key=secrets.token_hex(16)))
        warnings = reply.get("warnings", ())
        return [AsyncJob(transport, job_id, self._settings, warnings=warnings) for job_id in reply["ids"]]

    async def explain(self, **options: Unpack[RequestOptions]) -> "ExplainReply":
        """Every worker's verdict for a request, and which would get it now."""
        return await (await self.transport).send(calls.explain(plan_request(options)))

    async def job(self, ref: str) -> "AsyncJob":
        """By id, a unique beginning of one, or a unique name. Raises NotFound, Conflict (several match)."""
        transport = await self.transport
        return AsyncJob(transport, await transport.send(calls.get_job(ref)), self._settings)

    async def jobs(self, *, state: str = "", name: str = "", mine: bool = False, limit: int = 100) -> "list[JobRecord]":
        """The newest ``limit`` jobs, newest first; in several pages where need be. mine: only those of this token's
        owner."""
        transport = await self.transport
        found: list[JobRecord] = []
        cursor = ""
        while len(found) < limit:
            left = limit - len(found)
            call = calls.list_jobs(state=state, name=name, mine=mine, limit=left, cursor=cursor)
            page = await transport.send(call)
            found += page["jobs"]
            cursor = page["next"] or ""
            if not cursor or not page["jobs"]:
                break
        return found[:limit]

    async def workers(self) -> "list[WorkerRecord]":
        return (await (await self.transport).send(calls.list_workers()))["workers"]

    async def worker(self, ref: str) -> "WorkerRecord":
        """By id, a unique beginning of one, or name. Raises NotFound."""
        return await (await self.transport).send(calls.get_worker(ref))

    async def drain_worker(self, ref: str) -> "WorkerRecord":
        """It finishes what it runs and gets nothing new."""
        return await (await self.transport).send(calls.drain_worker(ref))

    async def resume_worker(self, ref: str) -> "WorkerRecord":
        """It may take work again; nothing happens where it does not drain."""
        return await (await self.transport).send(calls.resume_worker(ref))

    async def remove_worker(self, ref: str, *, force: bool = False) -> "WorkerRecord":
        """Forget a worker. Raises Conflict while it is there and works, unless forced."""
        return await (await self.transport).send(calls.remove_worker(ref, force=force))

    async def plugins(self) -> "list[PluginRecord]":
        """As ``Client.plugins``."""
        return (await (await self.transport).send(calls.list_plugins()))["plugins"]

    async def plane(self) -> "PlaneRecord":
        return await (await self.transport).send(calls.get_plane())

    async def close(self) -> None:
        """Give connections back. The control plane and the jobs go on. May be repeated."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> AsyncTransport:
        async with self._opening:
            if self._opened is None:
                self._opened = await asyncio.to_thread(open_async_transport, self._settings)
            return self._opened

    async def _ship(self, plans: Sequence[JobPlan], progress: "Callable[[Transfer], None]") -> "list[JobSubmission]":
        if all(plan.source is None for plan in plans):
            return [plan.submission for plan in plans]

        def ship() -> "list[JobSubmission]":
            shipped: dict[tuple[object, ...], SourceFields] = {}
            with open_transport(self._settings) as sync:
                return [ship_plan(sync, plan, self._settings.environment, shipped, progress=progress) for plan in plans]

        return await asyncio.to_thread(ship)


class AsyncJob:
    """See ``Job``."""

    def __init__(
        self,
        transport: AsyncTransport,
        record: "JobRecord | str",
        settings: Settings,
        *,
        warnings: "Sequence[ProblemRecord]" = (),
    ) -> None:
        self._transport = transport
        self._id = record if isinstance(record, str) else record["id"]
        self._warnings = tuple(warnings if isinstance(record, str) else record.get("warnings", ()))
        self._settings = settings

    @property
    def id(self) -> str:
        return self._id

    @property
    def warnings(self) -> "tuple[ProblemRecord, ...]":
        """See ``Job.warnings``."""
        return self._warnings

    @property
    def state(self) -> Awaitable[str]:
        """To be awaited: what the control plane says now."""
        return self._state()

    async def record(self, *, index: int | None = None) -> "JobRecord":
        """Asked for anew each time. index: of that element of an array alone."""
        return await self._transport.send(calls.get_job(self._id, index=index))

    async def wait(self, *, timeout: float | None = None) -> "JobRecord":  # noqa: ASYNC109 - the twin's own keyword
        """As ``Job.wait``, awaited."""
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = None if ends is None else max(0.0, ends - time.monotonic())
            ask = Asking.within(left_s)
            call = calls.get_job(self._id, wait_s=ask.hold_s)
            record = await self._transport.send(call, retry_for_s=ask.retry_for_s, within_s=ask.within_s)
            if record["state"] in FINAL_STATES:
                return record
            if ends is not None and time.monotonic() >= ends:
                raise still_runs(record, timeout or 0.0)

    async def result(self, *, timeout: float | None = None) -> "JobRecord":  # noqa: ASYNC109 - the twin's own keyword
        """Like ``wait``, but raises JobEnded (NoWorkerFits when rejected) unless the job succeeded."""
        return raise_unless_succeeded(await self.wait(timeout=timeout))

    async def logs(
        self,
        *,
        follow: bool = False,
        attempt: int | None = None,
        stream: str = "stdout",
        rank: int = 0,
        since: "str | datetime | None" = None,
        index: int | None = None,
    ) -> AsyncIterator[bytes]:
        """The output in pieces; every option as of ``Job.logs``."""
        cursor = log_cursor(follow=follow, attempt=attempt, stream=stream, rank=rank, since=since, index=index)
        if not follow:
            async for chunk in read_logs_async(self._transport, self._id, cursor=cursor):
                yield chunk
            return
        async for piece in follow_logs_async(self._transport, self._id, cursor=cursor):
            if isinstance(piece, bytes):
                yield piece

    async def why(self) -> "WhyReply":
        """What was weighed when it was placed; while it is queued, what it waits for; of a rejected one, why."""
        return await self._transport.send(calls.get_why(self._id))

    async def events(self) -> "list[EventRecord]":
        """What happened to the job, in order."""
        found: list[EventRecord] = []
        after = 0
        while True:
            page = await self._transport.send(calls.list_events(self._id, after=after))
            found += page["events"]
            if not page["events"] or page["next"] == after:
                return found
            after = page["next"]

    async def elements(self, *, failed: bool = False) -> "AsyncIterator[ElementRecord]":
        """As ``Job.elements``."""
        after: int | None = 0
        while after is not None:
            page = await self._transport.send(calls.list_elements(self._id, after=after, failed=failed))
            for element in page["elements"]:
                yield element
            after = page["next"]

    async def cancel(self, *, grace: float | None = None) -> "JobRecord":
        """Ask for its end; does not wait for it. May be repeated. grace: seconds between SIGTERM and SIGKILL."""
        call = calls.cancel_job(self._id, grace_ms=None if grace is None else int(grace * 1000))
        return await self._transport.send(call)

    async def retry(self) -> "AsyncJob":
        """Submit the same again, as a new job. Raises Conflict while this one lives."""
        record = await self._transport.send(calls.retry_job(self._id, key=secrets.token_hex(16)))
        return AsyncJob(self._transport, record, self._settings)

    async def outputs(self, *, index: int | None = None) -> "list[OutputRecord]":
        """Paths, sizes and digests of what has come home; empty until then. index: of that element of an array."""
        return (await self._transport.send(calls.list_outputs(self._id, index=index)))["outputs"]

    async def download(self, dest: "str | os.PathLike[str] | None" = None, *, index: int | None = None) -> Path:
        """As ``Job.download``, in a thread. May be repeated."""

        def bring() -> Path:
            with self._sync() as sync:
                return Job(sync, self._id).download(dest, index=index)

        return await asyncio.to_thread(bring)

    def __repr__(self) -> str:
        return f"AsyncJob({self._id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncJob) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    async def _state(self) -> str:
        return (await self.record())["state"]

    def _sync(self) -> Transport:
        return open_transport(self._settings)
