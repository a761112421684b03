"""Which processes belong to a job, and how to reach them.

A job's tree is: its main process, everything in that session or process group, everything that carries its marker,
and the descendants of all these. The *marker* is a soft ``RLIMIT_RTTIME`` of 2^60 + id microseconds, which no program
looks at: it passes through fork, exec, setsid, double fork and ``env -i``, and shows in ``/proc/PID/limits``.
Because the spawner is a sub-reaper, a tree whose main process has ended and which has no process among the spawner's
own children is empty: that check costs one read, so a tidy job never costs a scan of /proc.

Without /proc (macOS) there are only process groups: best effort.
"""

import os
import resource
import signal
import sys
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

__all__ = [
    "MARKER_BASE",
    "Process",
    "boot_id",
    "children",
    "marker_of",
    "members",
    "process",
    "processes",
    "read_all",
    "restore_marker",
    "send_signal",
    "set_marker",
    "set_subreaper",
]

MARKER_BASE: Final = 1 << 60
_RTTIME: Final = 15  # RLIMIT_RTTIME; resource names it only where the build's headers did
_PR_SET_CHILD_SUBREAPER: Final = 36
_HAS_PROC: Final = sys.platform == "linux"
_BLOCK: Final = 1 << 16


class Process(NamedTuple):
    """One line of /proc/PID/stat; started_ticks tells two processes of the same number apart."""

    pid: int
    state: str
    ppid: int
    group: int
    session: int
    started_ticks: int

    @property
    def is_dead(self) -> bool:
        """A zombie, or on its way out: no signal reaches it and it holds no resource but its number."""
        return self.state in "ZXx"


def process(pid: int) -> Process | None:
    """What /proc says of ``pid``; None where it says nothing."""
    try:
        line = read_all(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name may hold spaces and parentheses: fields are counted from its end.
    rest = line[line.rfind(b")") + 2 :].split()
    if len(rest) < 20:
        return None
    return Process(pid, rest[0].decode(), int(rest[1]), int(rest[2]), int(rest[3]), int(rest[19]))


def processes() -> dict[int, Process]:
    """All processes that can be seen; empty without /proc."""
    if not _HAS_PROC:
        return {}
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := process(int(name))) is not None:
            found[one.pid] = one
    return found


def children() -> list[int] | None:
    """PIDs of this single-threaded process's children, zombies too; None where the system can't tell."""
    if not _HAS_PROC:
        return None
    own = os.getpid()
    try:
        return [int(pid) for pid in read_all(f"/proc/{own}/task/{own}/children").split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [one.pid for one in processes().values() if one.ppid == own]


def marker_of(pid: int) -> int | None:
    """The marker id that ``pid`` carries, or None."""
    try:
        text = read_all(f"/proc/{pid}/limits")
    except OSError:
        return None
    at = text.find(b"Max realtime timeout")
    if at < 0:
        return None
    soft = text[at + 20 :].split(None, 1)[0]
    if not soft.isdigit() or not MARKER_BASE <= int(soft) < 2 * MARKER_BASE:
        return None
    return int(soft) - MARKER_BASE


def members(
    seen: dict[int, Process], *, roots: Collection[int], markers: Collection[int], spare: Collection[int]
) -> set[int]:
    """PIDs in ``seen``, dead ones left out, that belong to the trees of ``roots`` and ``markers``.

    spare: never members, whatever they carry (the spawner and the watchdog).
    """
    inside: set[int] = set()
    below: dict[int, list[int]] = {}
    for one in seen.values():
        below.setdefault(one.ppid, []).append(one.pid)
        if (
            one.pid in roots
            or one.session in roots
            or one.group in roots
            or (markers and marker_of(one.pid) in markers)
        ):
            inside.add(one.pid)
    todo = list(inside)
    while todo:
        for pid in below.get(todo.pop(), ()):
            if pid not in inside:
                inside.add(pid)
                todo.append(pid)
    return {pid for pid in inside if pid not in spare and not seen[pid].is_dead}


def send_signal(targets: Iterable[Process], signum: int) -> int:
    """Signal each process that still is the one that was seen; the number of those reached.

    Processes that may not be signalled (another user's, after a setuid exec) are left out of the count.
    """
    reached = 0
    for target in targets:
        # The descriptor pins the process; only then is it compared, so a reused number is never hit.
        fd = _pin(target.pid)
        try:
            now = process(target.pid)
            if now is None or now.started_ticks != target.started_ticks:
                continue
            if fd is None:
                os.kill(target.pid, signum)
            else:
                signal.pidfd_send_signal(fd, signum)
            reached += 1
        except OSError:
            continue
        finally:
            if fd is not None:
                os.close(fd)
    return reached


def set_marker(marker: int | None) -> tuple[int, int] | None:
    """Carry a marker, to be inherited by the next start; returns the limits to hand to ``restore_marker``.

    None where there is no such limit here or it may not be set: trees are then found without it.
    """
    if not _HAS_PROC or marker is None:
        return None
    try:
        before = resource.getrlimit(_RTTIME)
        resource.setrlimit(_RTTIME, (MARKER_BASE + marker, before[1]))
    except (OSError, ValueError):
        return None
    return before


def restore_marker(before: tuple[int, int] | None) -> None:
    """Undo ``set_marker`` with what it returned; nothing where that was None."""
    if before is not None:
        resource.setrlimit(_RTTIME, before)


def set_subreaper() -> bool:
    """Become the parent of every orphan below this process; False where the system has no such thing."""
    if not _HAS_PROC:
        return False
    import ctypes  # noqa: PLC0415 - half a megabyte, and only Linux needs it

    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def boot_id() -> str:
    """Names the running kernel's boot: PIDs recorded under another one mean nothing. Empty where unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode()
    except OSError:
        return ""


def read_all(path: str) -> bytes:
    """All of a small file, in pieces as the kernel gives them. A file object costs several times as much, and this is
    asked several times a job."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = piece = os.read(fd, _BLOCK)
        while piece:
            piece = os.read(fd, _BLOCK)
            content += piece
        return content
    finally:
        os.close(fd)


def _pin(pid: int) -> int | None:
    """A pidfd, or None: an old kernel, a filter, a Python built without; or the process is gone, which shows next."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
