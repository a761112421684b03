"""The watchdog: parent and sub-reaper of the spawner, with nothing to do until that dies or is stuck.

``main`` is what ``spawner_command`` runs. It forks the watchdog into a session of its own and returns once the
spawner answers. The watchdog forks the spawner and waits for its end, which it brings about itself when a job should
be over and the spawner gives no sign of life (``lifeline.Patience``). If jobs were running then, it takes the exit
codes of those that had ended, kills the rest with their trees (all are its own descendants by now), saves what is left
in their pipes, writes their exit records, and goes; the folder's lock, which both hold, keeps a new spawner away until
that is done. Killing only the watchdog ends nothing: the spawner sees it and goes when its jobs have ended.
"""

import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from gpulayer.faults import arm, here
from gpulayer.hiding import hide_process
from gpulayer.spawner import ALREADY_RUNNING, tree
from gpulayer.spawner.cgroups import remove_below
from gpulayer.spawner.lifeline import Loan, Patience, Watch, packet_pair
from gpulayer.spawner.loop import Host, Spawner, take_descriptors
from gpulayer.spawner.recovery import end_leftovers, record_what_became
from gpulayer.spawner.salvage import salvage
from gpulayer.spawner.saying import say, say_fault
from gpulayer.spawner.state import StateDir, read_exit_record

__all__ = ["main"]

_PATIENCE_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.002
_STUCK_LOOK_S: Final = (0.01, 1.0)  # first and longest wait between two looks at a spawner that does not die


def main(state_dir: str, *, lock_folders: Sequence[str] = (), groups: Sequence[str] = (), faults: str = "") -> NoReturn:
    """Start watchdog and spawner, detached; exits with 0, ``ALREADY_RUNNING`` or 1 (see ``spawner_command``)."""
    arm(faults)
    hide_process()  # what the watchdog and the spawner fork keeps it until it becomes a job's program
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
            code = _watch(state, ready_w, lock_folders, groups)
        except BaseException:
            say_fault()
        finally:
            _leave(code)
    os.close(ready_w)
    if os.read(ready_r, 1) == b"1":
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    sys.exit(max(os.waitstatus_to_exitcode(status), 1))


def _watch(state: StateDir, ready_fd: int, lock_folders: Sequence[str], groups: Sequence[str]) -> int:
    lock_fd = state.lock()
    if lock_fd is None:
        return ALREADY_RUNNING
    groups_fd = state.open_groups()
    tree.set_subreaper()
    alive_r, alive_w = os.pipe()
    watch_end, spawner_end = packet_pair()
    # Never read here: what waits in it keeps the spawner's device locks until this process has ended the trees.
    keeper, kept = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    watchdog_pid = os.getpid()
    # What is loaded is never freed: kept out of the collector's reach it stays shared between the two.
    gc.collect()
    gc.freeze()
    here("watchdog.before_spawner")
    spawner_pid = os.fork()
    if spawner_pid == 0:
        code = 1
        try:
            os.close(alive_w)
            os.close(groups_fd)
            kept.close()
            watch_end.close()
            tree.set_subreaper()
            state.write_pids(lock_fd, watchdog=watchdog_pid, spawner=os.getpid())
            host = Host(groups=groups, lock_folders=lock_folders, lock_keeper=keeper)
            code = _spawn_loop(
                state,
                host,
                watchdog_pid=watchdog_pid,
                watchdog_fd=alive_r,
                watchdog_socket=spawner_end,
                ready_fd=ready_fd,
            )
        except BaseException:
            say_fault()
        finally:
            _leave(code)
    os.close(alive_r)
    os.close(ready_fd)
    keeper.close()
    spawner_end.close()
    take_descriptors()
    watch = Watch(watch_end)
    guard = _Guard(state, lock_fd, spawner_pid, watch)
    guard.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if state.is_still(lock_fd):
        _clean_up(state, guard, watch)
    else:
        _clean_up_without(spawner_pid, state.read_groups(groups_fd))
    return 0


def _spawn_loop(
    state: StateDir,
    host: Host,
    *,
    watchdog_pid: int,
    watchdog_fd: int,
    watchdog_socket: socket.socket,
    ready_fd: int,
) -> int:
    spawner = Spawner(
        state,
        watchdog_pid=watchdog_pid,
        watchdog_fd=watchdog_fd,
        watchdog_socket=watchdog_socket,
        now=time.monotonic,
        wall_ms=_wall_ms,
        continuous_ms=_continuous_ms,
        host=host,
    )

    def say_ready() -> None:
        os.write(ready_fd, b"1")
        os.close(ready_fd)

    return spawner.run(say_ready)


class _Guard:
    """Waits for the end of the spawner, and brings it about when it must.

    why: what was wrong with it, if that is known. has_killed: jobs were ended before it was.
    """

    def __init__(self, state: StateDir, lock_fd: int, spawner_pid: int, watch: Watch) -> None:
        self.pid = spawner_pid
        self.why = ""
        self.has_killed = False
        self._state = state
        self._lock_fd = lock_fd
        self._watch = watch
        self._patience = Patience()
        self._wake_r, wake_w = os.pipe()
        for fd in (self._wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._end())

    def wait(self) -> None:
        """Return when the spawner has ended. It stays a zombie where the system allows, so that its number is taken
        until the cleaning up."""
        poller = select.poll()
        poller.register(self._wake_r, select.POLLIN)
        poller.register(self._watch.fileno(), select.POLLIN)
        is_watched = True
        while not self._has_ended():
            wait_s = self._patience.wait_s(_continuous_ms())
            is_quiet = not poller.poll(None if wait_s is None else wait_s * 1000)
            if is_quiet and wait_s is not None:
                self._patience.waited(wait_s)
            self._drain_wakes()
            if self._watch.receive():
                self._patience.heard(self._watch.kill_by_ms)
            elif is_watched and not self._watch.is_open:
                is_watched = False
                poller.unregister(self._watch.fileno())
            if self._patience.is_over(_continuous_ms()):
                self._end_stuck()
        self._watch.receive()

    def _end(self) -> None:
        """Somebody wants both to end: the spawner does it in good order, unless it is stuck."""
        if not self._has_ended():
            self._patience.is_ending = True
            os.kill(self.pid, signal.SIGTERM)

    def _end_stuck(self) -> None:
        """SIGKILL, and in the meantime the same for all that it should have ended: a process that sits in the kernel
        dies when it comes out of there, and its jobs must not live as long."""
        seen = tree.process(self.pid)
        state = "" if seen is None else f" (state {seen.state})"
        say(f"the spawner is stuck{state}: ending it")
        self.why = f"the spawner was stuck{state} and was ended"
        os.kill(self.pid, signal.SIGKILL)
        wait_s, longest_s = _STUCK_LOOK_S
        while not self._has_ended():
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)
            if not self._has_ended():
                self._end_its_jobs()

    def _end_its_jobs(self) -> None:
        self.has_killed = True
        seen = tree.processes()
        roots = {one.pid for one in seen.values() if one.ppid == self.pid}
        entries = self._state.load() if self._state.is_still(self._lock_fd) else []
        markers = {entry.marker for entry in entries if entry.marker is not None}
        left = tree.members(seen, roots=roots, markers=markers, spare={os.getpid(), self.pid})
        tree.send_signal([seen[pid] for pid in left], signal.SIGKILL)

    def _has_ended(self) -> bool:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            _report(status)
        return pid != 0

    def _drain_wakes(self) -> None:
        try:
            os.read(self._wake_r, 4096)
        except BlockingIOError:
            pass


def _clean_up(state: StateDir, guard: _Guard, watch: Watch) -> None:
    why, spawner_pid = state.take_why() or guard.why, guard.pid
    entries = [entry for entry in state.load() if read_exit_record(entry.exit_path) is None]
    mains = {entry.pid for entry in entries if entry.pid}
    here("watchdog.before_cleaning")
    statuses: dict[int, int] = {}
    # What has ended by itself: those codes are the programs' own, but for a SIGKILL, which may be the spawner's. No
    # later one is, also where it looks like it: a shell whose child is killed before it is itself exits with 137.
    _reap(statuses, spawner_pid, mains)
    kept = {pid: status for pid, status in statuses.items() if os.waitstatus_to_exitcode(status) != -signal.SIGKILL}
    own = frozenset({os.getpid()})
    if tree.children() is None:
        _end_groups(mains)
    bases = state.read_groups()
    left = end_leftovers(entries, spare=own, bases=bases)
    left |= _end_descendants(statuses, spawner_pid, mains)
    here("watchdog.in_cleaning")
    # Nobody writes any more: what the pipes hold is the end of each log.
    here("watchdog.before_saving")
    complete = {key for key, loans in watch.loans.items() if _save(loans)}
    told = record_what_became(
        entries, statuses={} if guard.has_killed else kept, left=left, wall_ms=_wall_ms, why=why, complete=complete
    )
    for entry, record in told:
        say(f"the spawner died; {entry.key}: {record.reason}")
    for base in bases:
        remove_below(base)
    here("watchdog.after_cleaning")
    state.remove_socket()


def _clean_up_without(spawner_pid: int, bases: Sequence[str]) -> None:
    """The folder was removed: what stands there now is another spawner's, its jobs too. Our own are our descendants."""
    say("the folder of the spawner was removed: what ran is ended, and nothing is recorded")
    end_leftovers((), spare=frozenset({os.getpid()}), bases=bases)
    _end_descendants({}, spawner_pid, set())
    for base in bases:
        remove_below(base)


def _save(loans: list[Loan]) -> bool:
    saved = [salvage(loan.read_fd, loan.path, limit_bytes=loan.limit_bytes) for loan in loans]
    return all(saved)


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
