"""A folder on its way to the control plane: scan, hash, ask what is missing, send only that.

Blocks. Small files travel together, large ones alone and streamed; every blob is checked by the receiver, so any part
may be sent again.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulayer.client import calls
from gpulayer.client.transport import Transport
from gpulayer.ids import Digest
from gpulayer.spec.tree import SourceRef
from gpulayer.staging.packs import Pack, blobs_of, make_packs
from gpulayer.staging.scan import scan_source
from gpulayer.staging.trees import BuiltTree, build_tree
from gpulayer.wire.packs import FRAME_HEADER

__all__ = ["Shipped", "Transfer", "ship_source"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """How far a transfer is. total_bytes: what has to travel, not what the folder holds."""

    what: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Shipped:
    """A source that the control plane holds. sent_bytes: what travelled. notes: what to tell the user."""

    source: SourceRef
    sent_bytes: int
    notes: tuple[str, ...]


def ship_source(
    transport: Transport,
    root: str | os.PathLike[str],
    *,
    environment: Mapping[str, str],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Callable[[Transfer], None] = lambda _: None,
) -> Shipped:
    """Make the control plane hold the folder. Raises UsageError or TooLarge before anything is sent; else what a
    request raises. May be repeated."""
    scan = scan_source(root, environment=environment, include=include, exclude=exclude)
    built = build_tree(scan.root, scan.entries, commit=scan.commit, dirty=scan.dirty)
    sent = _send_missing(transport, built, progress)
    return Shipped(built.source, sent, (*scan.warnings, *built.warnings))


def _send_missing(transport: Transport, built: BuiltTree, progress: Callable[[Transfer], None]) -> int:
    reply = transport.send(calls.find_missing(built.digests()))
    missing = [Digest(digest) for digest in reply["missing"]]
    items = list(blobs_of(built, missing))
    total = sum(size for _, _, size in items)
    done = 0
    if items:
        progress(Transfer("sending the source", 0, total))
    for unit in make_packs(items):
        if isinstance(unit, Pack):
            transport.send(calls.put_pack(unit.body))
            done += len(unit.body) - FRAME_HEADER * len(unit.digests)
        else:
            body = calls.FileBody(str(unit.content), unit.size) if isinstance(unit.content, Path) else unit.content
            transport.send(calls.put_blob(unit.digest, body))
            done += unit.size
        progress(Transfer("sending the source", done, total))
    return done
