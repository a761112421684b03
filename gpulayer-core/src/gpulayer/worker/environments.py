"""What a program finds around it: environments, planned for each attempt, built once for each key, and kept.

A key has a folder, ``environments/<builder>/<hash>``: of the key, and of the worker's variables that jobs get, which
what is built may contain. Each build has a fresh one in it, where it also stays: what is built may hold its own path,
so it can't be moved. ``ready`` names the one that is finished, and is written last, when the disk has all of it: it
is believed after a loss of power, too. The others go: when their build has failed, at the start of an agent, and when
the next build begins. So whatever still writes there is in nobody's way. What is finished stays.

Attempts that want the same wait for one build. It belongs to none of them: it is told that it is not wanted any more
when the last of them has gone, and who comes then waits for its end first, in whichever agent's life it was begun.
"""

import asyncio
import hashlib
import json
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

from gpulayer.errors import Blame, DiskFull, PluginFault, PluginResting
from gpulayer.plugins.contracts.environment import (
    ENVIRONMENT_DEADLINE_S,
    ENVIRONMENT_PLAN_DEADLINE_S,
    BuildFailed,
    BuildSite,
    Environment,
    EnvironmentBuilder,
    EnvironmentPlan,
    EnvironmentRequest,
)
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered
from gpulayer.plugins.results import instance_of
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy
from gpulayer.variables import is_handed_on
from gpulayer.whole import write_whole
from gpulayer.worker.disk import is_full_error
from gpulayer.worker.folders import remove, write_out
from gpulayer.worker.patience import Patience
from gpulayer.worker.plans import checked_variables
from gpulayer.worker.story import attempt_text
from gpulayer.worker.unready import OWN_DEADLINE_S, Unready, plain_text, unready_by_fault

__all__ = ["Builds", "Environments"]

_log: Final = logging.getLogger(__name__)
_KEY_LIMIT: Final = 1_000
_STEPS_LIMIT: Final = 10_000
_STEPS_TEXT_LIMIT: Final = 1_000_000
_LINES_KEPT: Final = 20
_LINE_LIMIT: Final = 500
_LOGGED_BYTES: Final = 100_000  # of one build, in the worker's log
_CACHED: Final = 1_000
_TRIES: Final = 3
_READY: Final = "ready"

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
Ended = Environment | Exception
Start = Callable[[Coroutine[Any, Any, Ended], str], asyncio.Task[Ended]]


class Builds:
    """Which builds go on in this process, whichever agent began them: one a folder. Safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[Path, _Claim] = {}

    def claim(self, folder: Path) -> "_Claim | None":
        """For the build that asks first; None for others until it has ended."""
        with self._lock:
            if folder in self._claims:
                return None
            return self._claims.setdefault(folder, _Claim(self, folder))

    def is_claimed(self, folder: Path) -> bool:
        with self._lock:
            return folder in self._claims

    def begin(self, claim: "_Claim") -> bool:
        with self._lock:
            claim.is_begun = self._claims.get(claim.folder) is claim
            return claim.is_begun

    def end(self, claim: "_Claim", *, is_begun: bool) -> None:
        with self._lock:
            if claim.is_begun == is_begun and self._claims.get(claim.folder) is claim:
                del self._claims[claim.folder]


class _Claim:
    """A folder, for one build: ``begin`` and ``end`` are for its thread, ``give_up`` for who asked for it."""

    def __init__(self, builds: Builds, folder: Path) -> None:
        self._builds = builds
        self.folder = folder
        self.is_begun = False

    def begin(self) -> bool:
        """False where it was given up."""
        return self._builds.begin(self)

    def end(self) -> None:
        self._builds.end(self, is_begun=True)

    def give_up(self) -> None:
        """Nothing, where it has begun: it ends when it does."""
        self._builds.end(self, is_begun=False)


class _Build:
    """One build that is going on. ``wanted_by``: how many wait for it."""

    def __init__(self, *, wanted_by: int = 0) -> None:
        self.wanted_by = wanted_by
        self.was_unwanted = False
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._left_to_log = _LOGGED_BYTES
        self.task: asyncio.Task[Ended] | None = None

    def say(self, builder: str, text: str) -> None:
        """A line of it, from any thread. What says more than is worth keeping has its last lines kept all the same."""
        self.lines.append(text)
        if self._left_to_log > 0:
            self._left_to_log -= len(text) + 1
            _log.info("environment %s: %s", builder, text)
            if self._left_to_log <= 0:
                _log.info("environment %s: what else this build says is not kept here", builder)

    def is_cancelled(self) -> bool:
        """Asked by the build's thread."""
        self.was_unwanted = self.was_unwanted or not self.wanted_by
        return not self.wanted_by


class Environments:
    """Of one start of an agent. ``start``: begins a task that it looks after; it never raises. patience, builds: of the
    process."""

    def __init__(
        self,
        host: Host,
        patience: Patience,
        builds: Builds,
        work_dir: Path,
        *,
        environment: Mapping[str, str],
        start: Start,
    ) -> None:
        self._host = host
        self._patience = patience
        self._going_on = builds
        self._root = work_dir / "environments"
        self._environment = MappingProxyType(dict(environment))
        self._start = start
        handed_on = sorted((name, value) for name, value in environment.items() if is_handed_on(name))
        self._salt = json.dumps(handed_on)
        self._of: dict[NodeKey, Environment] = {}
        self._plans: dict[str, EnvironmentPlan] = {}
        self._made: dict[tuple[str, EnvironmentPlan], tuple[WorkerFacts, Environment]] = {}
        self._builds: dict[Path, _Build] = {}

    async def of(self, assignment: Assignment, work_dir: Path, facts: WorkerFacts) -> Environment:
        """The same one for as long as it is not forgotten. work_dir: of the job, its source in it.

        Raises Unready where it can't be made, DiskFull and OSError, and PluginResting where its builder is not to be
        asked now, or an earlier build has to end first: see ``until_free``.
        """
        known = self._of.get(assignment.key)
        if known is None:
            known = self._of[assignment.key] = await self._make(assignment, work_dir, facts)
        return known

    async def until_free(self, assignment: Assignment, why: PluginResting) -> None:
        """Returns when ``of`` may be asked again. Raises Unready."""
        builder, folder = self._builder_of(assignment), why.details.get("folder", "")

        def is_busy() -> bool:
            return folder != "" and self._going_on.is_claimed(Path(folder))

        try:
            await self._patience.until_free(builder, why, who=attempt_text(assignment), is_busy=is_busy)
        except PluginFault as fault:
            raise unready_by_fault(EndedBy.ENVIRONMENT, fault) from None

    def forget(self, key: NodeKey) -> None:
        """What it was for has ended; what was built stays."""
        self._of.pop(key, None)

    def sweep(self) -> None:
        """Remove what builds of earlier lives left unfinished. Blocks for as long as that takes."""
        for folder in self._root.glob("*/*"):
            claim = self._going_on.claim(folder) if _unfinished(folder) else None
            if claim is not None and claim.begin():
                try:
                    _remove_all(_unfinished(folder))
                finally:
                    claim.end()

    def close(self) -> None:
        """Nothing is wanted any more."""
        for build in self._builds.values():
            if build.task is not None:
                build.task.cancel()

    async def _make(self, assignment: Assignment, work_dir: Path, facts: WorkerFacts) -> Environment:
        name, builder = assignment.environment or DEFAULT_ENVIRONMENT, self._builder_of(assignment)
        try:
            plan = await self._plan(name, builder, assignment, work_dir)
            if not plan.key:
                return await self._made_in_place(name, builder, plan, work_dir, facts)
        except PluginResting:
            raise
        except (BuildFailed, PluginFault) as error:
            raise _unready(name, error) from None
        return await self._built(name, builder, plan, facts)

    def _builder_of(self, assignment: Assignment) -> Registered[EnvironmentBuilder]:
        name = assignment.environment or DEFAULT_ENVIRONMENT
        builder = self._host.registry.environments.get(name)
        if builder is None:
            raise Unready(EndedBy.ENVIRONMENT, f"this worker makes no environment {name}", Blame.INFRASTRUCTURE)
        return builder

    async def _plan(
        self, name: str, builder: Registered[EnvironmentBuilder], assignment: Assignment, work_dir: Path
    ) -> EnvironmentPlan:
        # It reads the work folder and nothing else: for all that bring no source, an empty one.
        if assignment.source is None and name in self._plans:
            return self._plans[name]
        plan = await self._patience.acall(
            builder,
            "EnvironmentBuilder.plan",
            lambda thing: _checked_plan(thing.plan(EnvironmentRequest(name, work_dir))),
            deadline_s=OWN_DEADLINE_S if name == DEFAULT_ENVIRONMENT else ENVIRONMENT_PLAN_DEADLINE_S,
            passes=(BuildFailed,),
        )
        if assignment.source is None:
            self._plans[name] = plan
        return plan

    async def _made_in_place(
        self,
        name: str,
        builder: Registered[EnvironmentBuilder],
        plan: EnvironmentPlan,
        work_dir: Path,
        facts: WorkerFacts,
    ) -> Environment:
        """Nothing to build: what it answers to equal plans is the same while the machine is."""
        known = self._made.get((name, plan))
        if known is not None and known[0] is facts:
            return known[1]
        build = _Build(wanted_by=1)
        try:
            made = await self._ask(builder, plan, work_dir, facts, build)
        finally:
            build.wanted_by = 0
        if len(self._made) >= _CACHED:
            self._made.clear()
        self._made[name, plan] = (facts, made)
        return made

    async def _built(
        self, name: str, builder: Registered[EnvironmentBuilder], plan: EnvironmentPlan, facts: WorkerFacts
    ) -> Environment:
        text = json.dumps([name, plan.key, self._salt])
        folder = self._root / name / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        for left in range(_TRIES - 1, -1, -1):
            kept = await asyncio.to_thread(_kept, folder)
            if kept is not None:
                return kept
            build = self._builds.get(folder)
            if build is None:
                build = self._builds[folder] = _Build()
                build.task = self._start(self._build(builder, plan, facts, folder, build), f"environment {name}")
            ended = await self._wait(build)
            if isinstance(ended, Environment):
                return ended
            if build.was_unwanted and left:
                continue  # it gave up because the last who wanted it had gone; now somebody wants it again
            if isinstance(ended, BuildFailed | PluginFault) and not isinstance(ended, PluginResting):
                raise _unready(name, ended, *build.lines)
            raise ended
        raise AssertionError("unreachable")

    async def _wait(self, build: _Build) -> Ended:
        assert build.task is not None
        build.wanted_by += 1
        try:
            return await asyncio.shield(build.task)
        finally:
            build.wanted_by -= 1

    async def _build(
        self,
        builder: Registered[EnvironmentBuilder],
        plan: EnvironmentPlan,
        facts: WorkerFacts,
        folder: Path,
        build: _Build,
    ) -> Ended:
        try:
            claim = self._going_on.claim(folder)
            if claim is None:  # of another life of the agent, or one that did not come back in time
                raise PluginResting(
                    f"plugin {builder.plugin} is not asked (EnvironmentBuilder.build): an earlier build of the same "
                    "has not ended yet",
                    details={"plugin": builder.plugin, "folder": str(folder)},
                )
            return await self._ask(builder, plan, folder, facts, build, claim=claim)
        except Exception as error:  # for whoever waits, if anybody does
            return error
        finally:
            del self._builds[folder]

    async def _ask(
        self,
        builder: Registered[EnvironmentBuilder],
        plan: EnvironmentPlan,
        folder: Path,
        facts: WorkerFacts,
        build: _Build,
        *,
        claim: _Claim | None = None,
    ) -> Environment:
        """claim: on ``folder``, for what is kept there."""

        def log(line: str) -> None:
            said = self._host.hidden(builder, line) if type(line) is str else line
            build.say(builder.plugin, plain_text(said)[:_LINE_LIMIT])

        def ask(thing: EnvironmentBuilder) -> Environment:
            if claim is None:
                return made_in(thing, folder)
            if not claim.begin():
                raise BuildFailed("nobody waits for it any more")
            try:
                kept = _kept(folder)  # it may have been finished since it was looked for
                if kept is not None:
                    return kept
                fresh = _on_our_disk(_fresh, folder)
                try:
                    made = made_in(thing, fresh)
                    _on_our_disk(_keep, folder, fresh, made)
                except BaseException:
                    _remove_all([fresh])
                    raise
                return made
            finally:
                claim.end()

        def made_in(thing: EnvironmentBuilder, place: Path) -> Environment:
            site = BuildSite(place, facts, self._environment, log=log, is_cancelled=build.is_cancelled)
            try:
                made = instance_of(Environment, thing.build(plan, site))
                return Environment(checked_variables(made.variables))
            except OSError as error:
                if is_full_error(error):
                    raise DiskFull(str(error)) from error
                raise

        try:
            return await self._patience.acall(
                builder,
                "EnvironmentBuilder.build",
                ask,
                deadline_s=ENVIRONMENT_DEADLINE_S,
                passes=(BuildFailed, DiskFull, _OurDisk),
            )
        except _OurDisk as failed:
            raise failed.error from failed
        finally:
            if claim is not None:
                claim.give_up()


class _OurDisk(Exception):
    """Carries a failure of this worker's disk past the guard: it is not the builder's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _unready(name: str, error: BuildFailed | PluginFault, *lines: str) -> Unready:
    if isinstance(error, PluginFault):
        return unready_by_fault(EndedBy.ENVIRONMENT, error, *lines)
    blame = Blame.INFRASTRUCTURE if error.is_users is False else Blame.USER
    text = plain_text(f"environment {name} can't be made", error.message, error.hint, *lines)
    return Unready(EndedBy.ENVIRONMENT, text, blame)


def _checked_plan(value: object) -> EnvironmentPlan:
    plan = instance_of(EnvironmentPlan, value)
    key, steps = instance_of(str, plan.key), instance_of(tuple, plan.steps)
    if len(key) > _KEY_LIMIT or len(steps) > _STEPS_LIMIT:
        raise ValueError(f"a key may have {_KEY_LIMIT:,} characters, and a plan {_STEPS_LIMIT:,} steps")
    # Value by value: what a plugin made would run its code where plans are compared, outside of the guard.
    plain = tuple(tuple(_own(word) for word in instance_of(tuple, step)) for step in steps)
    if sum(len(word) + 1 for step in plain for word in step) > _STEPS_TEXT_LIMIT:
        raise ValueError(f"the steps of a plan may have {_STEPS_TEXT_LIMIT:,} characters in all")
    return EnvironmentPlan(_own(key), plain)


def _own(text: object) -> str:
    """A text of our own: what is made of one by ``str`` may still be of the plugin's kind."""
    return "".join((instance_of(str, text),))


def _fresh(folder: Path) -> Path:
    """A folder for one build, whose name was none's before, and will be none's again: what an earlier build started
    may still write into its own. All others go, for nothing that is finished is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_all([path for path in folder.iterdir() if path.is_dir()])
    fresh = folder / secrets.token_hex(8)
    fresh.mkdir(mode=0o700)
    return fresh


def _unfinished(folder: Path) -> list[Path]:
    """What lies in the folder of a key beside what is finished there. Of a disk that can't be read, nothing."""
    try:
        place = _place(folder)
        return [path for path in folder.iterdir() if path != place and path.is_dir()]
    except OSError:
        return []


def _remove_all(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            remove(folder)
        except OSError as error:  # it is in nobody's way but the disk's, and the next start tries again
            _log.warning("what a build left behind stays: %s", error)


def _keep(folder: Path, place: Path, made: Environment) -> None:
    write_out(place)  # first: the line may reach the disk before what it speaks of
    said = {"place": place.name, "variables": dict(made.variables)}
    write_whole(folder / _READY, json.dumps(said).encode(), point="agent.environment", is_synced=True)


def _kept(folder: Path) -> Environment | None:
    """What was built there, in this start or an earlier one; None where it is to be built."""
    try:
        place, variables = _ready(folder)
        return Environment(checked_variables(variables)) if place.is_dir() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _place(folder: Path) -> Path | None:
    """Where what is finished lies; None where nothing is. Of a file that can't be read just now, OSError."""
    try:
        return _ready(folder)[0]
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
        return None


def _ready(folder: Path) -> tuple[Path, object]:
    said = json.loads((folder / _READY).read_bytes())
    return folder / Path(instance_of(str, said["place"])).name, said["variables"]


def _on_our_disk(work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs) -> _Result:
    try:
        return work(*given, **named)
    except OSError as error:
        if is_full_error(error):
            raise DiskFull(str(error)) from error
        raise _OurDisk(error) from error
