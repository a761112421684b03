"""What the registration hooks of plugins give, checked and sorted into the registry.

One implementation is asked at a time, behind the guard; what is wrong with one hurts no other. ``KINDS`` says which
hook gives what, where, and what such a thing must have.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

__all__ = ["KINDS", "MOST_THINGS", "Implementation", "Kind", "Offered", "bound", "registry_of", "things_of"]

MOST_THINGS: Final = 64


@dataclass(frozen=True, slots=True)
class Kind:
    """``hook`` registers them, where they are used. ``word``: in records: ``launcher torch``. is_single: of one name
    there may be only one. key: the attribute that holds the name."""

    hook: str
    word: str
    contract: type
    wheres: tuple[Where, ...]
    methods: tuple[str, ...]
    key: str = "name"
    is_single: bool = True


KINDS: Final = (
    Kind("gpulayer_register_probes", "probe", Probe, (Where.WORKER,), ("look",)),
    # Several may know something of one framework, each on its own accelerators.
    Kind(
        "gpulayer_register_framework_checks",
        "check",
        FrameworkCheck,
        (Where.WORKER,),
        ("script",),
        is_single=False,
    ),
    Kind("gpulayer_register_environments", "environment", EnvironmentBuilder, (Where.WORKER,), ("plan", "build")),
    Kind("gpulayer_register_launchers", "launcher", Launcher, (Where.WORKER,), ("plan",)),
    Kind("gpulayer_register_stagers", "stager", Stager, (Where.WORKER,), ("fetch",), key="scheme"),
    Kind("gpulayer_register_scorers", "scorer", Scorer, (Where.PLANE,), ("score",)),
    Kind("gpulayer_register_providers", "provider", Provider, (Where.PLANE,), ("offers", "create", "list", "destroy")),
    Kind("gpulayer_register_event_sinks", "event sink", EventSink, (Where.PLANE,), ("tell",), is_single=False),
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
    things: tuple[tuple[str, Any], ...]  # Any: by kind


def bound(implementation: Implementation) -> Callable[..., Any]:  # Any: by hook
    """The hook as a function of what is not known yet (a job, an event), its context given; arguments by name, of which
    it takes those that it wants."""
    names = parameters_of(implementation.function)

    def ask(*values: Any) -> Any:  # Any: by hook
        given = dict(zip([name for name in ("spec", "event") if name in names], values, strict=False))
        given["ctx"] = implementation.context
        return implementation.function(*(given[name] for name in names))

    return ask


def things_of(kind: Kind, values: object) -> tuple[tuple[str, Any], ...]:  # Any: by kind
    """Each with its name. All of the plugin's code that this runs belongs behind the guard. Raises TypeError and
    ValueError that say what it should be."""
    found: dict[str, Any] = {}
    for thing in _instances(kind, values):
        name = getattr(thing, kind.key)
        what = f"its {kind.word} {type(thing).__name__}"
        if type(name) is not str or not is_plain_name(name):
            said = repr(name)[:40] if type(name) is str else shown(name)
            raise ValueError(
                f"{what} has the {kind.key} {said}; it must be a lower-case letter, then letters, digits and . _ + -"
            )
        if name in found:
            raise ValueError(f"it registers two of the {kind.key} {name} ({kind.word})")
        for method in (*kind.methods, *(("act",) if isinstance(thing, ActingLauncher) else ())):
            act = getattr(thing, method)
            if not callable(act):
                raise TypeError(f"{what} has {shown(act)} where the method {method} is due")
            if inspect.iscoroutinefunction(act) or inspect.isasyncgenfunction(act):
                raise TypeError(f"{what}: {method} is async; it is called in a thread and may block: write it with def")
        _check_figures(kind, thing, what)
        found[name] = thing
    return tuple(found.items())


def registry_of(
    offered: Sequence[Offered],
    job_checks: Sequence[Implementation],
    event_sinks: Sequence[Implementation],
    *,
    builtins: frozenset[str],
) -> tuple[Registry, dict[str, list[str]]]:
    """All that may be asked, by (priority, plugin). And by plugin, what was refused because others give it, too; a
    thing of core's own always stays."""
    refused: dict[str, list[str]] = {}
    found: dict[str, list[Registered[Any]]] = {}
    for kind in KINDS:
        ours = [one for one in offered if one.kind is kind]
        givers: dict[str, list[str]] = {}
        for one in ours:
            for name, _ in one.things:
                givers.setdefault(name, []).append(one.plugin)
        kept = found.setdefault(kind.hook, [])
        for one in sorted(ours, key=lambda one: (one.priority, one.plugin)):
            for name, thing in one.things:
                others = [plugin for plugin in givers[name] if plugin != one.plugin]
                if kind.is_single and others and one.plugin not in builtins:
                    refused.setdefault(one.plugin, []).append(
                        f"{kind.word} {name} is registered by {' and '.join(sorted(others))}, too"
                    )
                else:
                    kept.append(Registered(one.plugin, thing, name, kind.word))
    registry = Registry(
        probes=tuple(found["gpulayer_register_probes"]),
        framework_checks=tuple(found["gpulayer_register_framework_checks"]),
        environments=_by_name(found["gpulayer_register_environments"]),
        launchers=_by_name(found["gpulayer_register_launchers"]),
        stagers=_by_name(found["gpulayer_register_stagers"]),
        scorers=tuple(found["gpulayer_register_scorers"]),
        providers=_by_name(found["gpulayer_register_providers"]),
        job_checks=_bound(job_checks),
        event_sinks=(*found["gpulayer_register_event_sinks"], *_hook_sinks(event_sinks)),
    )
    return registry, refused


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


def _check_figures(kind: Kind, thing: Any, what: str) -> None:  # Any: whatever was registered
    if kind.contract is Scorer:
        lifetime_s = thing.lifetime_s
        if type(lifetime_s) not in (int, float) or not 1 <= lifetime_s <= MAX_LIFETIME_S:
            raise ValueError(f"{what} has a lifetime_s that is no number of seconds from 1 to {MAX_LIFETIME_S:g}")
    if kind.contract is FrameworkCheck:
        accelerators = thing.accelerators
        if type(accelerators) is not tuple or not all(isinstance(one, Accelerator) for one in accelerators):
            raise TypeError(f"{what} has accelerators that are no tuple of Accelerator")

    if kind.contract is EventSink:
        kinds = thing.kinds
        if kinds is not None and not (type(kinds) is frozenset and all(isinstance(one, EventKind) for one in kinds)):
            raise TypeError(f"{what} has kinds that are neither None nor a frozenset of EventKind")


def _hook_sinks(implementations: Sequence[Implementation]) -> tuple[Registered[EventSink], ...]:
    sinks = ((one.plugin, HookSink(one.thing)) for one in _bound(implementations))
    return tuple(Registered(plugin, sink, sink.name, "event sink") for plugin, sink in sinks)


def _by_name(found: Sequence[Registered[Any]]) -> Mapping[str, Registered[Any]]:  # Any: by kind
    return {one.name: one for one in found}


def _bound(implementations: Sequence[Implementation]) -> tuple[Registered[Any], ...]:  # Any: by hook
    ordered = sorted(implementations, key=lambda one: (one.priority, one.plugin))
    return tuple(Registered(one.plugin, bound(one)) for one in ordered)
