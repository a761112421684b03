"""Light checks of what a plugin registers, against its contract: what loading it checks (``registering.things_of``),
then signatures, and the parts that are pure.

They call the plugin's code, so they belong into a child (``plugins.trial``). Contract classes of ``gpulayer.testing``
prove much more, in the plugin's own tests.
"""

import ast
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpulayer.ids import Epoch, JobId
from gpulayer.plugins.contracts.environment import BuildFailed, EnvironmentBuilder, EnvironmentPlan, EnvironmentRequest
from gpulayer.plugins.contracts.framework import CheckScript, FrameworkCheck
from gpulayer.plugins.contracts.launcher import (
    ActingLauncher,
    Launcher,
    LaunchRefused,
    LaunchSite,
    Machine,
)
from gpulayer.plugins.contracts.problem import Problem, Severity
from gpulayer.plugins.contracts.scorer import ScoreBatch, Scorer
from gpulayer.plugins.examples import odd_jobs, usual_job
from gpulayer.plugins.plan_check import plan_as_given
from gpulayer.plugins.registering import Kind, things_of
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.job import JobSpec
from gpulayer.spec.machine import WorkerFacts

__all__ = ["Misfit", "job_check_misfits", "misfits"]

_MOST_PROBLEMS: Final = 1000
_OLDEST_PYTHON: Final = (3, 9)  # that a check's script has to run in


@dataclass(frozen=True, slots=True)
class Misfit:
    """``what``: the object or the method. ``message``: what is wrong with it. ``hint``: how to mend it."""

    what: str
    message: str
    hint: str = ""


def misfits(kind: Kind, thing: object) -> Iterator[Misfit]:
    """What is wrong with one registered object; nothing where all is well. Raises what its code raises."""
    what = type(thing).__name__
    members = sorted(name for name in vars(kind.contract) if not name.startswith("_"))
    is_refused = False
    try:
        things_of(kind, [thing])
    except (TypeError, ValueError) as error:
        is_refused = True
        hint = f"a {kind.word} is a gpulayer.plugins.{kind.contract.__name__}: {', '.join(members)}"
        yield Misfit(what, str(error), hint)
    if isinstance(thing, type) or not all(hasattr(thing, name) for name in members):
        return
    found = [misfit for method in kind.methods for misfit in _call_misfits(kind.contract, thing, method, what)]
    if isinstance(thing, ActingLauncher):
        found += _call_misfits(ActingLauncher, thing, "act", what)
    yield from found
    pure = _PURE.get(kind.contract)
    if pure is not None and not is_refused and not found:
        yield from pure(thing, what)


def _call_misfits(contract: type, thing: object, method: str, what: str) -> Iterator[Misfit]:
    """Whether it can be called as the contract has it."""
    where = f"{what}.{method}"
    function = getattr(thing, method)
    _, *due = inspect.signature(vars(contract)[method]).parameters.values()
    shown = f"{method}({', '.join(str(parameter.replace(annotation=parameter.empty)) for parameter in due)})"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # it can't be called, which has been said; or of an extension module: nobody can tell
    words = {parameter.name: None for parameter in due if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        signature.bind(*[None] * (len(due) - len(words)), **words)
    except TypeError as error:
        keyword = f", {', '.join(words)} by keyword" if words else ""
        yield Misfit(where, f"it can't be called as {shown}{keyword}: {error}", f"it is {method}{signature} now")


def job_check_misfits(check: Callable[[JobSpec], object]) -> Iterator[Misfit]:
    """What is wrong with what it says of jobs: of a usual one, and of odd ones. Raises what its code raises."""
    what = "gpulayer_check_job"
    for spec in (usual_job(), *odd_jobs()):
        said = check(spec)
        try:
            for problem in list_of(Problem, said, at_most=_MOST_PROBLEMS):
                instance_of(Severity, problem.severity)
                for text in (problem.message, problem.field, problem.hint):
                    instance_of(str, text)
        except (TypeError, ValueError) as error:
            yield Misfit(what, str(error), "return a list of Problem, empty where there is nothing to say")
            return


def _check_misfits(check: FrameworkCheck, what: str) -> Iterator[Misfit]:
    script: object = check.script()
    if not isinstance(script, CheckScript) or not isinstance(script.source, str):
        yield Misfit(f"{what}.script", f"it gave a {type(script).__name__}, where a CheckScript is due")
        return
    modules: object = script.modules
    if not isinstance(modules, tuple) or not all(isinstance(one, str) and one.isidentifier() for one in modules):
        yield Misfit(f"{what}.script", "modules is no tuple of names of modules", "whole modules, as torch")
    try:
        ast.parse(script.source, feature_version=_OLDEST_PYTHON)
    except (SyntaxError, ValueError) as error:
        yield Misfit(f"{what}.script", f"its source is no Python: {error}", "it has to run in Python 3.9 and newer")


def _environment_misfits(builder: EnvironmentBuilder, what: str) -> Iterator[Misfit]:
    with tempfile.TemporaryDirectory(prefix="gpulayer-check-") as folder:
        try:
            plan: object = builder.plan(EnvironmentRequest(builder.name, Path(folder)))
        except BuildFailed:
            return  # an empty folder may well be refused
    if not isinstance(plan, EnvironmentPlan):
        yield Misfit(f"{what}.plan", f"it gave a {type(plan).__name__}, where an EnvironmentPlan is due")


def _launcher_misfits(launcher: Launcher, what: str) -> Iterator[Misfit]:
    folder = Path(tempfile.gettempdir()) / "gpulayer-check"
    attempt = Assignment(NodeKey(Epoch(1), 0), JobId("7f3a000000000001"), 1, ("python", "train.py"))
    site = LaunchSite(folder / "work", folder / "out", folder / "log", folder / "exit")
    machine = Machine(WorkerFacts("linux-x86_64", "0", 4, 2**34), {"PATH": "/usr/bin:/bin"})
    try:
        plan: object = launcher.plan(attempt, site, machine)
        again: object = launcher.plan(attempt, site, machine)
    except LaunchRefused:
        return
    try:
        plan_as_given(plan, attempt, site)
    except (TypeError, ValueError) as error:
        yield Misfit(f"{what}.plan", str(error), "every worker refuses such a plan")
    if plan != again:
        hint = "a restarted worker asks again: no clock, no random numbers, no counters"
        yield Misfit(f"{what}.plan", "the same arguments gave another plan", hint)


def _scorer_misfits(scorer: Scorer, what: str) -> Iterator[Misfit]:
    opinions: object = scorer.score(ScoreBatch((), (), (), wall_ms=1_764_514_800_000))
    if not isinstance(opinions, list | tuple):
        yield Misfit(f"{what}.score", f"it gave a {type(opinions).__name__}, where a list is due")
    elif opinions:
        yield Misfit(f"{what}.score", f"it gave {len(opinions)} opinions for no pair", "one a pair, in their order")


_PURE: Final[Mapping[type, Callable[[Any, str], Iterator[Misfit]]]] = {  # Any: checked before
    FrameworkCheck: _check_misfits,
    EnvironmentBuilder: _environment_misfits,
    Launcher: _launcher_misfits,
    Scorer: _scorer_misfits,
}
