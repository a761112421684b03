"""How large a tree may be, for those who make one and for those who are handed one."""

from dataclasses import dataclass
from typing import Final

from gpulayer.errors import TooLarge
from gpulayer.spec.units import format_bytes

__all__ = ["DEFAULT_LIMITS", "TreeLimits"]


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """files: files and links. size_bytes: content, each name counted. entries: files, links and folders.

    depth: folders below each other. path_bytes: one whole path. object_bytes: one tree object, before it is parsed.
    """

    files: int = 100_000
    size_bytes: int = 10 * 2**30
    entries: int = 400_000
    depth: int = 200
    path_bytes: int = 4095
    object_bytes: int = 64 * 2**20

    def check(self, files: int, size_bytes: int, what: str, hint: str = "") -> None:
        """Raise TooLarge that names the limit and both figures."""
        if files > self.files:
            raise TooLarge(
                f"{what} has {files:,} files ({format_bytes(size_bytes)}); the limit is {self.files:,} files", hint=hint
            )
        if size_bytes > self.size_bytes:
            raise TooLarge(
                f"{what} has {format_bytes(size_bytes)} in {files:,} files; the limit is "
                f"{format_bytes(self.size_bytes)}",
                hint=hint,
            )


DEFAULT_LIMITS: Final = TreeLimits()
