"""The life of every job: started, watched, ended, drained, recorded.

A job is *running* until its main process has ended; if it was told to end (SIGTERM), until its whole tree has, or
SIGKILL is sent: a shell dies of the signal at once, and the program it waited for may still be saving its work. Then
it is *ending*: what is left of its tree is killed (a background child does not keep a job alive), while the main
process stays a zombie, so that its number, which is also the number of its session, can't be another's. When the tree
is empty the main process is reaped, the pipe is drained, the exit record is written, and only then is the job *ended*
and its end told. It is remembered until ``forget``. Nothing here waits: what is not done yet is looked at again by the
reactor.
"""

import enum
import errno
import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.faults import here
from gpulayer.spawner import tree
from gpulayer.spawner.holds import Hold, Holds
from gpulayer.spawner.launch import LaunchFailed, launch
from gpulayer.spawner.lifeline import Lifeline
from gpulayer.spawner.locks import DeviceInUse
from gpulayer.spawner.messages import Exited, ExitRecord, Output, Row, Spawn, Spawned, SpawnFailed, Stalled
from gpulayer.spawner.reactor import Reactor
from gpulayer.spawner.state import JobEntry, StateDir, write_exit_record
from gpulayer.spawner.streams import Drained, JobOutput

__all__ = ["Jobs"]

_LOOK_AGAIN_S: Final = (0.002, 0.05)  # first and longest wait between two looks at a tree that is being ended
_WRITE_AGAIN_S: Final = 1.0  # an exit record, on a disk that is full
_END_PATIENCE_S: Final = 10.0  # a process that survives SIGKILL for so long sits in the kernel
_EXPIRY_LOOK_S: Final = 1.0
_LEND_AFTER_S: Final = 0.05  # what ends sooner is not worth two packets
_ENDED_FOR: Final = {"expired": "its time was not extended by the agent", "stopped": "its spawner was told to end"}
_TOO_LATE: Final = "its time had passed before it could be started"
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

_RSS_UNIT_BYTES: Final = 1 if sys.platform == "darwin" else 1024

Event = Exited | Output | Stalled


class _Phase(enum.Enum):
    RUNNING = "running"
    ENDING = "ending"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(slots=True)
class _Job:
    entry: JobEntry
    phase: _Phase
    record: ExitRecord | None = None
    failure: SpawnFailed | None = None
    output: JobOutput | None = None
    status: int | None = None
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    survivors: tuple[int, ...] = ()
    hold: Hold | None = None
    note: str = ""
    oom_kills: int | None = None
    memory_peak_bytes: int | None = None
    is_waiting: bool = False  # _look_again is due
    wait_s: float = 0.0
    give_up_at: float = 0.0
    kill_by_ms: int | None = None
    is_lent: bool = False
    ended_for: str = ""  # of _ENDED_FOR: it is killed because of that
    is_patient: bool = False  # SIGTERM was sent, SIGKILL was not
    is_killed: bool = False
    started_at: float = 0.0
    ran_ms: int | None = None
    is_lingering: bool = False  # _look_lingering is due

    @property
    def log_bytes(self) -> int:
        if self.record is not None:
            return self.record.log_bytes
        return self.output.log_bytes if self.output is not None else 0


class Jobs:
    """All jobs of one spawner. ``emit`` gets the events; ``spare`` are PIDs that are never signalled."""

    def __init__(
        self,
        state: StateDir,
        *,
        reactor: Reactor,
        emit: Callable[[Event], None],
        wall_ms: Callable[[], int],
        continuous_ms: Callable[[], int],
        spare: frozenset[int],
        can_mark: bool,
        holds: Holds,
        watchdog: socket.socket | None = None,
        descriptors: tuple[int, int] | None = None,
    ) -> None:
        self._state = state
        self._reactor = reactor
        self._emit = emit
        self._wall_ms = wall_ms
        self._continuous_ms = continuous_ms
        self._spare = spare
        self._can_mark = can_mark
        self._descriptors = descriptors
        self.lifeline = Lifeline(watchdog, reactor=reactor, earliest=self._earliest_ms)
        self._holds = holds
        self._boot_id = tree.boot_id()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._jobs: dict[str, _Job] = {}
        self._live: dict[int, _Job] = {}  # by PID; RUNNING and ENDING, so not reaped
        self._owners: dict[int, str] = {}  # orphan PID -> key; true until the orphan is reaped
        self._look_at = math.inf
        self._is_all = True  # _live_orphans, the last time, missed none

    @property
    def unfinished(self) -> int:
        """How many jobs have not ended."""
        return sum(1 for job in self._jobs.values() if job.phase is not _Phase.ENDED)

    def remember(self, entry: JobEntry, record: ExitRecord) -> None:
        """Take over an ended job of a former spawner; its PID means nothing any more."""
        self._jobs[entry.key] = _Job(replace(entry, pid=0), _Phase.ENDED, record=record)

    def carries(self, marker: int) -> str | None:
        """The key of the live job that has this marker, if any."""
        return next((job.entry.key for job in self._live.values() if job.entry.marker == marker), None)

    def spawn(self, order: Spawn) -> Spawned | SpawnFailed:
        """Start it, or say what is known of its key."""
        known = self._jobs.get(order.key)
        if known is not None:
            return self._known(order.id, known)
        marker = order.marker if order.marker is not None else secrets.randbits(58)
        entry = JobEntry(
            key=order.key,
            marker=marker if self._can_mark else None,
            log_path=order.log_path,
            exit_path=order.exit_path,
            started_at_wall_ms=self._wall_ms(),
            boot_id=self._boot_id,
            err_path=order.err_path,
        )
        try:
            hold = self._holds.take(order, marker=entry.marker)
        except DeviceInUse as error:
            return SpawnFailed(order.id, order.key, errno.EBUSY, str(error), None)
        output: JobOutput | None = None
        try:
            here("spawner.before_entry")
            output = JobOutput(
                order.key,
                order.log_path,
                order.err_path,
                limit_bytes=order.limits.log_bytes,
                reactor=self._reactor,
                emit=self._on_output,
            )
            here("spawner.in_entry")
            self._state.add(entry)
        except OSError as error:
            # Nothing is recorded, so nothing is remembered: the same key may be tried again.
            self._holds.release(hold)
            if output is not None:
                output.close()
            return SpawnFailed(order.id, order.key, error.errno or 0, f"the worker's disk: {error}", None)
        here("spawner.after_entry")
        if order.kill_by_ms is not None and order.kill_by_ms <= self._continuous_ms():
            # Agent, spawner or machine stood still since it was ordered: another worker may have begun it by now.
            self._holds.release(hold)
            return self._not_started(order, entry, output, LaunchFailed(errno.ETIME, _TOO_LATE, None))
        job_ends = output.job_ends()
        try:
            with self._holds.inside(hold):
                pid = launch(
                    order.argv,
                    cwd=order.cwd,
                    env=order.env,
                    stdin_fd=self._null,
                    output_fd=job_ends[0],
                    error_fd=job_ends[-1],
                    marker=entry.marker,
                    nice=order.nice,
                    descriptors=self._descriptors,
                )
        except LaunchFailed as error:
            self._holds.release(hold)
            return self._not_started(order, entry, output, error)
        finally:
            for job_end in job_ends:
                os.close(job_end)
        return self._started(order, entry, output, pid, hold)

    def signal(self, key: str, signum: int) -> int | None:
        """Signal each process of the tree once; how many there were, or None for an unknown key."""
        job = self._jobs.get(key)
        if job is None:
            return None
        if job.phase is not _Phase.RUNNING:
            return 0
        count = self._signal_tree(job, signum)
        job.is_patient = job.is_patient or signum == signal.SIGTERM
        if signum in _ENDING:
            # What is stopped or frozen hears it only when it goes on (systemd does the same).
            self._signal_tree(job, signal.SIGCONT)
            if job.hold is not None:
                self._holds.thaw(job.hold)
        return count

    def kill(self, key: str) -> bool:
        """Begin to kill the tree; False for an unknown key. A job that is ending is being killed already."""
        job = self._jobs.get(key)
        if job is None:
            return False
        if job.phase is _Phase.RUNNING:
            self._kill_until(job, self._reactor.now() + _END_PATIENCE_S)
        return True

    def extend(self, key: str, kill_by_ms: int) -> bool:
        """Move the time at which the tree is ended without being asked; False for an unknown key."""
        job = self._jobs.get(key)
        if job is None:
            return False
        job.kill_by_ms = kill_by_ms
        if job.phase is _Phase.RUNNING:
            self.lifeline.due(kill_by_ms)
            self._look_by(kill_by_ms)
        return True

    def stop_all(self) -> None:
        """Begin to kill every tree, because this spawner is to end; the ends follow as events."""
        self.lifeline.stopping()
        for job in list(self._live.values()):
            if job.phase is _Phase.RUNNING:
                self._kill_for(job, "stopped")

    def forget(self, key: str) -> bool:
        """Drop an ended or unknown job; False where it still runs."""
        job = self._jobs.get(key)
        if job is not None:
            if job.phase is not _Phase.ENDED:
                return False
            here("spawner.before_removal")
            del self._jobs[key]
            self._state.remove(key)
            here("spawner.after_removal")
        return True

    def rows(self) -> tuple[Row, ...]:
        """Every job that has not been forgotten, ended ones too."""
        return tuple(
            Row(
                key=key,
                state="ending" if job.phase is _Phase.DRAINING else job.phase.value,
                pid=job.entry.pid,
                started_at_wall_ms=job.entry.started_at_wall_ms,
                log_bytes=job.log_bytes,
                marker=job.entry.marker,
                exit=job.record,
            )
            for key, job in self._jobs.items()
        )

    def on_child_change(self) -> None:
        """Some child has changed its state (SIGCHLD, which does not say how many, or which)."""
        self._live_orphans()
        for job in list(self._live.values()):
            if job.phase is _Phase.RUNNING:
                if self._has_exited(job) and not self._lingers(job):
                    self._begin_end(job)
            else:
                self._end_tree(job)

    def close(self) -> None:
        """Closes descriptors, output pipes among them; kills nothing."""
        os.close(self._null)
        self._state.close()
        for job in self._jobs.values():
            self._close_output(job)

    # Starting ---------------------------------------------------------------------------------------------------------

    def _known(self, request: int, job: _Job) -> Spawned | SpawnFailed:
        if job.failure is not None:
            return replace(job.failure, id=request)
        return Spawned(request, job.entry.key, job.entry.pid, existing=True, exit=job.record)

    def _not_started(self, order: Spawn, entry: JobEntry, output: JobOutput, error: LaunchFailed) -> SpawnFailed:
        output.close()
        failure = SpawnFailed(order.id, order.key, error.errno, error.message, error.exit_code)
        record = ExitRecord(
            key=order.key,
            exit_code=error.exit_code,
            signal=None,
            reason="spawn_failed",
            message=error.message,
            ended_at_wall_ms=self._wall_ms(),
            log_bytes=output.log_bytes,
            log_complete=True,
            tree_clean=True,
        )
        job = _Job(entry, _Phase.ENDED, record=record, failure=failure)
        self._jobs[order.key] = job
        self._write_record(job)
        return failure

    def _started(self, order: Spawn, entry: JobEntry, output: JobOutput, pid: int, hold: Hold) -> Spawned:
        seen = tree.process(pid)
        entry = replace(entry, pid=pid, started_ticks=seen.started_ticks if seen is not None else 0)
        try:
            here("spawner.after_launch")
            self._state.add_pid(order.key, pid=pid, started_ticks=entry.started_ticks)
        except OSError:  # a disk that filled up just now: the marker, which is recorded, finds it as well
            pass
        here("spawner.after_pid")
        job = _Job(entry, _Phase.RUNNING, output=output, hold=hold, started_at=self._reactor.now())
        self._jobs[order.key] = job
        self._live[pid] = job
        output.watch()
        if order.kill_by_ms is not None:
            self.extend(order.key, order.kill_by_ms)
        self._reactor.later(_LEND_AFTER_S, lambda: self._lend(job))
        return Spawned(order.id, order.key, pid)

    # Output -----------------------------------------------------------------------------------------------------------

    def _on_output(self, event: Output | Stalled) -> None:
        job = self._jobs.get(event.key)
        if job is not None and job.is_lent and job.output is not None and not job.output.is_spliced:
            self._unlend(job)
        self._emit(event)

    def _lend(self, job: _Job) -> None:
        """Bytes that pass through this process are lost with it: no duplicate could make such a log whole."""
        if job.phase is _Phase.RUNNING and job.output is not None and job.output.is_spliced:
            job.is_lent = True
            for pipe in job.output.pipes:
                self.lifeline.lend(job.entry.key, pipe.read_fd, pipe.spool.path, pipe.spool.limit_bytes)

    def _unlend(self, job: _Job) -> None:
        if job.is_lent:
            job.is_lent = False
            self.lifeline.end(job.entry.key)

    def _earliest_ms(self) -> int:
        return min((job.kill_by_ms for job in self._live.values() if job.kill_by_ms is not None), default=0)

    def _look_by(self, kill_by_ms: int) -> None:
        """Look at every second, since timers stand still while the machine is suspended and this time does not."""
        wait_s = min(max(kill_by_ms - self._continuous_ms(), 0) / 1000, _EXPIRY_LOOK_S)
        look_at = self._reactor.now() + wait_s
        if look_at < self._look_at:
            self._look_at = look_at
            self._reactor.later(wait_s, self._look_expired)

    def _look_expired(self) -> None:
        """One look for all jobs. One that was asked for before an earlier one finds that it has no purpose."""
        if self._reactor.now() < self._look_at:
            return
        self._look_at = math.inf
        now_ms = self._continuous_ms()
        for job in list(self._live.values()):
            if job.phase is not _Phase.RUNNING or job.kill_by_ms is None or job.ended_for:
                continue
            if job.kill_by_ms <= now_ms:
                self._kill_for(job, "expired")
            else:
                self._look_by(job.kill_by_ms)

    # Ending -----------------------------------------------------------------------------------------------------------

    def _has_exited(self, job: _Job) -> bool:
        if hasattr(os, "waitid"):
            # WNOWAIT: it stays a zombie until its tree is gone.
            return os.waitid(os.P_PID, job.entry.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._reap(job, os.WNOHANG)

    def _reap(self, job: _Job, flags: int) -> bool:
        if job.status is not None:
            return True
        pid, status, usage = os.wait4(job.entry.pid, flags)
        if pid == 0:
            return False
        job.status = status
        job.cpu_s = round(usage.ru_utime + usage.ru_stime, 6)
        job.max_rss_bytes = usage.ru_maxrss * _RSS_UNIT_BYTES
        return True

    def _lingers(self, job: _Job) -> bool:
        """Whether what is left of a tree that was told to end still has time to do so."""
        if not job.is_patient or not (self._orphans_of(job) or not self._is_all):
            return False
        if not job.is_lingering:
            job.is_lingering = True
            self._reactor.later(_LOOK_AGAIN_S[1], lambda: self._look_lingering(job))
        return True

    def _look_lingering(self, job: _Job) -> None:
        job.is_lingering = False
        if job.phase is _Phase.RUNNING and not self._lingers(job):
            self._begin_end(job)

    def _begin_end(self, job: _Job) -> None:
        here("spawner.after_exit")
        job.ran_ms = round((self._reactor.now() - job.started_at) * 1000)
        job.phase = _Phase.ENDING
        job.wait_s = _LOOK_AGAIN_S[0]
        job.give_up_at = self._reactor.now() + _END_PATIENCE_S
        _kill_group(job.entry.pid)
        self._end_tree(job)

    def _end_tree(self, job: _Job) -> None:
        if job.phase is not _Phase.ENDING:
            return
        assert job.hold is not None
        orphans = self._orphans_of(job)
        grouped = self._holds.pids(job.hold)
        # Empty is what has no orphan, not what has no member: one that died just now may have left children.
        is_empty = not orphans and self._is_all and not grouped
        is_late = self._reactor.now() >= job.give_up_at
        # Only what a group can't end is looked for, all over /proc.
        is_killed = bool(grouped) and not is_late and self._holds.kill(job.hold)
        left = [] if is_empty or is_killed else self._members(job, {job.entry.pid, *orphans})
        if not is_empty and not is_late:
            tree.send_signal(left, signal.SIGKILL)
            if not job.is_waiting:  # each death wakes this too: one timer is enough
                job.is_waiting = True
                self._again(job, _LOOK_AGAIN_S[1], lambda: self._look_again(job))
            return
        job.survivors = tuple(sorted(one.pid for one in left))
        self._reap(job, 0)
        self._live.pop(job.entry.pid, None)
        job.oom_kills, job.memory_peak_bytes = self._holds.memory(job.hold)
        job.note = self._holds.told(job.hold)
        self._holds.release(job.hold, survivors=left, is_empty=grouped == [])
        job.phase = _Phase.DRAINING
        assert job.output is not None
        job.output.drain(lambda drained: self._finish(job, drained))

    def _look_again(self, job: _Job) -> None:
        job.is_waiting = False
        self._end_tree(job)

    def _finish(self, job: _Job, drained: Drained) -> None:
        assert job.status is not None
        self._close_output(job)
        code = os.waitstatus_to_exitcode(job.status)
        job.record = ExitRecord(
            key=job.entry.key,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            reason=job.ended_for or ("exited" if code >= 0 else "signaled"),
            message="\n".join(filter(None, (_ENDED_FOR.get(job.ended_for, ""), job.note))),
            ended_at_wall_ms=self._wall_ms(),
            log_bytes=drained.log_bytes,
            # No end, but no survivor: a process outside the tree was handed the pipe. What the tree wrote is there.
            log_complete=not (drained.left_out_bytes or drained.cut_bytes) and (drained.is_ended or not job.survivors),
            tree_clean=not job.survivors,
            survivors=job.survivors,
            cpu_s=job.cpu_s,
            max_rss_bytes=job.max_rss_bytes,
            ran_ms=job.ran_ms,
            oom_kills=job.oom_kills,
            memory_peak_bytes=job.memory_peak_bytes,
            err_bytes=drained.err_bytes,
            left_out_bytes=drained.left_out_bytes,
            unwritten_bytes=drained.unwritten_bytes,
            cut_bytes=drained.cut_bytes,
        )
        job.phase = _Phase.ENDED
        here("spawner.before_record")
        is_written = self._write_record(job)
        here("spawner.after_record")
        self._emit(Exited(job.record, is_written))

    def _write_record(self, job: _Job) -> bool:
        assert job.record is not None
        try:
            write_exit_record(job.entry.exit_path, job.record)
        except OSError:
            # The end is told all the same; the event that says so carries record_written=False.
            self._reactor.later(_WRITE_AGAIN_S, lambda: self._write_again(job))
            return False
        return True

    def _write_again(self, job: _Job) -> None:
        if self._jobs.get(job.entry.key) is job and self._write_record(job) and job.record is not None:
            self._emit(Exited(job.record))

    def _close_output(self, job: _Job) -> None:
        if job.output is not None:
            self._unlend(job)
            job.output.close()
            job.output = None

    def _again(self, job: _Job, longest_s: float, callback: Callable[[], object]) -> None:
        wait_s, job.wait_s = job.wait_s, min(job.wait_s * 2, longest_s)
        self._reactor.later(wait_s, callback)

    # Trees ------------------------------------------------------------------------------------------------------------

    def _kill_until(self, job: _Job, deadline: float) -> None:
        if job.phase is not _Phase.RUNNING:
            return  # its main process has ended: ending it goes on elsewhere
        is_first, job.is_patient, job.is_killed = not job.is_killed, False, True
        # Most trees are one group: only what is left of one after that is worth a look through all processes, of which
        # a thousand at once would be too many.
        is_held = job.hold is not None and self._holds.kill(job.hold)
        if not is_held and not (is_first and _kill_group(job.entry.pid)):
            self._signal_tree(job, signal.SIGKILL)
        if self._reactor.now() < deadline:
            self._reactor.later(_LOOK_AGAIN_S[1], lambda: self._kill_until(job, deadline))

    def _kill_for(self, job: _Job, reason: str) -> None:
        """What has ended by itself keeps its own end. What has not does not get one now: a shell whose child is killed
        before it is itself may still come to exit with 137."""
        if not self._has_exited(job):
            job.ended_for = job.ended_for or reason
        self._kill_until(job, self._reactor.now() + _END_PATIENCE_S)  # what is left of its tree, too

    def _signal_tree(self, job: _Job, signum: int) -> int:
        pid = job.entry.pid
        if tree.children() is None:
            try:
                os.killpg(pid, signum)
            except OSError:  # it has just ended; SIGCHLD is on its way
                return 0
            return 1
        grouped = None if job.hold is None else self._holds.pids(job.hold)
        if grouped:
            return tree.send_signal(filter(None, map(tree.process, grouped)), signum)
        roots = {pid, *(orphan for orphan in self._live_orphans() if self._owner_of(orphan) == job.entry.key)}
        return tree.send_signal(self._members(job, roots), signum)

    def _orphans_of(self, job: _Job) -> set[int]:
        """What is left of a tree whose main process has ended hangs below these (see ``tree``)."""
        orphans = self._live_orphans()
        if len(self._live) == 1:
            return set(orphans)  # also those that shed every sign of whose they are: there is no other job
        return {orphan for orphan in orphans if self._owner_of(orphan) == job.entry.key}

    def _members(self, job: _Job, roots: set[int]) -> list[tree.Process]:
        seen = tree.processes()
        markers = set() if job.entry.marker is None else {job.entry.marker}
        spare = self._spare | (self._live.keys() - {job.entry.pid})
        return [seen[pid] for pid in tree.members(seen, roots=roots, markers=markers, spare=spare)]

    def _live_orphans(self) -> list[int]:
        """Children that are no job's main process: what jobs left behind. Dead ones are reaped on the way."""
        alive = []
        self._is_all = True
        for pid in tree.children() or ():
            if pid in self._live:
                continue
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                self._owners.pop(pid, None)
                self._is_all = False  # what it had forked became ours at its death, perhaps after the list was read
            else:
                alive.append(pid)
        return alive

    def _owner_of(self, orphan: int) -> str | None:
        owner = self._owners.get(orphan)
        if owner is None and (job := self._find_owner(orphan)) is not None:
            # An orphan keeps its number until it is reaped here, so this stays true.
            owner = self._owners[orphan] = job.entry.key
        return owner

    def _find_owner(self, orphan: int) -> _Job | None:
        marker = tree.marker_of(orphan)
        if marker is not None:
            for job in self._live.values():
                if job.entry.marker == marker:
                    return job
        seen = tree.process(orphan)
        if seen is None:
            return None
        return self._live.get(seen.session) or self._live.get(seen.group)


def _kill_group(pid: int) -> bool:
    """False where nobody but the zombie is left in it, or nobody whom this user may end."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        return False
    return True
