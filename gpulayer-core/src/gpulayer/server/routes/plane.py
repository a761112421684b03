"""The control plane itself: health, its record, its end, and its description."""

import asyncio
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gpulayer import __version__
from gpulayer.clock import iso_utc
from gpulayer.errors import Conflict, StorageUnavailable
from gpulayer.server.audit import entry
from gpulayer.server.backup import Backup, open_backup
from gpulayer.server.openapi import describe
from gpulayer.server.plane import Plane
from gpulayer.server.records import presence
from gpulayer.server.routes.blobs import while_good
from gpulayer.server.store import Side, reads
from gpulayer.server.web import ADMIN, OPEN, READ, READ_OR_WORKER, Call, Route, json_response
from gpulayer.wire.plane import BackupBody, PlaneRecord, ShutdownBody

__all__ = ["ROUTES"]

_log = logging.getLogger(__name__)


async def healthz(call: Call) -> Response:
    """Answers while the event loop turns; says nothing of the store or of workers."""
    return json_response({"status": "ok"})


async def readyz(call: Call) -> Response:
    """503 while nothing can be accepted."""
    if call.plane.driver.is_read_only or call.plane.is_closing:
        raise StorageUnavailable("the control plane is read-only now", hint="its log says why")
    return json_response({"status": "ready"})


async def show(call: Call) -> Response:
    """``read_only``: the store takes no writes, so nothing is accepted or placed."""
    plane = call.plane
    jobs = await plane.query(reads.count_jobs)
    states = await plane.driver.read(lambda state: [str(presence(worker)) for worker in state.workers.values()])
    record: PlaneRecord = {
        "version": __version__,
        "incarnation": plane.incarnation,
        "mode": plane.settings.mode,
        "url": plane.settings.url,
        "pid": os.getpid(),
        "state_dir": str(plane.settings.state_dir),
        "started_at": iso_utc(plane.started_wall_ms) or "",
        "now": iso_utc(plane.clock.wall_ms()) or "",
        "urls": list(plane.settings.urls),
        "public_urls": list(plane.settings.public_urls),
        "fingerprints": list(plane.settings.fingerprints),
        "disk_free_bytes": await plane.in_thread(_disk_free, plane.settings.state_dir),
        "you": {
            "token_id": call.client.token_id,
            "name": call.client.name,
            "role": str(call.client.role),
            "expires_at": iso_utc(plane.auth.expires_wall_ms(call.client)),
        },
        "read_only": plane.driver.is_read_only,
        "workers": {state: states.count(state) for state in sorted(set(states))},
        "jobs": jobs,
    }
    if starting := plane.starting():
        record["starting"] = starting
    return json_response(record)


def _disk_free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


async def shutdown(call: Call) -> Response:
    """Answered before the end begins."""
    body = await call.json(ShutdownBody, optional=True)
    told = entry(call.plane.clock.wall_ms(), call.client, "plane.shutdown")
    try:
        await call.plane.driver.submit(side=Side(audit=(told,)))
    except StorageUnavailable as error:  # it must end all the same
        _log.warning("the audit trail does not tell of this shutdown: %s", error.message)
    call.plane.ask_shutdown(keep_worker=body.get("keep_worker", False))
    return json_response({})


async def backup(call: Call) -> Response:
    """All of this control plane as one file (``server.archive``), its keys too. What happens meanwhile is not in it.
    One at a time: each holds a copy of the store, and nothing is taken away while it is made."""
    plane, body = call.plane, await call.json(BackupBody, optional=True)
    if plane.is_backed_up:
        raise Conflict("a backup of this control plane is being made just now", hint="try again when it has ended")
    making = _kept_whole(plane, blobs=body.get("blobs", True), logs=body.get("logs", True))
    plane.is_backed_up = True  # before anything is waited for
    async with plane.removing:
        pass  # what is being taken away now is gone before anybody looks at what there is
    # Not given up half way where the caller goes: the thread would go on alone.
    opening = asyncio.ensure_future(plane.in_thread(making.__enter__))
    try:
        made = await asyncio.shield(opening)
        told = entry(plane.clock.wall_ms(), call.client, "plane.backup", size_bytes=made.size)
        try:
            await plane.driver.submit(side=Side(audit=(told,)))
        except StorageUnavailable as error:  # of a disk that is full or failing: who wants a backup needs it now
            _log.warning("a backup is made for %s, which the audit trail can't say: %s", call.client, error.message)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _leave(plane, making, opening)
        raise
    answer = StreamingResponse(
        while_good(call, made.pieces()),
        headers={"Content-Length": str(made.size)},
        media_type="application/octet-stream",
    )
    return _LeavingAfter(answer, plane, making, opening)


@contextmanager
def _kept_whole(plane: Plane, *, blobs: bool, logs: bool) -> Iterator[Backup]:
    plane.blobs.is_kept = True
    try:
        with open_backup(
            plane.settings.layout,
            made_wall_ms=plane.clock.wall_ms(),
            incarnation=plane.incarnation,
            blobs=blobs,
            logs=logs,
        ) as made:
            yield made
    finally:
        plane.blobs.is_kept = False


async def _leave(plane: Plane, making: AbstractContextManager[Backup], opening: "asyncio.Future[Backup]") -> None:
    """Whatever has become of it."""
    try:
        await asyncio.wait({opening})
        if not opening.cancelled() and opening.exception() is None:
            await plane.in_thread(making.__exit__, None, None, None)
    finally:
        plane.is_backed_up = False


class _LeavingAfter(Response):
    """An answer, and what is to be left when it is sent, or when nobody takes it any more."""

    def __init__(
        self, answer: Response, plane: Plane, making: AbstractContextManager[Backup], opening: "asyncio.Future[Backup]"
    ) -> None:
        self._answer = answer
        self._plane = plane
        self._making = making
        self._opening = opening
        self.status_code = answer.status_code
        self.background = None
        self.body = b""
        self.raw_headers = answer.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await _leave(self._plane, self._making, self._opening)


async def openapi(call: Call) -> Response:
    """Made anew for every caller."""
    from gpulayer.server.routes import ROUTES as ALL  # noqa: PLC0415 - the list that holds this very route

    return json_response(describe(ALL))


ROUTES: Final = (
    Route("GET", "/healthz", healthz, OPEN, "Is the process there"),
    Route("GET", "/readyz", readyz, OPEN, "Does it accept work; 503 while it can't"),
    Route("GET", "/openapi.json", openapi, READ_OR_WORKER, "This description"),
    Route("GET", "/v1/plane", show, READ, "The control plane's own record", reply=PlaneRecord),
    Route(
        "POST",
        "/v1/plane:backup",
        backup,
        ADMIN,
        "All of the control plane as one file, its keys too, while it goes on",
        body=BackupBody,
        raw_reply="application/octet-stream",
    ),
    Route("POST", "/v1/plane:shutdown", shutdown, ADMIN, "End the control plane in good order", body=ShutdownBody),
)
