"""A tree on its way home: its objects, then the contents that are not here yet, each verified, then the folder.

Blocks. Nothing of a tree is trusted: objects are checked whole before a name in them is used, contents must have the
digest they are asked for by, and a file that is cut short is asked for again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpulayer.client import calls
from gpulayer.client.transport import StreamBroken, Transport
from gpulayer.client.upload import Transfer
from gpulayer.errors import DigestMismatch, ProtocolError, Unreachable
from gpulayer.ids import Digest
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.trees import load_tree
from gpulayer.wire.packs import MAX_PACKED_BLOB, PACK_TARGET, read_frames

__all__ = ["fetch_tree"]

_TRIES: Final = 5
_MAX_DIGESTS: Final = 10_000


def fetch_tree(
    transport: Transport, tree: Digest, blobs: BlobFolder, *, progress: Callable[[Transfer], None] = lambda _: None
) -> None:
    """Bring a tree's objects and contents into ``blobs``. Raises what ``load_tree`` raises for a hostile tree,
    Unreachable where the connection breaks again and again, NotFound where the control plane lacks a part.
    """

    def read(digest: Digest) -> bytes:
        if not blobs.has(digest):
            _fetch_alone(transport, digest, blobs, lambda _: None)
        return blobs.read(digest)

    totals = load_tree(tree, read, what="the output tree").totals
    sizes = {digest: size for digest, size in totals.blobs.items() if not blobs.has(digest)}
    total, done = sum(sizes.values()), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(Transfer("bringing outputs home", done, total))

    small = [digest for digest, size in sizes.items() if size <= MAX_PACKED_BLOB]
    for group in _groups(small, sizes):
        _fetch_pack(transport, group, blobs, advance)
    for digest, size in sizes.items():
        if size > MAX_PACKED_BLOB:
            _fetch_alone(transport, digest, blobs, advance, size_limit=size)


def _groups(digests: Iterable[Digest], sizes: "dict[Digest, int]") -> "list[list[Digest]]":
    groups: list[list[Digest]] = []
    held = 0
    for digest in digests:
        if not groups or held + sizes[digest] > PACK_TARGET or len(groups[-1]) >= _MAX_DIGESTS:
            groups.append([])
            held = 0
        groups[-1].append(digest)
        held += sizes[digest]
    return groups


def _fetch_pack(
    transport: Transport, digests: Sequence[Digest], blobs: BlobFolder, advance: Callable[[int], None]
) -> None:
    missing = list(digests)
    for attempt in range(_TRIES):
        try:
            with transport.stream(calls.fetch_blobs(missing)) as body:
                for digest, content in read_frames(body.chunks):
                    blobs.put_bytes(digest, content)
                    advance(len(content))
        except StreamBroken as broken:
            if attempt == _TRIES - 1:
                raise Unreachable(f"the connection to {transport.url} broke {_TRIES} times: {broken}") from None
        missing = blobs.missing(missing)
        if not missing:
            return
    raise ProtocolError(f"the control plane did not send {len(missing)} of the blobs it was asked for")


def _fetch_alone(
    transport: Transport,
    digest: Digest,
    blobs: BlobFolder,
    advance: Callable[[int], None],
    *,
    size_limit: int = 64 * 2**20,
) -> None:
    for attempt in range(_TRIES):
        came = 0
        try:
            with transport.stream(calls.get_blob(digest)) as body, blobs.writer(digest, size_limit) as writer:
                for chunk in body.chunks:
                    writer.write(chunk)
                    came += len(chunk)
                    advance(len(chunk))
                writer.commit()
                return
        except StreamBroken as broken:
            advance(-came)
            if attempt == _TRIES - 1:
                raise Unreachable(f"the connection to {transport.url} broke {_TRIES} times: {broken}") from None
        except DigestMismatch:
            advance(-came)
            if attempt == _TRIES - 1:
                raise
