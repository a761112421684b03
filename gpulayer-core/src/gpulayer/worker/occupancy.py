"""Who else is on this machine's devices: what strangers compute on is busy, what others only draw on has less memory.

A probe tells of all processes on a device; this worker's own are those below its agent, its spawner and its watchdog,
and where a process can't be seen from here (the driver of a container's host numbers them otherwise) whatever is on a
device that a job of this worker has just now. Besides, a device is somebody's while another worker of this host has its
lock, while something of a worker that died is left on it, and while a process of our own that can't be ended keeps it.
"""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpulayer.plugins.contracts.probe import ProcessKind, ProcessOnDevice
from gpulayer.spawner import tree
from gpulayer.spawner.locks import Holder, holder_of
from gpulayer.spawner.state import StateDir
from gpulayer.spec.machine import Device, DeviceState

__all__ = ["Lent", "Occupancy", "is_whole_host", "judged"]

_MEMORY_STEP: Final = 256 * 2**20  # a desktop's memory always moves, and each step is news
_FIRST_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel
_MAX_NAME: Final = 64
_MAX_DEPTH: Final = 4096


@dataclass(frozen=True, slots=True)
class Lent:
    """A device that this worker's attempt ``key`` has. is_running: its program is known to have begun."""

    key: str
    is_running: bool


_ANY: Final = Lent("", is_running=True)


@dataclass(frozen=True, slots=True)
class _Watched:
    """Why a device is busy, as far as it can be seen without a probe."""

    device: str
    pids: tuple[int, ...]
    is_in_use: bool


class Occupancy:
    """Of one worker's devices. It reads /proc and the locks, and blocks for milliseconds.

    is_whole_host: the numbers that a driver gives processes are those of our own /proc; see ``is_whole_host``.
    """

    def __init__(self, spawner_folder: Path, lock_folders: Sequence[str], *, is_whole_host: bool) -> None:
        self._state = StateDir(str(spawner_folder))
        self._lock_folders = tuple(lock_folders)
        self._is_whole_host = is_whole_host
        self._watched: tuple[_Watched, ...] = ()

    def judge(
        self, devices: Sequence[Device], processes: Iterable[ProcessOnDevice], *, lent: Mapping[str, Lent] | None
    ) -> tuple[Device, ...]:
        """The devices, with who is on them. lent: by uuid, those that this worker's programs have; None: not known yet,
        and any may be."""
        spawner, watchdog = self._state.holder("spawner"), self._state.holder("watchdog")
        roots = {os.getpid(), *(one.pid for one in (spawner, watchdog) if one is not None)}
        own_pid = 0 if spawner is None else spawner.pid
        found: dict[str, list[ProcessOnDevice]] = {}
        for process in processes:
            found.setdefault(process.device, []).append(process)
        result: list[Device] = []
        watched: list[_Watched] = []
        for device in devices:
            here = found.get(device.uuid, [])
            ours = _ANY if lent is None else lent.get(device.uuid)
            pids = [process.pid for process in here if process.kind is ProcessKind.COMPUTE]
            strangers = [pid for pid in pids if self._is_stranger(pid, roots, ours)]
            holder = holder_of(device.uuid, self._lock_folders)
            in_use = "" if holder is None else _kept_by(holder, own_pid=own_pid, ours=ours)
            result.append(judged(device, here, in_use=in_use, strangers=[_name_of(pid) for pid in strangers]))
            seen = tuple(pid for pid in strangers if _seen(pid) is not None)
            if seen or in_use:
                watched.append(_Watched(device.uuid, seen, bool(in_use)))
        self._watched = tuple(watched)
        return tuple(result)

    @property
    def is_anybody_there(self) -> bool:
        """Whose end ``has_changed`` could see."""
        return bool(self._watched)

    def has_changed(self) -> bool:
        """Somebody who made a device busy has gone: it is worth asking the probes again."""
        return any(
            any(_seen(pid) is None for pid in one.pids)
            or (one.is_in_use and holder_of(one.device, self._lock_folders) is None)
            for one in self._watched
        )

    def _is_stranger(self, pid: int, roots: set[int], ours: Lent | None) -> bool:
        if _seen(pid) is not None:
            return not _is_own(pid, roots)
        if self._is_whole_host:
            return not _is_gone(pid)  # the driver may take a moment to see that it died; /proc may hide what lives
        return ours is None or not ours.is_running


def is_whole_host() -> bool:
    """Whether this process sees the host's own numbers of processes; not in a container, as a rule."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return True


def judged(
    device: Device, processes: Iterable[ProcessOnDevice], *, in_use: str = "", strangers: Sequence[str] = ()
) -> Device:
    """Pure. in_use: who else was lent it. strangers: those that compute on it, as people know them. What its probe
    already calls busy or unhealthy stays so, with its reason."""
    drawing = sum(process.memory_bytes or 0 for process in processes if process.kind is ProcessKind.GRAPHICS)
    taken = device.memory_taken_bytes or -(-drawing // _MEMORY_STEP) * _MEMORY_STEP
    device = replace(device, memory_taken_bytes=taken)
    if device.state is not DeviceState.USABLE or not (in_use or strangers):
        return device
    reason = in_use
    if not reason:
        first, more = strangers[0], len(strangers) - 1
        reason = f"{first} computes on it" if not more else f"{first} and {more} more compute on it"
    return replace(device, state=DeviceState.BUSY, reason=reason)


def _kept_by(holder: Holder, *, own_pid: int, ours: Lent | None) -> str:
    if holder.left:
        return f"{_name_of(holder.left[0])} is left on it by a worker that died, and can't be ended"
    if holder.pid and holder.pid == own_pid:
        if not holder.key or ours is _ANY or (ours is not None and holder.key == ours.key):
            return ""
        return f"a process of attempt {holder.key} can't be ended and keeps it"
    who = f", process {holder.pid}" if holder.pid else ""
    return f"another worker on this host has it{who}"


def _seen(pid: int) -> tree.Process | None:
    found = tree.process(pid)
    return None if found is None or found.is_dead else found


def _is_gone(pid: int) -> bool:
    """Of one that /proc does not show: dead, or hidden from us."""
    if tree.process(pid) is not None:
        return True  # a zombie
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.EPERM
    return False


def _is_own(pid: int, roots: set[int]) -> bool:
    """Whether it or one of its ancestors is one of these: they are sub-reapers, so nothing of ours slips away."""
    seen = tree.process(pid)
    for _ in range(_MAX_DEPTH):
        if seen is None or seen.pid <= 1:
            return False
        if seen.pid in roots:
            return True
        seen = tree.process(seen.ppid)
    return False


def _name_of(pid: int) -> str:
    """``python (pid 4711, user ann)``. What a program calls itself is its own choice: nothing but plain text of it."""
    try:
        name = tree.read_all(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"a process that can't be seen from here (pid {pid})"
    plain = "".join(one if one.isprintable() else "?" for one in name)[:_MAX_NAME]
    return f"{plain or 'a process'} (pid {pid}, user {_user(owner)})"


def _user(number: int) -> str:
    import pwd  # noqa: PLC0415 - only where there is a stranger

    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OSError):
        return str(number)
