"""The journal, kept as well as the disk lets it be, and what a full disk explains.

A line that finds no room stays in mind and is written as soon as it does; meanwhile work goes on to its end, because a
worker that fell over a full disk could end nothing and tell nobody. Only what is not there yet is not begun: a node
whose folder or start can't be recorded could not be found again after a crash.
"""

import asyncio
import errno
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from gpulayer.protocol.messages import Phase, ProcessExited, Progress
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.worker.disk import Reserve, full_text, is_full
from gpulayer.worker.journal import Journal

__all__ = ["Keeper"]

_log: Final = logging.getLogger(__name__)
_AGAIN_S: Final = 0.5
_RENEW_S: Final = 15.0
_End = TypeVar("_End")


class Keeper:
    """Writes through to ``Journal``; never raises. Blocks for small files."""

    def __init__(self, folders: Journal, reserve: Reserve, work_dir: Path, *, worker_name: Callable[[], str]) -> None:
        self._folders = folders
        self._reserve = reserve
        self._work_dir = work_dir
        self._worker_name = worker_name
        self._has_work = asyncio.Event()
        self._refused: dict[NodeKey, OSError] = {}
        self._unwritten: dict[NodeKey, tuple[Progress, OSError]] = {}

    def admit(self, assignment: Assignment) -> None:
        """Make the node's folder; where that fails, ``why_not`` says so and nothing may be begun in it."""
        try:
            self._reserve.write(lambda: self._folders.admit(assignment))
        except OSError as error:
            _log.warning("%s can't be kept: %s", assignment.key, error)
            self._refused[assignment.key] = error

    def write(self, key: NodeKey, progress: Progress) -> None:
        """Keep it in place of what was kept before."""
        if key in self._refused:
            return
        try:
            self._reserve.write(lambda: self._folders.write(key, progress))
        except FileNotFoundError:
            return  # refused before it was admitted: there is nothing to come back to
        except OSError as error:
            if not self._unwritten:
                _log.warning("the journal can't be written: %s", error)
            self._unwritten[key] = (progress, error)
            self._has_work.set()
        else:
            self._unwritten.pop(key, None)

    def why_not(self, key: NodeKey) -> OSError | None:
        """What keeps this node from being begun: a crash now would leave no trace of it, or a wrong one."""
        if key in self._refused:
            return self._refused[key]
        progress, error = self._unwritten.get(key, (None, None))
        return error if progress is not None and progress.phase in (Phase.STAGING, Phase.SPAWNING) else None

    def save_contact(self, contact_ms: int) -> None:
        """What stands there then lies behind, which is the safe side."""
        try:
            self._reserve.write(lambda: self._folders.save_contact(contact_ms))
        except OSError as error:
            _log.warning("the time of the last contact can't be kept: %s", error)

    def forget(self, key: NodeKey) -> None:
        """Nothing of it is to be written any more."""
        self._refused.pop(key, None)
        self._unwritten.pop(key, None)

    def explained(self, end: _End) -> _End:
        """A program that failed while its disk was full failed because of that. To be asked as soon as it has ended."""
        if not isinstance(end, ProcessExited) or not (end.exit_code or end.signal == signal.SIGBUS):
            return end
        if not is_full(self._folders.site(end.key).work_dir):
            return end
        evidence = "\n".join(line for line in (self.full_text(), end.evidence) if line)
        return replace(end, is_disk_full=True, evidence=evidence)

    def full_text(self, number: int | None = None) -> str:
        """For people: whose disk, and how full. number: what a failed write said."""
        return full_text(self._worker_name(), self._work_dir, number=number or errno.ENOSPC)

    async def watch(self) -> None:
        """Until cancelled: write what is behind as soon as there is room, and keep a reserve back while there is."""
        while True:
            self._try_again()
            if self._unwritten:
                await asyncio.sleep(_AGAIN_S)
                continue
            self._has_work.clear()
            try:
                await asyncio.wait_for(self._has_work.wait(), _RENEW_S)
            except TimeoutError:
                continue

    def _try_again(self) -> None:
        for key, (progress, _) in list(self._unwritten.items()):
            self.write(key, progress)
        if not self._unwritten:
            self._reserve.renew()
