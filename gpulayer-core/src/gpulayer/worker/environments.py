"""What a program finds around it: environments, planned for each attempt, built once for each key, and kept.

A build has a folder of its own, ``environments/<builder>/<hash>``: of the key, and of the worker's variables that jobs
get, which what is built may contain. ``ready`` beside it holds the finished environment and is written last; a folder
without it is emptied and built anew. Attempts that want the same wait for one build. It belongs to none of them: it is
told that it is not wanted any more when the last of them has gone, and who comes then waits for its end first.
"""

import asyncio
import hashlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gpulayer.errors import Blame, DiskFull, PluginFault
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
from gpulayer.worker.disk import is_full_error
from gpulayer.worker.identity import write_whole
from gpulayer.worker.launching import checked_variables
from gpulayer.worker.unready import Unready, emptied, plain_text, unready_by_fault

__all__ = ["Environments"]

_log: Final = logging.getLogger(__name__)
_KEY_LIMIT: Final = 1_000
_STEPS_LIMIT: Final = 10_000
_LINES_KEPT: Final = 20
_LINE_LIMIT: Final = 500
_CACHED: Final = 1_000
_TRIES: Final = 3

Ended = Environment | Exception
Start = Callable[[Coroutine[Any, Any, Ended], str], asyncio.Task[Ended]]


class _Build:
    """One build that is going on. ``wanted_by``: how many wait for it."""

    def __init__(self, *, wanted_by: int = 0) -> None:
        self.wanted_by = wanted_by
        self.was_unwanted = False
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self.task: asyncio.Task[Ended] | None = None

    def is_cancelled(self) -> bool:
        """Asked by the build's thread."""
        self.was_unwanted = self.was_unwanted or not self.wanted_by
        return not self.wanted_by


class Environments:
    """Of one start of a worker. ``start``: begins a task that the worker looks after; it never raises."""

    def __init__(self, host: Host, work_dir: Path, *, environment: Mapping[str, str], start: Start) -> None:
        self._host = host
        self._root = work_dir / "environments"
        self._environment = MappingProxyType(dict(environment))
        self._start = start
        handed_on = sorted((name, value) for name, value in environment.items() if is_handed_on(name))
        self._salt = json.dumps(handed_on)
        self._of: dict[NodeKey, Environment] = {}
        self._plans: dict[str, EnvironmentPlan] = {}
        self._made: dict[tuple[str, EnvironmentPlan], tuple[WorkerFacts, Environment]] = {}
        self._builds: dict[Path, _Build] = {}
        self._locks: dict[Path, threading.Lock] = {}

    async def of(self, assignment: Assignment, work_dir: Path, facts: WorkerFacts) -> Environment:
        """The same one for as long as it is not forgotten. work_dir: of the job, its source in it.

        Raises Unready where it can't be made, and DiskFull.
        """
        known = self._of.get(assignment.key)
        if known is None:
            known = self._of[assignment.key] = await self._make(assignment, work_dir, facts)
        return known

    def forget(self, key: NodeKey) -> None:
        """What it was for has ended; what was built stays."""
        self._of.pop(key, None)

    def close(self) -> None:
        """Nothing is wanted any more."""
        for build in self._builds.values():
            if build.task is not None:
                build.task.cancel()

    async def _make(self, assignment: Assignment, work_dir: Path, facts: WorkerFacts) -> Environment:
        name = assignment.environment or DEFAULT_ENVIRONMENT
        builder = self._host.registry.environments.get(name)
        if builder is None:
            raise Unready(EndedBy.ENVIRONMENT, f"this worker makes no environment {name}", Blame.INFRASTRUCTURE)
        try:
            plan = await self._plan(name, builder, assignment, work_dir)
            if not plan.key:
                return await self._made_in_place(name, builder, plan, work_dir, facts)
        except (BuildFailed, PluginFault) as error:
            raise _unready(name, error) from None
        return await self._built(name, builder, plan, facts)

    async def _plan(
        self, name: str, builder: Registered[EnvironmentBuilder], assignment: Assignment, work_dir: Path
    ) -> EnvironmentPlan:
        # It reads the work folder and nothing else: for all that bring no source, an empty one.
        if assignment.source is None and name in self._plans:
            return self._plans[name]
        plan = await self._host.acall(
            builder,
            "EnvironmentBuilder.plan",
            lambda thing: _checked_plan(thing.plan(EnvironmentRequest(name, work_dir))),
            deadline_s=ENVIRONMENT_PLAN_DEADLINE_S,
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
            made = await self._ask(builder, plan, work_dir, facts, build, lock=threading.Lock())
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
            if isinstance(ended, BuildFailed | PluginFault):
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
        lock = self._locks.setdefault(folder, threading.Lock())
        try:
            return await self._ask(builder, plan, folder, facts, build, lock=lock)
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
        lock: threading.Lock,
    ) -> Environment:
        def log(line: str) -> None:
            text = plain_text(line)[:_LINE_LIMIT]
            build.lines.append(text)
            _log.info("environment %s: %s", builder.plugin, text)

        site = BuildSite(folder, facts, self._environment, log=log, is_cancelled=build.is_cancelled)

        def ask(thing: EnvironmentBuilder) -> Environment:
            # One that did not come back in time may still be at work in the folder.
            if not lock.acquire(blocking=False):
                raise BuildFailed("an earlier build of the same has not ended yet", is_users=False)
            try:
                if plan.key:
                    kept = _kept(folder)  # it may have been finished since it was looked for
                    if kept is not None:
                        return kept
                    _ready(folder).unlink(missing_ok=True)
                    emptied(folder)
                made = instance_of(Environment, thing.build(plan, site))
                made = Environment(checked_variables(made.variables))
                if plan.key:
                    _keep(folder, made)
            except OSError as error:
                if is_full_error(error):
                    raise DiskFull(str(error)) from error
                raise
            else:
                return made
            finally:
                lock.release()

        return await self._host.acall(
            builder,
            "EnvironmentBuilder.build",
            ask,
            deadline_s=ENVIRONMENT_DEADLINE_S,
            passes=(BuildFailed, DiskFull),
        )


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
    hash(plan)  # what is not by value can't be told from others
    return EnvironmentPlan(str(key), steps)


def _ready(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.ready")


def _keep(folder: Path, made: Environment) -> None:
    write_whole(_ready(folder), json.dumps(dict(made.variables)).encode())


def _kept(folder: Path) -> Environment | None:
    """What was built there, in this start or an earlier one; None where it is to be built."""
    try:
        variables = json.loads(_ready(folder).read_bytes())
        return Environment(checked_variables(variables)) if folder.is_dir() else None
    except (OSError, ValueError, TypeError):
        return None
