"""One stream of a job's output: the pipe that it writes to and the spool that the bytes go to.

Bytes are never looked at: on Linux they are spliced from pipe to file inside the kernel, so that none is in this
process's memory when it dies. When the spool can't take them they stay in the pipe, and the job waits.
"""

import enum
import errno
import fcntl
import os
import select
import struct
import sys
import termios
from typing import Final

from gpulayer.faults import here
from gpulayer.spawner.spool import Spool

__all__ = ["OutputPipe", "Pumped"]

_CHUNK: Final = 1 << 20
_BLOCK: Final = 1 << 16


class Pumped(enum.Enum):
    """What one pump found."""

    MORE = "more"  # bytes may be left; come again
    EMPTY = "empty"  # nothing to read now
    END = "end"  # no writer is left


class OutputPipe:
    """Owns the read end and the spool; the write end is the caller's, to hand to the job and close."""

    def __init__(self, log_path: str, *, limit_bytes: int = 0) -> None:
        """Open the spool and make the pipe; raises ``OSError``. limit_bytes: see ``Spool``."""
        self.spool = Spool(log_path, limit_bytes=limit_bytes)
        try:
            self.read_fd, self.write_fd = os.pipe()
        except OSError:
            self.spool.close()
            raise
        os.set_blocking(self.read_fd, False)
        self.moved_bytes = 0
        self._can_splice = hasattr(os, "splice")
        self._pending = b""

    @property
    def is_spliced(self) -> bool:
        """No byte is in this process's memory at any time, as far as is known yet."""
        return self._can_splice

    def job_end(self) -> int:
        """The descriptor for the job's output; the caller closes it once the job has it.

        On Linux the job gets the pipe open for both directions: then it holds a read end itself, and the death of
        the spawner is no SIGPIPE or EPIPE that the program could mistake for a fault of its own.
        """
        write_fd, self.write_fd = self.write_fd, -1
        if sys.platform != "linux":
            return write_fd
        try:
            both = os.open(f"/proc/self/fd/{write_fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no /proc: the plain end will do
            return write_fd
        os.close(write_fd)
        return both

    def pump(self) -> Pumped:
        """Move up to a megabyte. Raises ``OSError`` when the spool can't be written; no byte is lost by it."""
        self.spool.mend()
        if self.spool.is_full and not self._pending:
            # Only a byte that is really there makes the log one that was cut.
            if not _poll(self.read_fd):
                return Pumped.EMPTY
            if not self.waiting_bytes():
                return Pumped.END
        here("spawner.before_output")
        fd, room = self.spool.target()
        count = min(room, _CHUNK)
        moved = self._splice(fd, count) if self._can_splice else self._copy(fd, count)
        if moved is None:
            return Pumped.EMPTY
        self.spool.took(moved)
        self.moved_bytes += moved
        return Pumped.MORE if moved else Pumped.END

    def waiting_bytes(self) -> int:
        """What was written to the pipe and is not in the spool yet."""
        (waiting,) = struct.unpack("i", fcntl.ioctl(self.read_fd, termios.FIONREAD, b"\0\0\0\0"))
        return int(waiting) + len(self._pending)

    def close(self) -> None:
        """Close what is open; may be repeated."""
        for name in ("read_fd", "write_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                os.close(fd)
        self.spool.close()

    def _splice(self, target: int, count: int) -> int | None:
        try:
            return os.splice(self.read_fd, target, count, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
        # A filesystem without splice (some FUSE and network ones): the bytes pass through this process.
        self._can_splice = False
        return self._copy(target, count)

    def _copy(self, target: int, count: int) -> int | None:
        if not self._pending:
            try:
                self._pending = os.read(self.read_fd, _BLOCK)
            except BlockingIOError:
                return None
            if not self._pending:
                return 0
        written = os.write(target, self._pending[:count])
        self._pending = self._pending[written:]
        return written


def _poll(fd: int) -> bool:
    """Whether a read would not wait: there are bytes, or no writer is left."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
