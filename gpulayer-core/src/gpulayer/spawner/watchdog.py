"""The watchdog: parent and sub-reaper of the spawner, with nothing to do until that dies.

``main`` is what ``spawner_command`` runs. It forks the watchdog into a session of its own and returns once the
spawner answers. The watchdog forks the spawner and waits for its end. If jobs were running then, it takes the exit
codes of those that had ended, kills the rest with their trees (all are its own descendants by now), writes their exit
records, and goes; the folder's lock, which both hold, keeps a new spawner away until that is done.
Killing only the watchdog ends nothing: the spawner sees it and goes when its jobs have ended.
"""

import gc
import os
import signal
import sys
import time
from typing import Final, NoReturn

from gpulayer.spawner import ALREADY_RUNNING, tree
from gpulayer.spawner.loop import Spawner
from gpulayer.spawner.recovery import end_leftovers, record_what_became
from gpulayer.spawner.saying import say, say_fault
from gpulayer.spawner.state import StateDir, read_exit_record

__all__ = ["main"]

_PATIENCE_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.002


def main(state_dir: str) -> NoReturn:
    """Start watchdog and spawner, detached; exits with 0, ``ALREADY_RUNNING`` or 1 (see ``spawner_command``)."""
    # Inherited from whoever starts it: an ignored SIGCHLD would let the kernel throw exit codes away.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    state = StateDir(state_dir)
    state.prepare()
    ready_r, ready_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ready_r)
            os.setsid()
            os.chdir("/")
            code = _watch(state, ready_w)
        except BaseException:
            say_fault()
        finally:
            _leave(code)
    os.close(ready_w)
    if os.read(ready_r, 1) == b"1":
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    sys.exit(max(os.waitstatus_to_exitcode(status), 1))


def _watch(state: StateDir, ready_fd: int) -> int:
    lock_fd = state.lock()
    if lock_fd is None:
        return ALREADY_RUNNING
    tree.set_subreaper()
    alive_r, alive_w = os.pipe()
    watchdog_pid = os.getpid()
    # What is loaded is never freed: kept out of the collector's reach it stays shared between the two.
    gc.collect()
    gc.freeze()
    spawner_pid = os.fork()
    if spawner_pid == 0:
        code = 1
        try:
            os.close(alive_w)
            tree.set_subreaper()
            state.write_pids(lock_fd, watchdog=watchdog_pid, spawner=os.getpid())
            code = _spawn_loop(state, watchdog_pid, alive_r, ready_fd)
        except BaseException:
            say_fault()
        finally:
            _leave(code)
    os.close(alive_r)
    os.close(ready_fd)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.kill(spawner_pid, signal.SIGTERM))
    _wait_for_end(spawner_pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _clean_up(state, spawner_pid)
    return 0


def _spawn_loop(state: StateDir, watchdog_pid: int, watchdog_fd: int, ready_fd: int) -> int:
    spawner = Spawner(
        state,
        watchdog_pid=watchdog_pid,
        watchdog_fd=watchdog_fd,
        now=time.monotonic,
        wall_ms=_wall_ms,
        continuous_ms=_continuous_ms,
    )

    def say_ready() -> None:
        os.write(ready_fd, b"1")
        os.close(ready_fd)

    return spawner.run(say_ready)


def _wait_for_end(pid: int) -> None:
    """Return when ``pid`` has ended; it stays a zombie, so that its number is taken until the cleaning up."""
    if not hasattr(os, "waitid"):
        _, status = os.waitpid(pid, 0)
        _report(status)
        return
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _clean_up(state: StateDir, spawner_pid: int) -> None:
    entries = [entry for entry in state.load() if read_exit_record(entry.exit_path) is None]
    mains = {entry.pid for entry in entries if entry.pid}
    statuses: dict[int, int] = {}
    # First what had ended by itself: those codes are the programs' own.
    _reap(statuses, spawner_pid, mains)
    own = frozenset({os.getpid()})
    if tree.children() is None:
        _end_groups(mains)
    left = end_leftovers(entries, spare=own)
    left |= _end_descendants(statuses, spawner_pid, mains)
    # A SIGKILL can only be the one given here: whatever the program would have said, it did not get to it.
    kept = {pid: status for pid, status in statuses.items() if os.waitstatus_to_exitcode(status) != -signal.SIGKILL}
    for entry, record in record_what_became(entries, statuses=kept, left=left, wall_ms=_wall_ms):
        say(f"the spawner died; {entry.key}: {record.reason}")
    state.remove_socket()


def _reap(statuses: dict[int, int], spawner_pid: int, mains: set[int]) -> bool:
    """Take every child that has ended; False when no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if pid == spawner_pid:
            _report(status)
        elif pid in mains:
            statuses[pid] = status


def _end_descendants(statuses: dict[int, int], spawner_pid: int, mains: set[int]) -> set[int]:
    """Kill all descendants, also those that shed every marker; reaps them. What survives that is returned."""
    deadline = time.monotonic() + _PATIENCE_S
    while _reap(statuses, spawner_pid, mains):
        seen = tree.processes()
        left = tree.members(seen, roots=set(tree.children() or ()), markers=(), spare={os.getpid()})
        tree.send_signal([seen[pid] for pid in left], signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(_LOOK_AGAIN_S)
    return set()


def _end_groups(mains: set[int]) -> None:
    """Without /proc the jobs' groups are all that can be named, and only now, before their numbers are reused."""
    for pid in mains:
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:  # it has ended
            continue


def _report(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        say(f"the spawner ended with {code}")


def _continuous_ms() -> int:
    """The clock of ``Spawn.kill_by_ms``: it runs through suspend (CLOCK_MONOTONIC_RAW does on macOS)."""
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC))
    return time.clock_gettime_ns(clock) // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _leave(code: int) -> NoReturn:
    # Not sys.exit: a forked process must not run what its parent meant to run at its own end.
    os._exit(code)
