"""Start one process the way a POSIX shell would, and say what a shell would where it can't be started.

``posix_spawn`` (vfork underneath) is three times as quick as fork from Python and runs no Python in the child. What it
can't set, this process takes on for the moment of the call and drops again: working folder, marker, descriptor limit.
That is right only in a single-threaded process.
"""

import errno
import os
import resource
import signal
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from gpulayer.spawner.tree import restore_marker, set_marker

__all__ = ["LaunchFailed", "launch", "marker_is_possible"]

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_CAUGHT: Final = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_BUSY_TRIES: Final = 10
_MACHINES: Final = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}


class LaunchFailed(Exception):
    """Nothing was started. exit_code: what a shell would exit with, None where the command is not at fault."""

    def __init__(self, number: int, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.errno = number
        self.message = message
        self.exit_code = exit_code


def launch(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdin_fd: int,
    output_fd: int,
    error_fd: int | None = None,
    marker: int | None = None,
    nice: int = 0,
    descriptors: tuple[int, int] | None = None,
) -> int:
    """Start ``argv`` as leader of a session of its own; returns its PID, or raises ``LaunchFailed``.

    All signals are at their defaults and unblocked in it; it has no descriptor but 0, 1 and 2 (both ``output_fd``
    where there is no ``error_fd``).
    descriptors: its (soft, hard) limit of open files, where this process runs with another.
    """
    if not argv or not argv[0]:
        raise LaunchFailed(errno.ENOENT, "the command is empty", _NOT_FOUND)
    home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    limits = None
    files = None
    try:
        try:
            os.chdir(cwd)
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
            raise LaunchFailed(number, f"the work folder {cwd!r} can't be entered: {error}", None) from None
        limits = set_marker(marker)
        if descriptors is not None:
            files = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
        pid = _start(argv, env, (stdin_fd, output_fd, output_fd if error_fd is None else error_fd))
    finally:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, files)
        restore_marker(limits)
        os.fchdir(home)
        os.close(home)
    if nice:
        try:
            # By group: what the process forked before this line is in it.
            os.setpriority(os.PRIO_PGRP, pid, nice)
        except OSError:  # raising priority needs a right, and the job may have ended: neither is worth its life
            pass
    return pid


def marker_is_possible() -> bool:
    """Whether markers work here; tried once at start, so that a job's record never names one that it lacks."""
    limits = set_marker(0)
    restore_marker(limits)
    return limits is not None


def _start(argv: Sequence[str], env: Mapping[str, str], standard_fds: tuple[int, int, int]) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(standard_fds)]
    denied: LaunchFailed | None = None
    for path in _candidates(argv[0], env):
        try:
            found = os.stat(path)
        except PermissionError as error:
            denied = LaunchFailed(errno.EACCES, f"{argv[0]}: {error.strerror}", _NOT_EXECUTABLE)
            continue
        except (OSError, ValueError):
            continue
        if stat.S_ISDIR(found.st_mode):
            denied = LaunchFailed(errno.EISDIR, f"{argv[0]}: is a folder", _NOT_EXECUTABLE)
            continue
        try:
            return _spawn(path, argv, env, actions)
        except ValueError as error:
            raise LaunchFailed(errno.EINVAL, f"{argv[0]}: {error} in its arguments or environment", 126) from None
        except PermissionError:
            message = f"{argv[0]}: not executable (chmod +x it, or name its interpreter)"
            denied = LaunchFailed(errno.EACCES, message, _NOT_EXECUTABLE)
        except OSError as error:
            raise _explain(error, argv[0], path) from None
    if denied is not None:
        raise denied
    where = "in the work folder" if "/" in argv[0] else "on the PATH"
    raise LaunchFailed(errno.ENOENT, f"{argv[0]}: not found {where}", _NOT_FOUND)


def _candidates(name: str, env: Mapping[str, str]) -> Iterator[str]:
    if "/" in name:
        yield name
        return
    for folder in env.get("PATH", _DEFAULT_PATH).split(":"):
        yield os.path.join(folder or ".", name)


def _spawn(path: str, argv: Sequence[str], env: Mapping[str, str], actions: list[tuple[int, int, int]]) -> int:
    for attempt in range(_BUSY_TRIES):
        try:
            return _posix_spawn(path, argv, env, actions)
        except OSError as error:
            if error.errno == errno.ENOEXEC and _is_text(path):
                # As execvp and every shell: a script without a first line that says otherwise is sh's.
                return _posix_spawn("/bin/sh", ["/bin/sh", path, *argv[1:]], env, actions)
            # A program still open for writing in a child that some other process is just forking: over in a moment.
            if error.errno != errno.ETXTBSY or attempt == _BUSY_TRIES - 1:
                raise
            time.sleep(0.002)
    raise AssertionError("the last try returns or raises")


def _posix_spawn(path: str, argv: Sequence[str], env: Mapping[str, str], actions: list[tuple[int, int, int]]) -> int:
    try:
        return os.posix_spawn(
            path, tuple(argv), env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_CAUGHT
        )
    except NotImplementedError:  # a C library without POSIX_SPAWN_SETSID: at least a group of its own
        return os.posix_spawn(
            path, tuple(argv), env, file_actions=actions, setpgroup=0, setsigmask=(), setsigdef=_CAUGHT
        )


def _explain(error: OSError, name: str, path: str) -> LaunchFailed:
    number = error.errno or 0
    match number:
        case errno.ENOENT | errno.ENOTDIR | errno.ELOOP:
            return LaunchFailed(number, f"{name}: {_missing_interpreter(path)}", _NOT_FOUND)
        case errno.ENOEXEC:
            return LaunchFailed(number, f"{name}: can't be executed here ({_foreign(path)})", _NOT_EXECUTABLE)
        case errno.EAGAIN | errno.ENOMEM | errno.EMFILE | errno.ENFILE:
            return LaunchFailed(number, f"{name}: the machine can't start a process: {error.strerror}", None)
        case _:
            return LaunchFailed(number, f"{name}: {error.strerror}", _NOT_EXECUTABLE)


def _missing_interpreter(path: str) -> str:
    first = _head(path).split(b"\n", 1)[0]
    if first.endswith(b"\r") and first.startswith(b"#!"):
        return f"its first line ends in a carriage return (Windows line ends): {os.fsdecode(first[2:].strip())}"
    if first.startswith(b"#!"):
        return f"its interpreter is missing: {os.fsdecode(first[2:].strip())}"
    return "its loader is missing (a program for another machine or C library)"


def _foreign(path: str) -> str:
    """For which machine an ELF program was built (System V ABI, ELF header: e_machine at offset 18)."""
    head = _head(path)
    order: Literal["little", "big"] = "big" if head[5:6] == b"\2" else "little"
    built = _MACHINES.get(int.from_bytes(head[18:20], order)) if head.startswith(b"\x7fELF") else None
    if built is None or built == os.uname().machine:
        return "a program for another machine, or damaged"
    return f"a program for another machine: it is built for {built}, this is {os.uname().machine}"


def _is_text(path: str) -> bool:
    head = _head(path)
    return b"\0" not in head.split(b"\n", 1)[0] and not head.startswith(b"\x7fELF")


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(256)
    except OSError:
        return b""
