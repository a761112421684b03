"""What is left in the pipe of a job whose spawner has died goes where it belongs."""

import errno
import fcntl
import os
import struct
import termios
from typing import Final

from gpulayer.faults import here
from gpulayer.spawner.spool import Spool

__all__ = ["salvage"]

_CHUNK: Final = 1 << 20
_BLOCK: Final = 1 << 16


def salvage(read_fd: int, path: str, *, limit_bytes: int = 0) -> bool:
    """Move all that the pipe holds into the spool ``path``; True where that is everything. Does not wait.

    Only once nobody writes to either any more: the job's tree and its spawner are dead. limit_bytes: see ``Spool``;
    the end of one past its limit is left beside it, for ``join_tail``.
    """
    try:
        spool = Spool.resume(path, limit_bytes=limit_bytes)
    except OSError:
        return False
    try:
        here("watchdog.before_saving")
        while left := _waiting_bytes(read_fd):
            target, room = spool.target()
            spool.took(_move(read_fd, target, min(left, room, _CHUNK)))
    except OSError:
        return False
    finally:
        spool.close()
    return True


def _waiting_bytes(read_fd: int) -> int:
    (waiting,) = struct.unpack("i", fcntl.ioctl(read_fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(waiting)


def _move(read_fd: int, target: int, count: int) -> int:
    if hasattr(os, "splice"):
        try:
            return os.splice(read_fd, target, count, flags=os.SPLICE_F_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
    block = os.read(read_fd, min(count, _BLOCK))
    rest = block
    while rest:
        rest = rest[os.write(target, rest) :]
    return len(block)
