"""A source on its way in: what this worker lacks is fetched into its blob cache, then written out as a work folder.

Tree objects first, level by level; then contents, small ones many in a body, large ones alone, a bounded number of
transfers side by side over all attempts. Whatever comes is verified by its digest. An outage is waited out.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from gpulayer.errors import BadRequest, DigestMismatch, DiskFull, NotFound, StorageUnavailable, TooLarge
from gpulayer.ids import Digest
from gpulayer.spec.tree import EntryKind, decode_tree
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.limits import DEFAULT_LIMITS, TreeLimits
from gpulayer.staging.workfolder import Baseline, materialise
from gpulayer.wire.packs import MAX_PACKED_BLOB, PACK_TARGET, read_frames
from gpulayer.worker.folders import emptied
from gpulayer.worker.session import Plane

__all__ = ["Stager"]

_TRANSFERS: Final = 4
_TREES_A_REQUEST: Final = 64
_BLOBS_A_REQUEST: Final = 5_000
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_TRIES: Final = 3  # a damaged blob is taken out of the cache and fetched again


class Stager:
    """One for all attempts of a worker. Methods may run side by side."""

    def __init__(self, plane: Plane, cache: BlobFolder, *, limits: TreeLimits = DEFAULT_LIMITS) -> None:
        self._plane = plane
        self._cache = cache
        self._limits = limits
        self._transfers = asyncio.Semaphore(_TRANSFERS)

    async def stage(self, source: Digest, work_dir: Path) -> Baseline:
        """Write the source into the empty ``work_dir``. Raises BadRequest, TooLarge and Conflict for a bad tree,
        NotFound and DigestMismatch for what the control plane does not have, DiskFull, StorageUnavailable."""
        for left in range(_TRIES - 1, -1, -1):
            await self._fetch_all(source)
            try:
                return await asyncio.to_thread(materialise, source, self._cache, work_dir, limits=self._limits)
            except (DigestMismatch, NotFound):
                if not left:
                    raise
                await asyncio.to_thread(emptied, work_dir)
        raise AssertionError("unreachable")

    async def _fetch_all(self, source: Digest) -> None:
        files: dict[Digest, int] = {}
        seen: set[Digest] = set()
        level, entries, depth = [source], 0, 0
        while level:
            depth += 1
            if depth > self._limits.depth + 1:
                raise TooLarge(f"the source nests folders deeper than {self._limits.depth}")
            seen.update(level)
            await self._fetch_trees(level)
            below: dict[Digest, None] = {}
            for tree in [decode_tree(content) for content in await asyncio.to_thread(self._read, level)]:
                entries += len(tree.entries)
                if entries > self._limits.entries:
                    raise TooLarge(f"the source has {entries:,} entries or more; the limit is {self._limits.entries:,}")
                for entry in tree.entries:
                    if entry.kind is EntryKind.FILE and entry.size:
                        files[entry.digest] = entry.size
                    elif entry.kind is EntryKind.DIRECTORY and entry.digest not in seen:
                        below[entry.digest] = None
            level = list(below)
        # Before any of it is fetched; what each name of them counts for is checked when the tree is written out.
        self._limits.check(len(files), sum(files.values()), "the source")
        missing = await asyncio.to_thread(self._cache.missing, files)
        small = [digest for digest in missing if files[digest] <= MAX_PACKED_BLOB]
        large = [digest for digest in missing if files[digest] > MAX_PACKED_BLOB]
        try:
            async with asyncio.TaskGroup() as group:
                for batch in _batches(small, files):
                    group.create_task(self._fetch_pack(batch))
                for digest in large:
                    group.create_task(self._fetch_single(digest, files[digest]))
        except ExceptionGroup as failed:  # the first is the reason; the others were ended because of it
            raise failed.exceptions[0] from None

    def _read(self, digests: Iterable[Digest]) -> list[bytes]:
        return [self._cache.read(digest) for digest in digests]

    async def _fetch_trees(self, digests: list[Digest]) -> None:
        missing = await asyncio.to_thread(self._cache.missing, digests)
        for start in range(0, len(missing), _TREES_A_REQUEST):
            batch = missing[start : start + _TREES_A_REQUEST]
            try:
                await self._fetch_pack(batch)
            except BadRequest:  # one of them is too large for a pack; only the control plane knows their sizes
                for digest in batch:
                    await self._fetch_single(digest, self._limits.object_bytes)

    async def _fetch_pack(self, digests: list[Digest]) -> None:
        async def fetch() -> bytes:
            async with self._plane.stream("POST", "/v1/blobs:fetch", document={"digests": digests}) as incoming:
                return await incoming.read()

        async with self._transfers:
            body = await self._plane.until_answered(fetch, what="fetching sources")
            await asyncio.to_thread(self._keep, body)
        lacking = await asyncio.to_thread(self._cache.missing, digests)
        if lacking:
            raise NotFound(f"the control plane did not send blob {lacking[0]}")

    def _keep(self, body: bytes) -> None:
        self._cache.put_many(read_frames([body]))

    async def _fetch_single(self, digest: Digest, size_limit: int) -> None:
        async def fetch() -> None:
            with await _on_our_disk(self._cache.writer, digest, size_limit) as writer:
                async with self._plane.stream("GET", f"/v1/blobs/{digest}") as incoming:
                    async for piece in incoming.pieces():
                        await _on_our_disk(writer.write, piece)
                await _on_our_disk(writer.commit)

        async with self._transfers:
            try:
                await self._plane.until_answered(fetch, what="fetching sources")
            except _OurDisk as failed:
                raise failed.error from failed


class _OurDisk(Exception):
    """Carries the failure of this worker's disk past the waiting for the control plane's, which passes."""

    def __init__(self, error: DiskFull | StorageUnavailable) -> None:
        super().__init__(error.message)
        self.error = error


async def _on_our_disk(work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs) -> _Result:
    try:
        return await asyncio.to_thread(work, *given, **named)
    except (DiskFull, StorageUnavailable) as error:
        raise _OurDisk(error) from error


def _batches(digests: list[Digest], sizes: dict[Digest, int]) -> Iterator[list[Digest]]:
    batch: list[Digest] = []
    size = 0
    for digest in digests:
        if batch and (size + sizes[digest] > PACK_TARGET or len(batch) >= _BLOBS_A_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(digest)
        size += sizes[digest]
    if batch:
        yield batch
