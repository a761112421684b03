"""Blobs by digest: which are missing, one by one, and many in one body."""

from collections.abc import Iterator
from typing import Final

from starlette.responses import Response, StreamingResponse

from gpulayer.errors import BadRequest, NotFound, Unauthenticated
from gpulayer.ids import Digest, is_digest
from gpulayer.server.admission import Demand
from gpulayer.server.rights import check_reads_blobs
from gpulayer.server.web import READ_OR_WORKER, SUBMIT_OR_WORKER, Call, Route, json_response
from gpulayer.spec.units import format_bytes
from gpulayer.staging.blobs import BlobFolder
from gpulayer.wire.packs import FRAME_HEADER, MAX_PACKED_BLOB, frame, read_frames
from gpulayer.wire.plane import FetchBody, MissingBody, MissingReply, PackReply

__all__ = ["ROUTES", "while_good"]

_WRITE_PIECE: Final = 2**20


async def missing(call: Call) -> Response:
    """Answered from what lies on disk now; nothing is kept for the caller."""
    body = await call.json(MissingBody)
    digests = [Digest(text) for text in body["digests"]]
    return json_response({"missing": await call.plane.in_thread(call.plane.blobs.missing, digests)})


async def put_blob(call: Call) -> Response:
    """Streamed to disk; nothing is kept unless all of it came and has the digest."""
    plane = call.plane
    digest, limit = _digest(call), plane.settings.max_blob_bytes
    writer = await plane.in_thread(plane.blobs.writer, digest, limit)
    try:
        held = bytearray()
        async for piece in call.pieces(limit, "the blob"):
            held += piece
            if len(held) >= _WRITE_PIECE:
                await plane.in_thread(writer.write, bytes(held))
                held.clear()
        if held:
            await plane.in_thread(writer.write, bytes(held))
        await plane.in_thread(writer.commit)
    finally:
        await plane.in_thread(writer.abort)
    return json_response({"stored": 1}, 201)


async def get_blob(call: Call) -> Response:
    """NotFound before the first byte; later damage shows as an answer that is shorter than its length."""
    blobs, digest = call.plane.blobs, _digest(call)
    await check_reads_blobs(call.plane, call.client, [digest])
    size = await call.plane.in_thread(blobs.size, digest)
    # The last piece comes only if the content has its digest: a damaged blob ends short of its length.
    return StreamingResponse(
        while_good(call, blobs.chunks(digest)),
        headers={"Content-Length": str(size), "X-Content-Type-Options": "nosniff"},
        media_type="application/octet-stream",
    )


async def put_pack(call: Call) -> Response:
    """The whole body is in memory, so it has the limit of a body; each blob is checked against its digest."""
    body = await call.content()
    stored = await call.plane.in_thread(lambda: call.plane.blobs.put_many(read_frames([body])))
    return json_response({"stored": stored}, 201)


async def fetch(call: Call) -> Response:
    """Each digest once, in the order asked for. NotFound and BadRequest come before the first byte."""
    body = await call.json(FetchBody)
    digests = [Digest(text) for text in dict.fromkeys(body["digests"])]
    await check_reads_blobs(call.plane, call.client, digests)
    total = await call.plane.in_thread(_check_packable, call.plane.blobs, digests)
    return StreamingResponse(
        while_good(call, _frames(call.plane.blobs, digests)),
        headers={"Content-Length": str(total)},
        media_type="application/octet-stream",
    )


def while_good(call: Call, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What is left is not sent once the caller's token is no good any more: short of its length, it is no blob."""
    for piece in pieces:
        try:
            call.plane.auth.check_still(call.client)
        except Unauthenticated:
            return
        yield piece


def _digest(call: Call) -> Digest:
    text = call.path("digest")
    if not is_digest(text):
        raise BadRequest(f"{text[:80]!r} is not a digest: 64 lower-case hex characters")
    return Digest(text)


def _check_packable(blobs: BlobFolder, digests: list[Digest]) -> int:
    total = 0
    for digest in digests:
        try:
            size = blobs.size(digest)
        except NotFound:
            raise NotFound(f"no blob {digest}", details={"digest": digest}) from None
        if size > MAX_PACKED_BLOB:
            raise BadRequest(
                f"blob {digest[:12]}… has {format_bytes(size)}: too large for a pack",
                hint="fetch it alone, by GET /v1/blobs/{digest}",
            )
        total += FRAME_HEADER + size
    return total


def _frames(blobs: BlobFolder, digests: list[Digest]) -> Iterator[bytes]:
    for digest in digests:
        yield frame(digest, blobs.read(digest))


ROUTES: Final = (
    Route(
        "POST",
        "/v1/sources:missing",
        missing,
        SUBMIT_OR_WORKER,
        "Which of these blobs are not here",
        body=MissingBody,
        reply=MissingReply,
        demand=Demand.UPLOAD,
    ),
    Route(
        "PUT",
        "/v1/blobs/{digest}",
        put_blob,
        SUBMIT_OR_WORKER,
        "Store one blob; its digest is verified",
        reply=PackReply,
        raw="application/octet-stream",
        status=201,
        demand=Demand.UPLOAD,
    ),
    Route(
        "GET",
        "/v1/blobs/{digest}",
        get_blob,
        READ_OR_WORKER,
        "One blob",
        raw_reply="application/octet-stream",
    ),
    Route(
        "POST",
        "/v1/blobs:pack",
        put_pack,
        SUBMIT_OR_WORKER,
        "Store many small blobs: frames of digest, length, content",
        reply=PackReply,
        raw="application/octet-stream",
        status=201,
        demand=Demand.UPLOAD,
    ),
    Route(
        "POST",
        "/v1/blobs:fetch",
        fetch,
        READ_OR_WORKER,
        "Many small blobs in one body, as frames",
        body=FetchBody,
        raw_reply="application/octet-stream",
    ),
)
