"""Logs of attempts: one file a node, ``logs/<job>/<epoch>.<node>.log``, written by byte offset.

A piece that is there already is ignored, a piece that would leave a gap is refused with the offset wanted; so a worker
may send anything twice and in pieces of any size. Everything but ``latest`` blocks; a call holds one piece in memory,
and the last small pieces of a few logs are kept for those who follow them.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpulayer.errors import Conflict, DiskFull, StorageUnavailable
from gpulayer.ids import Epoch, JobId
from gpulayer.staging.blobs import storage_error

__all__ = ["READ_PIECE", "LogFolder"]

READ_PIECE: Final = 256 * 1024
_KEPT_PIECE: Final = 16 * 1024
_KEPT: Final = 64


class LogFolder:
    """The logs below ``root``. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._guard = threading.Lock()
        self._writing: dict[Path, tuple[threading.Lock, int]] = {}
        self._latest: OrderedDict[tuple[Epoch, int], tuple[int, bytes]] = OrderedDict()

    def append(self, job_id: JobId, epoch: Epoch, node: int, offset: int, piece: bytes, *, is_final: bool) -> int:
        """Keep what is new of ``piece``, which begins at ``offset``; returns how many bytes there are now.

        ``is_final``: make the whole log durable before returning. Raises Conflict (with ``details["offset"]``) for a
        gap, DiskFull, StorageUnavailable.
        """
        path = self.path(job_id, epoch, node)
        try:
            with self._exclusive(path):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    size = _append(descriptor, offset, piece, is_final=is_final)
                finally:
                    os.close(descriptor)
                if piece and size == offset + len(piece):
                    self._keep(epoch, node, offset, piece)
                return size
        except OSError as error:
            raise _storage_error(error, path) from error

    def size(self, job_id: JobId, epoch: Epoch, node: int) -> int:
        """Bytes held; 0 for a log that has not begun."""
        try:
            return os.stat(self.path(job_id, epoch, node)).st_size
        except FileNotFoundError:
            return 0

    def read(self, job_id: JobId, epoch: Epoch, node: int, offset: int, limit: int = READ_PIECE) -> bytes:
        """Up to ``limit`` bytes from ``offset``; empty at the end."""
        path = self.path(job_id, epoch, node)
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise _storage_error(error, path) from error

    def latest(self, epoch: Epoch, node: int, offset: int) -> bytes:
        """The piece that was appended last, if it begins at ``offset``: what a follower wants next, without a read.
        Does not block; empty where only ``read`` can tell."""
        start, piece = self._latest.get((epoch, node), (-1, b""))
        return piece if start == offset else b""

    def _keep(self, epoch: Epoch, node: int, offset: int, piece: bytes) -> None:
        with self._guard:
            self._latest.pop((epoch, node), None)
            if len(piece) <= _KEPT_PIECE:
                self._latest[epoch, node] = (offset, piece)
                if len(self._latest) > _KEPT:
                    self._latest.popitem(last=False)

    def path(self, job_id: JobId, epoch: Epoch, node: int) -> Path:
        return self._root / job_id / f"{int(epoch)}.{int(node)}.log"

    @contextmanager
    def _exclusive(self, path: Path) -> Iterator[None]:
        with self._guard:
            lock, users = self._writing.get(path, (threading.Lock(), 0))
            self._writing[path] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._writing[path]
                if users == 1:
                    del self._writing[path]
                else:
                    self._writing[path] = (lock, users - 1)


def _append(descriptor: int, offset: int, piece: bytes, *, is_final: bool) -> int:
    size = os.fstat(descriptor).st_size
    if offset > size:
        raise Conflict(
            f"this log has {size} bytes; a piece that begins at {offset} would leave a gap",
            hint="send the log from details.offset on",
            details={"offset": size},
        )
    fresh = memoryview(piece)[size - offset :]
    try:
        while fresh:
            written = os.pwrite(descriptor, fresh, size)
            size, fresh = size + written, fresh[written:]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    if is_final:
        os.fsync(descriptor)
    return size


def _storage_error(error: OSError, path: Path) -> DiskFull | StorageUnavailable:
    mapped = storage_error(error, path)
    return mapped if isinstance(mapped, DiskFull | StorageUnavailable) else StorageUnavailable(mapped.message)
