"""Which frameworks compute on this machine: the scripts of framework checks, run by the Python that jobs use.

Each runs with the variables that a job gets, and sees the devices that the worker offers; one that can't even be killed
is not run a second time before it has gone. One short program finds out first which frameworks there are at all.

A worker waits for none of them: until a check has ended, its framework is told of as not checked yet, and jobs that
want it wait. What is not installed is found out before the worker joins, within a moment: that refuses a job at once.
What was found is kept on disk, so that a worker that is started again says at once what it knew, while the checks run
anew. What computed on all that is there is not run again at a start where nothing has changed that it depends on; what
failed is tried at each start: what was missing may be there now, and not every cause can be seen from here. While
the worker runs, what is installed is looked at every ten minutes, and what has changed is run anew.

Nothing computes on a device that somebody has: a job would miss the memory, or the device. It is tried when it is free.
And where a job is about to start on one on which a check would be in its way, that goes first: see ``make_way``.
"""

import asyncio
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from gpulayer.whole import write_whole
from gpulayer.worker.check_answers import (
    Answer,
    as_far_as_known,
    cut,
    framework_of,
    read_answer,
    row_of,
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
from gpulayer.worker.plans import checked_variables
from gpulayer.worker.survey import Survey, read_survey, survey_source
from gpulayer.worker.unready import OWN_DEADLINE_S

__all__ = ["FrameworkChecks", "jobs_python"]

_log: Final = logging.getLogger(__name__)
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
_NO_TIME: Final = "the other checks took all the time that there was"


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    accelerators: tuple[Accelerator, ...]
    source: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """found: all that was known last. by_key: what is believed without a run, by all that it depends on."""

    found: tuple[Framework, ...]
    by_key: Mapping[str, tuple[Framework, ...]]


class FrameworkChecks:
    """Of one worker. ``found``: by the last run of each check, or by an earlier life of this worker. is_fresh: all
    ran in this one, and the machine has not changed since."""

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
        self._python = python
        self._deadline_s = deadline_s
        self._again_s = again_s
        self._look_every_s = look_every_s
        self.is_fresh = not host.registry.framework_checks
        self._nudge = asyncio.Event()
        self._is_stale = False
        self._by_check: dict[int, tuple[Framework, ...]] = {}
        self._asked: dict[int, _Check] = {}  # that are to run, or have
        self._kept = _read(work_dir / "frameworks.json") if host.registry.framework_checks else None
        self._keys: dict[int, str] = {}  # of what a later start may believe
        self._due: set[int] = set()  # what could not be asked, or will have passed
        self._stuck: dict[int, int] = {}
        self._installed: dict[int, str] = {}  # what each check was about when it ran last, devices apart
        self._waiting: dict[int, frozenset[str]] = {}  # devices that somebody had whenever a check ran
        self._is_start = True
        self._wanted: set[str] = set()  # devices on which jobs have started since the checks began to run
        self._running: dict[int, tuple[frozenset[str], asyncio.Future[Answer]]] = {}  # with the devices that it sees

    @property
    def is_known(self) -> bool:
        """Whether anything is known without a run: there are no checks, or they ran in an earlier life."""
        return not self._host.registry.framework_checks or self._kept is not None

    @property
    def running(self) -> tuple[str, ...]:
        """The frameworks that are computed with at this moment."""
        return tuple(self._asked[number].name for number in self._running)

    @property
    def found(self) -> tuple[Framework, ...]:
        """The first check that knows a framework on an accelerator is believed. What nobody knows yet is told of, as
        not checked: it is not known to be missing."""
        known: dict[tuple[str, Accelerator], Framework] = {}
        checks = range(len(self._host.registry.framework_checks))
        fresh = [framework for number in checks for framework in self._by_check.get(number, ())]
        older = () if len(self._by_check) == len(checks) or self._kept is None else self._kept.found
        for framework in (*fresh, *older):
            known.setdefault((framework.name, framework.accelerator), framework)
        names = {name for name, _ in known}
        pending = [check for number, check in self._asked.items() if number not in self._by_check]
        for framework in (one for check in pending if check.name not in names for one in _pending(check)):
            known.setdefault((framework.name, framework.accelerator), framework)
        return tuple(known.values())

    def renew(self, before: WorkerFacts, now: WorkerFacts) -> None:
        """The devices are not what they were: ``watch`` has all checks run anew, but where some have only gone and
        all else computes: what comes and goes shall not cost a run of everything twice."""
        gone, come = (offered_devices(before) - offered_devices(now), offered_devices(now) - offered_devices(before))
        kinds = {kind for _, kind, *_ in gone}
        if come or any(one.accelerator in kinds and not one.usable for one in self.found):
            self._is_stale = True
            self._nudge.set()

    def freed(self) -> None:
        """A job has left devices: what waited for them can be tried."""
        if self._waiting:
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
        """Find out what there is to check, where nothing is known: from then on ``found`` tells of it as not checked
        yet, and of what is not installed nothing, where that could be seen in time."""
        if self.is_known:
            return
        checks = await self._checks(range(len(self._host.registry.framework_checks)))
        self._asked.update(checks)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                seen = await self._seen(facts, frozenset())
                if seen is not None:
                    survey, _, _ = await self._survey(checks.values(), seen[1], seen[0])
                    absent = [number for number, check in checks.items() if _is_absent(check, survey)]
                    self._by_check.update(dict.fromkeys(absent, ()))

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
            if not self.is_fresh and (self._due or not self._waiting):
                await self.run(facts(), tell=tell, taken=taken())
            if not is_nudged or self.is_fresh:
                tries = 0 if self.is_fresh else tries + 1
            wait_s = self._again_s[min(tries, len(self._again_s)) - 1] if tries else self._look_every_s
            is_nudged = False
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    is_nudged = await self._nudge.wait()
            self._nudge.clear()
            if self._is_stale:
                self._is_stale = False
                self._due.clear()
                self._waiting.clear()
                self.is_fresh = False
                continue
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
        seen = await self._seen(facts, taken)
        if seen is None:
            return
        variables, python = seen
        numbers = self._due or set(range(len(self._host.registry.framework_checks)))
        checks = await self._checks(numbers)
        self._due = numbers - checks.keys()
        self._asked.update(checks)
        async with asyncio.TaskGroup() as group:
            surveying = group.create_task(self._survey(checks.values(), python, variables))
            await asyncio.wait((surveying,), timeout=_MOMENT_S)
            if not surveying.done():
                tell()
        survey, is_late, why = surveying.result()
        # On a device for one process at a time two checks would be in each other's way.
        is_exclusive = any(device.compute_mode.startswith("exclusive") for device in facts.devices)
        slots = asyncio.Semaphore(1 if is_exclusive else _SIDE_BY_SIDE)

        async def run(number: int, check: _Check) -> None:
            answer, kept = None, taken
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
                self._waiting[number] = self._waiting.get(number, frozenset()) | untried
                self._keys.pop(number, None)
            self._learn(number, check, without_untried(answer, facts, kept), facts, kept)
            tell()

        async with asyncio.TaskGroup() as group:
            for number, check in checks.items():
                self._keys.pop(number, None)
                self._installed[number] = _installed(check, survey)
                if why and check.modules:  # a Python that says nothing of itself says nothing of them
                    again = frozenset(check.accelerators if is_late else ())
                    told = _pending(check, why) if is_late else unusable(check.name, check.accelerators, why)
                    self._learn(number, check, Answer(told, again, is_whole=False), facts, taken)
                    continue
                waiting = self._waiting.pop(number, taken) & taken & wanted_devices(check.accelerators, facts)
                key = _key(check, survey, facts)
                known = self._kept.by_key.get(key) if key and self._kept is not None and self._is_start else None
                if _is_absent(check, survey):
                    known = ()
                if known is None:
                    if waiting:
                        self._waiting[number] = waiting
                    elif key:
                        self._keys[number] = key
                    group.create_task(run(number, check))
                    continue
                self._by_check[number] = known
                if known:
                    self._keys[number] = key
        tell()
        self._is_start = False
        self.is_fresh = not self._due and not self._waiting
        if self.is_fresh or self.found:  # that nothing could be asked is no knowledge of the next start
            await asyncio.to_thread(self._remember)

    def _note_free(self, taken: frozenset[str]) -> None:
        """Have run what waited for a device that is free now."""
        self._due |= {number for number, waiting in self._waiting.items() if waiting - taken}
        self.is_fresh = not self._due and self.is_fresh

    async def _look(self, facts: WorkerFacts, taken: frozenset[str]) -> None:
        """Have run what is about other packages than it was."""
        seen = await self._seen(facts, taken)
        if seen is None:
            return
        checks = await self._checks(self._installed.keys() - self._due)
        survey, _, _ = await self._survey(checks.values(), seen[1], seen[0])
        if survey is not None:
            self._due |= {number for number in checks if _installed(checks[number], survey) != self._installed[number]}
        self.is_fresh = not self._due and self.is_fresh

    async def _seen(self, facts: WorkerFacts, taken: frozenset[str]) -> tuple[Mapping[str, str], str] | None:
        """The variables and the Python of the checks; None where they can't be found out now."""
        try:
            variables = await self._variables(facts)
        except PluginFault as fault:
            _log.warning("frameworks are not checked: %s", fault.message)
            return None
        variables = {**variables, **seen_devices(facts, self._environment, taken=taken)}
        return variables, self._python or jobs_python(variables, otherwise=sys.executable)

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
        known = self._by_check[number] = with_what_was_known(answer, self.found, taken)
        if any(one.accelerator in answer.again - answer.waits for one in answer.frameworks):
            self._due.add(number)
        there = {device.kind for device in facts.devices} | {Accelerator.CPU}
        if Accelerator.MPS in there:
            there.add(Accelerator.MLX)  # which computes on the same device
        if (
            answer.again
            or not answer.is_whole
            or not all(one.usable and not one.failed_on for one in known if one.accelerator in there)
        ):
            self._keys.pop(number, None)

    async def _checks(self, numbers: Collection[int]) -> dict[int, _Check]:
        """By number; without those whose plugin failed."""
        checks: dict[int, _Check] = {}

        async def ask(number: int) -> None:
            registered = self._host.registry.framework_checks[number]
            try:
                checks[number] = await self._host.acall(
                    registered, "FrameworkCheck.script", _checked_check, deadline_s=_SCRIPT_DEADLINE_S
                )
            except PluginFault as fault:  # then it is not even known what it would have been about
                _log.warning("%s", fault.message)

        await asyncio.gather(*map(ask, numbers))
        return dict(sorted(checks.items()))

    async def _survey(
        self, checks: Collection[_Check], python: str, variables: Mapping[str, str]
    ) -> tuple[Survey | None, bool, str]:
        """None where that can't be found out; whether that took too long, and the reason."""
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
        except ValueError as error:
            said = ran.failure.removeprefix("its check ") or f"is not understood: {error}"
            why = f"{python} can't be asked what is installed: a program that only looks {cut(said, _SAID_LIMIT)}"
            _log.warning("frameworks are not checked: %s", why)
            return None, ran.is_late, why
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
        stuck = self._stuck.get(number)
        if stuck is not None and is_there(stuck):
            why = f"its check hangs and can't be ended (process {stuck})"
            told = unusable(check.name, check.accelerators, why)
            return Answer(told, frozenset(check.accelerators), is_whole=False)
        self._stuck.pop(number, None)
        folder = self._work_dir / "checks" / str(number)
        ran = await run_script(check.source, folder, python=python, variables=variables, deadline_s=deadline_s)
        if ran.stuck:
            self._stuck[number] = ran.stuck
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
        if ran.is_late:
            unknown = frozenset(one.accelerator for one in answer.frameworks if not one.usable)
            answer = replace(answer, again=answer.again | unknown)
        return answer

    def _remember(self) -> None:
        if not self._host.registry.framework_checks:
            return
        believed = {key: [*map(row_of, self._by_check.get(number, ()))] for number, key in self._keys.items()}
        rows = {"found": [*map(row_of, self.found)], "believed": believed}
        try:
            write_whole(self._work_dir / "frameworks.json", json.dumps(rows).encode())
        except OSError as error:
            _log.warning("what the framework checks found can't be kept: %s", error)


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


def _read(path: Path) -> _Kept | None:
    """None where no check has ended here yet."""
    try:
        rows = instance_of(dict, json.loads(path.read_bytes()))
        believed = instance_of(dict, rows["believed"])
        return _Kept(
            tuple(map(framework_of, rows["found"])),
            {str(key): tuple(map(framework_of, found)) for key, found in believed.items()},
        )
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
