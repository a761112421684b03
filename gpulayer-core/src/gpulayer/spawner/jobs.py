"""The life of every job: started, watched, ended, drained, recorded.

A job is *running* until its main process has ended. Then it is *ending*: what is left of its tree is killed (a
background child does not keep a job alive), while the main process stays a zombie, so that its number, which is also
the number of its session, can't be another's. When the tree is empty the main process is reaped, the pipe is
drained, the exit record is written, and only then is the job *ended* and its end told. It is remembered until
``forget``. Nothing here waits: what is not done yet is looked at again by the reactor.
"""

import enum
import os
import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.spawner import tree
from gpulayer.spawner.launch import LaunchFailed, launch
from gpulayer.spawner.messages import Exited, ExitRecord, Output, Row, Spawn, Spawned, SpawnFailed, Stalled
from gpulayer.spawner.reactor import Reactor
from gpulayer.spawner.state import JobEntry, StateDir, write_exit_record
from gpulayer.spawner.streams import Drained, JobOutput

__all__ = ["Jobs"]

_LOOK_AGAIN_S: Final = (0.002, 0.05)  # first and longest wait between two looks at a tree that is being ended
_WRITE_AGAIN_S: Final = 1.0  # an exit record, on a disk that is full
_END_PATIENCE_S: Final = 10.0  # a process that survives SIGKILL for so long sits in the kernel
_EXPIRY_LOOK_S: Final = 1.0

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
    is_waiting: bool = False  # _look_again is due
    wait_s: float = 0.0
    give_up_at: float = 0.0
    kill_by_ms: int | None = None
    is_expired: bool = False

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
        self._boot_id = tree.boot_id()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._jobs: dict[str, _Job] = {}
        self._live: dict[int, _Job] = {}  # by PID; RUNNING and ENDING, so not reaped
        self._owners: dict[int, str] = {}  # orphan PID -> key; true until the orphan is reaped
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
        output: JobOutput | None = None
        try:
            output = JobOutput(
                order.key,
                order.log_path,
                order.err_path,
                limit_bytes=order.limits.log_bytes,
                reactor=self._reactor,
                emit=self._emit,
            )
            self._state.add(entry)
        except OSError as error:
            # Nothing is recorded, so nothing is remembered: the same key may be tried again.
            if output is not None:
                output.close()
            return SpawnFailed(order.id, order.key, error.errno or 0, f"the worker's disk: {error}", None)
        job_ends = output.job_ends()
        try:
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
            return self._not_started(order, entry, output, error)
        finally:
            for job_end in job_ends:
                os.close(job_end)
        return self._started(order, entry, output, pid)

    def signal(self, key: str, signum: int) -> int | None:
        """Signal each process of the tree once; how many there were, or None for an unknown key."""
        job = self._jobs.get(key)
        if job is None:
            return None
        if job.phase is _Phase.RUNNING:
            return self._signal_tree(job, signum)
        return 0

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
        is_watched = job.kill_by_ms is not None
        job.kill_by_ms = kill_by_ms
        if not is_watched:
            self._look_expired(job)
        return True

    def kill_all(self) -> None:
        """Begin to kill every tree; the ends follow as events."""
        for key in list(self._jobs):
            self.kill(key)

    def forget(self, key: str) -> bool:
        """Drop an ended or unknown job; False where it still runs."""
        job = self._jobs.get(key)
        if job is not None:
            if job.phase is not _Phase.ENDED:
                return False
            del self._jobs[key]
            self._state.remove(key)
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
                if self._has_exited(job):
                    self._begin_end(job)
            else:
                self._end_tree(job)

    def close(self) -> None:
        """Closes descriptors, output pipes among them; kills nothing."""
        os.close(self._null)
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

    def _started(self, order: Spawn, entry: JobEntry, output: JobOutput, pid: int) -> Spawned:
        seen = tree.process(pid)
        entry = replace(entry, pid=pid, started_ticks=seen.started_ticks if seen is not None else 0)
        try:
            self._state.add_pid(order.key, pid=pid, started_ticks=entry.started_ticks)
        except OSError:  # a disk that filled up just now: the marker, which is recorded, finds it as well
            pass
        job = _Job(entry, _Phase.RUNNING, output=output)
        self._jobs[order.key] = job
        self._live[pid] = job
        output.watch()
        if order.kill_by_ms is not None:
            self.extend(order.key, order.kill_by_ms)
        return Spawned(order.id, order.key, pid)

    def _look_expired(self, job: _Job) -> None:
        """Looked at every second, since timers stand still while the machine is suspended and this time does not."""
        if job.phase is not _Phase.RUNNING or job.kill_by_ms is None:
            return
        left_ms = job.kill_by_ms - self._continuous_ms()
        if left_ms > 0:
            self._reactor.later(min(left_ms / 1000, _EXPIRY_LOOK_S), lambda: self._look_expired(job))
            return
        job.is_expired = True
        self._kill_until(job, self._reactor.now() + _END_PATIENCE_S)

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

    def _begin_end(self, job: _Job) -> None:
        job.phase = _Phase.ENDING
        job.wait_s = _LOOK_AGAIN_S[0]
        job.give_up_at = self._reactor.now() + _END_PATIENCE_S
        try:
            os.killpg(job.entry.pid, signal.SIGKILL)
        except OSError:  # nobody but the zombie is left in the group, or nobody whom this user may end
            pass
        self._end_tree(job)

    def _end_tree(self, job: _Job) -> None:
        if job.phase is not _Phase.ENDING:
            return
        orphans = self._orphans_of(job)
        # Empty is what has no orphan, not what has no member: one that died just now may have left children.
        is_empty = not orphans and self._is_all
        left = [] if is_empty else self._members(job, {job.entry.pid, *orphans})
        if not is_empty and self._reactor.now() < job.give_up_at:
            tree.send_signal(left, signal.SIGKILL)
            if not job.is_waiting:  # each death wakes this too: one timer is enough
                job.is_waiting = True
                self._again(job, _LOOK_AGAIN_S[1], lambda: self._look_again(job))
            return
        job.survivors = tuple(sorted(one.pid for one in left))
        self._reap(job, 0)
        self._live.pop(job.entry.pid, None)
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
            reason="expired" if job.is_expired else "exited" if code >= 0 else "signaled",
            message="its time was not extended by the agent" if job.is_expired else "",
            ended_at_wall_ms=self._wall_ms(),
            log_bytes=drained.log_bytes,
            # No end, but no survivor: a process outside the tree was handed the pipe. What the tree wrote is there.
            log_complete=not drained.left_out_bytes and (drained.is_ended or not job.survivors),
            tree_clean=not job.survivors,
            survivors=job.survivors,
            cpu_s=job.cpu_s,
            max_rss_bytes=job.max_rss_bytes,
            err_bytes=drained.err_bytes,
            left_out_bytes=drained.left_out_bytes,
            unwritten_bytes=drained.unwritten_bytes,
        )
        job.phase = _Phase.ENDED
        is_written = self._write_record(job)
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
            job.output.close()
            job.output = None

    def _again(self, job: _Job, longest_s: float, callback: Callable[[], object]) -> None:
        wait_s, job.wait_s = job.wait_s, min(job.wait_s * 2, longest_s)
        self._reactor.later(wait_s, callback)

    # Trees ------------------------------------------------------------------------------------------------------------

    def _kill_until(self, job: _Job, deadline: float) -> None:
        if job.phase is not _Phase.RUNNING:
            return  # its main process has ended: ending it goes on elsewhere
        self._signal_tree(job, signal.SIGKILL)
        if self._reactor.now() < deadline:
            self._reactor.later(_LOOK_AGAIN_S[1], lambda: self._kill_until(job, deadline))

    def _signal_tree(self, job: _Job, signum: int) -> int:
        pid = job.entry.pid
        if tree.children() is None:
            try:
                os.killpg(pid, signum)
            except OSError:  # it has just ended; SIGCHLD is on its way
                return 0
            return 1
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
