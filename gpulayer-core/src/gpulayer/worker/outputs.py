"""What a program made, on its way home: found when its tree is dead, and sent as far as it is missing there.

An outage is waited out. A file that changes while it is sent (somebody else's doing) is found anew a few times.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpulayer.errors import BadRequest, DigestMismatch, NotFound, UsageError
from gpulayer.faults import here
from gpulayer.ids import Digest
from gpulayer.plugins.contracts.launcher import LaunchSite
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.tree import EMPTY_TREE
from gpulayer.staging.outputs import collect_outputs
from gpulayer.staging.packs import Pack, Single, blobs_of, make_packs, open_content
from gpulayer.staging.trees import BuiltTree
from gpulayer.staging.workfolder import Baseline
from gpulayer.wire.plane import MissingReply
from gpulayer.worker.http import Body
from gpulayer.worker.session import Plane

__all__ = ["Delivered", "deliver_outputs"]

_TRIES: Final = 3
_DIGESTS_A_REQUEST: Final = 100_000
_PIECE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Delivered:
    """``tree``: accepted by the control plane; None: nothing was made."""

    tree: Digest | None
    warnings: tuple[str, ...] = ()


async def deliver_outputs(
    plane: Plane,
    key: NodeKey,
    site: LaunchSite,
    baseline: Baseline,
    patterns: Sequence[str],
    *,
    gives_up: Callable[[], bool] = lambda: False,
) -> Delivered:
    """Collect and send; may be repeated. Raises StaleAttempt, UsageError (a bad pattern, files that never rest),
    TooLarge, and any other error that is an answer for good. gives_up: as of ``Plane.until_answered``."""
    for left in range(_TRIES - 1, -1, -1):
        built = await asyncio.to_thread(
            collect_outputs, site.work_dir, site.output_dir, baseline, patterns=tuple(patterns)
        )
        if built.digest == EMPTY_TREE:
            return Delivered(None, built.warnings)
        try:
            here("agent.before_outputs")
            await _send(plane, built, gives_up)
            here("agent.before_acceptance")
            path = f"{plane.worker_path}/attempts/{key.epoch}/outputs"
            accept = partial(plane.call, "POST", path, document={"tree": built.digest})
            await plane.until_answered(accept, what=f"outputs of {key}", gives_up=gives_up)
            here("agent.after_acceptance")
        except (UsageError, NotFound, BadRequest, DigestMismatch):
            if not left:
                raise
        else:
            return Delivered(built.digest, built.warnings)
    raise AssertionError("unreachable")


async def _send(plane: Plane, built: BuiltTree, gives_up: Callable[[], bool]) -> None:
    digests = built.digests()
    missing: list[Digest] = []
    for start in range(0, len(digests), _DIGESTS_A_REQUEST):
        document = {"digests": digests[start : start + _DIGESTS_A_REQUEST]}
        missing += await plane.until_answered(partial(_ask, plane, document), what="outputs", gives_up=gives_up)
    parcels = make_packs(blobs_of(built, missing))
    while (parcel := await asyncio.to_thread(next, parcels, None)) is not None:
        await plane.until_answered(partial(_put, plane, parcel), what="outputs", gives_up=gives_up)
        here("agent.in_outputs")


async def _ask(plane: Plane, document: object) -> list[Digest]:
    reply: MissingReply = await plane.call("POST", "/v1/sources:missing", document=document)
    return [Digest(digest) for digest in reply["missing"]]


async def _put(plane: Plane, parcel: Pack | Single) -> None:
    if isinstance(parcel, Pack):
        await plane.call("POST", "/v1/blobs:pack", content=parcel.body, timeout_s=120)
    elif isinstance(parcel.content, bytes):
        await plane.call("PUT", f"/v1/blobs/{parcel.digest}", content=parcel.content, timeout_s=300)
    else:
        body = Body(_pieces(parcel.content), parcel.size)
        async with plane.stream("PUT", f"/v1/blobs/{parcel.digest}", body=body) as incoming:
            await incoming.read()


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(open_content, path)
    try:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
    finally:
        file.close()
