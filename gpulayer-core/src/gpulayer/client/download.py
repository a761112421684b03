"""A tree on its way home: its objects, the small contents in packs, large ones streamed into their files.

Blocks. Nothing of a tree is trusted: it is checked whole before a name in it is used, and ``staging.home`` verifies
each content before it gets its name. A broken connection is taken up again.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpulayer.client import calls
from gpulayer.client.transport import StreamBroken, Transport
from gpulayer.client.upload import Transfer
from gpulayer.errors import ProtocolError, TooLarge, Unreachable
from gpulayer.ids import Digest
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.home import Landed, write_home
from gpulayer.staging.limits import DEFAULT_LIMITS
from gpulayer.staging.trees import load_tree
from gpulayer.wire.packs import MAX_PACKED_BLOB, PACK_TARGET, read_frames

__all__ = ["bring_home"]

_TRIES: Final = 5
_MAX_DIGESTS: Final = 10_000


def bring_home(
    transport: Transport,
    tree: Digest,
    destination: str | os.PathLike[str],
    *,
    progress: Callable[[Transfer], None] = lambda _: None,
) -> Landed:
    """Write an output tree to ``destination`` (made with its parents). May be repeated.

    Raises what ``write_home`` raises, and Unreachable where the connection breaks again and again.
    """
    with tempfile.TemporaryDirectory(prefix="gpulayer-") as scratch:
        blobs = _RemoteBlobs(transport, BlobFolder(Path(scratch), durable=False), progress)
        blobs.prefetch(tree)
        return write_home(tree, blobs, Path(destination))


class _RemoteBlobs:
    """A ``BlobReader`` over the wire; what came in packs waits in ``cache``."""

    def __init__(self, transport: Transport, cache: BlobFolder, progress: Callable[[Transfer], None]) -> None:
        self._transport = transport
        self._cache = cache
        self._progress = progress
        self._done = self._total = 0

    def prefetch(self, tree: Digest) -> None:
        """Bring the tree's objects and its small contents."""
        sizes = load_tree(tree, self.read, what="the output").totals.blobs
        self._total = sum(sizes.values())
        small = [digest for digest, size in sizes.items() if size <= MAX_PACKED_BLOB and not self._cache.has(digest)]
        for group in _groups(small, sizes):
            self._fetch_pack(group)

    def read(self, digest: Digest) -> bytes:
        if not self._cache.has(digest):
            limit = DEFAULT_LIMITS.object_bytes
            content = bytearray()
            for chunk in self._stream(digest):
                content += chunk
                if len(content) > limit:
                    raise TooLarge(f"object {digest[:12]}… is larger than {limit:,} bytes")
            self._cache.put_bytes(digest, bytes(content))
        return self._cache.read(digest)

    def chunks(self, digest: Digest) -> Iterator[bytes]:
        if self._cache.has(digest):
            yield from self._cache.chunks(digest)
            return
        for chunk in self._stream(digest):
            self._advance(len(chunk))
            yield chunk

    def _stream(self, digest: Digest) -> Iterator[bytes]:
        """The body, unverified. After a break it is asked for again and what was handed on is skipped."""
        came = 0
        for attempt in range(_TRIES):
            skip = came
            try:
                with self._transport.stream(calls.get_blob(digest)) as body:
                    for chunk in body.chunks:
                        fresh = chunk[skip:]
                        skip = max(0, skip - len(chunk))
                        came += len(fresh)
                        if fresh:
                            yield fresh
                return
            except StreamBroken as broken:
                self._give_up_at(attempt, broken)

    def _fetch_pack(self, digests: Sequence[Digest]) -> None:
        missing = list(digests)
        for attempt in range(_TRIES):
            try:
                with self._transport.stream(calls.fetch_blobs(missing)) as body:
                    wanted = set(missing)
                    for digest, content in read_frames(body.chunks):
                        if digest not in wanted:  # nor twice: what is not asked for would fill the disk
                            raise ProtocolError(f"the control plane sent blob {digest[:12]}…, which nobody asked for")
                        wanted.remove(digest)
                        self._cache.put_bytes(digest, content)
                        self._advance(len(content))
            except StreamBroken as broken:
                self._give_up_at(attempt, broken)
            missing = self._cache.missing(missing)
            if not missing:
                return
        raise ProtocolError(f"the control plane did not send {len(missing)} of the blobs it was asked for")

    def _give_up_at(self, attempt: int, broken: StreamBroken) -> None:
        if attempt == _TRIES - 1:
            raise Unreachable(
                f"the connection to {self._transport.url} broke {_TRIES} times: {broken}", hint="try again later"
            ) from None

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(Transfer("bringing outputs home", self._done, self._total))


def _groups(digests: Iterable[Digest], sizes: Mapping[Digest, int]) -> list[list[Digest]]:
    groups: list[list[Digest]] = []
    held = 0
    for digest in digests:
        if not groups or held + sizes[digest] > PACK_TARGET or len(groups[-1]) >= _MAX_DIGESTS:
            groups.append([])
            held = 0
        groups[-1].append(digest)
        held += sizes[digest]
    return groups
