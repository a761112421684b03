"""Which blobs make up a tree: what may be read with a right to it. Worked out once, and the newest are kept."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gpulayer.ids import Digest

__all__ = ["TreeDigests"]

_KEPT: Final = 250_000  # digests in all, about 40 MB


class TreeDigests:
    """Digests by the root of their tree. Used from the event loop's thread alone.

    kept: how many digests are remembered in all, whatever the number of trees; the newest tree always is.
    """

    def __init__(self, *, kept: int = _KEPT) -> None:
        self._kept = kept
        self._trees: OrderedDict[Digest, frozenset[Digest]] = OrderedDict()
        self._count = 0
        self._loading = asyncio.Lock()

    def keep(self, root: Digest, digests: frozenset[Digest]) -> None:
        """Remember a tree that was read for another reason; the one not asked for longest is forgotten for it."""
        self._count += len(digests) - len(self._trees.pop(root, ()))
        self._trees[root] = digests
        while self._count > self._kept and len(self._trees) > 1:
            self._count -= len(self._trees.popitem(last=False)[1])

    async def of(self, root: Digest, load: Callable[[], Awaitable[frozenset[Digest]]]) -> frozenset[Digest]:
        """All digests of the tree. ``load`` reads it where it is not remembered, one tree at a time: several requests
        for parts of one tree come together. Raises what that raises."""
        found = self._known(root)
        if found is not None:
            return found
        async with self._loading:
            found = self._known(root)
            if found is None:
                found = await load()
                self.keep(root, found)
            return found

    def _known(self, root: Digest) -> frozenset[Digest] | None:
        found = self._trees.get(root)
        if found is not None:
            self._trees.move_to_end(root)
        return found
