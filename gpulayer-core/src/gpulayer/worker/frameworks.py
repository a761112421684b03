"""Which frameworks compute on this machine: the scripts of framework checks, run by the Python that jobs use.

Each runs with the variables that a job gets, and sees the devices that the worker offers; one that can't even be killed
is not run a second time before it has gone. One short program finds out first which frameworks there are at all.

A worker waits for none of them: until a check has ended, its framework is told of as not checked yet, and jobs that
want it wait. What is not installed is found out before the worker joins, within a moment: that refuses a job at once.
What computed is kept on disk, so that a worker that is started again says at once what it knew, while the checks run
anew, where the same is installed. What computed on all that is there is not run again at a start where nothing has
changed that it depends on; what failed, or was not there, is tried at each start, and not checked yet until then: what
was missing may be there now, and not every cause can be seen from here. The same holds where a device has come. While
the worker runs, what is installed is looked at every ten minutes, and what has changed is run anew.

Nothing computes on a device that somebody has: a job would miss the memory, or the device. It is tried when it is free.
And where a job is about to start on one on which a check would be in its way, that goes first: see ``make_way``.
"""

import asyncio
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gpulayer.errors import PluginFault
from gpulayer.plugins.contracts.environment import (
    BuildSite,
    Environment,
    EnvironmentBuilder,
    EnvironmentRequest,
)
from gpulayer.plugins.contracts.framework import CHECK_DEADLINE_S, CheckScript, FrameworkCheck
from gpulayer.plugins.host import Host
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT, is_plain_name
from gpulayer.spec.machine import Device, DeviceState, Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.worker.check_answers import (
    Answer,
    as_far_as_known,
    cut,
    read_answer,
    unusable,
)
from gpulayer.worker.check_devices import (
    is_narrow,
    offered_devices,
    seen_devices,
    taken_devices,
    visible_devices,
    wanted_devices,
    with_what_was_known,
    without_untried,
)
from gpulayer.worker.check_script import Ran, is_there, run_script
from gpulayer.worker.findings import checked_text
from gpulayer.worker.kept_frameworks import Kept, read_kept, write_kept
from gpulayer.worker.plans import checked_variables
from gpulayer.worker.survey import Survey, read_survey, survey_source
from gpulayer.worker.unready import OWN_DEADLINE_S

__all__ = ["FrameworkChecks", "jobs_python"]

_log: Final = logging.getLogger(__name__)
_FILE: Final = "frameworks.json"
_SCRIPT_DEADLINE_S: Final = 5.0
_SURVEY_DEADLINE_S: Final = 20.0  # it imports nothing, but Python itself may stand on a slow disk
_SIDE_BY_SIDE: Final = 4
_SCRIPT_LIMIT: Final = 1 << 20
_MODULES_LIMIT: Final = 16
_MOMENT_S: Final = 2.0
_LOOK_EVERY_S: Final = 600.0
_AGAIN_S: Final = (10.0, 60.0, 600.0)  # by tries in a row that not all checks answered
_TOLD_BYTES: Final = 2_000
_SAID_LIMIT: Final = 200
_VERSION_LIMIT: Final = 32
_NO_TIME: Final = "the other checks took all the time that there was"


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    accelerators: tuple[Accelerator, ...]
    source: str
    modules: tuple[str, ...]


class _Stage(Enum):
    DUE = "due"  # to be run: never was, or what it found may be otherwise, or passes by itself
    RUNNING = "running"
    DONE = "done"


@dataclass(slots=True)
class _Progress:
    """Of one check. check: None until its plugin could be asked. found: in this life; None: nothing is known yet. key:
    of what a later start may believe; empty: nothing. installed: what it was about when it ran last, devices apart;
    None: it never did. waiting: devices that somebody had whenever it ran. stuck: its process that can't be ended."""

    stage: _Stage = _Stage.DUE
    check: _Check | None = None
    found: tuple[Framework, ...] | None = None
    key: str = ""
    installed: str | None = None
    waiting: frozenset[str] = frozenset()
    stuck: int = 0

    def doubt(self, *, is_installed_anew: bool = False) -> None:
        """To be run again: what failed may compute now, and where packages have changed, what was not there be there.
        What computed stands until it has been run."""
        self.stage = _Stage.DUE
        if is_installed_anew and not self.found:
            self.found = None
        self.found = self.found and tuple(map(_doubted, self.found))


class FrameworkChecks:
    """Of one worker. ``found``: by the last run of each check, or by an earlier life of this worker. ``python``: that
    of the jobs, which was asked last; ``python_version``: what it said. Empty: none was yet."""

    def __init__(
        self,
        host: Host,
        work_dir: Path,
        *,
        environment: Mapping[str, str],
        python: str = "",
        deadline_s: float = CHECK_DEADLINE_S,
        again_s: Sequence[float] = _AGAIN_S,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        """environment: the worker's. python: that of the jobs; empty: what they find on their ``PATH``. again_s: until
        what could not be asked is asked again, by tries in a row. look_every_s: until it is seen what pip did."""
        self._host = host
        self._work_dir = work_dir
        self._environment = MappingProxyType(dict(environment))
        self._given = python
        self.python = self.python_version = ""
        self._deadline_s = deadline_s
        self._again_s = again_s
        self._look_every_s = look_every_s
        self._nudge = asyncio.Event()
        self._of = tuple(_Progress() for _ in host.registry.framework_checks)  # by number
        self._kept = read_kept(work_dir / _FILE) if self._of else Kept()
        self._is_start = True
        self._wanted: set[str] = set()  # devices on which jobs have started since the checks began to run
        self._running: dict[int, tuple[frozenset[str], asyncio.Future[Answer]]] = {}  # with the devices that it sees

    @property
    def is_fresh(self) -> bool:
        """All ran in this life, and neither the machine has changed since nor was a device out of reach."""
        return not any(one.stage is not _Stage.DONE or one.waiting for one in self._of)

    @property
    def running(self) -> tuple[str, ...]:
        """The frameworks that are computed with at this moment."""
        return tuple(one.check.name for one in map(self._of.__getitem__, self._running) if one.check is not None)

    @property
    def found(self) -> tuple[Framework, ...]:
        """The first check that knows a framework on an accelerator is believed. What nobody knows yet is told of, as
        not checked: it is not known to be missing."""
        known: dict[tuple[str, Accelerator], Framework] = {}
        fresh = [framework for one in self._of for framework in one.found or ()]
        for framework in (*fresh, *self._known_before()):
            known.setdefault((framework.name, framework.accelerator), framework)
        names = {name for name, _ in known}
        for check in self._open():
            if check.name not in names:
                known |= {(one.name, one.accelerator): one for one in _pending(check)}
        return tuple(known.values())

    def _open(self) -> list[_Check]:
        """Those that are to run, of which nothing is known."""
        return [one.check for one in self._of if one.check is not None and one.found is None]

    def _known_before(self) -> tuple[Framework, ...]:
        """In an earlier life, of what has not been checked in this one."""
        if all(one.found is not None for one in self._of):
            return ()
        known = {one.check.name for one in self._of if one.check is not None} - {check.name for check in self._open()}
        return tuple(_doubted(framework) for framework in self._kept.found if framework.name not in known)

    def renew(self, before: WorkerFacts, now: WorkerFacts) -> None:
        """The devices are not what they were: ``watch`` has all checks run anew, but where some have only gone and
        all else computes: what comes and goes shall not cost a run of everything twice."""
        gone, come = (offered_devices(before) - offered_devices(now), offered_devices(now) - offered_devices(before))
        kinds = {kind for _, kind, *_ in gone}
        if come or any(one.accelerator in kinds and not one.usable for one in self.found):
            for one in self._of:
                one.doubt()
                one.waiting = frozenset()
            self._nudge.set()

    def freed(self) -> None:
        """A job has left devices: what waited for them can be tried."""
        if any(one.waiting for one in self._of):
            self._nudge.set()

    async def make_way(self, devices: Collection[Device]) -> None:
        """A job is about to start on these: no check is in its way when this returns. Those that are on them for one
        process alone, or have little memory, are ended, and go on without them. To be repeated for each job."""
        wanted = {device.uuid for device in devices if is_narrow(device)}
        self._wanted |= wanted
        running = [task for seen, task in self._running.values() if seen & wanted]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def begin(self, facts: WorkerFacts, *, within_s: float = _MOMENT_S) -> None:
        """At a start, find out what there is to check: from then on ``found`` tells of it as not checked yet, where
        nothing is known, and of what is not installed nothing, where that could be seen in time."""
        if not self._of:
            return
        checks = await self._checks(range(len(self._of)))
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                seen = await self._seen(facts, frozenset())
                if seen is None:
                    return
                survey, _, _ = await self._survey(checks.values(), seen[1], seen[0])
                changed = {
                    check.name for check in checks.values() if self._kept.is_otherwise(_installed(check, survey))
                }
                self._kept = self._kept.without(changed)
                for number, check in checks.items():
                    self._of[number].found = self._without_a_run(check, survey, facts)

    def _without_a_run(self, check: _Check, survey: Survey | None, facts: WorkerFacts) -> tuple[Framework, ...] | None:
        """What is known of it at a start; None: it has to be run."""
        if _is_absent(check, survey):
            return ()
        key = _key(check, survey, facts)
        return self._kept.by_key.get(key) if key and self._is_start else None

    async def watch(
        self,
        facts: Callable[[], WorkerFacts],
        *,
        tell: Callable[[], None],
        taken: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """Until cancelled. What was found before holds until the checks have run anew; ``tell``, ``taken``: as of
        ``run``. What could not be asked, because a plugin failed, is asked again, and so is what passes by itself."""
        tries, is_nudged = 0, False
        while True:
            if any(one.stage is _Stage.DUE for one in self._of):
                await self.run(facts(), tell=tell, taken=taken())
            if self.is_fresh:
                tries = 0
            elif not is_nudged or not tries:
                tries += 1
            if self._note_free(taken_devices(facts(), taken())):  # also what was left while they ran
                is_nudged = True
                continue
            wait_s = self._again_s[min(tries, len(self._again_s)) - 1] if tries else self._look_every_s
            is_nudged = False
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    is_nudged = await self._nudge.wait()
            self._nudge.clear()
            self._note_free(taken_devices(facts(), taken()))
            if not is_nudged:
                await self._look(facts(), taken_devices(facts(), taken()))

    async def run(
        self,
        facts: WorkerFacts,
        *,
        tell: Callable[[], None] = lambda: None,
        taken: Collection[str] = (),
        within_s: float = math.inf,
    ) -> None:
        """What is due, else all of them, a few side by side. ``tell`` is called whenever ``found`` may have changed.
        taken: the devices that jobs have, by uuid; no check sees these, nor those that are somebody else's. within_s:
        all of them together; those that come too late are unusable for that reason."""
        ends_s = asyncio.get_running_loop().time() + within_s
        taken = taken_devices(facts, taken)
        self._wanted.clear()
        every = range(len(self._of))
        numbers = {number for number in every if self._of[number].stage is _Stage.DUE} or set(every)
        for number in numbers:
            self._of[number].stage = _Stage.RUNNING
        seen = await self._seen(facts, taken)
        checks = {} if seen is None else await self._checks(numbers)
        for number in numbers - checks.keys():
            self._of[number].stage = _Stage.DUE
        if seen is None:
            return
        tell()
        variables, python = seen
        async with asyncio.TaskGroup() as group:
            surveying = group.create_task(self._survey(checks.values(), python, variables))
            await asyncio.wait((surveying,), timeout=_MOMENT_S)
            if not surveying.done():
                tell()
        survey, is_passing, why = surveying.result()
        # On a device for one process at a time two checks would be in each other's way.
        is_exclusive = any(device.compute_mode.startswith("exclusive") for device in facts.devices)
        slots = asyncio.Semaphore(1 if is_exclusive else _SIDE_BY_SIDE)

        async def run(number: int, check: _Check) -> None:
            answer, kept, one = None, taken, self._of[number]
            async with slots:
                while answer is None:
                    kept = taken | self._wanted
                    left_s = ends_s - asyncio.get_running_loop().time()
                    if left_s <= 0:
                        answer = Answer(_pending(check, _NO_TIME), frozenset(check.accelerators), is_whole=False)
                        break
                    masked = {**variables, **seen_devices(facts, self._environment, taken=kept)}
                    visible = {uuid: kind for uuid, kind in visible_devices(facts).items() if uuid not in kept}
                    work = self._run_one(
                        number, check, python, masked, deadline_s=min(left_s, self._deadline_s), visible=visible
                    )
                    answer = await self._unless_in_the_way(
                        number, wanted_devices(check.accelerators, facts) - kept, work
                    )
            if untried := (kept - taken) & wanted_devices(check.accelerators, facts):
                one.waiting |= untried
                one.key = ""
            self._learn(number, check, without_untried(answer, facts, kept), facts, kept)
            tell()

        async with asyncio.TaskGroup() as group:
            for number, check in checks.items():
                one = self._of[number]
                one.key, one.installed = "", _installed(check, survey)
                if why and check.modules:  # a Python that says nothing of itself says nothing of them
                    again = frozenset(check.accelerators if is_passing else ())
                    told = _pending(check, why) if is_passing else unusable(check.name, check.accelerators, why)
                    self._learn(number, check, Answer(told, again, is_whole=False), facts, taken)
                    continue
                waiting = (one.waiting or taken) & taken & wanted_devices(check.accelerators, facts)
                key, known = _key(check, survey, facts), self._without_a_run(check, survey, facts)
                one.waiting = frozenset() if known is not None else waiting
                if known is None:
                    one.key = "" if waiting else key
                    group.create_task(run(number, check))
                    continue
                one.found = known
                one.key = key if known else ""
                _end(one)
            tell()
        tell()
        self._is_start = False
        if self.is_fresh or self.found:  # that nothing could be asked is no knowledge of the next start
            await asyncio.to_thread(self._remember)

    def _note_free(self, taken: frozenset[str]) -> bool:
        """Have run what waited for a device that is free now; whether there is any that is not to be run anyhow, when
        its time has come."""
        freed = [one for one in self._of if one.waiting - taken and one.stage is _Stage.DONE]
        for one in freed:
            one.stage = _Stage.DUE
        return bool(freed)

    async def _look(self, facts: WorkerFacts, taken: frozenset[str]) -> None:
        """Have run what is about other packages than it was."""
        seen = await self._seen(facts, taken)
        if seen is None:
            return
        ended = [
            number for number, one in enumerate(self._of) if one.stage is _Stage.DONE and one.installed is not None
        ]
        checks = await self._checks(ended)
        survey, _, _ = await self._survey(checks.values(), seen[1], seen[0])
        for number, check in checks.items() if survey is not None else ():
            if _installed(check, survey) != self._of[number].installed:
                self._of[number].doubt(is_installed_anew=True)

    async def _seen(self, facts: WorkerFacts, taken: frozenset[str]) -> tuple[Mapping[str, str], str] | None:
        """The variables and the Python of the checks; None where they can't be found out now."""
        try:
            variables = await self._variables(facts)
        except PluginFault as fault:
            _log.warning("frameworks are not checked: %s", fault.message)
            return None
        variables = {**variables, **seen_devices(facts, self._environment, taken=taken)}
        python = self._given or jobs_python(variables, otherwise=sys.executable)
        if python != self.python:
            self.python, self.python_version = python, ""
        return variables, python

    async def _unless_in_the_way(
        self, number: int, seen: frozenset[str], work: Coroutine[Any, Any, Answer]
    ) -> Answer | None:
        """None where it had to make way."""
        task = asyncio.ensure_future(work)
        self._running[number] = seen, task
        try:
            await asyncio.wait((task,))
        finally:
            del self._running[number]
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        return None if task.cancelled() else task.result()

    def _learn(self, number: int, check: _Check, answer: Answer, facts: WorkerFacts, taken: Collection[str]) -> None:
        """taken: devices that it did not see; what was known of these stands."""
        one = self._of[number]
        known = one.found = with_what_was_known(answer, self.found, taken)
        _end(one, is_due=any(row.accelerator in answer.again - answer.waits for row in answer.frameworks))
        there = {device.kind for device in facts.devices} | {Accelerator.CPU}
        if Accelerator.MPS in there:
            there.add(Accelerator.MLX)  # which computes on the same device
        if (
            answer.again
            or not answer.is_whole
            or not all(row.usable and not row.failed_on for row in known if row.accelerator in there)
        ):
            one.key = ""

    async def _checks(self, numbers: Collection[int]) -> dict[int, _Check]:
        """By number; without those whose plugin failed."""
        checks: dict[int, _Check] = {}

        async def ask(number: int) -> None:
            registered = self._host.registry.framework_checks[number]
            try:
                check = await self._host.acall(
                    registered, "FrameworkCheck.script", _checked_check, deadline_s=_SCRIPT_DEADLINE_S
                )
                checks[number] = self._of[number].check = check
            except PluginFault as fault:  # then it is not even known what it would have been about
                _log.warning("%s", fault.message)

        await asyncio.gather(*map(ask, numbers))
        return dict(sorted(checks.items()))

    async def _survey(
        self, checks: Collection[_Check], python: str, variables: Mapping[str, str]
    ) -> tuple[Survey | None, bool, str]:
        """None where that can't be found out; whether that passes by itself, and the reason."""
        modules = {module for check in checks for module in check.modules}
        if not modules:
            return None, False, ""
        folder = self._work_dir / "checks" / "survey"
        deadline_s = min(_SURVEY_DEADLINE_S, self._deadline_s)
        ran = await run_script(
            survey_source(modules), folder, python=python, variables=variables, deadline_s=deadline_s
        )
        try:
            survey = read_survey(ran.out)
            self.python_version = cut(survey.version, _VERSION_LIMIT)
        except ValueError as error:
            said = ran.failure.removeprefix("its check ") or f"is not understood: {error}"
            why = f"{python} can't be asked what is installed: a program that only looks {cut(said, _SAID_LIMIT)}"
            _log.warning("frameworks are not checked: %s", why)
            return None, ran.is_late or ran.is_passing, why
        return survey, False, ""

    async def _variables(self, facts: WorkerFacts) -> Mapping[str, str]:
        """Those of a job in the environment that all have who ask for none."""
        site = BuildSite(self._work_dir, facts, self._environment, log=lambda _line: None, is_cancelled=lambda: False)

        def ask(thing: EnvironmentBuilder) -> Mapping[str, str]:
            plan = thing.plan(EnvironmentRequest(DEFAULT_ENVIRONMENT, self._work_dir))
            return checked_variables(instance_of(Environment, thing.build(plan, site)).variables)

        builder = self._host.registry.environments[DEFAULT_ENVIRONMENT]
        return await self._host.acall(builder, "EnvironmentBuilder.build", ask, deadline_s=OWN_DEADLINE_S)

    async def _run_one(
        self,
        number: int,
        check: _Check,
        python: str,
        variables: Mapping[str, str],
        *,
        deadline_s: float,
        visible: Mapping[str, Accelerator],
    ) -> Answer:
        stuck = self._of[number].stuck
        if stuck and is_there(stuck):
            why = f"its check hangs and can't be ended (process {stuck})"
            return Answer(_pending(check, why), frozenset(check.accelerators), is_whole=False)
        folder = self._work_dir / "checks" / str(number)
        ran = await run_script(check.source, folder, python=python, variables=variables, deadline_s=deadline_s)
        self._of[number].stuck = ran.stuck
        _tell(check.name, ran)
        try:
            seen = {kind: [uuid for uuid, of in visible.items() if of is kind] for kind in set(visible.values())}
            answer = read_answer(check.name, check.accelerators, ran.out, seen=seen)
        except ValueError as error:
            why = ran.failure or f"its check can't be understood: {error}"
            answer = Answer(unusable(check.name, check.accelerators, why), is_whole=False)
        else:
            if ran.failure:
                answer = as_far_as_known(check.name, check.accelerators, answer, ran.failure)
        if ran.is_late or ran.is_passing:
            # A first import from a cold or far disk may take longer than that, and so may a driver that starts a card.
            unknown = frozenset(one.accelerator for one in answer.frameworks if not one.usable)
            told = tuple(replace(one, is_pending=not one.usable) for one in answer.frameworks)
            answer = replace(answer, frameworks=told, again=answer.again | unknown)
        return answer

    def _remember(self) -> None:
        if not self._of:
            return
        by_key = {one.key: one.found for one in self._of if one.key and one.found is not None}
        installed = frozenset(one.installed for one in self._of if one.installed)
        try:
            write_kept(self._work_dir / _FILE, Kept(self.found, by_key, installed))
        except OSError as error:
            _log.warning("what the framework checks found can't be kept: %s", error)


def _end(one: _Progress, *, is_due: bool = False) -> None:
    """It has been run. Where what it depends on has changed meanwhile, it is due all the same."""
    if is_due or one.stage is _Stage.DUE:
        one.stage = _Stage.DUE
    else:
        one.stage = _Stage.DONE


def _doubted(framework: Framework) -> Framework:
    """As long as it has not been tried again: what did not compute may compute now."""
    if framework.usable:
        return replace(framework, failed_on=tuple((uuid, "") for uuid, _ in framework.failed_on))
    return unusable(framework.name, [framework.accelerator], "", is_pending=True)[0]


def _key(check: _Check, survey: Survey | None, facts: WorkerFacts) -> str:
    """Of all that its answer depends on; empty where that is not known."""
    if survey is None or not check.modules:
        return ""
    devices = [
        (device.kind, device.uuid, device.driver, device.runtime, device.state is DeviceState.UNHEALTHY)
        for device in facts.devices
    ]
    return survey.digest(check.modules, check.name, check.accelerators, check.source, sorted(devices))


def _installed(check: _Check, survey: Survey | None) -> str:
    """Of what it is about, devices apart; empty where that is not known."""
    return "" if survey is None or not check.modules else survey.digest(check.modules)


def _pending(check: _Check, reason: str = "") -> tuple[Framework, ...]:
    return unusable(check.name, check.accelerators, reason, is_pending=True)


def _is_absent(check: _Check, survey: Survey | None) -> bool:
    """False where that is not known."""
    return survey is not None and bool(check.modules) and not survey.has(check.modules)


def jobs_python(variables: Mapping[str, str], *, otherwise: str) -> str:
    """The Python that a job finds on its ``PATH``; the worker's own where there is none."""
    path = variables.get("PATH", os.defpath)
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or otherwise


def _checked_check(check: FrameworkCheck) -> _Check:
    name = instance_of(str, check.name)
    if not is_plain_name(name):
        raise ValueError(f"{name[:63]!r} can't name a framework")
    accelerators = list_of(Accelerator, check.accelerators, at_most=len(Accelerator))
    if Accelerator.ANY in accelerators:
        raise ValueError("any is no accelerator to compute on")
    script = instance_of(CheckScript, check.script())
    source = checked_text("source", script.source, at_most=_SCRIPT_LIMIT)
    modules = list_of(str, script.modules, at_most=_MODULES_LIMIT)
    if not all(module.isidentifier() for module in modules):
        raise ValueError("modules are named as torch is, without dots")
    return _Check(str(name), tuple(dict.fromkeys(accelerators)), source, tuple(modules))


def _tell(name: str, ran: Ran) -> None:
    if ran.failure:
        _log.warning("%s is unusable here: %s", name, ran.failure)
    said = b"\n".join(part.strip() for part in (ran.out, ran.err) if part.strip())
    if said:
        _log.debug("check of %s:\n%s", name, said[-_TOLD_BYTES:].decode(errors="replace"))
