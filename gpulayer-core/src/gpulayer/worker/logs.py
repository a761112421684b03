"""One log on its way: from the spool file to the control plane, by offset, as it grows.

One request at a time, at most ``PIECE`` bytes each, woken by the spawner's word that there is more. The control plane
says how much it holds; after a restart, a gap or an overlap the log goes on from there, so no byte is lost or sent for
good twice. Memory is bounded by one piece, however fast the program writes.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

from gpulayer.errors import Conflict
from gpulayer.spec.assignment import NodeKey
from gpulayer.wire.workers import LogReply
from gpulayer.worker.session import Plane

__all__ = ["LogUploader"]

PIECE: Final = 256 * 1024


class LogUploader:
    """``run`` it once; ``grown`` and ``drain`` may be called at any time. ``is_started``: the caller's note that it
    runs, since a program that prints nothing needs no run at all."""

    def __init__(self, plane: Plane, key: NodeKey, path: Path, *, is_resumed: bool) -> None:
        self._plane = plane
        self._key = key
        self._path = path
        self._offset: int | None = None if is_resumed else 0
        self._woken = asyncio.Event()
        self._is_draining = False
        self.is_started = False

    def is_empty(self) -> bool:
        """The spool holds nothing."""
        try:
            return os.stat(self._path).st_size == 0
        except FileNotFoundError:
            return True

    def grown(self) -> None:
        """The spool has more bytes; harmless when it has not."""
        self._woken.set()

    def drain(self) -> None:
        """The spool is complete: ``run`` ends when the control plane holds it all."""
        self._is_draining = True
        self._woken.set()

    async def run(self) -> None:
        """Raises StaleAttempt, and any other error that is an answer for good."""
        if self._offset is None:
            await self._put(b"", 0, is_final=False)  # asks what is there: the answer is the offset to go on from
        while True:
            self._woken.clear()
            is_draining = self._is_draining
            if await self._send_all(is_draining=is_draining) and is_draining:
                return
            if not self._is_draining:
                await self._woken.wait()

    async def _send_all(self, *, is_draining: bool) -> bool:
        """Send what is in the spool now; True when it was whole and acknowledged."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True  # the program never started, or wrote nothing yet
        try:
            while True:
                offset, size = self._offset or 0, os.fstat(descriptor).st_size
                piece = os.pread(descriptor, PIECE, offset)
                is_final = is_draining and offset + len(piece) >= size
                # An empty log needs no word: there is nothing in it that could get lost.
                if piece or (is_final and size):
                    await self._put(piece, offset, is_final=is_final)
                if is_final and (self._offset or 0) >= size:
                    return True
                if not piece and not is_final:
                    return False
        finally:
            os.close(descriptor)

    async def _put(self, piece: bytes, offset: int, *, is_final: bool) -> None:
        path = f"{self._plane.worker_path}/attempts/{self._key.epoch}/logs?node={self._key.node}&offset={offset}"
        if is_final:
            path += "&final=1"

        async def put() -> int:
            try:
                reply: LogReply = await self._plane.call("PUT", path, content=piece)
            except Conflict as error:
                held = error.details.get("offset")
                if not isinstance(held, int):
                    raise
                return held
            return reply["offset"]

        self._offset = await self._plane.until_answered(put, what=f"log of {self._key}")
