"""Devices of the host, each lent to one tree at a time: one locked file a device, seen by all spawners of the host.

The lock is held from before the start until the tree is dead. It is the kernel's, so no death leaves it behind; and
because the watchdog ends what a killed spawner was running, a copy of the descriptor waits in a socket of the
watchdog's (``keeper``), unread: the lock goes when both have gone. Jobs inherit none.

For the case that both are killed at once, the file says which tree has the device, by its marker: whoever takes the
lock next looks whether any process still carries that. Files stay where they are: removing one while another waits
for it would make two locks of one.
"""

import fcntl
import json
import os
import socket
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gpulayer.spawner import tree

__all__ = ["DeviceInUse", "DeviceLocks", "Holder", "holder_of"]

_SAFE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_TRIES: Final = 5


class DeviceInUse(Exception):
    """Says which device, and who has it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device of this host: the spawner ``pid``, for its job ``key``; 0 and empty where nobody says.

    left: processes of a tree whose spawner is dead; then nobody holds the lock.
    """

    pid: int = 0
    key: str = ""
    left: tuple[int, ...] = ()


def holder_of(device: str, folders: Sequence[str]) -> Holder | None:
    """As far as it can be seen without taking it. None: it is free, or nobody can tell."""
    for path in _paths_of(device, folders):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            said = _read(fd)
            is_locked = _is_listed(fd) or ("pid" in said and not _can_share(fd))
        finally:
            os.close(fd)
        if is_locked:
            pid, key = said.get("pid"), said.get("key")
            return Holder(pid if type(pid) is int else 0, key if isinstance(key, str) else "")
        if left := _leftovers(said):
            return Holder(left=tuple(left))
    return None


class DeviceLocks:
    """folders: shared by all users of the host, made where missing; a lock is taken in each that can be used.

    Several, because one that is right for all users is not everywhere: two spawners meet in any that both can use.
    """

    def __init__(self, folders: Sequence[str], *, keeper: socket.socket | None = None) -> None:
        self._folders = tuple(folders)
        self._keeper = keeper
        self._files: dict[str, dict[str, int]] = {}  # device → path → descriptor
        self._holders: dict[str, str] = {}  # device → key

    def take(self, devices: Collection[str], *, key: str, marker: int | None) -> None:
        """All or none; raises ``DeviceInUse``. Never waits."""
        taken: list[str] = []
        try:
            for device in sorted(set(devices)):
                self._take(device, key, marker)
                taken.append(device)
        except BaseException:
            self.give_back(taken)
            raise

    def give_back(self, devices: Collection[str]) -> None:
        """Their tree is dead, or was never started."""
        for device in devices:
            if self._holders.pop(device, None) is None:
                continue
            for fd in self._files[device].values():
                _say(fd, "")
                # Not by closing: the copy that the keeper has would hold on to it.
                fcntl.flock(fd, fcntl.LOCK_UN)

    def close(self) -> None:
        for device in list(self._files):
            self._shut(device)
        self._holders.clear()

    def _take(self, device: str, key: str, marker: int | None) -> None:
        if device in self._holders:
            raise DeviceInUse(f"device {device} is in use by {self._holders[device]} of this worker")
        if not all(_is_there(path, fd) for path, fd in self._files.get(device, {}).items()):
            self._shut(device)
        if device not in self._files:
            self._files[device] = self._open(device)
        fds = self._files[device].values()
        locked: list[int] = []
        try:
            for fd in fds:
                _lock(device, fd)
                locked.append(fd)
                _look_for_leftovers(device, fd)
        except DeviceInUse:
            for fd in locked:
                fcntl.flock(fd, fcntl.LOCK_UN)
            raise
        for fd in fds:
            _say(fd, json.dumps({"pid": os.getpid(), "key": key, "marker": marker, "boot_id": tree.boot_id()}))
        self._holders[device] = key

    def _shut(self, device: str) -> None:
        for fd in self._files.pop(device, {}).values():
            os.close(fd)

    def _open(self, device: str) -> dict[str, int]:
        found: dict[str, int] = {}
        reason = "no folder for locks was given"
        for folder, path in zip(self._folders, _paths_of(device, self._folders), strict=True):
            try:
                _prepare(folder)
                found[path] = _open(path)
            except OSError as error:
                reason = str(error)
        if not found:
            raise DeviceInUse(f"device {device} can't be locked: {reason}")
        if self._keeper is not None:
            try:
                socket.send_fds(self._keeper, [b"x"], list(found.values()), socket.MSG_DONTWAIT)
            except OSError:  # the watchdog is dead, and the spawner goes with its last job
                self._keeper = None
        return found


def _prepare(folder: str) -> None:
    """Raises ``OSError`` for what is no folder that everybody may write to and nobody may take another's files from."""
    try:
        os.mkdir(folder, 0o1777)
        os.chmod(folder, 0o1777)  # noqa: S103 - for all users, as /tmp is, whatever the umask
    except FileExistsError:
        found = os.lstat(folder)
        is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
        if not stat.S_ISDIR(found.st_mode) or not (is_own or found.st_mode & stat.S_ISVTX):
            raise NotADirectoryError(20, "no folder with the sticky bit", folder) from None


def _open(path: str) -> int:
    for _ in range(_TRIES):
        try:
            # Not O_CREAT where it exists: the kernel refuses that for another user's file (fs.protected_regular).
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                continue
            os.fchmod(fd, 0o666)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        break
    raise OSError(22, "no plain file", path)


def _is_there(path: str, fd: int) -> bool:
    """Somebody may have tidied the folder up: a lock on a file that has no name any more keeps nobody out."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except OSError:
        return False


def _lock(device: str, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _read(fd).get("pid")
        who = f", process {holder}" if type(holder) is int else ""
        raise DeviceInUse(f"device {device} is in use by another worker on this host{who}") from None


def _look_for_leftovers(device: str, fd: int) -> None:
    left = _leftovers(_read(fd))
    if left:
        raise DeviceInUse(
            f"device {device} is still used by process {left[0]}, left by a worker of this host that died"
        )


def _leftovers(said: dict[str, object]) -> list[int]:
    """What is left of the tree that had the device last."""
    marker = said.get("marker")
    if type(marker) is not int or said.get("boot_id") != tree.boot_id():
        return []
    return sorted(tree.members(tree.processes(), roots=(), markers={marker}, spare=()))


def _is_listed(fd: int) -> bool:
    """Whether /proc/locks has a lock on it: ``1: FLOCK ADVISORY WRITE 4711 fe:01:131 0 EOF``, with the inode after the
    last colon. It has none of another container's, and macOS has no such file.

    File systems count their inodes from the same small numbers, and stacked ones have other device numbers there than
    ``stat`` gives: where only the inode is the same, the lock itself is asked.
    """
    known = os.fstat(fd)
    inode, device = str(known.st_ino), f"{os.major(known.st_dev):02x}:{os.minor(known.st_dev):02x}"
    try:
        lines = tree.read_all("/proc/locks").decode("ascii", "replace").splitlines()
    except OSError:
        return False
    words = (line.split() for line in lines)
    places = [one[5].rpartition(":") for one in words if len(one) > 5 and one[1] == "FLOCK"]
    on = [where for where, _, number in places if number == inode]
    return device in on or (bool(on) and not _can_share(fd))


def _can_share(fd: int) -> bool:
    """Asked only where somebody has the device, or died with it: for a moment it keeps others out."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _paths_of(device: str, folders: Sequence[str]) -> list[str]:
    name = "".join(character if character in _SAFE else f"%{ord(character):x}" for character in device)
    return [os.path.join(folder, f"{name}.lock") for folder in folders]


def _read(fd: int) -> dict[str, object]:
    try:
        said = json.loads(os.pread(fd, 4096, 0) or b"{}")
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _say(fd: int, text: str) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)
    except OSError:  # a full disk: the lock itself needs no room
        pass
