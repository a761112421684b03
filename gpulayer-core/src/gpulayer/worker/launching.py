"""What the spawner says, in the words of launchers and of the agent's machine."""

import errno

from gpulayer.plugins.contracts import Launched, LaunchPlan, NotLaunched
from gpulayer.protocol.messages import ProcessExited, ProcessLost, SpawnFailed
from gpulayer.spawner.messages import ExitRecord, SpawnLimits
from gpulayer.spawner.messages import SpawnFailed as NotSpawned
from gpulayer.spec.assignment import NodeKey
from gpulayer.worker.spawner_link import SpawnerLink

__all__ = ["SpawnerStarter", "end_of"]


class SpawnerStarter:
    """``plugins.contracts.Starter`` over the spawner link, for one launch.

    ended: it had ended already. is_disk_full: that is why it was not started.
    """

    def __init__(self, link: SpawnerLink, kill_by_ms: int | None) -> None:
        self._link = link
        self._kill_by_ms = kill_by_ms
        self.ended: ExitRecord | None = None
        self.is_disk_full = False

    async def start(self, plan: LaunchPlan) -> Launched | NotLaunched:
        """May be repeated for a key: then nothing starts, and ``ended`` has the end if there was one."""
        reply = await self._link.spawn(
            key=plan.key,
            argv=plan.argv,
            cwd=plan.cwd,
            env=plan.env,
            log_path=plan.log_path,
            exit_path=plan.exit_path,
            kill_by_ms=self._kill_by_ms,
            err_path=plan.err_path,
            limits=SpawnLimits(log_bytes=plan.log_bytes),
        )
        if isinstance(reply, NotSpawned):
            self.is_disk_full = reply.exit_code is None and reply.errno in (errno.ENOSPC, errno.EDQUOT)
            return NotLaunched(reply.exit_code, reply.message, _hint(reply.exit_code, plan.argv[0], reply.errno))
        if reply.exit is not None and reply.exit.reason == "spawn_failed":
            return NotLaunched(reply.exit.exit_code, reply.exit.message, _hint(reply.exit.exit_code, plan.argv[0]))
        self.ended = reply.exit
        return Launched(reply.pid)


def _hint(exit_code: int | None, program: str, number: int = 0) -> str:
    if number == errno.E2BIG:
        return "one argument or variable may have 128 KiB, all together 2 MiB: put what is longer into a file"
    if exit_code == 126:
        return f"chmod +x {program}, and check its first line (#!) and that it was built for this machine"
    if exit_code == 127:
        return "check its name, ship it with --source, or use a worker that has it"
    return ""


def end_of(key: NodeKey, record: ExitRecord) -> ProcessExited | ProcessLost | SpawnFailed:
    """A reason that is not known here counts as lost: nobody can then say how the program ended."""
    match record.reason:
        case "exited":
            return ProcessExited(key, exit_code=record.exit_code, evidence=_survivors(record))
        case "signaled":
            return ProcessExited(key, signal=record.signal, evidence=_survivors(record))
        case "spawn_failed":
            return SpawnFailed(key, record.exit_code, record.message)
        case _:
            return ProcessLost(key, record.message or "the spawner was lost, and the program with it")


def _survivors(record: ExitRecord) -> str:
    if record.tree_clean:
        return record.message
    return f"{record.message}\nprocesses that could not be ended: {', '.join(map(str, record.survivors))}".strip()
