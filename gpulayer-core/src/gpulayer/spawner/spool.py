"""Where the bytes of one stream are kept: in a spool file up to its limit, then the newest of them beside it.

The spool is one run of bytes that only grows, so that whoever reads it by offset stays right. When more comes than
its limit lets in, a line in it says so; from then on the bytes go to files of ``tail`` bytes each, ``<spool>.tail.<n>``
with n counting up, of which the last two are kept: whatever the program prints, the disk used is bounded, and the
number in the name tells how much was dropped. At the end ``join_tail`` puts the newest ``tail`` bytes behind the spool,
after a line that says how many were left out. It finds all it needs in the names of the files, so that a watchdog or
another spawner can do it, or do it to its end, for one that died.
"""

import errno
import os
from typing import Final

__all__ = ["MIN_LIMIT_BYTES", "Spool", "beside_bytes", "join_tail", "tail_bytes"]

MIN_LIMIT_BYTES: Final = 64 * 1024
_TAIL_LIMIT_BYTES: Final = 16 * 1024 * 1024
_UNLIMITED: Final = 1 << 62
_BLOCK: Final = 256 * 1024
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def tail_bytes(limit_bytes: int) -> int:
    """How much of the newest output is kept behind a spool that has reached this limit."""
    return min(limit_bytes // 4, _TAIL_LIMIT_BYTES)


class Spool:
    """One stream's files, for one writer. limit_bytes: 0 for none; less than 64 KiB counts as 64 KiB.

    size: bytes in the spool file itself. left_out_bytes: known after ``join``. cut_bytes: of what was written, somebody
    else has cut so much off. path, limit_bytes: as given.
    """

    def __init__(self, path: str, *, limit_bytes: int = 0) -> None:
        """Opened or created, to be appended to; raises ``OSError``."""
        self._path = self.path = path
        self.limit_bytes = limit_bytes
        self._limit = max(limit_bytes, MIN_LIMIT_BYTES) if limit_bytes else _UNLIMITED
        self._tail_limit = tail_bytes(self._limit)
        # Not O_APPEND: splice refuses such a file. This process is the spool's only writer.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.lseek(self._fd, 0, os.SEEK_END)
        self.left_out_bytes = self.cut_bytes = 0
        self._line = b""  # what is still to be written of the line about the limit
        self._number = -1
        self._tail_fd = -1
        self._tail_size = 0

    @classmethod
    def resume(cls, path: str, *, limit_bytes: int) -> "Spool":
        """Go on where a writer that has died was. Raises ``OSError``, also where that one was about to join the end on:
        then no more was to come."""
        os.stat(path)
        found = _find_tails(path)
        if found and found[-1][2] is not None:
            raise OSError(errno.EBUSY, "its end is being joined on", path)
        spool = cls(path, limit_bytes=limit_bytes)
        if found:
            spool._number, newest = found[-1][:2]
            try:
                spool._tail_fd = os.open(newest, os.O_WRONLY | os.O_CLOEXEC)
                spool._tail_size = os.lseek(spool._tail_fd, 0, os.SEEK_END)
            except OSError:
                spool.close()
                raise
        return spool

    @property
    def is_full(self) -> bool:
        """One more byte would be past the limit, and none was yet: ``target`` is only to be asked if there is one."""
        return self._number < 0 and self.size >= self._limit

    def target(self) -> tuple[int, int]:
        """The descriptor that the next bytes go to, and how many of them; ``took`` is told how many went.

        Past the limit this writes the line that says so, and changes files. Raises ``OSError``; may be repeated.
        """
        if self._number < 0:
            if not self.is_full:
                return self._fd, self._limit - self.size
            # The file first: where it is, whoever comes after a crash looks for an end of the log in it.
            self._next_tail()
            limit, tail = _size_text(self._limit), _size_text(self._tail_limit)
            text = f"the log has reached its limit of {limit}; only the last {tail} from here on are kept, and follow"
            self._line = _line(self._fd, self.size, f"{text} when the program ends")
        while self._line:
            written = os.write(self._fd, self._line)
            self.size += written
            self._line = self._line[written:]
        if self._tail_size >= self._tail_limit:
            self._next_tail()
        return self._tail_fd, self._tail_limit - self._tail_size

    @property
    def beside_bytes(self) -> int:
        """What came after the limit and is not behind the spool (yet)."""
        return self._number * self._tail_limit + self._tail_size if self._number >= 0 else 0

    def mend(self) -> None:
        """Before more is written: where somebody has cut the file short, what comes next would lie behind a hole, and
        look as if the program had printed it. Raises ``OSError``; may be repeated."""
        start = os.fstat(self._fd).st_size
        missing = self.size - start
        if missing <= 0:
            return
        # Whoever reads by offset stays right. What lies before the line is left a hole: it may be large.
        line = _line(self._fd, start, f"{missing} bytes of the log are missing here")
        line = line if len(line) <= missing else b"\n" * missing
        _write_at(self._fd, line, self.size - len(line))
        self.cut_bytes += missing

    def took(self, count: int) -> None:
        """So many bytes were written to the descriptor that ``target`` gave."""
        if self._number < 0:
            self.size += count
        else:
            self._tail_size += count

    def join(self) -> None:
        """No more will come: put the newest bytes behind the rest. Raises ``OSError``; may be repeated then."""
        if self._number < 0:
            return
        self._close_tail()
        self.left_out_bytes = join_tail(self._path)
        self._number = -1
        self.size = os.fstat(self._fd).st_size

    def free_room(self) -> tuple[int, int]:
        """Bytes that this process may still write to the file system of the spool, and the size of it."""
        seen = os.fstatvfs(self._fd)
        free = seen.f_bfree if os.geteuid() == 0 else seen.f_bavail
        return free * seen.f_frsize, seen.f_blocks * seen.f_frsize

    def close(self) -> None:
        """May be repeated."""
        self._close_tail()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _next_tail(self) -> None:
        # The older one goes first: on a full disk its room is the only one.
        _unlink(_tail_path(self._path, self._number - 1))
        path = _tail_path(self._path, self._number + 1)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._close_tail()
        self._tail_fd, self._tail_size = fd, 0
        self._number += 1

    def _close_tail(self) -> None:
        fd, self._tail_fd = self._tail_fd, -1
        if fd >= 0:
            os.close(fd)


def join_tail(path: str) -> int:
    """Put what lies beside a spool behind it and remove it; how many bytes were left out. Nothing there: 0.

    May be repeated after an ``OSError``, and after the death of whoever did it: it goes on where that one was.
    """
    found = _find_tails(path)
    if not found:
        return 0
    number, newest, start, tail = found[-1]
    size = os.stat(newest).st_size
    older = _tail_path(path, number - 1)
    if start is None:
        try:
            tail = os.stat(older).st_size
        except FileNotFoundError:
            tail = size  # the first, or a full one whose successor was about to be made
        if number == 0 and size == 0:
            os.unlink(newest)
            return 0
        start = os.stat(path).st_size
        # From here on all that is written is known by this name alone, and writing it again changes nothing.
        newest, former = f"{_tail_path(path, number)}.{start}.{tail}", newest
        os.rename(former, newest)
    from_older = tail - size if number > 0 else 0
    left_out = number * tail - from_older
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        line = _line(fd, start, f"{left_out} bytes left out" if left_out else "nothing was left out")
        position = _write_at(fd, line, start)
        if from_older and os.path.exists(older):
            _copy(older, tail - from_older, fd, position)
            os.unlink(older)
        _copy(newest, 0, fd, position + from_older)
        _unlink(older)
        os.unlink(newest)
    finally:
        os.close(fd)
    return left_out


def beside_bytes(path: str) -> int:
    """How much came after the limit of a spool that no one has joined on yet. Raises ``OSError``."""
    found = _find_tails(path)
    if not found:
        return 0
    number, newest, _, tail = found[-1]
    size = os.stat(newest).st_size
    return number * (tail or os.stat(found[0][1]).st_size) + size


def _find_tails(path: str) -> list[tuple[int, str, int | None, int]]:
    """(number, path, where it is being joined on or None, size of a full one), oldest first."""
    folder, name = os.path.split(path)
    found: list[tuple[int, str, int | None, int]] = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for one in names:
        if not one.startswith(f"{name}.tail."):
            continue
        numbers = [int(part) for part in one[len(name) + 6 :].split(".") if part.isdigit()]
        if len(numbers) == 1:
            found.append((numbers[0], os.path.join(folder, one), None, 0))
        elif len(numbers) == 3:
            found.append((numbers[0], os.path.join(folder, one), numbers[1], numbers[2]))
    return sorted(found)


def _tail_path(path: str, number: int) -> str:
    return f"{path}.tail.{number}"


def _line(fd: int, position: int, text: str) -> bytes:
    """A line of ours, as it has to look at this position: it begins on a line of its own."""
    before = os.pread(fd, 1, position - 1) if position else b"\n"
    return (b"" if before == b"\n" else b"\n") + f"[gpulayer: {text}]\n".encode()


def _copy(source: str, offset: int, target_fd: int, position: int) -> None:
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := os.pread(fd, _BLOCK, offset):
            position = _write_at(target_fd, piece, position)
            offset += len(piece)
    finally:
        os.close(fd)


def _write_at(fd: int, content: bytes, position: int) -> int:
    """Returns the position behind it."""
    left = memoryview(content)
    while left:
        written = os.pwrite(fd, left, position)
        position, left = position + written, left[written:]
    return position


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _size_text(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} bytes"
