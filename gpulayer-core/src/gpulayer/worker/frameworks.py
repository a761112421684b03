"""Which frameworks compute on this machine: the scripts of framework checks, run by the Python that jobs use.

Each runs with the variables that a job gets, and sees the devices that the worker offers; one that can't even be killed
is not run a second time before it has gone. One short program finds out first which frameworks there are at all.

What was found is kept on disk, so that a worker that is started again says at once what it knew, while the checks run
anew; only the first start of all has to wait for them: a control plane refuses at once what no worker that it knows can
run. What computed on all that is there is not run again at a start where nothing has changed that it depends on; what
failed is tried at each start: what was missing may be there now, and not every cause can be seen from here. While
the worker runs, what is installed is looked at every ten minutes, and what has changed is run anew.

Nothing computes on a device that somebody has: a job would miss the memory, or the device. It is tried when it is free.
"""

import asyncio
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

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
from gpulayer.spec.machine import DeviceState, Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.variables import DEVICE_VARIABLES
from gpulayer.whole import write_whole
from gpulayer.worker.check_script import Ran, is_there, run_script
from gpulayer.worker.devices import device_variables
from gpulayer.worker.findings import MAX_ARCHITECTURES, checked_text
from gpulayer.worker.plans import checked_variables
from gpulayer.worker.survey import Survey, last_answer, read_survey, survey_source
from gpulayer.worker.unready import OWN_DEADLINE_S

__all__ = ["Answer", "FrameworkChecks", "jobs_python", "read_answer", "seen_devices"]

_log: Final = logging.getLogger(__name__)
_SCRIPT_DEADLINE_S: Final = 5.0
_SURVEY_DEADLINE_S: Final = 20.0  # it imports nothing, but Python itself may stand on a slow disk
_SIDE_BY_SIDE: Final = 4
_SCRIPT_LIMIT: Final = 1 << 20
_REASON_LIMIT: Final = 2_000
_VERSION_LIMIT: Final = 100
_WORD_LIMIT: Final = 64
_MODULES_LIMIT: Final = 16
_IN_USE: Final = "not tried yet: somebody computes on every such device"
_LOOK_EVERY_S: Final = 600.0
_AGAIN_S: Final = (10.0, 60.0, 600.0)  # by tries in a row that not all checks answered
_TOLD_BYTES: Final = 2_000
_SAID_LIMIT: Final = 200
_NOT_YET: Final = "not checked yet"
_NO_TIME: Final = "not checked: the other checks took all the time that there was"


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    accelerators: tuple[Accelerator, ...]
    source: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """again: reasons on these pass by themselves. is_whole: the script has said all that it wanted to."""

    frameworks: tuple[Framework, ...] = ()
    again: frozenset[Accelerator] = frozenset()
    is_whole: bool = True


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
        self._is_stale = asyncio.Event()
        self._by_check: dict[int, tuple[Framework, ...]] = {}
        self._asked: dict[int, _Check] = {}  # that are to run, or have
        self._kept = _read(work_dir / "frameworks.json") if host.registry.framework_checks else None
        self._keys: dict[int, str] = {}  # of what a later start may believe
        self._due: set[int] = set()  # what could not be asked, or will have passed
        self._stuck: dict[int, int] = {}
        self._running: dict[int, str] = {}
        self._installed: dict[int, str] = {}  # what each check was about when it ran last, devices apart
        self._waiting: dict[int, frozenset[str]] = {}  # devices that somebody had whenever a check ran
        self._is_start = True

    @property
    def is_known(self) -> bool:
        """Whether anything is known without a run: there are no checks, or they ran in an earlier life."""
        return not self._host.registry.framework_checks or self._kept is not None

    @property
    def running(self) -> tuple[str, ...]:
        """The frameworks that are computed with at this moment."""
        return tuple(self._running.values())

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
        for framework in (one for check in pending if check.name not in names for one in _unusable(check, _NOT_YET)):
            known.setdefault((framework.name, framework.accelerator), framework)
        return tuple(known.values())

    def renew(self, before: WorkerFacts, now: WorkerFacts) -> None:
        """The devices are not what they were: ``watch`` has all checks run anew, but where some have only gone and
        all else computes: what comes and goes shall not cost a run of everything twice."""
        gone, come = (offered_devices(before) - offered_devices(now), offered_devices(now) - offered_devices(before))
        kinds = {kind for _, kind, *_ in gone}
        if come or any(one.accelerator in kinds and not one.usable for one in self.found):
            self._is_stale.set()

    async def watch(
        self,
        facts: Callable[[], WorkerFacts],
        *,
        tell: Callable[[], None],
        taken: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """Until cancelled. What was found before holds until the checks have run anew; ``tell``, ``taken``: as of
        ``run``. What could not be asked, because a plugin failed, is asked again, and so is what passes by itself."""
        tries = 0
        while True:
            if not self.is_fresh and (self._due or not self._waiting):
                await self.run(facts(), tell=tell, taken=taken())
            tries = 0 if self.is_fresh else tries + 1
            wait_s = self._again_s[min(tries, len(self._again_s)) - 1] if tries else self._look_every_s
            try:
                async with asyncio.timeout(wait_s):
                    await self._is_stale.wait()
            except TimeoutError:
                await self._look(facts(), _taken(facts(), taken()))
                continue
            self._is_stale.clear()
            self._due.clear()
            self._waiting.clear()
            self.is_fresh = False

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
        taken = _taken(facts, taken)
        seen = await self._seen(facts, taken)
        if seen is None:
            return
        variables, python = seen
        numbers = self._due or set(range(len(self._host.registry.framework_checks)))
        checks = await self._checks(numbers)
        self._due = numbers - checks.keys()
        self._asked.update(checks)
        tell()
        survey, is_late, why = await self._survey(checks.values(), python, variables)
        # On a device for one process at a time two checks would be in each other's way.
        is_exclusive = any(device.compute_mode.startswith("exclusive") for device in facts.devices)
        slots = asyncio.Semaphore(1 if is_exclusive else _SIDE_BY_SIDE)

        async def run(number: int, check: _Check) -> None:
            async with slots:
                left_s = ends_s - asyncio.get_running_loop().time()
                if left_s > 0:
                    self._running[number] = check.name
                    try:
                        answer = await self._run_one(number, check, python, variables, min(left_s, self._deadline_s))
                    finally:
                        del self._running[number]
                else:
                    answer = Answer(_unusable(check, _NO_TIME), frozenset(check.accelerators), is_whole=False)
            self._learn(number, check, _without_untried(check, answer, facts, taken), facts)
            tell()

        async with asyncio.TaskGroup() as group:
            for number, check in checks.items():
                self._keys.pop(number, None)
                self._installed[number] = _installed(check, survey)
                if why and check.modules:  # a Python that says nothing of itself says nothing of them
                    again = frozenset(check.accelerators if is_late else ())
                    self._learn(number, check, Answer(_unusable(check, why), again, is_whole=False), facts)
                    continue
                waiting = self._waiting.pop(number, taken) & taken & _for_check(check, facts)
                key = _key(check, survey, facts)
                known = self._kept.by_key.get(key) if key and self._kept is not None and self._is_start else None
                if survey is not None and check.modules and not survey.has(check.modules):
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

    async def _look(self, facts: WorkerFacts, taken: frozenset[str]) -> None:
        """Have run what is about other packages than it was, and what waited for a device that is free now."""
        self._due |= {number for number, waiting in self._waiting.items() if waiting - taken}
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

    def _learn(self, number: int, check: _Check, answer: Answer, facts: WorkerFacts) -> None:
        before = {(one.name, one.accelerator): one for one in self.found}
        known: list[Framework] = []
        for one in answer.frameworks:
            earlier = before.get((one.name, one.accelerator)) if one.accelerator in answer.again else None
            if earlier is not None and not earlier.usable and one.reason != _IN_USE:
                earlier = None  # what is known now is newer
            known.append(earlier if earlier is not None and earlier.version == one.version else one)
        self._by_check[number] = tuple(known)
        if any(one.accelerator in answer.again and one.reason != _IN_USE for one in answer.frameworks):
            self._due.add(number)
        there = {device.kind for device in facts.devices} | {Accelerator.CPU}
        if Accelerator.MPS in there:
            there.add(Accelerator.MLX)  # which computes on the same device
        if answer.again or not answer.is_whole or not all(one.usable for one in known if one.accelerator in there):
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
            why = f"{python} can't be asked what is installed: a program that only looks {_cut(said, _SAID_LIMIT)}"
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
        self, number: int, check: _Check, python: str, variables: Mapping[str, str], deadline_s: float
    ) -> Answer:
        stuck = self._stuck.get(number)
        if stuck is not None and is_there(stuck):
            why = f"its check hangs and can't be ended (process {stuck})"
            return Answer(_unusable(check, why), frozenset(check.accelerators), is_whole=False)
        self._stuck.pop(number, None)
        folder = self._work_dir / "checks" / str(number)
        ran = await run_script(check.source, folder, python=python, variables=variables, deadline_s=deadline_s)
        if ran.stuck:
            self._stuck[number] = ran.stuck
        _tell(check.name, ran)
        try:
            answer = read_answer(check.name, check.accelerators, ran.out)
        except ValueError as error:
            why = ran.failure or f"its check can't be understood: {error}"
            answer = Answer(_unusable(check, why), is_whole=False)
        else:
            if ran.failure:
                answer = _as_far_as_known(check, answer, ran.failure)
        if ran.is_late:
            unknown = frozenset(one.accelerator for one in answer.frameworks if not one.usable)
            answer = replace(answer, again=answer.again | unknown)
        return answer

    def _remember(self) -> None:
        if not self._host.registry.framework_checks:
            return
        believed = {key: [*map(_row, self._by_check.get(number, ()))] for number, key in self._keys.items()}
        rows = {"found": [*map(_row, self.found)], "believed": believed}
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


def offered_devices(facts: WorkerFacts) -> frozenset[tuple[str, Accelerator, str, str]]:
    """Those that work, with what the answers of checks depend on."""
    return frozenset(
        (device.uuid, device.kind, device.driver, device.runtime)
        for device in facts.devices
        if device.state is not DeviceState.UNHEALTHY
    )


def _taken(facts: WorkerFacts, lent: Collection[str]) -> frozenset[str]:
    """Devices on which nothing is tried now: jobs of this worker or somebody else have them."""
    return frozenset(lent) | {device.uuid for device in facts.devices if device.state is DeviceState.BUSY}


def _for_check(check: _Check, facts: WorkerFacts) -> frozenset[str]:
    """The devices that it would compute on."""
    kinds = {Accelerator.MPS if one is Accelerator.MLX else one for one in check.accelerators}
    return frozenset(uuid for uuid, kind, *_ in offered_devices(facts) if kind in kinds)


def _without_untried(check: _Check, answer: Answer, facts: WorkerFacts, taken: frozenset[str]) -> Answer:
    """Of a kind of which every device is taken nothing is said: what was known of it stands."""
    offered = offered_devices(facts)
    kinds = {kind for _, kind, *_ in offered} - {kind for uuid, kind, *_ in offered if uuid not in taken}
    if Accelerator.MPS in kinds:
        kinds.add(Accelerator.MLX)
    untried = kinds.intersection(check.accelerators)
    frameworks = tuple(
        replace(one, usable=False, reason=_IN_USE) if one.accelerator in untried else one for one in answer.frameworks
    )
    return replace(answer, frameworks=frameworks, again=answer.again | untried)


def seen_devices(
    facts: WorkerFacts, environment: Mapping[str, str], *, taken: Collection[str] = ()
) -> Mapping[str, str]:
    """The variables by which a check sees what the worker offers and nobody has; where nothing is offered, what the
    worker sees: then it can say why there is nothing."""
    offered = [device for device in facts.devices if device.state is not DeviceState.UNHEALTHY]
    if offered:
        return device_variables([device for device in offered if device.uuid not in taken])
    return {name: environment[name] for name in sorted(DEVICE_VARIABLES) if name in environment}


def jobs_python(variables: Mapping[str, str], *, otherwise: str) -> str:
    """The Python that a job finds on its ``PATH``; the worker's own where there is none."""
    path = variables.get("PATH", os.defpath)
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or otherwise


def read_answer(name: str, accelerators: Sequence[Accelerator], out: bytes) -> Answer:
    """What a script printed on its last line, as ``CheckScript`` says; what libraries print after it, as they end, is
    passed over. Raises ValueError for anything else. Pure."""
    answer = last_answer(out, having="version")
    version, devices = answer["version"], answer.get("devices", {})
    is_whole = not answer.get("so_far", False)
    if version is None:
        return Answer(is_whole=is_whole)
    if not isinstance(devices, dict):
        raise ValueError("devices is no object")
    again, architectures = (_texts(answer, name) for name in ("again", "architectures"))
    unknown = {*devices, *again}.difference(accelerators)
    if unknown:
        raise ValueError(f"it speaks of {min(unknown)[:40]!r}, which it is not registered for")
    version = _text("version", version, limit=_VERSION_LIMIT)
    build = _text("build", answer.get("build", ""), limit=_WORD_LIMIT)
    found: list[Framework] = []
    for accelerator in accelerators:
        if not is_whole and accelerator not in devices:
            continue
        reason = _text("a reason", devices.get(accelerator, "its check says nothing of it"), limit=_REASON_LIMIT)
        compiled = () if accelerator is Accelerator.CPU else architectures
        found.append(
            Framework(
                name,
                version,
                accelerator,
                usable=not reason,
                reason=reason,
                build=build,
                architectures=compiled,
            )
        )
    return Answer(tuple(found), frozenset(map(Accelerator, again)), is_whole)


def _as_far_as_known(check: _Check, answer: Answer, failure: str) -> Answer:
    """Of a script that failed. An answer that was meant to be whole is taken back by that; one so far is believed."""
    if answer.is_whole:
        return Answer(_unusable(check, failure), is_whole=False)
    known = {one.accelerator: one for one in answer.frameworks}
    version = next((one.version for one in answer.frameworks), "")
    build = next((one.build for one in answer.frameworks), "")
    rest = {
        one.accelerator: replace(one, version=version, build=build)
        for one in _unusable(check, failure)
        if one.accelerator not in known
    }
    return replace(answer, frameworks=tuple({**known, **rest}[accelerator] for accelerator in check.accelerators))


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


def _unusable(check: _Check, reason: str) -> tuple[Framework, ...]:
    text = _cut(reason, _REASON_LIMIT)
    return tuple(
        Framework(check.name, "", accelerator, usable=False, reason=text) for accelerator in check.accelerators
    )


def _text(name: str, value: object, *, limit: int) -> str:
    try:
        return _cut(checked_text(name, value), limit)
    except TypeError:
        raise ValueError(f"{name} is no text") from None


def _texts(answer: Mapping[str, object], name: str) -> tuple[str, ...]:
    try:
        found = list_of(str, answer.get(name, []), at_most=MAX_ARCHITECTURES)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is no short list of texts") from None
    return tuple(_text(name, one, limit=_WORD_LIMIT) for one in found)


def _tell(name: str, ran: Ran) -> None:
    if ran.failure:
        _log.warning("%s is unusable here: %s", name, ran.failure)
    said = b"\n".join(part.strip() for part in (ran.out, ran.err) if part.strip())
    if said:
        _log.debug("check of %s:\n%s", name, said[-_TOLD_BYTES:].decode(errors="replace"))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _row(one: Framework) -> list[object]:
    accelerator, architectures = str(one.accelerator), list(one.architectures)
    return [one.name, one.version, accelerator, one.usable, one.reason, one.build, architectures]


def _framework(row: Sequence[object]) -> Framework:
    """Raises TypeError and ValueError for what is none."""
    name, version, accelerator, usable, reason, build, architectures = row
    return Framework(
        checked_text("name", name),
        checked_text("version", version),
        Accelerator(instance_of(str, accelerator)),
        usable=instance_of(bool, usable),
        reason=checked_text("reason", reason),
        build=checked_text("build", build),
        architectures=tuple(list_of(str, architectures, at_most=MAX_ARCHITECTURES)),
    )


def _read(path: Path) -> _Kept | None:
    """None where no check has ended here yet."""
    try:
        rows = instance_of(dict, json.loads(path.read_bytes()))
        believed = instance_of(dict, rows["believed"])
        return _Kept(
            tuple(map(_framework, rows["found"])),
            {str(key): tuple(map(_framework, found)) for key, found in believed.items()},
        )
    except (OSError, ValueError, TypeError, LookupError):
        return None
