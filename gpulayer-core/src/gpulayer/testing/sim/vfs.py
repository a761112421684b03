"""SQLite on a ``SimDisk``: a VFS, registered by ctypes in the very library that Python's ``sqlite3`` uses.

It does what SQLite's own one for Unix does, in its order, and claims no more: a folder is synced with the first sync
of a journal that was made in it, and an error of that goes unsaid; a file of size 0 does not exist for whoever asks; a
failed sync is SQLITE_IOERR_FSYNC. Locks and WAL's shared memory hold within this process. No exception crosses C: it
is answered with an error of SQLite's, and what is no OSError is kept in ``faults``.
"""

import ctypes
import errno
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from gpulayer.testing.sim.disk import SimDisk, SimFile

__all__ = ["SimVfs", "VfsUnavailable", "sqlite_library"]

_OK, _BUSY, _IOERR, _FULL, _CANTOPEN, _NOTFOUND = 0, 5, 10, 13, 14, 12
_IOERR_READ: Final = _IOERR | 1 << 8
_IOERR_SHORT_READ: Final = _IOERR | 2 << 8
_IOERR_WRITE: Final = _IOERR | 3 << 8
_IOERR_FSYNC: Final = _IOERR | 4 << 8
_IOERR_DIR_FSYNC: Final = _IOERR | 5 << 8
_IOERR_TRUNCATE: Final = _IOERR | 6 << 8
_IOERR_FSTAT: Final = _IOERR | 7 << 8
_IOERR_DELETE: Final = _IOERR | 10 << 8
_IOERR_DELETE_NOENT: Final = _IOERR | 23 << 8
_IOERR_LOCK: Final = _IOERR | 15 << 8
_IOERR_SHMMAP: Final = _IOERR | 21 << 8

_READ_ONLY, _CREATE, _DELETE_ON_CLOSE = 0x1, 0x4, 0x8
_JOURNALS: Final = 0x800 | 0x4000 | 0x80000  # main, super, WAL
_POWERSAFE_OVERWRITE: Final = 0x1000
_SECTOR_SIZE: Final = 4096  # what the one for Unix says; the disk below tears finer
_SHARED, _RESERVED, _PENDING, _EXCLUSIVE = 1, 2, 3, 4
_SHM_UNLOCK, _SHM_SHARED = 1, 4
_JULIAN_DAY: Final = 2_460_000.5

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_CALLBACKS: Final = {
    "close": ctypes.CFUNCTYPE(_I, _P),
    "read": ctypes.CFUNCTYPE(_I, _P, _P, _I, _L),
    "write": ctypes.CFUNCTYPE(_I, _P, _P, _I, _L),
    "truncate": ctypes.CFUNCTYPE(_I, _P, _L),
    "sync": ctypes.CFUNCTYPE(_I, _P, _I),
    "file_size": ctypes.CFUNCTYPE(_I, _P, _P),
    "lock": ctypes.CFUNCTYPE(_I, _P, _I),
    "unlock": ctypes.CFUNCTYPE(_I, _P, _I),
    "check_reserved_lock": ctypes.CFUNCTYPE(_I, _P, _P),
    "file_control": ctypes.CFUNCTYPE(_I, _P, _I, _P),
    "sector_size": ctypes.CFUNCTYPE(_I, _P),
    "device_characteristics": ctypes.CFUNCTYPE(_I, _P),
    "shm_map": ctypes.CFUNCTYPE(_I, _P, _I, _I, _I, _P),
    "shm_lock": ctypes.CFUNCTYPE(_I, _P, _I, _I, _I),
    "shm_barrier": ctypes.CFUNCTYPE(None, _P),
    "shm_unmap": ctypes.CFUNCTYPE(_I, _P, _I),
}
_OF_THE_VFS: Final = {
    "open": ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _P, _I, _P),
    "delete": ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _I),
    "access": ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _I, _P),
    "full_pathname": ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _I, _P),
    "randomness": ctypes.CFUNCTYPE(_I, _P, _I, _P),
    "sleep": ctypes.CFUNCTYPE(_I, _P, _I),
    "current_time": ctypes.CFUNCTYPE(_I, _P, _P),
    "get_last_error": ctypes.CFUNCTYPE(_I, _P, _I, _P),
}


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``, version 2: with shared memory, without mapped files."""

    _fields_ = [("version", _I), *_CALLBACKS.items()]


class _OpenFile(ctypes.Structure):
    _fields_ = [("methods", _P)]


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs``, version 1."""

    _fields_ = [
        ("version", _I),
        ("file_bytes", _I),
        ("longest_path", _I),
        ("next", _P),
        ("name", ctypes.c_char_p),
        ("app_data", _P),
        *((name, _OF_THE_VFS[name]) for name in ("open", "delete", "access", "full_pathname")),
        *((name, _P) for name in ("dl_open", "dl_error", "dl_sym", "dl_close")),
        *((name, _OF_THE_VFS[name]) for name in ("randomness", "sleep", "current_time", "get_last_error")),
    ]


class VfsUnavailable(RuntimeError):
    """Nothing can be put under this Python's SQLite; the message says why."""


def sqlite_library() -> ctypes.CDLL:
    """The library that Python's ``sqlite3`` calls: found among what its own module is linked to. Raises
    VfsUnavailable where SQLite is a part of Python itself and shows nothing of it."""
    import _sqlite3  # noqa: PLC0415 - only its file is wanted

    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    if not hasattr(library, "sqlite3_vfs_register"):
        raise VfsUnavailable(
            "this Python has SQLite built in and hides its functions: no simulated disk can be put under it; "
            "use a Python whose sqlite3 module is linked to the system's libsqlite3"
        )
    library.sqlite3_libversion.restype = ctypes.c_char_p
    found = library.sqlite3_libversion().decode()
    if found != sqlite3.sqlite_version:
        raise VfsUnavailable(f"found SQLite {found}, but Python's sqlite3 uses {sqlite3.sqlite_version}")
    return library


@dataclass(slots=True, eq=False)
class _Handle:
    """An open file. ``shared``, ``exclusive``: its locks in the shared memory, as bits."""

    file: SimFile
    name: str | None
    disk: SimDisk
    level: int = 0
    shared: int = 0
    exclusive: int = 0
    has_memory: bool = False
    is_new_journal: bool = False
    is_read_only: bool = False
    is_gone: bool = False  # of a process that died: nothing works through it any more


@dataclass(slots=True, eq=False)
class _Node:
    """What the handles of one file share."""

    handles: list[_Handle] = field(default_factory=list)
    regions: list["ctypes.Array[ctypes.c_char]"] = field(default_factory=list)


_numbers = itertools.count(1)
_registered: Final[dict[str, "SimVfs"]] = {}  # as the C library's own list: what it may call must stay alive


class SimVfs:
    """A VFS called ``name`` until ``close``: ``sqlite3.connect(f"file:/plane.db?vfs={vfs.name}", uri=True)``.

    sleep: waits so many seconds for a lock that another thread holds.
    """

    def __init__(self, disk: SimDisk, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.disk = disk
        self.name = f"gpulayer-sim-{next(_numbers)}"
        self.faults: list[BaseException] = []
        self._sleep_s = sleep
        self._scratch = SimDisk()  # files without a name: SQLite's own, which no crash outlives
        self._handles: dict[int, _Handle] = {}
        self._nodes: dict[SimFile, _Node] = {}
        self._guard = threading.RLock()
        self._library = sqlite_library()
        self._methods = _Methods(2, *(kind(self._safe(name)) for name, kind in _CALLBACKS.items()))
        self._methods_address = ctypes.addressof(self._methods)
        self._vfs = _Vfs(version=1, file_bytes=ctypes.sizeof(_OpenFile), longest_path=512, name=self.name.encode())
        for name, kind in _OF_THE_VFS.items():
            setattr(self._vfs, name, kind(self._safe(name)))
        if self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 0) != _OK:
            raise VfsUnavailable("SQLite did not register the simulated disk")
        _registered[self.name] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nobody opens a file by it any more. With connections that are still open it stays in memory for good."""
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
        if not self._handles:
            _registered.pop(self.name, None)

    def kill(self) -> None:
        """As if the process had died: whoever has a file open can do nothing with it but close it, which writes
        nothing, and its locks are free."""
        with self._guard:
            for handle in self._handles.values():
                handle.is_gone = True
            self._nodes.clear()

    def _safe(self, name: str) -> Callable[..., Any]:  # Any: callbacks differ
        call, guard, faults = getattr(self, f"_{name}"), self._guard, self.faults
        answer = _ANSWERS.get(name, _IOERR)

        def safe(*args: Any) -> Any:
            try:
                with guard:
                    return call(*args)
            except OSError as error:
                return _FULL if error.errno == errno.ENOSPC and name in ("write", "truncate", "open") else answer
            except BaseException as error:
                faults.append(error)
                return answer

        return safe

    # Of the VFS.

    def _open(self, _vfs: int, name: bytes | None, address: int, flags: int, out_flags: int | None) -> int:
        _OpenFile.from_address(address).methods = None
        if name is None:
            handle = _Handle(SimFile(), None, self._scratch)
        else:
            path = name.decode()
            is_new = not self.disk.exists(path)
            try:
                file = self.disk.open(path, create=bool(flags & _CREATE))
            except FileNotFoundError:
                return _CANTOPEN
            handle = _Handle(
                *(file, path, self.disk),
                is_new_journal=is_new and bool(flags & _JOURNALS),
                is_read_only=bool(flags & _READ_ONLY),
            )
            if flags & _DELETE_ON_CLOSE:
                self.disk.delete(path)
        self._handles[address] = handle
        self._nodes.setdefault(handle.file, _Node()).handles.append(handle)
        _OpenFile.from_address(address).methods = self._methods_address
        if out_flags:
            _I.from_address(out_flags).value = flags
        return _OK

    def _delete(self, _vfs: int, name: bytes, is_synced: int) -> int:
        path = name.decode()
        if not self.disk.exists(path):
            return _IOERR_DELETE_NOENT
        self.disk.delete(path)
        if is_synced:
            try:
                self.disk.sync_folder(path.rpartition("/")[0])
            except OSError:
                return _IOERR_DIR_FSYNC
        return _OK

    def _access(self, _vfs: int, name: bytes, flags: int, out: int) -> int:
        path = name.decode()
        is_there = self.disk.exists(path) and (flags != 0 or len(self.disk.open(path).content) > 0)
        _I.from_address(out).value = int(is_there)
        return _OK

    def _full_pathname(self, _vfs: int, name: bytes, size: int, out: int) -> int:
        if len(name) >= size:
            return _CANTOPEN
        ctypes.memmove(out, name + b"\0", len(name) + 1)
        return _OK

    def _randomness(self, _vfs: int, size: int, out: int) -> int:
        ctypes.memset(out, 7, size)  # it only seeds SQLite's own generator, and only once in a process
        return size

    def _sleep(self, _vfs: int, microseconds: int) -> int:
        self._guard.release()
        try:
            self._sleep_s(microseconds / 1_000_000)
        finally:
            self._guard.acquire()
        return microseconds

    def _current_time(self, _vfs: int, out: int) -> int:
        ctypes.c_double.from_address(out).value = _JULIAN_DAY
        return _OK

    def _get_last_error(self, _vfs: int, _size: int, _out: int | None) -> int:
        return _OK

    # Of a file.

    def _close(self, address: int) -> int:
        handle = self._handles.pop(address)
        node = self._nodes.get(handle.file)
        if node is not None and handle in node.handles:
            node.handles.remove(handle)
            if not node.handles:
                del self._nodes[handle.file]
        return _OK

    def _read(self, address: int, out: int, size: int, offset: int) -> int:
        handle = self._live(address)
        found = handle.disk.read(handle.file, offset, size)
        ctypes.memmove(out, found, len(found))
        if len(found) == size:
            return _OK
        ctypes.memset(out + len(found), 0, size - len(found))
        return _IOERR_SHORT_READ

    def _write(self, address: int, data: int, size: int, offset: int) -> int:
        handle = self._live(address, is_changing=True)
        handle.disk.write(handle.file, offset, ctypes.string_at(data, size))
        return _OK

    def _truncate(self, address: int, size: int) -> int:
        handle = self._live(address, is_changing=True)
        handle.disk.truncate(handle.file, size)
        return _OK

    def _sync(self, address: int, _flags: int) -> int:
        handle = self._live(address)
        handle.disk.sync(handle.file)
        if handle.is_new_journal and handle.name is not None:
            handle.is_new_journal = False
            try:
                handle.disk.sync_folder(handle.name.rpartition("/")[0])
            except OSError:
                pass  # the one for Unix does not look at it either: many systems can't sync a folder
        return _OK

    def _file_size(self, address: int, out: int) -> int:
        _L.from_address(out).value = len(self._live(address).file.content)
        return _OK

    def _lock(self, address: int, level: int) -> int:
        handle = self._live(address, is_changing=level >= _RESERVED)
        if handle.level >= level:
            return _OK
        others = max((other.level for other in self._nodes[handle.file].handles if other is not handle), default=0)
        if others >= _PENDING or (level >= _RESERVED and others >= _RESERVED):
            return _BUSY
        if level == _EXCLUSIVE and others:
            handle.level = _PENDING
            return _BUSY
        handle.level = level
        return _OK

    def _unlock(self, address: int, level: int) -> int:
        self._handles[address].level = level
        return _OK

    def _check_reserved_lock(self, address: int, out: int) -> int:
        handle = self._live(address)
        taken = any(other.level >= _RESERVED for other in self._nodes[handle.file].handles)
        _I.from_address(out).value = int(taken)
        return _OK

    def _file_control(self, _address: int, _what: int, _argument: int | None) -> int:
        return _NOTFOUND

    def _sector_size(self, _address: int) -> int:
        return _SECTOR_SIZE

    def _device_characteristics(self, _address: int) -> int:
        return _POWERSAFE_OVERWRITE

    def _shm_map(self, address: int, region: int, size: int, is_extending: int, out: int) -> int:
        handle = self._live(address)
        handle.has_memory = True
        regions = self._nodes[handle.file].regions
        while is_extending and len(regions) <= region:
            regions.append(ctypes.create_string_buffer(size))
        _P.from_address(out).value = ctypes.addressof(regions[region]) if region < len(regions) else None
        return _OK

    def _shm_lock(self, address: int, first: int, count: int, flags: int) -> int:
        handle = self._handles[address]
        mask = ((1 << count) - 1) << first
        if flags & _SHM_UNLOCK:
            handle.shared &= ~mask
            handle.exclusive &= ~mask
            return _OK
        others = [other for other in self._nodes[self._live(address).file].handles if other is not handle]
        if any(other.exclusive & mask for other in others):
            return _BUSY
        if flags & _SHM_SHARED:
            handle.shared |= mask
        elif any(other.shared & mask for other in others):
            return _BUSY
        else:
            handle.exclusive |= mask
        return _OK

    def _shm_barrier(self, _address: int) -> None:
        return

    def _shm_unmap(self, address: int, _is_deleted: int) -> int:
        handle = self._handles[address]
        handle.has_memory = False
        handle.shared = handle.exclusive = 0
        node = self._nodes.get(handle.file)
        if node is not None and not any(other.has_memory for other in node.handles):
            node.regions.clear()
        return _OK

    def _live(self, address: int, *, is_changing: bool = False) -> _Handle:
        handle = self._handles[address]
        if is_changing and handle.is_read_only:  # the system gives no lock for writing either: so a log stays
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if handle.is_gone:
            raise OSError(errno.EIO, "the process that had this file open is gone")
        return handle


_ANSWERS: Final = {
    "read": _IOERR_READ,
    "write": _IOERR_WRITE,
    "truncate": _IOERR_TRUNCATE,
    "sync": _IOERR_FSYNC,
    "file_size": _IOERR_FSTAT,
    "lock": _IOERR_LOCK,
    "shm_map": _IOERR_SHMMAP,
    "shm_lock": _IOERR_LOCK,
    "delete": _IOERR_DELETE,
    "open": _CANTOPEN,
}
"""What a call that fails is answered with."""
