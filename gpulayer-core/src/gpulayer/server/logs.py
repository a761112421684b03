"""Logs of attempts: a file for each node and stream, ``logs/<job>/<epoch>.<node>[.err].log``, written by byte offset.

A piece that is there already is ignored, a piece that would leave a gap is refused with the offset wanted; so a worker
may send anything twice and in pieces of any size. Beside each log stand the times at which its bytes came
(``logtimes``). What was removed leaves ``logs/<job>.removed``, an empty file whose time says when.

Everything but ``latest`` blocks; a call holds one piece in memory, and the last pieces of a few logs are kept for those
who follow them, a few megabytes in all.

Where the disk refuses, every method says which path, and why (StorageUnavailable), also those that only read.
"""

import errno
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from gpulayer.errors import Conflict, DiskFull, GpulayerError, StorageUnavailable
from gpulayer.faults import here
from gpulayer.ids import Epoch, JobId
from gpulayer.server.logtimes import LogTimes, offset_since
from gpulayer.spec.logs import LogStream, gap_line
from gpulayer.staging.blobs import storage_error
from gpulayer.syncing import Syncs

__all__ = ["READ_PIECE", "LogFolder", "LogKey", "LogReader"]

READ_PIECE: Final = 256 * 1024
_SMALL_PIECE: Final = 16 * 1024
_KEPT_BYTES: Final = 4 * 1024 * 1024
_ENTRY_BYTES: Final = 512  # of each of them, beside its bytes: most logs end with a short line
_REMOVED: Final = ".removed"
_REFUSED_KEPT: Final = 1000


def _always() -> bool:
    return True


class LogKey(NamedTuple):
    """One log. A job that was not split has the stream ``stdout`` alone."""

    job_id: JobId
    epoch: Epoch
    node: int = 0
    stream: LogStream = LogStream.STDOUT


class LogFolder:
    """The logs below ``root``, which is made where it is missing. Safe for several threads.

    Raises StorageUnavailable for a folder that can't be read and written: no job could end over it.
    """

    def __init__(self, root: Path, *, syncs: Syncs | None = None) -> None:
        self._root = root
        _check_usable(root)
        self._syncs = syncs or Syncs()
        self._guard = threading.Lock()
        self._writing: dict[Path, tuple[threading.Lock, int]] = {}
        self._latest: OrderedDict[LogKey, tuple[int, bytes]] = OrderedDict()
        self._latest_bytes = 0
        self._refused: OrderedDict[JobId, GpulayerError] = OrderedDict()
        self._times = LogTimes()

    def append(
        self,
        key: LogKey,
        offset: int,
        piece: bytes,
        *,
        wall_ms: int,
        is_final: bool = False,
        is_followed: bool = False,
        is_open: Callable[[], bool] = _always,
    ) -> int | None:
        """Keep what is new of ``piece``, which begins at ``offset`` and came at ``wall_ms``; returns how many bytes
        there are now. None: ``is_open`` said no, asked when it is this piece's turn, and nothing was kept.

        ``is_final``: make the whole log durable before returning. ``is_followed``: somebody waits for it just now, so
        that it is worth its memory. Raises Conflict (with ``details["offset"]``) for a gap, DiskFull,
        StorageUnavailable.
        """
        path = self.path(key)
        with self._writable(path, is_open) as descriptor:
            if descriptor is None:
                return None
            if piece:
                here("plane.before_log_piece")
            before = os.fstat(descriptor).st_size
            size = _append(descriptor, before, offset, piece)
            if size > before:
                self._note(path, before, wall_ms)
            if is_final:
                here("plane.before_log_end")
                self._syncs.file(descriptor, path)
                self._sync_names(path)
                here("plane.after_log_end")
            if piece and size == offset + len(piece):
                self._keep(key, offset, piece, is_wanted=is_followed or len(piece) <= _SMALL_PIECE)
            return size

    def mark_missing(self, key: LogKey, *, wall_ms: int, is_open: Callable[[], bool] = _always) -> None:
        """Say at the end of a log that its rest is missing. Once, however often it is called; durable. ``is_open``: as
        above."""
        path = self.path(key)
        with self._writable(path, is_open) as descriptor:
            if descriptor is None:
                return
            size = os.fstat(descriptor).st_size
            line = gap_line(None)
            end = os.pread(descriptor, len(line), max(0, size - len(line)))
            if end != line:
                here("plane.before_log_mark")
                _append(descriptor, size, size, gap_line(None, after=end))
                self._note(path, size, wall_ms)
                self._syncs.file(descriptor, path)
                self._sync_names(path)
                here("plane.after_log_mark")

    def _sync_names(self, log: Path) -> None:
        self._syncs.path(log.parent)
        self._syncs.path(self._root)

    @contextmanager
    def noting_refusal(self, job_id: JobId) -> Iterator[None]:
        """A piece of this job's logs is to be taken within; ``refused`` tells why it was not."""
        try:
            yield
        except (DiskFull, StorageUnavailable) as error:
            with self._guard:
                self._refused[job_id] = error
                self._refused.move_to_end(job_id)
                if len(self._refused) > _REFUSED_KEPT:
                    self._refused.popitem(last=False)
            raise
        with self._guard:
            self._refused.pop(job_id, None)

    def refused(self, job_id: JobId) -> GpulayerError | None:
        """Why the newest piece of this job's logs was not taken: its worker keeps it ``ending`` for that. None where
        it was. Does not block."""
        return self._refused.get(job_id)

    def settle(self, key: LogKey) -> None:
        """Wait for the piece that is being written, if any: once a log is not open any more, it is all there then."""
        with self._exclusive(self.path(key)):
            pass

    def size(self, key: LogKey) -> int:
        """Bytes held; 0 for a log that has not begun. Raises StorageUnavailable."""
        found = _stat(self.path(key))
        return 0 if found is None else found.st_size

    def start_since(self, key: LogKey, wall_ms: int) -> int | None:
        """Where what came at ``wall_ms`` or later begins; None for a log whose times were not noted. Raises
        StorageUnavailable."""
        size = self.size(key)
        try:
            return offset_since(_times_of(self.path(key)), wall_ms, size) if size else 0
        except OSError as error:
            raise _storage_error(error, _times_of(self.path(key))) from error

    def open(self, key: LogKey) -> "LogReader":
        """To read a log piece by piece, also one that has not begun. To be closed."""
        return LogReader(self.path(key))

    def latest(self, key: LogKey, offset: int) -> bytes:
        """The piece that was appended last, if it begins at ``offset``: what a follower wants next, without a read.
        Does not block; empty where only a read can tell."""
        start, piece = self._latest.get(key, (-1, b""))
        return piece if start == offset else b""

    def held(self) -> Iterator[JobId]:
        """The jobs that have logs here, in no order. Raises StorageUnavailable."""
        try:
            with os.scandir(self._root) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        yield JobId(entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _storage_error(error, self._root) from error

    def remove(self, job_id: JobId, *, wall_ms: int) -> None:
        """Delete all logs of a job for good; ``removed_at`` tells from then on. May be repeated.

        Who reads one of them just now reads it to its end. Raises DiskFull, StorageUnavailable.
        """
        tombstone = self._tombstone(job_id)
        try:
            here("plane.before_log_removal")
            # First the word, then the deed: logs that are gone without a word would look like ones that never were.
            with suppress(FileExistsError):
                os.close(os.open(tombstone, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                os.utime(tombstone, ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))
            here("plane.in_log_removal")
            with suppress(FileNotFoundError):
                shutil.rmtree(self._root / job_id)
            here("plane.after_log_removal")
        except OSError as error:
            raise _storage_error(error, tombstone) from error

    def removed_at(self, job_id: JobId) -> int | None:
        """Wall clock in ms at which a job's logs were removed; None while they are kept, or never were. Raises
        StorageUnavailable."""
        found = _stat(self._tombstone(job_id))
        return None if found is None else found.st_mtime_ns // 1_000_000

    def path(self, key: LogKey) -> Path:
        suffix = ".err.log" if key.stream is LogStream.STDERR else ".log"
        return self._root / key.job_id / f"{int(key.epoch)}.{int(key.node)}{suffix}"

    def _tombstone(self, job_id: JobId) -> Path:
        return self._root / f"{job_id}{_REMOVED}"

    def _note(self, path: Path, offset: int, wall_ms: int) -> None:
        with suppress(OSError):  # times are a comfort: the bytes are kept, and that is what the worker asked
            self._times.note(_times_of(path), offset, wall_ms)

    def _keep(self, key: LogKey, offset: int, piece: bytes, *, is_wanted: bool) -> None:
        with self._guard:
            if key in self._latest:
                self._latest_bytes -= _ENTRY_BYTES + len(self._latest.pop(key)[1])
            if not is_wanted:
                return
            self._latest[key] = (offset, piece)
            self._latest_bytes += _ENTRY_BYTES + len(piece)
            while self._latest_bytes > _KEPT_BYTES:
                self._latest_bytes -= _ENTRY_BYTES + len(self._latest.popitem(last=False)[1][1])

    @contextmanager
    def _writable(self, path: Path, is_open: Callable[[], bool]) -> Iterator[int | None]:
        """None for a log that is not open."""
        try:
            with self._exclusive(path):
                if not is_open():
                    yield None
                    return
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    yield descriptor
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise _storage_error(error, path) from error

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


class LogReader:
    """One reader of one log, used by one thread at a time. Keeps the file open: what is removed meanwhile stays
    readable to its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self, offset: int, limit: int = READ_PIECE) -> bytes:
        """Up to ``limit`` bytes from ``offset``; empty at the end. Blocks. Raises DiskFull, StorageUnavailable."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, limit, offset)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise _storage_error(error, self._path) from error

    def close(self) -> None:
        """May be repeated."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_usable(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, exist_ok=True, parents=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # the first log makes it, once there is room
        if isinstance(error, FileExistsError):
            raise StorageUnavailable(
                f"{root}, where the logs of jobs are kept, is no folder", hint="look what it is, and move it away"
            ) from None
        raise _storage_error(error, root) from error
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise StorageUnavailable(
            f"{root}, where the logs of jobs are kept, can't be read and written",
            hint="see the mode and owner of that folder and of its disk; no job ends before its log is kept",
        )


def _stat(path: Path) -> os.stat_result | None:
    """None where there is none. Raises StorageUnavailable."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _storage_error(error, path) from error


def _append(descriptor: int, size: int, offset: int, piece: bytes) -> int:
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
    return size


def _times_of(path: Path) -> Path:
    return path.with_suffix(".times")


def _storage_error(error: OSError, path: Path) -> DiskFull | StorageUnavailable:
    mapped = storage_error(error, path)
    return mapped if isinstance(mapped, DiskFull | StorageUnavailable) else StorageUnavailable(mapped.message)
