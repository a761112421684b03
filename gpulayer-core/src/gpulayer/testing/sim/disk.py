"""A disk in memory that keeps only what was synced: a model, without IO, time or randomness of its own.

What is written is seen by every reader at once, as through a system's page cache, and is durable only after ``sync``;
a name that was made, taken away or changed is durable only after ``sync_folder``. A power cut keeps of the rest
whatever a disk may keep: each sector as it was after any of the writes to it since it was synced, in no order
among sectors and files; a sector is never torn. Where a file had grown and its bytes did not arrive, there are zeros
or rubbish. Nothing that was synced is lost.

A sync that fails is as on Linux: the pages count as clean from then on and may be gone. Whoever reads them sees them
until the cache drops them; a later sync says nothing and saves nothing but what was written after the failure.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum, auto
from random import Random
from typing import Final

__all__ = ["SECTOR", "DiskFault", "DiskOp", "SimDisk", "SimFile"]

SECTOR: Final = 512
_RUBBISH: Final = 0.2  # how often bytes that a file grew by, and that did not arrive, are rubbish instead of zeros


class DiskOp(StrEnum):
    """What calls are counted as. WRITE: what needs room or changes something; SYNC: of files and of folders."""

    READ = auto()
    WRITE = auto()
    SYNC = auto()


@dataclass(frozen=True, slots=True)
class DiskFault:
    """The ``at``-th call of this kind fails (1: the next one), and those after it until ``calls`` have failed; None:
    all until ``heal``."""

    op: DiskOp
    at: int = 1
    number: int = errno.EIO
    calls: int | None = 1


@dataclass(slots=True, eq=False)
class SimFile:
    """What a name stands for; it outlives its name while somebody holds it. Only ``SimDisk`` changes it."""

    content: bytearray = field(default_factory=bytearray)  # as the cache has it
    durable: bytearray = field(default_factory=bytearray)
    dirty: dict[int, list[bytes]] = field(default_factory=dict)  # by sector: what it was after each write since a sync
    lost: dict[int, list[bytes]] = field(default_factory=dict)  # the same, of syncs that failed
    sizes: list[int] = field(default_factory=list)  # since the last sync

    def note(self, offset: int, length: int) -> None:
        for sector in range(offset // SECTOR, -(-(offset + length) // SECTOR)):
            self.dirty.setdefault(sector, []).append(self._sector(sector))

    def resize(self, size: int) -> None:
        if size < len(self.content):
            del self.content[size:]
            for gone in [sector for sector in self.dirty if sector * SECTOR >= size]:
                del self.dirty[gone]
            for gone in [sector for sector in self.lost if sector * SECTOR >= size]:
                del self.lost[gone]
            if size % SECTOR:
                self.dirty.setdefault(size // SECTOR, []).append(self._sector(size // SECTOR))
            self.sizes.append(size)
        elif size > len(self.content):
            self.content.extend(bytes(size - len(self.content)))
            self.sizes.append(size)

    def settle(self) -> None:
        """All that is dirty is durable now."""
        del self.durable[min([len(self.content), *self.sizes]) :]
        self.durable.extend(bytes(len(self.content) - len(self.durable)))
        for sector, versions in self.dirty.items():
            _put(self.durable, sector, versions[-1])
            self.lost.pop(sector, None)
        self.dirty.clear()
        self.sizes.clear()

    def give_up(self) -> None:
        """A sync failed: what was dirty is clean, and nobody knows what of it has arrived."""
        for sector, versions in self.dirty.items():
            self.lost.setdefault(sector, []).extend(versions)
        self.dirty.clear()

    def drop_lost(self, rng: Random) -> None:
        """The cache forgets clean pages: what a failed sync has left is read from the disk."""
        size = len(self.content)
        for sector, versions in sorted(self.lost.items()):
            if sector in self.dirty:
                continue  # not clean: it is kept, and the next sync saves it
            found = rng.choice([None, *versions])
            if len(self.durable) < min((sector + 1) * SECTOR, size):
                self.durable.extend(bytes(min((sector + 1) * SECTOR, size) - len(self.durable)))
            if found is not None:
                _put(self.durable, sector, found)
            _put(self.content, sector, bytes(self.durable[sector * SECTOR : (sector + 1) * SECTOR]))
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))
        self.lost.clear()

    def cut(self, rng: Random, arrives: float) -> None:
        """The power is gone. ``arrives``: how likely a sector was written back of late."""
        before = len(self.durable)
        size = before
        if self.sizes:
            size = self.sizes[-1] if rng.random() < arrives else rng.choice([before, *self.sizes])
            if arrives == 0:
                size = before
        found = bytearray(self.durable)
        found.extend(bytes(max(0, size - len(found))))
        for sector in sorted(self.dirty.keys() | self.lost.keys()):
            dirty, lost = self.dirty.get(sector, []), self.lost.get(sector, [])
            if dirty and rng.random() < arrives:
                _put(found, sector, dirty[-1])
                continue
            version = rng.choice([None, *lost, *(dirty if arrives > 0 else [])])
            if version is not None:
                _put(found, sector, version)
            elif sector * SECTOR >= before and rng.random() < _RUBBISH:
                _put(found, sector, rng.randbytes(SECTOR))
        del found[size:]
        self.durable = found
        self.content = bytearray(found)
        self.dirty.clear()
        self.lost.clear()
        self.sizes.clear()

    def _sector(self, sector: int) -> bytes:
        return bytes(self.content[sector * SECTOR : (sector + 1) * SECTOR])


_Change = tuple[tuple[str, SimFile | None], ...]  # names and what they stand for from now on, all at once


class SimDisk:
    """``capacity_bytes``: what all its files may take together; None: no limit. Every call that fails raises OSError
    as the system would. For one thread at a time."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.calls: Counter[DiskOp] = Counter()
        self.failed_syncs = 0
        self._names: dict[str, SimFile] = {}
        self._durable_names: dict[str, SimFile] = {}
        self._changes: dict[str, list[_Change]] = {}
        self._faults: list[tuple[DiskFault, int]] = []  # with the count of its calls as of then

    def open(self, name: str, *, create: bool = False) -> SimFile:
        """The file of this name. Raises FileNotFoundError where there is none and none is to be made."""
        found = self._names.get(name)
        if found is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            self._call(DiskOp.WRITE)
            found = SimFile()
            self._change(name, ((name, found),))
        return found

    def names(self) -> tuple[str, ...]:
        """All files, in order."""
        return tuple(sorted(self._names))

    def exists(self, name: str) -> bool:
        return name in self._names

    def rename(self, name: str, target: str) -> None:
        """Within one folder; whatever had the target's name loses it."""
        self._call(DiskOp.WRITE)
        if _folder(name) != _folder(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
        self._change(name, ((name, None), (target, self.open(name))))

    def delete(self, name: str) -> None:
        """Raises FileNotFoundError."""
        self.open(name)
        self._call(DiskOp.WRITE)
        self._change(name, ((name, None),))

    def sync_folder(self, folder: str) -> None:
        """The names in it are durable from now on."""
        self._call(DiskOp.SYNC)
        for change in self._changes.pop(folder, []):
            _apply(self._durable_names, change)

    def read(self, file: SimFile, offset: int, size: int) -> bytes:
        """What is there of these bytes: fewer at the file's end."""
        self._call(DiskOp.READ)
        return bytes(file.content[offset : offset + size])

    def write(self, file: SimFile, offset: int, data: bytes) -> None:
        """All of it or an error; of a full disk it may be a part and an error."""
        try:
            self._call(DiskOp.WRITE)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._write(file, offset, data[: len(data) // 2])
            raise
        room = self._room()
        growth = offset + len(data) - len(file.content)
        if room is not None and growth > room:
            self._write(file, offset, data[: max(0, len(data) - (growth - room))])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(file, offset, data)

    def truncate(self, file: SimFile, size: int) -> None:
        """Cut off, or lengthen with zeros."""
        self._call(DiskOp.WRITE)
        room = self._room()
        if room is not None and size - len(file.content) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.resize(size)

    def sync(self, file: SimFile) -> None:
        """All of the file is durable from now on (its name is not: ``sync_folder``). After an error what was written
        before may be gone, whatever a later call says."""
        try:
            self._call(DiskOp.SYNC)
        except OSError:
            self.failed_syncs += 1
            file.give_up()
            raise
        file.settle()

    def power_cut(self, rng: Random) -> None:
        """Keep what was synced, and of the rest what chance wants. Whoever holds a file must open it anew."""
        arrives = rng.choice([0.0, 1.0, rng.random(), rng.random()])
        for folder in sorted(self._changes):
            for change in self._changes[folder]:
                if rng.random() < arrives:
                    _apply(self._durable_names, change)
        self._changes.clear()
        for file in _each(self._durable_names[name] for name in sorted(self._durable_names)):
            file.cut(rng, arrives)
        self._names = dict(self._durable_names)

    def drop_caches(self, rng: Random) -> None:
        """Read from the disk what does not wait to be written: only what a failed sync has left can differ."""
        for file in _each(self._names[name] for name in sorted(self._names)):
            file.drop_lost(rng)

    def inject(self, *faults: DiskFault) -> None:
        """They count from now on."""
        self._faults.extend((fault, self.calls[fault.op]) for fault in faults)

    def heal(self) -> None:
        """No fault is left, and there is room."""
        self._faults.clear()
        self.capacity_bytes = None

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Within it nothing fails, and no call counts: for whoever looks at what is there."""
        kept = self._faults, self.calls, self.capacity_bytes
        self._faults, self.calls, self.capacity_bytes = [], Counter(), None
        try:
            yield
        finally:
            self._faults, self.calls, self.capacity_bytes = kept

    def used_bytes(self) -> int:
        """What the files that have names take."""
        return sum(len(file.content) for file in _each(self._names.values()))

    def _call(self, op: DiskOp) -> None:
        self.calls[op] += 1
        for fault, since in self._faults:
            number = self.calls[op] - since
            if fault.op is op and number >= fault.at and (fault.calls is None or number < fault.at + fault.calls):
                raise OSError(fault.number, os.strerror(fault.number))

    def _room(self) -> int | None:
        return None if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes())

    def _write(self, file: SimFile, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        if end > len(file.content):
            if offset > len(file.content):
                file.content.extend(bytes(offset - len(file.content)))
            file.sizes.append(end)
        file.content[offset:end] = data
        file.note(offset, len(data))

    def _change(self, name: str, change: _Change) -> None:
        _apply(self._names, change)
        self._changes.setdefault(_folder(name), []).append(change)


def _apply(names: dict[str, SimFile], change: _Change) -> None:
    for name, file in change:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _put(content: bytearray, sector: int, version: bytes) -> None:
    start = sector * SECTOR
    if len(content) < start:
        content.extend(bytes(start - len(content)))
    content[start : start + len(version)] = version


def _each(files: Iterable[SimFile]) -> list[SimFile]:
    """Once each, also where one has two names (a rename of which only a part has arrived)."""
    return list(dict.fromkeys(files))


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
