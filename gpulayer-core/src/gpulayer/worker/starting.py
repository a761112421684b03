"""The spawner, as a launch uses it: what is started by it, why something was not, and how what it started has ended."""

import errno
import logging
from collections.abc import Collection, Mapping
from typing import Final

from gpulayer.errors import TimedOut
from gpulayer.plugins.contracts.launcher import Launched, LaunchPlan, NotLaunched
from gpulayer.protocol.messages import ProcessExited, ProcessLost, SpawnFailed
from gpulayer.spawner.messages import ExitRecord, Spawned
from gpulayer.spawner.messages import SpawnFailed as NotSpawned
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.limits import Limits
from gpulayer.spec.outcome import EndedBy
from gpulayer.worker.limiting import judge_end, spawn_limits
from gpulayer.worker.plans import with_secrets
from gpulayer.worker.spawner_link import SpawnerLink

__all__ = ["SpawnerStarter", "end_of"]

_log: Final = logging.getLogger(__name__)


class SpawnerStarter:
    """Starts plans through the spawner link, for one launch.

    ended: it had ended already. is_disk_full, is_in_use (one of its devices): that is why it was not started.
    """

    def __init__(
        self, link: SpawnerLink, assignment: Assignment, kill_by_ms: int, variables: Mapping[str, str] | None = None
    ) -> None:
        """variables: of the program alone, beside those of the plan: no launcher sees them."""
        self._variables = variables or {}
        self._link = link
        self._assignment = assignment
        self._kill_by_ms = kill_by_ms
        self._has_asked = self._is_called_off = False
        self.ended: ExitRecord | None = None
        self.is_disk_full = self.is_in_use = False

    def call_off(self) -> bool:
        """Nothing is to be started any more. False where the spawner was asked: whether it has begun is then told by
        ``start``, and no other spawner is asked."""
        self._is_called_off = True
        return not self._has_asked

    def extend(self, kill_by_ms: int) -> bool:
        """What is asked for later is to be over at this time; False where it has been asked for."""
        if not self._has_asked:
            self._kill_by_ms = kill_by_ms
        return not self._has_asked

    async def start(self, plan: LaunchPlan) -> Launched | NotLaunched:
        """May be repeated for a key: then nothing starts, and ``ended`` has the end if there was one."""
        if self._is_called_off:
            return NotLaunched(None, "nobody wants this start any more")
        self._has_asked = True
        reply = await self._ask(plan)
        if isinstance(reply, NotSpawned):
            self.is_in_use = reply.exit_code is None and reply.errno == errno.EBUSY
            self.is_disk_full = reply.exit_code is None and reply.errno in (errno.ENOSPC, errno.EDQUOT)
            return NotLaunched(reply.exit_code, reply.message, self._hint(reply.exit_code, plan, reply.errno))
        if reply.exit is not None and reply.exit.reason == "spawn_failed":
            return NotLaunched(reply.exit.exit_code, reply.exit.message, self._hint(reply.exit.exit_code, plan))
        self.ended = reply.exit
        return Launched(reply.pid)

    async def _ask(self, plan: LaunchPlan) -> Spawned | NotSpawned:
        while True:
            try:
                return await self._link.spawn(
                    key=plan.key,
                    argv=plan.argv,
                    cwd=plan.cwd,
                    env=with_secrets(plan, self._variables),
                    log_path=plan.log_path,
                    exit_path=plan.exit_path,
                    nice=self._assignment.limits.nice,
                    devices=self._assignment.devices,
                    kill_by_ms=self._kill_by_ms,
                    err_path=plan.err_path,
                    limits=spawn_limits(self._assignment, log_bytes=plan.log_bytes),
                    is_wanted=lambda: not self._is_called_off,
                )
            except TimedOut as error:
                # It may have been heard, and nobody must say that nothing runs: one that is stuck is ended by the link,
                # or goes on, and whichever answers then knows.
                _log.warning("starting %s: %s", plan.key, error.message)

    def _hint(self, exit_code: int | None, plan: LaunchPlan, number: int = 0) -> str:
        """What to do; of a program that the launcher put in front, its user knows nothing."""
        program, launcher = plan.argv[0], self._assignment.launcher
        if exit_code in (126, 127) and program != self._assignment.command[0]:
            lacks = "is not on this worker" if exit_code == 127 else "this worker can't run"
            mend = "install it there, or choose another launcher or worker"
            return f"launcher {launcher} starts {program}, which {lacks}: {mend}"
        return _hint(exit_code, program, number)


def end_of(
    key: NodeKey, record: ExitRecord, *, limits: Limits, enforces: Collection[str]
) -> ProcessExited | ProcessLost | SpawnFailed:
    """A reason that is not known here counts as lost: nobody can then say how the program ended.

    limits: the job's. enforces: which of them its worker could hold it to.
    """
    match record.reason:
        case "exited" | "signaled":
            code, number = record.exit_code, record.signal
            end = ProcessExited(key, exit_code=code, signal=number, evidence=_survivors(record), ran_ms=record.ran_ms)
            return judge_end(end, record, limits, enforces)
        case "spawn_failed":
            return SpawnFailed(key, record.exit_code, record.message)
        case "expired":
            return ProcessLost(key, record.message, is_expired=True)
        case "stopped":
            return ProcessLost(key, record.message, ended_by=EndedBy.WORKER_STOPPED)
        case _:
            return ProcessLost(key, record.message or "the spawner was lost, and the program with it")


def _hint(exit_code: int | None, program: str, number: int = 0) -> str:
    if number == errno.E2BIG:
        return "one argument or variable may have 128 KiB, all together 2 MiB: put what is longer into a file"
    if number == errno.EISDIR:
        return "name a program in it; the work folder of the job is where it starts"
    if number == errno.ENOEXEC:
        return "build it for this machine, or choose another with --worker or --label"
    if exit_code == 126:
        return f"chmod +x {program}, and check its first line (#!) and that it was built for this machine"
    if exit_code == 127:
        return "check its name, ship it with --source, or use a worker that has it"
    return ""


def _survivors(record: ExitRecord) -> str:
    if record.tree_clean:
        return record.message
    return f"{record.message}\nprocesses that could not be ended: {', '.join(map(str, record.survivors))}".strip()
