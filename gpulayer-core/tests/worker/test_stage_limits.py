"""A source that is over a limit is refused before its contents are fetched, whatever the control plane hands out."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpulayer.errors import TooLarge
from gpulayer.spec.tree import digest_of
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.limits import TreeLimits
from gpulayer.wire.packs import frame
from gpulayer.worker.stage import Stager

LIMITS = TreeLimits(files=10, size_bytes=1000, entries=50, depth=5)


class _Plane:
    """Hands out whatever it was given, and counts how often it was asked."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.asked: list[list[str]] = []

    def tree(self, *rows: list[object]) -> str:
        content = json.dumps({"v": 1, "entries": list(rows)}).encode()
        self.blobs[digest_of(content)] = content
        return digest_of(content)

    async def until_answered(self, operation, *, what: str):
        return await operation()

    @asynccontextmanager
    async def stream(self, method: str, path: str, *, document=None) -> AsyncIterator["_Incoming"]:
        self.asked.append(document["digests"])
        yield _Incoming(b"".join(frame(digest, self.blobs[digest]) for digest in document["digests"]))


class _Incoming:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body


@pytest.mark.parametrize("what", ["deep", "large", "many"])
def test_a_source_over_a_limit_is_refused_before_its_contents_are_fetched(tmp_path, what) -> None:
    plane = _Plane()
    if what == "deep":
        tree = plane.tree()
        for _ in range(200):
            tree = plane.tree(["d", "d", 0o755, tree])
    elif what == "large":
        tree = plane.tree(["f", "a", 0o644, 600, "0" * 64], ["f", "b", 0o644, 600, "1" * 64])
    else:
        tree = plane.tree(*(["f", f"{number:02}", 0o644, 1, f"{number:064x}"] for number in range(11)))
    work = tmp_path / "work"
    work.mkdir()
    stager = Stager(plane, BlobFolder(tmp_path / "cache", durable=False), limits=LIMITS)  # type: ignore[arg-type]
    with pytest.raises(TooLarge):
        asyncio.run(stager.stage(tree, work))
    assert len(plane.asked) <= LIMITS.depth + 1
    assert not any(digest.startswith("000") for asked in plane.asked for digest in asked)
    assert list(work.iterdir()) == []
