"""The control plane's disk when it runs full: nothing new is taken in, and what there is comes to its end.

8 MiB are kept back (``gpulayer.reserve``). The first commit that finds no room is made with them, and from then on,
until there is room for them again, submissions, sources, outputs and all but a little of the logs are refused
(``DiskFull``): they would take what ends, cancels and the last words of logs need.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from gpulayer.errors import DiskFull
from gpulayer.reserve import Reserve, free_bytes

__all__ = ["RESERVE_BYTES", "Room"]

RESERVE_BYTES: Final = 8 << 20
_PIECE_BYTES: Final = 64 << 10
_WORDS_BYTES: Final = 2 << 20  # of logs that grow, taken while the disk is full: no end is told before its log is here

_ABOVE_BYTES: Final = RESERVE_BYTES + (4 << 20)
_FULL_BELOW_BYTES: Final = 1 << 20

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


class Room:
    """Of one state folder. ``spend`` and ``renew`` block for one small file, in any thread; ``check`` asks the file
    system how much is free, which a local one knows at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reserve = Reserve(folder, size_bytes=RESERVE_BYTES, above_bytes=_ABOVE_BYTES)
        self._is_spent = False
        self._words_bytes = 0

    @property
    def is_full(self) -> bool:
        """Nothing new is to be written now."""
        if self._is_spent:
            return True
        try:
            room_bytes, has_files = free_bytes(self._folder)
        except OSError:
            return False
        return room_bytes < _FULL_BELOW_BYTES or not has_files

    def check(self) -> None:
        """Raises DiskFull where nothing new is to be written now."""
        if self.is_full:
            raise self._refusal()

    def check_log(self, size: int, *, is_final: bool) -> None:
        """For a piece of a log: small ones are taken, of logs that grow up to 2 MiB in all. Raises DiskFull."""
        if not size or not self.is_full:
            return
        if size > _PIECE_BYTES or (not is_final and self._words_bytes + size > _WORDS_BYTES):
            raise self._refusal()
        self._words_bytes += size

    def _refusal(self) -> DiskFull:
        return DiskFull(
            f"the control plane's disk is full ({self._folder}): it takes in nothing new",
            hint="free space on that disk, then try again; what runs goes on, and can be cancelled",
        )

    def write(self, operation: Callable[[], _Result]) -> _Result:
        """Run it, and once more with what is kept back where it found no room. Raises DiskFull, and what it raises."""
        try:
            return operation()
        except DiskFull:
            if not self.spend():
                raise
        return operation()

    def spend(self) -> bool:
        """A write has found no room. True where there is some now."""
        if not self._reserve.release():
            return False
        self._is_spent = True
        _log.warning("the disk of %s is full: nothing new is taken in until there is room", self._folder)
        return True

    def renew(self) -> None:
        """Keep it back where there is plenty."""
        self._reserve.renew()
        if self._is_spent and self._reserve.is_held:
            self._is_spent, self._words_bytes = False, 0
            _log.warning("the disk of %s has room again", self._folder)
