"""From a launcher's plan to a program that runs: the plan is checked, carried out, and its end told to the machine.

A launcher is somebody else's code. Whatever it plans, or hands to the starter later, is taken value by value: it names
this attempt and its files, and what GPUlayer itself says to a program (who it is, where its inputs lie, which devices
it sees) is set last, here alone, so that no launcher and no job shows itself a device that it does not hold.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

from gpulayer.errors import Blame, GpulayerError, PluginFault
from gpulayer.plugins.contracts.launcher import (
    ACT_DEADLINE_S,
    PLAN_DEADLINE_S,
    ActingLauncher,
    Launched,
    Launcher,
    LaunchPlan,
    LaunchRefused,
    LaunchSite,
    Machine,
    NotLaunched,
)
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.protocol.messages import ProcessExited, ProcessLost, SpawnFailed
from gpulayer.spawner.messages import ExitRecord
from gpulayer.spawner.messages import SpawnFailed as NotSpawned
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.capabilities import DEFAULT_LAUNCHER, input_variable
from gpulayer.spec.limits import Limits
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.worker.devices import DEVICE_VARIABLES, device_variables
from gpulayer.worker.limiting import judge_end, spawn_limits
from gpulayer.worker.spawner_link import SpawnerLink
from gpulayer.worker.unready import Unready, plain_text, unready_by_fault

__all__ = ["Planned", "SpawnerStarter", "checked_plan", "checked_variables", "end_of", "launch", "plan_launch"]

# More than a job may have: what its user asks for is no fault of a plugin.
_MAX_WORDS: Final = 1_000_000
_MAX_VARIABLES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Planned:
    """``is_acting``: its launcher, called ``name``, carries it out itself."""

    name: str
    launcher: Registered[Launcher]
    plan: LaunchPlan
    is_acting: bool


class SpawnerStarter:
    """Starts plans through the spawner link, for one launch.

    ended: it had ended already. is_disk_full: that is why it was not started.
    """

    def __init__(
        self, link: SpawnerLink, assignment: Assignment, kill_by_ms: int, variables: Mapping[str, str] | None = None
    ) -> None:
        """variables: of the program alone, beside those of the plan: no launcher sees them."""
        self._variables = variables or {}
        self._link = link
        self._assignment = assignment
        self._kill_by_ms = kill_by_ms
        self.ended: ExitRecord | None = None
        self.is_disk_full = False

    async def start(self, plan: LaunchPlan) -> Launched | NotLaunched:
        """May be repeated for a key: then nothing starts, and ``ended`` has the end if there was one."""
        reply = await self._link.spawn(
            key=plan.key,
            argv=plan.argv,
            cwd=plan.cwd,
            env={**plan.env, **self._variables},
            log_path=plan.log_path,
            exit_path=plan.exit_path,
            nice=self._assignment.limits.nice,
            devices=self._assignment.devices,
            kill_by_ms=self._kill_by_ms,
            err_path=plan.err_path,
            limits=spawn_limits(self._assignment, log_bytes=plan.log_bytes),
        )
        if isinstance(reply, NotSpawned):
            self.is_disk_full = reply.exit_code is None and reply.errno in (errno.ENOSPC, errno.EDQUOT)
            return NotLaunched(reply.exit_code, reply.message, _hint(reply.exit_code, plan.argv[0], reply.errno))
        if reply.exit is not None and reply.exit.reason == "spawn_failed":
            return NotLaunched(reply.exit.exit_code, reply.exit.message, _hint(reply.exit.exit_code, plan.argv[0]))
        self.ended = reply.exit
        return Launched(reply.pid)


async def plan_launch(host: Host, assignment: Assignment, site: LaunchSite, machine: Machine) -> Planned:
    """Ask the launcher that the attempt names. Raises Unready."""
    name = assignment.launcher or DEFAULT_LAUNCHER
    launcher = host.registry.launchers.get(name)
    if launcher is None:
        raise Unready(EndedBy.ENVIRONMENT, f"this worker has no launcher {name}", Blame.INFRASTRUCTURE)

    try:
        for _, text in (*enumerate(assignment.command), *assignment.env):
            _word("its command or a variable of it", text)
    except ValueError as error:  # else it would be taken for the launcher's doing
        raise Unready(EndedBy.ENVIRONMENT, f"no program can be started like this: {error}", Blame.USER) from None

    def ask(thing: Launcher) -> tuple[LaunchPlan, bool]:
        plan = checked_plan(thing.plan(assignment, site, machine), assignment, site, machine)
        return plan, callable(getattr(thing, "act", None))

    try:
        plan, is_acting = await host.acall(
            launcher, "Launcher.plan", ask, deadline_s=PLAN_DEADLINE_S, passes=(LaunchRefused,)
        )
    except LaunchRefused as refused:
        raise _refusal(name, refused) from None
    except PluginFault as fault:
        raise unready_by_fault(EndedBy.ENVIRONMENT, fault) from None
    return Planned(name, launcher, plan, is_acting)


async def launch(
    host: Host,
    assignment: Assignment,
    planned: Planned,
    starter: SpawnerStarter,
    *,
    site: LaunchSite,
    machine: Machine,
) -> SpawnFailed | None:
    """Carry the plan out; None where it runs, or ran (see ``starter.ended``). Raises Unready."""
    key = assignment.key
    present = {device.uuid for device in machine.facts.devices}
    gone = [uuid for uuid in assignment.devices if uuid not in present]
    if gone:
        return SpawnFailed(key, None, f"device {gone[0]} is not there any more")
    if planned.is_acting:
        bridge = _Bridge(starter, lambda plan: checked_plan(plan, assignment, site, machine))
        result = await _act(host, planned, bridge)
    else:
        result = await starter.start(planned.plan)
    if isinstance(result, NotLaunched):
        return SpawnFailed(key, result.exit_code, f"{result.message}\n{result.hint}".strip())
    return None


async def _act(host: Host, planned: Planned, bridge: "_Bridge") -> Launched | NotLaunched:
    """Whatever becomes of the launcher: what it has started runs, and is this attempt's; nothing is started later."""

    def ask(thing: Launcher) -> Launched | NotLaunched:
        said = _checked_result(cast("ActingLauncher", thing).act(planned.plan, bridge))
        if isinstance(said, Launched) and not isinstance(bridge.found, Launched):
            raise ValueError("it says that the program runs, and has not started it")
        return said

    failure: Unready | GpulayerError
    try:
        said = await host.acall(
            planned.launcher,
            "ActingLauncher.act",
            ask,
            deadline_s=ACT_DEADLINE_S,
            passes=(LaunchRefused, _StarterFailed),
        )
    except LaunchRefused as refused:
        failure = _refusal(planned.name, refused)
    except _StarterFailed as failed:
        failure = failed.error
    except PluginFault as fault:
        failure = unready_by_fault(EndedBy.ENVIRONMENT, fault)
    else:
        found = await bridge.close()
        return found if isinstance(found, Launched) else said
    finally:
        bridge.is_closed = True
    found = await bridge.close()
    if isinstance(found, Launched) or (isinstance(found, NotLaunched) and not isinstance(failure, GpulayerError)):
        return found
    raise failure


class _Bridge:
    """The starter that an acting launcher gets: from its thread to the event loop in which it was made. found: what
    became of what it started."""

    def __init__(self, starter: SpawnerStarter, checked: Callable[[object], LaunchPlan]) -> None:
        self._starter = starter
        self._checked = checked
        self._loop = asyncio.get_running_loop()
        self._going_on: set[asyncio.Task[Launched | NotLaunched]] = set()
        self.is_closed = False
        self.found: Launched | NotLaunched | None = None

    def start(self, plan: LaunchPlan) -> Launched | NotLaunched:
        """In the launcher's thread. What is handed over here is checked like any plan."""
        starting = self._start(self._checked(plan))
        try:
            future = asyncio.run_coroutine_threadsafe(starting, self._loop)
        except RuntimeError:
            starting.close()  # the worker has gone
            raise
        return future.result()

    async def close(self) -> Launched | NotLaunched | None:
        """Nothing is started from now on; what is on its way is waited for."""
        self.is_closed = True
        await asyncio.gather(*self._going_on, return_exceptions=True)
        return self.found

    async def _start(self, plan: LaunchPlan) -> Launched | NotLaunched:
        if self.is_closed:
            return NotLaunched(None, "it is too late: nobody waits for this start any more")
        task = asyncio.ensure_future(self._start_and_note(plan))
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)
        return await asyncio.shield(task)

    async def _start_and_note(self, plan: LaunchPlan) -> Launched | NotLaunched:
        try:
            found = await self._starter.start(plan)
        except GpulayerError as error:
            raise _StarterFailed(error) from error
        if not isinstance(self.found, Launched):
            self.found = found
        return found


class _StarterFailed(Exception):
    """Carries what went wrong with the spawner through a launcher, which is not to blame."""

    def __init__(self, error: GpulayerError) -> None:
        super().__init__(error.message)
        self.error = error


def checked_plan(value: object, assignment: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan:
    """The plan as it is carried out. Raises TypeError and ValueError for one that is not of this attempt, names other
    files, or can't be started anywhere."""
    plan = instance_of(LaunchPlan, value)
    if plan.key != str(assignment.key):
        raise ValueError(f"its plan is for {str(plan.key)[:60]!r}, not for {assignment.key}")
    if (plan.log_path, plan.exit_path, plan.err_path) != (site.log_path, site.exit_path, site.err_path):
        raise ValueError("its plan names other files for log and end than it was given")
    cwd = Path(os.fspath(instance_of(Path, plan.cwd)))
    if not cwd.is_relative_to(site.work_dir) or ".." in cwd.parts:
        raise ValueError(f"its plan starts in {str(cwd)[:200]}, which is not in the work folder")
    argv = tuple(_word("a word of the command", word) for word in list_of(str, plan.argv, at_most=_MAX_WORDS))
    if not argv:
        raise ValueError("its plan has no program")
    env = {name: text for name, text in checked_variables(plan.env).items() if name not in DEVICE_VARIABLES}
    env |= _own_variables(assignment, site, machine.facts)
    return LaunchPlan(
        key=str(assignment.key),
        argv=argv,
        cwd=cwd,
        env=env,
        log_path=site.log_path,
        exit_path=site.exit_path,
        err_path=site.err_path,
        log_bytes=assignment.limits.log_bytes,
    )


def checked_variables(value: object) -> Mapping[str, str]:
    """A copy that nobody changes. Raises TypeError and ValueError for what no program can be started with."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it gave a {type(value).__name__} where variables are due")
    variables: dict[str, str] = {}
    for name, text in value.items():
        if len(variables) >= _MAX_VARIABLES:
            raise ValueError(f"it gave more than {_MAX_VARIABLES:,} variables")
        plain = _word("the name of a variable", name)
        if not plain or "=" in plain:
            raise ValueError(f"{plain[:60]!r} can't name a variable")
        variables[plain] = _word(f"variable {plain[:60]}", text)
    return MappingProxyType(variables)


def _own_variables(assignment: Assignment, site: LaunchSite, facts: WorkerFacts) -> Mapping[str, str]:
    held = set(assignment.devices)
    return {
        **{input_variable(name): str(path) for name, path in site.inputs},
        "GPULAYER_JOB_ID": assignment.job_id,
        "GPULAYER_ATTEMPT": str(assignment.attempt),
        "GPULAYER_OUTPUT_DIR": str(site.output_dir),
        **device_variables([device for device in facts.devices if device.uuid in held]),
    }


def _word(name: str, value: object) -> str:
    text = str(instance_of(str, value))
    if "\0" in text:
        raise ValueError(f"{name} holds a NUL")
    if not text.isascii():
        os.fsencode(text)  # what no program can be given
    return text


def _checked_result(value: object) -> Launched | NotLaunched:
    if isinstance(value, Launched):
        return Launched(instance_of(int, value.pid))
    said = instance_of(NotLaunched, value)
    if said.exit_code not in (None, 126, 127):
        raise ValueError("of what was not started, the exit code is 126, 127 or None")
    return NotLaunched(said.exit_code, plain_text(said.message), plain_text(said.hint))


def _refusal(name: str, refused: LaunchRefused) -> Unready:
    text = plain_text(f"launcher {name} can't start it", refused.message, refused.hint)
    return Unready(EndedBy.ENVIRONMENT, text, Blame.USER)


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


def _survivors(record: ExitRecord) -> str:
    if record.tree_clean:
        return record.message
    return f"{record.message}\nprocesses that could not be ended: {', '.join(map(str, record.survivors))}".strip()
