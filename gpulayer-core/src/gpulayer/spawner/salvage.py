"""What is left in the pipe of a job whose spawner has died goes where it belongs."""

import errno
import os
from typing import Final

from gpulayer.spawner.spool import newest_file

__all__ = ["salvage"]

_CHUNK: Final = 1 << 20
_BLOCK: Final = 1 << 16


def salvage(read_fd: int, path: str) -> bool:
    """Append all that the pipe holds to the spool at ``path``; True where that is everything. Does not wait.

    Only once nobody writes to either any more: the job's tree and its spawner are dead.
    """
    try:
        spool = os.open(newest_file(path), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.lseek(spool, 0, os.SEEK_END)
        os.set_blocking(read_fd, False)
        while _move(read_fd, spool):
            pass
    except BlockingIOError:
        return True  # empty, though somebody outside the tree holds its other end
    except OSError:
        return False
    finally:
        os.close(spool)
    return True


def _move(read_fd: int, spool: int) -> int:
    if hasattr(os, "splice"):
        try:
            return os.splice(read_fd, spool, _CHUNK, flags=os.SPLICE_F_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
    block = os.read(read_fd, _BLOCK)
    rest = block
    while rest:
        rest = rest[os.write(spool, rest) :]
    return len(block)
