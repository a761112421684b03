"""Logs of jobs as raw bytes from an offset, followed where asked for.

A response holds one piece in memory and the log's file open. A reader that takes nothing costs just that until its
connection is closed, and holds up nobody: each follower reads for itself, and the worker's uploads wait for none.
"""

import asyncio
import logging
from functools import partial
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpulayer.clock import iso_utc
from gpulayer.engine import State
from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import AttemptImage
from gpulayer.engine.turn import attempt_image
from gpulayer.errors import BadRequest, DiskFull, NotFound, StorageUnavailable, Unauthenticated
from gpulayer.faults import here
from gpulayer.ids import JobId
from gpulayer.server.elements import check_index, is_over
from gpulayer.server.fence import is_held, lent, own_worker
from gpulayer.server.logs import READ_PIECE, LogKey, LogReader
from gpulayer.server.plane import Plane
from gpulayer.server.routes.jobs import INDEX, element_index, find_job
from gpulayer.server.store import reads
from gpulayer.server.web import READ_OR_JOB, Call, Hold, Query, Route, held, json_response
from gpulayer.spec.logs import LogStream
from gpulayer.spec.units import format_duration

__all__ = ["ROUTES", "put_log"]

_log: Final = logging.getLogger(__name__)


async def logs(call: Call) -> Response:
    """The bytes there are from ``offset`` on; with ``follow`` also those that come, until the attempt has ended.

    ``since_ms`` and ``tail_bytes`` begin later, at the latest of the places asked for. An empty answer of attempt 0
    says that there is no such attempt, or, while the job lives, not yet: a follower asks again.
    """
    node = call.query_int("node", 0, most=100_000) or 0
    wanted = call.query_int("attempt", None, least=1, most=1_000_000)
    tail = call.query_int("tail_bytes", None)
    since_ms = call.query_int("since_ms", None)
    offset = call.query_int("offset", 0) or 0
    is_following = call.query_flag("follow")
    plane, job_id = call.plane, await find_job(call)
    index = element_index(call) or 0
    if index:
        check_index(await plane.query(reads.read_job, job_id), index)
    stream = log_stream(call)
    if stream is LogStream.STDERR:
        await _check_split(plane, job_id)
    attempt = await _attempt(call, job_id, wanted, index, is_following=is_following)
    if attempt is None:
        return Response(b"", headers=_headers(0, 0), media_type="application/octet-stream")
    if node >= len(attempt.nodes):
        count = len(attempt.nodes)
        raise NotFound(
            f"attempt {attempt.number} of job {job_id} ran on {count} node{'' if count == 1 else 's'}: "
            f"there is no rank {node}",
            hint="ranks count from 0",
        )
    if attempt.phase is NodePhase.ENDED:
        await _check_kept(plane, job_id)
    key = LogKey(job_id, attempt.epoch, node, stream)
    if tail is not None:
        size = await plane.in_thread(plane.logs.size, key)
        offset = max(offset, size - tail)
    headers: dict[str, str] = {}
    if since_ms is not None:
        start = await plane.in_thread(plane.logs.start_since, key, since_ms)
        offset = max(offset, start or 0)
        headers["X-Gpulayer-Log-Timed"] = "0" if start is None else "1"
    headers |= _headers(offset, attempt.number)
    reader = plane.logs.open(key)
    try:
        # Before the answer begins: after that nobody can be told why it can't be read.
        first = plane.logs.latest(key, offset) or await plane.in_thread(reader.read, offset)
    except BaseException:
        reader.close()
        raise
    return _LogResponse(call, key, reader, offset, headers, first=first, is_following=is_following)


async def put_log(call: Call) -> Response:
    """A piece of a log, by offset."""
    plane = call.plane
    node = call.query_int("node", 0, most=100_000) or 0
    offset = call.query_int("offset", 0) or 0
    is_final = call.query_flag("final")
    stream = log_stream(call)
    epoch, job_id = await lent(call, node)
    key = LogKey(job_id, epoch, node, stream)
    piece = await call.content(plane.settings.max_log_chunk_bytes)
    worker_id, size = own_worker(call), None
    with plane.logs.noting_refusal(job_id):
        plane.room.check_log(len(piece), is_final=is_final)
        while size is None:
            append = partial(
                plane.logs.append,
                key,
                offset,
                piece,
                wall_ms=plane.clock.wall_ms(),
                is_final=is_final,
                is_followed=plane.hub.is_watched(key),
                is_open=lambda: is_held(plane, worker_id, epoch, node),
            )
            size = await plane.in_thread(plane.room.write, append)
            if size is None:  # the attempt ended while the piece came; or it did not, and that change has failed
                await lent(call, node)
    if piece:
        here("plane.after_log_piece")
    plane.hub.wake([key])
    return json_response({"offset": size})


class _LogResponse(Response):
    """Streams a log: one piece in memory at a time, read when the one before it has been taken. Closes ``reader``."""

    def __init__(
        self,
        call: Call,
        key: LogKey,
        reader: LogReader,
        offset: int,
        headers: dict[str, str],
        *,
        first: bytes,
        is_following: bool,
    ) -> None:
        super().__init__(None, headers=headers, media_type="application/octet-stream")
        del self.headers["content-length"]
        self._call = call
        self._key = key
        self._reader = reader
        self._offset = offset
        self._first = first
        self._is_following = is_following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with self._reader:
            try:
                await self._send_all(send)
            except Unauthenticated:
                pass
            except (DiskFull, StorageUnavailable) as error:
                _log.warning("the log of job %s can't be read on: %s", self._key.job_id, error.message)
        # Where the plane closes, the caller's token ends or the disk fails, the response stays unfinished on purpose,
        # so that no follower takes it for the log's end: it asks again, and is told then.

    async def _send_all(self, send: Send) -> None:
        plane, key = self._call.plane, self._key
        with plane.hub.watching(("job", key.job_id), key) as watch:
            async with held(self._call, watch) as hold:
                while not hold.is_over:
                    watch.clear()
                    # What is there goes out at once; whether more can come is asked when there is nothing, because
                    # that answer may have to wait for a commit. Bytes may have come since: hence the second look.
                    if await self._send_piece(send, hold):
                        continue
                    if self._is_following and not await _has_ended(plane, key):
                        await hold.wait()
                        continue
                    # A piece that was taken before the end may be on its way to the disk.
                    await plane.in_thread(plane.logs.settle, key)
                    if not await self._send_piece(send, hold):
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                        return

    async def _send_piece(self, send: Send, hold: Hold) -> bool:
        piece, self._first = self._first or self._call.plane.logs.latest(self._key, self._offset), b""
        if not piece:
            piece = await self._call.plane.in_thread(self._reader.read, self._offset)
        # In slices, each taken before the next: a reader that is slow holds no more than one of them in memory.
        for start in range(0, len(piece), READ_PIECE):
            hold.check()
            part = memoryview(piece)[start : start + READ_PIECE]
            self._offset += len(part)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        return bool(piece)


def log_stream(call: Call) -> LogStream:
    """The ``stream`` asked for. Raises BadRequest for one that nobody knows."""
    text = call.query("stream") or str(LogStream.STDOUT)
    try:
        return LogStream(text)
    except ValueError:
        raise BadRequest(f"stream: {text[:40]!r} must be stdout or stderr") from None


async def _check_split(plane: Plane, job_id: JobId) -> None:
    """Raises BadRequest for a job that has one log for both: an empty answer would look like a silent program."""
    submission = (await plane.submissions([job_id]))[job_id]
    if not submission.get("split_streams", False):
        raise BadRequest(
            f"stdout and stderr of job {job_id} are one log, in order",
            hint="read it without a stream; submit with --split-streams to keep them apart",
        )


async def _check_kept(plane: Plane, job_id: JobId) -> None:
    """Raises NotFound, with the date, where the logs of this job were removed."""
    removed_ms = await plane.in_thread(plane.logs.removed_at, job_id)
    if removed_ms is None:
        return
    ended_ms = (await plane.query(reads.read_job, job_id)).image.ended_wall_ms or removed_ms
    removed_at = iso_utc(removed_ms) or ""
    raise NotFound(
        f"the log of job {job_id} was removed on {removed_at[:10]}, {_after(removed_ms - ended_ms)} after its end",
        hint=f"its record is kept: gpulayer job show {job_id}; `gpulayer up --keep-logs TIME` keeps logs longer",
        details={"removed_at": removed_at},
    )


def _after(ms: int) -> str:
    days = ms // 86_400_000
    return f"{days} day{'' if days == 1 else 's'}" if days else format_duration(max(0, ms))


async def _attempt(
    call: Call, job_id: JobId, wanted: int | None, index: int, *, is_following: bool
) -> AttemptImage | None:
    """The attempt of this number (the latest, if none is given) of the job's only task, or of an array's element. A
    follower waits for one that is still to come, but never so long that it could take the silence for a dead
    connection; None: there is none, or none yet. Raises NotFound for a number that never was, and StorageUnavailable
    where the plane closes before it comes."""
    plane, clock = call.plane, asyncio.get_running_loop().time
    ends = clock() + plane.settings.log_hold_s
    with plane.hub.watching(("job", job_id)) as watch:
        async with held(call, watch) as hold:
            while True:
                watch.clear()
                is_live, current = await plane.driver.read(lambda state: _current(state, job_id, index))
                if current is not None and wanted in (None, current.number):
                    return current
                tries = (await plane.query(reads.attempts_of, [job_id], index=index)).get(job_id, ())
                found = [attempt for attempt in tries if wanted in (None, attempt.number)]
                if found:
                    return found[-1]
                if not is_following or not is_live:
                    if wanted is not None and not is_following:
                        raise _no_attempt(job_id, wanted, had=len(tries), is_live=is_live)
                    return None
                if hold.is_over:
                    # An empty log would be taken for all of it, and the attempt that is yet to come for a read one.
                    raise StorageUnavailable("the control plane is shutting down", hint="try again when it is back")
                left_s = ends - clock()
                if left_s <= 0:
                    return None
                await hold.wait(left_s)


def _no_attempt(job_id: JobId, wanted: int, *, had: int, is_live: bool) -> NotFound:
    """Who just asks for the log of a job asks for its first attempt, and need not know what attempts are."""
    if had:
        return NotFound(f"job {job_id} has no attempt {wanted}; it has had {had}")
    if is_live:
        return NotFound(f"job {job_id} has not started yet", hint=f"gpulayer job logs --follow {job_id} waits for it")
    return NotFound(f"job {job_id} never started", hint=f"gpulayer job show {job_id} tells why")


def _current(state: State, job_id: JobId, index: int) -> tuple[bool, AttemptImage | None]:
    """Whether the task lives, and the attempt of it that does: what most followers ask for, without a query."""
    job = state.jobs.get(job_id)
    if job is None or is_over(state, job_id, index):
        return False, None
    task = job.tasks.get(index)
    epoch = None if task is None else task.epoch
    image = None if epoch is None else attempt_image(state.attempts[epoch])
    return True, image if image is not None and image.is_shown else None


async def _has_ended(plane: Plane, key: LogKey) -> bool:
    """What is in the file once this is true is all there will ever be: an ended attempt takes no more log."""

    def has_ended(state: State) -> bool:
        attempt = state.attempts.get(key.epoch)
        return attempt is None or attempt.nodes[key.node].outcome is not None

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
        READ_OR_JOB,
        "The log of an attempt as raw bytes; X-Gpulayer-Log-Start is the offset of the first, X-Gpulayer-Attempt the "
        "attempt's number (0: there is none, or none yet), X-Gpulayer-Log-Timed (with since_ms) 0 where nobody knows "
        "when its bytes came",
        raw_reply="application/octet-stream",
        query=(
            Query("offset", "the first byte wanted"),
            Query("attempt", "the attempt's number; the latest by default", least=1, most=1_000_000),
            INDEX,
            Query("node", "the node of a gang, which is the rank", most=100_000),
            Query(
                "stream",
                "stdout (the default, which holds both unless the job was split) or stderr",
                "string",
                choices=tuple(LogStream),
            ),
            Query("follow", "1: go on until the attempt has ended", "flag"),
            Query("tail_bytes", "only so many bytes of what is there"),
            Query("since_ms", "only what came then or later, by the control plane's clock: milliseconds since 1970"),
        ),
    ),
)
