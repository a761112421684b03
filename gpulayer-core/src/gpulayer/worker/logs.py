"""Logs on their way: from the spool files to the control plane, by offset, as they grow.

A stream has one request on its way, of at most ``PIECE`` bytes, woken by the spawner's word that there is more. The
control plane says how much it holds; after a restart, a gap or an overlap the log goes on from there, so no byte is
lost or sent for good twice. Memory is bounded by one piece a stream, however fast the program writes. A spool is kept
open from its first byte on, so that it is read to its end though somebody removes it; what is gone all the same is told
by evidence, and the control plane says so behind the log. What found no room on this disk is told by a last line of the
log, which the control plane gets and no spool has. What is secret leaves this machine masked, byte for byte
(``masking``).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpulayer.errors import Conflict, GpulayerError, StaleAttempt
from gpulayer.faults import here
from gpulayer.plugins.contracts.launcher import LaunchSite
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.logs import LogStream, not_whole
from gpulayer.wire.workers import LogReply
from gpulayer.worker.masked_spool import MaskedSpool
from gpulayer.worker.masking import Masks
from gpulayer.worker.session import Plane

__all__ = ["AttemptLogs", "LogUploader", "Written"]

PIECE: Final = 1 << 20  # what the control plane takes at most; a request costs it more than the bytes in it

_PIECE_S: Final = 10.0  # counted from when it last moved, so a slow line has its time and a dead one has not


@dataclass(frozen=True, slots=True)
class Written:
    """What whoever wrote the spools says of them at the end; for each stream: size: bytes that are in it. unwritten:
    bytes that found no room in it."""

    size: tuple[int, ...] = ()
    unwritten: tuple[int, ...] = ()


NOT_KNOWN: Final = Written()


class AttemptLogs:
    """The log of one node, or its two where streams are split. ``run`` it once; the rest at any time. ``is_started``:
    the caller's note that it runs."""

    def __init__(
        self,
        plane: Plane,
        key: NodeKey,
        site: LaunchSite,
        *,
        is_resumed: bool,
        masks: Callable[[], Awaitable[Masks]] | None = None,
        limit_bytes: int = 0,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """masks: asked once, before anything is sent; None: nothing in it is secret. limit_bytes: of each spool.
        gives_up: as of ``Plane.until_answered``."""
        self._masks = masks
        self._is_drained = asyncio.Event()
        paths = self._paths = {LogStream.STDOUT: site.log_path}
        if site.err_path is not None:
            paths[LogStream.STDERR] = site.err_path
        self._streams = {
            stream: LogUploader(
                plane, key, path, is_resumed=is_resumed, stream=stream, limit_bytes=limit_bytes, gives_up=gives_up
            )
            for stream, path in paths.items()
        }
        self.is_started = False

    def is_needless(self, written: Written) -> bool:
        """It does not run, and there is nothing to send: most tiny jobs print nothing. Asked when the spools are
        complete."""
        if self.is_started or any(written.size) or any(written.unwritten):
            return False
        return all(uploader.is_empty() for uploader in self._streams.values())

    def grown(self, stream: str = "") -> None:
        """The spool of this stream, or any of them, has more bytes; harmless when it has not."""
        for name, uploader in self._streams.items():
            if stream in ("", name):
                uploader.grown()

    def drain(self, written: Written = NOT_KNOWN) -> None:
        """The spools are complete: ``run`` ends when the control plane holds them."""
        counts = zip((*written.size, 0, 0), (*written.unwritten, 0, 0), strict=False)
        for uploader, (size, unwritten) in zip(self._streams.values(), counts, strict=False):
            uploader.drain(size=size, unwritten=unwritten)
        self._is_drained.set()

    def remove_spools(self) -> None:
        """They are not sent any more. Blocks. Raises OSError."""
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    async def run(self) -> tuple[str, ...]:
        """Returns, once they are drained, a line of evidence for each stream that was refused for good, can't be read,
        or has lost something here; the other one comes home all the same. Raises StaleAttempt."""
        failed: list[str] = []
        if self._masks is not None:
            try:
                masks = await self._masks()
            except StaleAttempt:
                raise
            except GpulayerError as error:
                why = f"secrets in it can't be masked: {error.message}"
                await self._is_drained.wait()
                return tuple(
                    not_whole(why, stream=stream) for stream, one in self._streams.items() if not one.is_empty()
                )
            for uploader in self._streams.values():
                uploader.mask(masks)

        async def run(uploader: LogUploader) -> None:
            try:
                await uploader.run()
            except StaleAttempt:
                raise
            except GpulayerError as error:
                failed.append(not_whole(error.message, stream=uploader.stream))
            except OSError as error:  # the spool can't be read, or is no file any more
                failed.append(not_whole(str(error), stream=uploader.stream))
            else:
                if uploader.missing:
                    why = f"{uploader.missing} bytes were gone from the worker's disk before they had been sent"
                    failed.append(not_whole(why, stream=uploader.stream))

        try:
            async with asyncio.TaskGroup() as group:
                for uploader in self._streams.values():
                    group.create_task(run(uploader))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        await self._is_drained.wait()  # of a log that was refused while its program ran, its end is still to be told
        return tuple(failed)


class LogUploader:
    """One stream. ``run`` it once; ``grown`` and ``drain`` may be called at any time. ``missing``: so many bytes of it
    were written, and were not there to be sent; known when ``run`` has ended."""

    def __init__(
        self,
        plane: Plane,
        key: NodeKey,
        path: Path,
        *,
        is_resumed: bool,
        stream: LogStream = LogStream.STDOUT,
        limit_bytes: int = 0,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._plane = plane
        self._key = key
        self._path = path
        self.stream = stream
        self._offset: int | None = None if is_resumed else 0
        self._woken = asyncio.Event()
        self._is_draining = False
        self._size = self._unwritten = self.missing = 0
        self._descriptor: int | None = None
        self._limit_bytes = limit_bytes
        self._gives_up = gives_up
        self._masked: MaskedSpool | None = None

    def mask(self, masks: Masks) -> None:
        """From the next byte on; to be called before ``run``."""
        self._masked = MaskedSpool(masks, limit_bytes=self._limit_bytes)

    def is_empty(self) -> bool:
        """The spool holds nothing."""
        try:
            return os.stat(self._path).st_size == 0
        except FileNotFoundError:
            return True

    def grown(self) -> None:
        """The spool has more bytes; harmless when it has not."""
        self._woken.set()

    def drain(self, *, size: int = 0, unwritten: int = 0) -> None:
        """The spool is complete: ``run`` ends when the control plane holds it all, and a line that tells of bytes that
        did not get into it; or all of it that is still there. size: as it was written."""
        self._is_draining = True
        self._size, self._unwritten = size, unwritten
        self._woken.set()

    async def run(self) -> None:
        """Raises StaleAttempt, and any other error that is an answer for good."""
        try:
            if self._offset is None:
                await self._put(b"", 0, is_final=False)  # asks what is there: the answer is the offset to go on from
            while True:
                self._woken.clear()
                is_draining = self._is_draining
                if await self._send_all(is_draining=is_draining) and is_draining:
                    return
                if not self._is_draining:
                    await self._woken.wait()
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)

    async def _send_all(self, *, is_draining: bool) -> bool:
        """Send what is in the spool now; True when it was whole and acknowledged, or can't become whole any more."""
        while True:
            descriptor = self._opened()
            offset = self._offset or 0
            spooled = end = 0 if descriptor is None else os.fstat(descriptor).st_size
            words = b""
            if is_draining:
                self.missing = max(0, self._size - max(spooled, offset))
            if is_draining and not self.missing:
                end = max(spooled, self._size)
                words = self._last_words(descriptor, end)
            size = end + len(words)
            piece = b""
            if descriptor is not None:
                piece = await self._read(descriptor, offset, spooled, is_draining=is_draining)
            piece = piece or words[max(0, offset - end) :]
            is_final = is_draining and not self.missing and offset + len(piece) >= size
            # An empty log needs no word: there is nothing in it that could get lost.
            if piece or (is_final and size):
                await self._put(piece, offset, is_final=is_final)
            if is_final and (self._offset or 0) >= size:
                return True
            if not piece and not is_final:
                return self.missing > 0

    def _opened(self) -> int | None:
        """The spool; None where it is not there: its program never started, wrote nothing yet, or removed it before it
        was opened here."""
        if self._descriptor is None:
            way = os.O_RDONLY if self._masked is None else os.O_RDWR
            try:
                self._descriptor = os.open(self._path, way | os.O_CLOEXEC)
            except FileNotFoundError:
                pass
        return self._descriptor

    async def _read(self, descriptor: int, offset: int, spooled: int, *, is_draining: bool) -> bytes:
        if self._masked is None:
            return os.pread(descriptor, PIECE, offset)
        is_cut = is_draining and self._unwritten > 0
        return await asyncio.to_thread(
            self._masked.read, descriptor, offset, PIECE, size=spooled, is_whole=is_draining, is_cut=is_cut
        )

    def _last_words(self, descriptor: int | None, end: int) -> bytes:
        if not self._unwritten:
            return b""
        line = f"[gpulayer: {self._unwritten} bytes left out: the disk of the worker was full]\n".encode()
        last = os.pread(descriptor, 1, end - 1) if descriptor is not None and end else b""
        return line if last == b"\n" or not end else b"\n" + line

    async def _put(self, piece: bytes, offset: int, *, is_final: bool) -> None:
        path = f"{self._plane.worker_path}/attempts/{self._key.epoch}/logs?node={self._key.node}&offset={offset}"
        if self.stream is not LogStream.STDOUT:
            path += f"&stream={self.stream}"
        if is_final:
            path += "&final=1"

        async def put() -> int:
            try:
                reply: LogReply = await self._plane.call(
                    "PUT", path, content=piece, timeout_s=_PIECE_S, asks_again=True
                )
            except Conflict as error:
                held = error.details.get("offset")
                if not isinstance(held, int):
                    raise
                return held
            return reply["offset"]

        if piece:
            here("agent.before_log_piece")
        offset = await self._plane.until_answered(put, what=f"log of {self._key}", gives_up=self._gives_up)
        if piece:
            here("agent.after_log_piece")
        self._offset = offset
