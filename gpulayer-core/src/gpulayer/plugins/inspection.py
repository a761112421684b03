"""Whether a module that was imported can be a plugin: the API that it says it needs, and the shape of its hooks. Pure.

pluggy accepts much that does not do what it looks like: an argument with a default is never passed, the coroutine of an
``async def`` is never awaited, a hook with a typing error is never called. All of that is refused, with the reason.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

import pluggy

from gpulayer.plugins import hooks
from gpulayer.plugins.hooks import API_VERSION, PROJECT
from gpulayer.plugins.record import PluginStatus

__all__ = ["DEFAULT_PRIORITY", "HOOKS", "Inspected", "deprecation", "hooks_of", "inspect_plugin", "parameters_of"]

DEFAULT_PRIORITY: Final = 10

HOOKS: Final[dict[str, tuple[str, ...]]] = {
    name: tuple(inspect.signature(spec).parameters)
    for name, spec in vars(hooks).items()
    if name.startswith("gpulayer_") and inspect.isfunction(spec)
}
"""Names of all hooks, with those of their arguments."""

_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_ORDINARY: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What it says of itself. ``status``: OK, INCOMPATIBLE or BROKEN; the last two with error and hint."""

    api: str = ""
    priority: int = DEFAULT_PRIORITY
    hooks: tuple[str, ...] = ()
    status: PluginStatus = PluginStatus.OK
    error: str = ""
    hint: str = ""


def inspect_plugin(plugin: object) -> Inspected:
    """What was imported, as it is now. What it holds is read, none of it is called; a module may still run code of its
    own on being read, so this belongs behind the guard."""
    if not isinstance(plugin, ModuleType):
        return _broken("what was imported is no module", hint="a plugin must not put something else into sys.modules")
    api, error, hint = _api(vars(plugin).get("GPULAYER_API"))
    if error:
        return Inspected(api, status=PluginStatus.INCOMPATIBLE, error=error, hint=hint)
    priority = vars(plugin).get("GPULAYER_PRIORITY", DEFAULT_PRIORITY)
    if type(priority) is not int:
        return _broken(f"GPULAYER_PRIORITY is {type(priority).__name__}, not int", api=api, hint="smaller comes first")
    marked = dict(_marked(plugin))
    problems = [
        problem for name, (function, options) in marked.items() for problem in _problems(name, function, options)
    ]
    problems += [
        (f"{name} is not marked as a hook, so it is never called", "write @hookimpl (from gpulayer.plugins) above it")
        for name, value in vars(plugin).items()
        if name in HOOKS and name not in marked and callable(value)
    ]
    problems += _twice(marked)
    used = tuple(sorted({_hook(name, options) for name, (_, options) in marked.items()} & set(HOOKS)))
    if problems:
        error, hint = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return _broken(error + more, hint=hint, api=api, priority=priority, hooks=used)
    if not used:
        hint = f"mark functions with @hookimpl (from gpulayer.plugins); hooks: {', '.join(HOOKS)}"
        return _broken("it implements no hook", hint=hint, api=api, priority=priority)
    return Inspected(api, priority, used)


def hooks_of(plugin: ModuleType) -> dict[str, Callable[..., Any]]:  # Any: a hook of any kind
    """Its implementations by the names of the hooks, as pluggy finds them: a function may have another name."""
    return {_hook(name, options): function for name, (function, options) in _marked(plugin)}


def deprecation(hooks: Collection[str], deprecated: Mapping[str, str]) -> str:
    """A note on those of these hooks that the next major version takes away; empty where there is none."""
    found = [f"{hook} is deprecated: {deprecated[hook]}" for hook in hooks if hook in deprecated]
    return f"{'; '.join(found)} (the plugin API {int(API_VERSION.partition('.')[0]) + 1}.0 ends it)" if found else ""


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:  # Any: a hook of any kind
    """The names of what an inspected hook is to be called with, by position."""
    return tuple(inspect.signature(function).parameters)


def _broken(
    error: str, *, hint: str, api: str = "", priority: int = DEFAULT_PRIORITY, hooks: tuple[str, ...] = ()
) -> Inspected:
    return Inspected(api, priority, hooks, PluginStatus.BROKEN, error, hint)


def _api(said: object) -> tuple[str, str, str]:
    """What it needs, error and hint."""
    write = f'write GPULAYER_API = "{API_VERSION}" into the module: the version that it was written for'
    if said is None:
        return "", "it does not say which GPULAYER_API it needs", write
    match = _VERSION.fullmatch(said) if type(said) is str else None
    if match is None or type(said) is not str:
        shown = repr(said)[:40] if type(said) in (str, int, float) else f"a {type(said).__name__}"
        return "", f"its GPULAYER_API is {shown}, not MAJOR.MINOR in text", write
    major, minor = (int(part) for part in match.groups())
    ours_major, ours_minor = (int(part) for part in API_VERSION.split("."))
    if major == ours_major and minor <= ours_minor:
        return said, "", ""
    is_newer = (major, minor) > (ours_major, ours_minor)
    return (
        said,
        f"it needs the plugin API {said}; this gpulayer has {API_VERSION}",
        "upgrade gpulayer-core, or install an older version of the plugin" if is_newer else "upgrade the plugin",
    )


def _marked(plugin: ModuleType) -> Iterator[tuple[str, tuple[Any, dict[str, Any]]]]:  # Any: whatever was marked
    """As pluggy finds them: by name, what was marked and with which options."""
    manager = pluggy.PluginManager(PROJECT)
    for name in sorted(vars(plugin)):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is not None:
            yield name, (getattr(plugin, name), dict(options))


def _twice(marked: dict[str, tuple[Any, dict[str, Any]]]) -> Iterator[tuple[str, str]]:  # Any: see _marked
    by_hook: dict[str, list[str]] = {}
    for name, (_, options) in marked.items():
        by_hook.setdefault(_hook(name, options), []).append(name)
    for hook, names in by_hook.items():
        if hook in HOOKS and len(names) > 1:
            hint = "write one function that gives what all of them give"
            yield f"{' and '.join(names)} are all for the hook {hook}, which a plugin has once", hint


def _hook(name: str, options: dict[str, Any]) -> str:  # Any: by option
    return str(options.get("specname") or name)


def _problems(name: str, function: Any, options: dict[str, Any]) -> Iterator[tuple[str, str]]:  # Any: whatever it is
    """Error and hint of each."""
    hook = _hook(name, options)
    if hook not in HOOKS:
        if options.get("optionalhook"):
            return
        near = get_close_matches(hook, HOOKS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"hooks of API {API_VERSION}: {', '.join(HOOKS)}"
        yield f"there is no hook {hook}", hint
        return
    if options.get("wrapper") or options.get("hookwrapper"):
        yield f"{name} wraps the hook of other plugins", "a plugin adds its own: write @hookimpl without options"
        return
    if options.get("tryfirst") or options.get("trylast"):
        yield f"{name} has tryfirst or trylast", "the order is that of GPULAYER_PRIORITY, smaller first, then of names"
        return
    plain = inspect.unwrap(function)
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        yield f"{name} is async", "hooks are called in a thread of their own and may block: write it with def"
        return
    if inspect.isgeneratorfunction(plain):
        yield f"{name} is a generator", "return a list of all instead of yielding one after the other"
        return
    due = HOOKS[hook]
    takes = f"it may take {' and '.join(due)}, by name, in any order"
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _ORDINARY:
            star = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else "*"
            is_kw_only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            what = f"the keyword-only argument {parameter.name}" if is_kw_only else f"{star}{parameter.name}"
            yield f"{name} has {what}, which is never passed", takes
        elif parameter.default is not inspect.Parameter.empty:
            yield f"{name} has a default for {parameter.name}, so it would never be passed", f"{takes}; no defaults"
        elif parameter.name not in due:
            near = get_close_matches(parameter.name, due, n=1)
            yield f"{name} has the unknown argument {parameter.name}", f"did you mean {near[0]}?" if near else takes
