"""What the registration hooks of plugins give, checked and sorted into the registry.

One implementation is asked at a time, behind the guard; what is wrong with one hurts no other. ``KINDS`` says which
hook gives what, where, and what such a thing must have.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.contracts.environment import EnvironmentBuilder
from gpulayer.plugins.contracts.event import EventKind, EventSink
from gpulayer.plugins.contracts.framework import FrameworkCheck
from gpulayer.plugins.contracts.launcher import ActingLauncher, Launcher
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.contracts.provider import Provider
from gpulayer.plugins.contracts.scorer import MAX_LIFETIME_S, Scorer
from gpulayer.plugins.contracts.stager import Stager
from gpulayer.plugins.inspection import parameters_of
from gpulayer.plugins.registry import HookSink, Registered, Registry
from gpulayer.plugins.results import list_of, shown
from gpulayer.spec.capabilities import is_plain_name
from gpulayer.spec.request import Accelerator

__all__ = [
    "KINDS",
    "MOST_THINGS",
    "Implementation",
    "Kind",
    "Offered",
    "bound",
    "clashes",
    "provided",
    "registry_of",
    "things_of",
]

MOST_THINGS: Final = 64

_EMPTY: Final = Registry()
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]{0,62}")  # RFC 3986, 3.1; and it is a plain name, too
_RULES: Final[Mapping[str, Callable[[str], object]]] = {"name": is_plain_name, "scheme": _SCHEME.fullmatch}
_NAMES: Final = {
    "name": "a lower-case letter, then letters, digits and . _ + -, at most 63 in all",
    "scheme": "that of URIs, without the colon: a lower-case letter, then letters, digits and . + -, at most 63 in all",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """``field``: of the registry, which the hook of that name fills, where they are used. ``word``: in records:
    ``launcher torch``. is_single: of one name there may be only one. key: the attribute that holds the name."""

    field: str
    word: str
    contract: type
    wheres: tuple[Where, ...]
    methods: tuple[str, ...]
    key: str = "name"
    is_single: bool = True

    @property
    def hook(self) -> str:
        return f"gpulayer_register_{self.field}"


KINDS: Final = (
    Kind("probes", "probe", Probe, (Where.WORKER,), ("look",)),
    # Several may know something of one framework, each on its own accelerators.
    Kind("framework_checks", "check", FrameworkCheck, (Where.WORKER,), ("script",), is_single=False),
    Kind("environments", "environment", EnvironmentBuilder, (Where.WORKER,), ("plan", "build")),
    Kind("launchers", "launcher", Launcher, (Where.WORKER,), ("plan",)),
    Kind("stagers", "stager", Stager, (Where.WORKER,), ("fetch",), key="scheme"),
    Kind("scorers", "scorer", Scorer, (Where.PLANE,), ("score",)),
    Kind("providers", "provider", Provider, (Where.PLANE,), ("offers", "create", "list", "destroy")),
    Kind("event_sinks", "event sink", EventSink, (Where.PLANE,), ("tell",), is_single=False),
)


@dataclass(frozen=True, slots=True)
class Implementation:
    """Of one hook by one plugin."""

    plugin: str
    priority: int
    function: Callable[..., Any]  # Any: by hook
    context: Context = field(repr=False)


@dataclass(frozen=True, slots=True)
class Offered:
    """What one plugin registers of one kind."""

    kind: Kind
    plugin: str
    priority: int
    things: tuple[Registered[Any], ...]  # Any: by kind


def bound(implementation: Implementation) -> Callable[..., Any]:  # Any: by hook
    """The hook as a function of what is not known yet (a job, an event), its context given; arguments by name, of which
    it takes those that it wants."""
    names = parameters_of(implementation.function)

    def ask(*values: Any) -> Any:  # Any: by hook
        given = dict(zip([name for name in ("spec", "event") if name in names], values, strict=False))
        given["ctx"] = implementation.context
        return implementation.function(*(given[name] for name in names))

    return ask


def things_of(kind: Kind, values: object, *, plugin: str = "") -> tuple[Registered[Any], ...]:  # Any: by kind
    """Each with what it says of itself, which nobody asks it again. All of the plugin's code that this runs belongs
    behind the guard. Raises TypeError and ValueError that say what it should be."""
    found: dict[str, Registered[Any]] = {}
    for thing in _instances(kind, values):
        name = getattr(thing, kind.key)
        what = f"its {kind.word} {type(thing).__name__}"
        if type(name) is not str or not _RULES[kind.key](name):
            said = repr(name)[:40] if type(name) is str else shown(name)
            raise ValueError(f"{what} has the {kind.key} {said}; it must be {_NAMES[kind.key]}")
        if name in found:
            raise ValueError(f"it registers two of the {kind.key} {name} ({kind.word})")
        for method in (*kind.methods, *(("act",) if isinstance(thing, ActingLauncher) else ())):
            act = getattr(thing, method)
            if not callable(act):
                raise TypeError(f"{what} has {shown(act)} where the method {method} is due")
            if inspect.iscoroutinefunction(act) or inspect.isasyncgenfunction(act):
                raise TypeError(f"{what}: {method} is async; it is called in a thread and may block: write it with def")
        found[name] = _read(kind, Registered(plugin, thing, name, kind.word), what)
    return tuple(found.values())


def clashes(offered: Sequence[Offered], *, builtins: frozenset[str]) -> dict[str, list[str]]:
    """By plugin, which of its things others give as well. That is nobody's then; core's own always stay."""
    givers: dict[tuple[str, str], list[str]] = {}
    for one in offered:
        for thing in one.things:
            givers.setdefault((one.kind.hook, thing.name), []).append(one.plugin)
    found: dict[str, list[str]] = {}
    for one in offered:
        for thing in one.things:
            others = sorted({each for each in givers[one.kind.hook, thing.name] if each != one.plugin})
            if one.kind.is_single and others and one.plugin not in builtins:
                found.setdefault(one.plugin, []).append(
                    f"{one.kind.word} {thing.name} is registered by {' and '.join(others)}, too"
                )
    return found


def registry_of(
    offered: Sequence[Offered], job_checks: Sequence[Implementation], event_sinks: Sequence[Implementation]
) -> Registry:
    """All that may be asked, by (priority, plugin); no two clash."""
    ordered = sorted(offered, key=lambda one: (one.priority, one.plugin))
    fields: dict[str, Any] = {}  # Any: by kind
    for kind in KINDS:
        things = tuple(thing for one in ordered if one.kind is kind for thing in one.things)
        is_mapping = isinstance(getattr(_EMPTY, kind.field), Mapping)
        fields[kind.field] = {one.name: one for one in things} if is_mapping else things
    fields["event_sinks"] += _hook_sinks(event_sinks)
    return Registry(**fields, job_checks=_bound(job_checks))


def provided(registry: Registry) -> dict[str, list[str]]:
    """By plugin, in words for people: ``launcher torch``."""
    given: dict[str, list[str]] = {}
    for kind in KINDS:
        things = getattr(registry, kind.field)
        for thing in things.values() if isinstance(things, Mapping) else things:
            given.setdefault(thing.plugin, []).append(f"{kind.word} {thing.name}")
    for check in registry.job_checks:
        given.setdefault(check.plugin, []).append("job check")
    return given


def _instances(kind: Kind, values: object) -> list[Any]:  # Any: by kind
    def lacks(value: object) -> str:
        due = (kind.key, *kind.methods)
        return ", ".join(name for name in due if not hasattr(value, name))

    found = list_of(object, values, at_most=MOST_THINGS, what=kind.contract.__name__)
    for value in found:
        if isinstance(value, type):
            raise TypeError(f"it gave the class {value.__name__} where a {kind.contract.__name__} is due: call it")
        if not isinstance(value, kind.contract):
            missing = lacks(value)
            raise TypeError(
                f"it gave {shown(value)} where a {kind.contract.__name__} is due"
                + (f"; it has no {missing}" if missing else "")
            )
    return found


def _read(kind: Kind, registered: Registered[Any], what: str) -> Registered[Any]:  # Any: whatever was registered
    """With the figures of its kind."""
    thing = registered.thing
    if kind.contract is Scorer:
        lifetime_s = thing.lifetime_s
        if type(lifetime_s) not in (int, float) or not 1 <= lifetime_s <= MAX_LIFETIME_S:
            raise ValueError(f"{what} has a lifetime_s that is no number of seconds from 1 to {MAX_LIFETIME_S:g}")
        return replace(registered, lifetime_s=float(lifetime_s))
    if kind.contract is FrameworkCheck:
        accelerators = thing.accelerators
        if type(accelerators) is not tuple or not all(isinstance(one, Accelerator) for one in accelerators):
            raise TypeError(f"{what} has accelerators that are no tuple of Accelerator")
        return replace(registered, accelerators=accelerators)
    if kind.contract is EventSink:
        kinds = thing.kinds
        if kinds is not None and not (type(kinds) is frozenset and all(isinstance(one, EventKind) for one in kinds)):
            raise TypeError(f"{what} has kinds that are neither None nor a frozenset of EventKind")
        return replace(registered, kinds=kinds)
    return registered


def _hook_sinks(implementations: Sequence[Implementation]) -> tuple[Registered[EventSink], ...]:
    sinks = ((one.plugin, HookSink(one.thing)) for one in _bound(implementations))
    return tuple(Registered(plugin, sink, sink.name, "event sink") for plugin, sink in sinks)


def _bound(implementations: Sequence[Implementation]) -> tuple[Registered[Any], ...]:  # Any: by hook
    ordered = sorted(implementations, key=lambda one: (one.priority, one.plugin))
    return tuple(Registered(one.plugin, bound(one)) for one in ordered)
