"""Light checks of what a plugin registers, against its contract: types, names, signatures, and the parts that are pure.

They call the plugin's code, so they belong into a child (``plugins.trial``). Contract classes of ``gpulayer.testing``
prove much more, in the plugin's own tests.
"""

import ast
import inspect
import re
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
    LaunchPlan,
    LaunchRefused,
    LaunchSite,
    Machine,
)
from gpulayer.plugins.contracts.scorer import MAX_LIFETIME_S, ScoreBatch, Scorer
from gpulayer.plugins.registering import Kind
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.capabilities import is_plain_name
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Accelerator

__all__ = ["Misfit", "misfits"]

_OLDEST_PYTHON: Final = (3, 9)  # that a check's script has to run in
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")  # RFC 3986, 3.1


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
    lacking = [name for name in members if not hasattr(thing, name)]
    if lacking:
        hint = f"a {kind.word} is a gpulayer.plugins.{kind.contract.__name__}: {', '.join(members)}"
        yield Misfit(what, f"it has no {' and no '.join(lacking)}", hint)
        return
    yield from _name_misfits(kind, thing, what)
    found = [misfit for method in kind.methods for misfit in _call_misfits(kind.contract, thing, method, what)]
    if isinstance(thing, ActingLauncher):
        found += _call_misfits(ActingLauncher, thing, "act", what)
    yield from found
    pure = _PURE.get(kind.contract)
    if pure is not None and not found:
        yield from pure(thing, what)


def _name_misfits(kind: Kind, thing: object, what: str) -> Iterator[Misfit]:
    name = getattr(thing, kind.key)
    where = f"{what}.{kind.key}"
    if not isinstance(name, str):
        hint = "make it a property or an attribute" if callable(name) else "it has to be a text"
        yield Misfit(where, f"it is a {type(name).__name__}, where a text is due", hint)
    elif kind.key == "scheme" and not _SCHEME.fullmatch(name):
        yield Misfit(where, f"{name[:60]!r} is no URI scheme", "lower case, without the colon: s3")
    elif kind.key == "name" and not is_plain_name(name):
        hint = "a lower-case letter, then letters, digits and . _ + -, at most 63"
        yield Misfit(where, f"{name[:60]!r} can't be a name", hint)


def _call_misfits(contract: type, thing: object, method: str, what: str) -> Iterator[Misfit]:
    """Whether it can be called as the contract has it."""
    where = f"{what}.{method}"
    function = getattr(thing, method)
    _, *due = inspect.signature(vars(contract)[method]).parameters.values()
    shown = f"{method}({', '.join(str(parameter.replace(annotation=parameter.empty)) for parameter in due)})"
    if not callable(function):
        yield Misfit(where, "it can't be called", f"the contract has {shown}")
        return
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield Misfit(where, "it is async, and nobody awaits it", "write it as a plain def; it runs in a thread")
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of an extension module: nobody can tell
    words = {parameter.name: None for parameter in due if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        signature.bind(*[None] * (len(due) - len(words)), **words)
    except TypeError as error:
        keyword = f", {', '.join(words)} by keyword" if words else ""
        yield Misfit(where, f"it can't be called as {shown}{keyword}: {error}", f"it is {method}{signature} now")


def _check_misfits(check: FrameworkCheck, what: str) -> Iterator[Misfit]:
    kinds: object = check.accelerators
    if not isinstance(kinds, tuple) or not all(isinstance(kind, Accelerator) for kind in kinds):
        yield Misfit(f"{what}.accelerators", "it is no tuple of Accelerator", "(Accelerator.CUDA, Accelerator.CPU)")
    script: object = check.script()
    if not isinstance(script, CheckScript) or not isinstance(script.source, str):
        yield Misfit(f"{what}.script", f"it gave a {type(script).__name__}, where a CheckScript is due")
        return
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
    if not isinstance(plan, LaunchPlan):
        yield Misfit(f"{what}.plan", f"it gave a {type(plan).__name__}, where a LaunchPlan is due")
    elif plan != again:
        hint = "a restarted worker asks again: no clock, no random numbers, no counters"
        yield Misfit(f"{what}.plan", "the same arguments gave another plan", hint)


def _scorer_misfits(scorer: Scorer, what: str) -> Iterator[Misfit]:
    lifetime_s: object = scorer.lifetime_s
    if not isinstance(lifetime_s, int | float) or not 1 <= lifetime_s <= MAX_LIFETIME_S:
        hint = f"a number of seconds from 1 to {MAX_LIFETIME_S:,.0f}"
        yield Misfit(f"{what}.lifetime_s", f"it is {lifetime_s!r:.60}", hint)
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
