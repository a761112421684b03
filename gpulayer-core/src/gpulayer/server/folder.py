"""The state folder of a plane that serves: whose it is, and the file that tells commands where the plane is.

One plane a folder, by a lock that goes with the process, however it ends. ``endpoint.json`` appears when requests are
answered, never before, and only the plane whose folder it is writes or removes it. What a killed plane left there is
set aside until the next one serves, and put back where that fails: it says how to start it again as it was.
"""

import errno
import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from gpulayer.client.holder import folder_holder
from gpulayer.errors import Conflict, StorageUnavailable, UsageError
from gpulayer.server.settings import Layout
from gpulayer.whole import write_whole

__all__ = [
    "OF_PEOPLE",
    "EndpointKeeper",
    "held_still",
    "is_ours",
    "keep_port",
    "kept_port",
    "lock_holder",
    "locked",
    "make_private",
    "sweep_copies",
    "unusable",
]

_OF_OTHERS: Final = (errno.EACCES, errno.EPERM)
_IN_THE_WAY: Final = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP)
OF_PEOPLE: Final = (*_OF_OTHERS, *_IN_THE_WAY)  # what somebody did to a folder, and no disk
_COPIES: Final = re.compile(r"backup-[0-9a-f]{16}\.db(?:-journal|-wal|-shm)?")
_LOCK_TRIES: Final = 5
_LOCK_PAUSE_S: Final = 0.01
_OTHERS: Final = 0o077
_WRITE_OF_OTHERS: Final = 0o022

_log: Final = logging.getLogger(__name__)


def make_private(layout: Layout) -> None:
    """Make the state folder (mode 0700) where it is missing, and keep others out of one that is there, as ssh does.

    Others could not read what is 0600 in a folder that they may enter, so one of ours is closed to them and its files,
    too. Into one that they may write they may have put anything already. Raises UsageError for that, and where the
    folder can't be made; StorageUnavailable for one that holds a store and can't be written.
    """
    root = layout.root
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(root)
    except OSError as error:
        raise UsageError(
            f"state folder {root} can't be used: {error.strerror}", hint="choose another with --state DIR"
        ) from None
    if layout.store.exists() and not os.access(root, os.W_OK):
        raise StorageUnavailable(
            f"state folder {root} can't be written, and holds a control plane",
            hint="make it and its disk writable again (the system's log says why it is not); gpulayer backup FILE, on"
            " another disk, keeps all of it",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & _WRITE_OF_OTHERS:
        raise UsageError(
            f"others on this machine may write state folder {root} (mode {mode:04o}), which holds keys and tokens",
            hint=f"look whether all in it is yours, then chmod 700 {root}; or choose another with --state DIR",
        )
    if mode & _OTHERS and found.st_uid == os.geteuid():
        os.chmod(root, mode & ~_OTHERS)
    elif mode & _OTHERS:
        _log.warning("others may look into state folder %s (mode %04o), and it is not ours to close", root, mode)
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                close_to_others(Path(entry.path))


def close_to_others(path: Path) -> None:
    """A file of ours gets mode 0600, or less; another's, and one that is missing, stays as it is."""
    try:
        found = os.stat(path, follow_symlinks=False)
        if found.st_mode & _OTHERS and found.st_uid == os.geteuid():
            os.chmod(path, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("%s can't be closed to others: %s", path, error.strerror)


@contextmanager
def locked(layout: Layout, *, doing: str = "") -> Iterator[int]:
    """Hold the folder's lock; gives its descriptor. Raises Conflict where another process has it. doing: what holds it
    for a while that is no control plane: others are told, and ``lock_holder`` does not give it up to be ended."""
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _take(descriptor):
            pid, _, doing = os.read(descriptor, 64).decode("ascii", "replace").strip().partition(" ")
            pid = pid or "unknown"
            if doing:
                raise Conflict(
                    f"{doing} is at work on {layout.root} (pid {pid})",
                    hint="wait until it has ended, or use another --state folder",
                    details={"pid": pid},
                )
            raise Conflict(
                f"a control plane is already running on {layout.root} (pid {pid})",
                hint="end it with `gpulayer down`, or use another --state folder",
                details={"pid": pid, "is_served": True},
            )
        was_new = not os.fstat(descriptor).st_size
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {doing}".rstrip().encode() + b"\n", 0)
        except OSError:
            if was_new:  # made for this, on a disk without room: nothing is to be left
                with suppress(OSError):
                    os.unlink(layout.lock)
            raise
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def held_still(layout: Layout, *, doing: str) -> Iterator[None]:
    """No control plane runs on the folder meanwhile, also where nothing can be written: its disk is full, or has become
    read-only. Raises Conflict where one runs."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(layout, doing=doing))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES):
                raise
            try:
                descriptor = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                pass  # nobody can make it, and so nobody has it
            else:
                stack.callback(os.close, descriptor)
                if not _take(descriptor):
                    raise Conflict(f"{layout.root} is in use", hint="end its control plane: gpulayer down") from None
        yield


def _take(descriptor: int) -> bool:
    """False where another has the lock. Who only looks whether it is free has it for an instant: hence more tries."""
    for left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_LOCK_PAUSE_S)
        else:
            return True
    return False


def unusable(path: Path, error: OSError) -> StorageUnavailable:
    """A file of a state folder that can't be what it should be, and what to do about it."""
    if error.errno in _IN_THE_WAY:
        hint = f"that is no file of a control plane: look what is at {path}, and move it away"
    elif error.errno in _OF_OTHERS:
        hint = f"see the mode and owner of {path}: what another user started (sudo?) leaves files of that user"
    else:
        hint = "check that disk; the system's log may say more"
    return StorageUnavailable(f"{path} can't be used: {error.strerror}", hint=hint)


def sweep_copies(layout: Layout) -> None:
    """Copies of the store that a backup left which was killed. With the folder's lock, so that none is being made."""
    with os.scandir(layout.root) as entries:
        for entry in entries:
            if _COPIES.fullmatch(entry.name):
                with suppress(OSError):
                    os.unlink(entry.path)


def lock_holder(layout: Layout) -> int | None:
    """The process that has the folder's lock now, to be ended by whoever must; None where nobody has it, or where it
    can't be told who."""
    holder = folder_holder(layout.root)
    return None if holder is None or holder.doing else holder.pid


def is_ours(layout: Layout, lock: int) -> bool:
    """Whether the folder is still the one that was locked."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(layout.lock))
    except OSError:
        return False


class EndpointKeeper:
    """Writes ``endpoint.json``, mends it, and takes it away at the end; keeps the former one until then."""

    def __init__(self, layout: Layout, lock: int) -> None:
        self._layout = layout
        self._lock = lock
        self._content = b""
        self._is_written = False
        self._is_failing = False

    def set_aside(self) -> None:
        """Our worker must not follow the file of a plane that was killed. Raises OSError."""
        if self._layout.endpoint.is_dir():  # in the way; a rename would not mind
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self._layout.endpoint))
        with suppress(FileNotFoundError):
            os.replace(self._layout.endpoint, self._layout.former)

    def write(self, content: bytes) -> None:
        """Raises OSError."""
        self.change(content)
        write_whole(self._layout.endpoint, content, point="plane.endpoint")
        self._is_written = True
        with suppress(OSError):  # one that stays tells nobody anything while ours is there
            self._layout.former.unlink(missing_ok=True)

    def change(self, content: bytes) -> None:
        """What the file is to say; the next ``mend`` writes it, and those after it where the disk is full."""
        self._content = content

    def mend(self) -> None:
        """Whoever lost or damaged the file could neither use this plane nor end it, nor start another. Raises nothing:
        what can't be written now is tried again the next time, and said once."""
        if not self._is_written:
            return
        try:
            if self._layout.endpoint.read_bytes() == self._content:
                return
        except OSError:
            pass
        try:
            write_whole(self._layout.endpoint, self._content, point="plane.endpoint")
        except OSError as error:
            if not self._is_failing:
                _log.warning("%s can't be written: %s", self._layout.endpoint, error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False

    def remove(self) -> None:
        """At an end that was asked for. May be repeated; leaves the file of a plane alone that has the folder now."""
        if self._is_written and is_ours(self._layout, self._lock):
            self._layout.former.unlink(missing_ok=True)
            self._layout.endpoint.unlink(missing_ok=True)

    def put_back(self) -> None:
        """What was set aside, where ours never took its place. May be repeated; raises nothing."""
        if self._is_written or not is_ours(self._layout, self._lock):
            return
        try:
            os.replace(self._layout.former, self._layout.endpoint)
        except FileNotFoundError:
            pass
        except OSError as error:  # whoever looks for it finds it where it is, too
            _log.warning("%s can't be put back: %s", self._layout.endpoint, error.strerror)


def kept_port(layout: Layout) -> int:
    """Where this machine reached the last plane of this folder; 0 where that is not known."""
    try:
        port = int(layout.own_port.read_bytes())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65_536 else 0


def keep_port(layout: Layout, port: int) -> None:
    """For the next plane of this folder. What can't be kept costs it only the same port."""
    try:
        write_whole(layout.own_port, f"{port}\n".encode(), point="plane.port")
    except OSError as error:
        _log.warning("%s can't be written: %s", layout.own_port, error.strerror)
