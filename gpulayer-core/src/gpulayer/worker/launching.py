"""From a launcher's plan to a program that runs: the launcher is asked, and its plan carried out, by it or without it.

A launcher is somebody else's code: whatever it plans, or hands to the starter later, is checked (``worker.plans``).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from gpulayer.errors import Blame, GpulayerError, PluginFault, PluginResting
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
from gpulayer.plugins.results import instance_of
from gpulayer.protocol.messages import SpawnFailed
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.capabilities import DEFAULT_LAUNCHER
from gpulayer.spec.outcome import EndedBy
from gpulayer.worker.patience import Patience
from gpulayer.worker.plans import check_words, checked_plan
from gpulayer.worker.starting import SpawnerStarter
from gpulayer.worker.unready import OWN_DEADLINE_S, Unready, plain_text, unready_by_fault

__all__ = ["Planned", "launch", "launcher_of", "plan_launch"]


@dataclass(frozen=True, slots=True)
class Planned:
    """``is_acting``: its launcher, called ``name``, carries it out itself."""

    name: str
    launcher: Registered[Launcher]
    plan: LaunchPlan
    is_acting: bool


def launcher_of(host: Host, assignment: Assignment) -> Registered[Launcher]:
    """The launcher that the attempt names. Raises Unready."""
    name = assignment.launcher or DEFAULT_LAUNCHER
    launcher = host.registry.launchers.get(name)
    if launcher is None:
        raise Unready(EndedBy.ENVIRONMENT, f"this worker has no launcher {name}", Blame.INFRASTRUCTURE)
    return launcher


async def plan_launch(
    host: Host, patience: Patience, assignment: Assignment, site: LaunchSite, machine: Machine
) -> Planned:
    """Ask the launcher that the attempt names. Raises Unready, and PluginResting where it is not to be asked now."""
    name = assignment.launcher or DEFAULT_LAUNCHER
    launcher = launcher_of(host, assignment)
    try:
        check_words(assignment)
    except ValueError as error:  # else it would be taken for the launcher's doing
        raise Unready(EndedBy.ENVIRONMENT, f"no program can be started like this: {error}", Blame.USER) from None

    def ask(thing: Launcher) -> tuple[LaunchPlan, bool]:
        plan = checked_plan(thing.plan(assignment, site, machine), assignment, site, machine)
        return plan, callable(getattr(thing, "act", None))

    try:
        plan, is_acting = await patience.acall(
            launcher,
            "Launcher.plan",
            ask,
            deadline_s=OWN_DEADLINE_S if name == DEFAULT_LAUNCHER else PLAN_DEADLINE_S,
            passes=(LaunchRefused,),
        )
    except LaunchRefused as refused:
        raise _refusal(name, refused) from None
    except PluginResting:
        raise
    except PluginFault as fault:
        raise unready_by_fault(EndedBy.ENVIRONMENT, fault) from None
    return Planned(name, launcher, plan, is_acting)


async def launch(
    host: Host,
    patience: Patience,
    assignment: Assignment,
    planned: Planned,
    starter: SpawnerStarter,
    *,
    site: LaunchSite,
    machine: Machine,
    begun: Callable[[], None] = lambda: None,
) -> SpawnFailed | None:
    """Carry the plan out; None where it runs, or ran (see ``starter.ended``). Raises Unready, and PluginResting
    where nothing has been begun. begun: called as soon as it runs, or ran, which its launcher's act may outlast; what
    becomes of that is then in the launcher's record alone; it must not raise."""
    key = assignment.key
    present = {device.uuid for device in machine.facts.devices}
    gone = [uuid for uuid in assignment.devices if uuid not in present]
    if gone:
        return SpawnFailed(key, None, f"device {gone[0]} is not there any more", EndedBy.DRIFT)
    if planned.is_acting:
        bridge = _Bridge(starter, lambda plan: checked_plan(plan, assignment, site, machine), begun)
        result = await _act(host, patience, planned, bridge)
    else:
        result = await starter.start(planned.plan)
        if isinstance(result, Launched):
            begun()
    if isinstance(result, NotLaunched):
        return SpawnFailed(key, result.exit_code, f"{result.message}\n{result.hint}".strip())
    return None


async def _act(host: Host, patience: Patience, planned: Planned, bridge: "_Bridge") -> Launched | NotLaunched:
    """Whatever becomes of the launcher: what it has started runs, and is this attempt's; nothing is started later."""

    def hidden(text: object) -> object:
        return host.hidden(planned.launcher, text) if type(text) is str else text

    def checked(value: object) -> Launched | NotLaunched:
        return _checked_result(value, lambda text: plain_text(hidden(text)))

    def ask(thing: Launcher) -> Launched | NotLaunched:
        said = checked(cast("ActingLauncher", thing).act(planned.plan, bridge))
        if isinstance(said, Launched) and not isinstance(bridge.found, Launched):
            raise ValueError("it says that the program runs, and has not started it")
        return said

    failure: Unready | GpulayerError
    try:
        said = await patience.acall(
            planned.launcher,
            "ActingLauncher.act",
            ask,
            deadline_s=ACT_DEADLINE_S,
            passes=(LaunchRefused, _StarterFailed),
        )
    except LaunchRefused as refused:
        failure = _refusal(planned.name, refused)
    except PluginResting:
        raise
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

    def __init__(
        self, starter: SpawnerStarter, checked: Callable[[object], LaunchPlan], begun: Callable[[], None]
    ) -> None:
        self._starter = starter
        self._checked = checked
        self._begun: Callable[[], None] | None = begun
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
        if isinstance(found, Launched) and self._begun is not None:
            begun, self._begun = self._begun, None
            begun()  # in this very turn: what the program writes is told in the next
        return found


class _StarterFailed(Exception):
    """Carries what went wrong with the spawner through a launcher, which is not to blame."""

    def __init__(self, error: GpulayerError) -> None:
        super().__init__(error.message)
        self.error = error


def _checked_result(value: object, said_plainly: Callable[[object], str]) -> Launched | NotLaunched:
    if isinstance(value, Launched):
        return Launched(instance_of(int, value.pid))
    said = instance_of(NotLaunched, value)
    if said.exit_code not in (None, 126, 127):
        raise ValueError("of what was not started, the exit code is 126, 127 or None")
    return NotLaunched(said.exit_code, said_plainly(said.message), said_plainly(said.hint))


def _refusal(name: str, refused: LaunchRefused) -> Unready:
    text = plain_text(f"launcher {name} can't start it", refused.message, refused.hint)
    return Unready(EndedBy.ENVIRONMENT, text, Blame.USER)
