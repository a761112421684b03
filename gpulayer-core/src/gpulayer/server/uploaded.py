"""Trees that were uploaded: whether all of one is here, and how its objects are read."""

from gpulayer.errors import NotFound, TooLarge
from gpulayer.ids import Digest
from gpulayer.server.plane import Plane
from gpulayer.staging.limits import DEFAULT_LIMITS
from gpulayer.staging.trees import TreeTotals, check_tree

__all__ = ["check_uploaded", "tree_reader"]


async def check_uploaded(plane: Plane, root: Digest, what: str) -> TreeTotals:
    """Refuse a tree that is malformed, over the limits, or not all uploaded; naming what is missing."""
    return await plane.in_thread(_check_uploaded, plane, root, what)


def tree_reader(plane: Plane) -> "_TreeReader":
    """Reads tree objects from the plane's blobs. Raises TooLarge for a blob that can't be one. Blocks."""
    return _TreeReader(plane)


class _TreeReader:
    """Reads tree objects: a blob that is too large to be one is never read into memory."""

    def __init__(self, plane: Plane) -> None:
        self._blobs = plane.blobs

    def __call__(self, digest: Digest) -> bytes:
        size = self._blobs.size(digest)
        if size > DEFAULT_LIMITS.object_bytes:
            raise TooLarge(f"blob {digest[:12]}… has {size:,} bytes: too large for a tree object")
        return self._blobs.read(digest)


def _check_uploaded(plane: Plane, root: Digest, what: str) -> TreeTotals:
    hint = "ask /v1/sources:missing, upload what is missing, then try again"
    if not plane.blobs.has(root):
        raise NotFound(f"{what} {root} is not here", hint=hint, details={"missing": [root]})
    totals = check_tree(root, tree_reader(plane))
    missing = plane.blobs.missing(sorted(totals.digests))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NotFound(
            f"{what} {root[:12]}… is not complete: blob {missing[0]} is missing{more}",
            hint=hint,
            details={"missing": missing[:100]},
        )
    return totals
