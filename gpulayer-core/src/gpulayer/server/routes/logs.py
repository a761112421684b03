"""Logs of jobs as raw bytes from an offset, followed where asked for."""

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpulayer.engine import State
from gpulayer.engine.records import AttemptImage
from gpulayer.engine.turn import attempt_image
from gpulayer.errors import NotFound
from gpulayer.ids import Epoch, JobId
from gpulayer.server.logs import READ_PIECE
from gpulayer.server.plane import Plane
from gpulayer.server.routes.jobs import find_job
from gpulayer.server.store import reads
from gpulayer.server.web import CLIENT, Call, Query, Route, held

__all__ = ["ROUTES"]


@dataclass(frozen=True, slots=True)
class _LogRef:
    job_id: JobId
    epoch: Epoch
    node: int
    number: int


async def logs(call: Call) -> Response:
    """The bytes there are from ``offset`` on; with ``follow`` also those that come, until the attempt has ended."""
    node = call.query_int("node", 0, most=100_000) or 0
    wanted = call.query_int("attempt", None, least=1, most=1_000_000)
    tail = call.query_int("tail_bytes", None)
    offset = call.query_int("offset", 0) or 0
    is_following = call.query_flag("follow")
    job_id = await find_job(call)
    attempt = await _attempt(call, job_id, wanted, is_following=is_following)
    if attempt is None:
        return Response(b"", headers=_headers(0, wanted or 0), media_type="application/octet-stream")
    if node >= len(attempt.nodes):
        raise NotFound(f"attempt {attempt.number} of job {job_id} has {len(attempt.nodes)} nodes; there is no {node}")
    ref = _LogRef(job_id, attempt.epoch, node, attempt.number)
    if tail is not None:
        size = await call.plane.in_thread(call.plane.logs.size, job_id, ref.epoch, node)
        offset = max(offset, size - tail)
    return _LogResponse(call, ref, offset, is_following=is_following)


class _LogResponse(Response):
    """Streams a log: one piece in memory at a time, read when the one before it has been taken."""

    def __init__(self, call: Call, ref: _LogRef, offset: int, *, is_following: bool) -> None:
        super().__init__(None, headers=_headers(offset, ref.number), media_type="application/octet-stream")
        del self.headers["content-length"]
        self._call = call
        self._ref = ref
        self._offset = offset
        self._is_following = is_following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plane, ref = self._call.plane, self._ref
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with plane.hub.watching(("job", ref.job_id), ("log", ref.epoch, ref.node)) as watch:
            async with held(self._call, watch) as hold:
                while not hold.is_over:
                    watch.clear()
                    # What is there goes out at once; whether more can come is asked when there is nothing, because
                    # that answer may have to wait for a commit. Bytes may have come since: hence the second look.
                    if await self._send_piece(send):
                        continue
                    if self._is_following and not await _has_ended(plane, ref):
                        await hold.wait()
                    elif not await self._send_piece(send):
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                        return
        # Closing: the response stays unfinished on purpose, so that no follower takes it for the log's end.

    async def _send_piece(self, send: Send) -> bool:
        plane, ref = self._call.plane, self._ref
        piece = plane.logs.latest(ref.epoch, ref.node, self._offset)
        if not piece:
            piece = await plane.in_thread(plane.logs.read, ref.job_id, ref.epoch, ref.node, self._offset, READ_PIECE)
        if piece:
            self._offset += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        return bool(piece)


async def _attempt(call: Call, job_id: JobId, wanted: int | None, *, is_following: bool) -> AttemptImage | None:
    """The attempt of this number (the latest, if none is given). A follower waits for one that is still to come;
    None: there is none, and the job has ended, or nobody waits. Raises NotFound for a number that never was."""
    plane = call.plane
    with plane.hub.watching(("job", job_id)) as watch:
        async with held(call, watch) as hold:
            while True:
                watch.clear()
                is_live, current = await plane.driver.read(lambda state: _current(state, job_id))
                if current is not None and wanted in (None, current.number):
                    return current
                tries = (await plane.query(reads.attempts_of, [job_id])).get(job_id, ())
                found = [attempt for attempt in tries if wanted in (None, attempt.number)]
                if found:
                    return found[-1]
                if not is_following or not is_live or hold.is_over:
                    if wanted is not None and not is_following:
                        raise NotFound(f"job {job_id} has no attempt {wanted}; it has had {len(tries)}")
                    return None
                await hold.wait()


def _current(state: State, job_id: JobId) -> tuple[bool, AttemptImage | None]:
    """Whether the job lives, and the attempt of it that does: what most followers ask for, without a query."""
    job = state.jobs.get(job_id)
    if job is None:
        return False, None
    epoch = next((task.epoch for task in job.tasks.values() if task.epoch is not None), None)
    image = None if epoch is None else attempt_image(state.attempts[epoch])
    return True, image if image is not None and image.is_shown else None


async def _has_ended(plane: Plane, ref: _LogRef) -> bool:
    """What is in the file once this is true is all there will ever be: an ended attempt takes no more log."""

    def has_ended(state: State) -> bool:
        attempt = state.attempts.get(ref.epoch)
        return attempt is None or attempt.nodes[ref.node].outcome is not None

    return await plane.driver.read(has_ended)


def _headers(start: int, number: int) -> dict[str, str]:
    return {
        "X-Gpulayer-Log-Start": str(start),
        "X-Gpulayer-Attempt": str(number),
        "Cache-Control": "no-store",
        # A log is hostile: no browser may take it for a page.
        "X-Content-Type-Options": "nosniff",
    }


ROUTES: Final = (
    Route(
        "GET",
        "/v1/jobs/{ref}/logs",
        logs,
        CLIENT,
        "The log of an attempt as raw bytes; X-Gpulayer-Log-Start is the offset of the first, X-Gpulayer-Attempt the "
        "attempt's number",
        raw_reply="application/octet-stream",
        query=(
            Query("offset", "the first byte wanted"),
            Query("attempt", "the attempt's number; the latest by default"),
            Query("node", "the node of a gang"),
            Query("follow", "1: go on until the attempt has ended"),
            Query("tail_bytes", "only so many bytes of what is there"),
        ),
    ),
)
