"""The contract of plugins, as tests: of the module that an entry point names, and of its hooks."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, Final

import pytest

from gpulayer.plugins import hooks
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.contracts.environment import EnvironmentBuilder
from gpulayer.plugins.contracts.framework import FrameworkCheck
from gpulayer.plugins.contracts.launcher import Launcher
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.contracts.provider import Provider
from gpulayer.plugins.contracts.scorer import Scorer
from gpulayer.plugins.contracts.stager import Stager
from gpulayer.testing.contracts.contract import check_plain_name, within
from gpulayer.testing.unchanged import unchanged_process

__all__ = ["PluginContract", "hook_of"]

_REGISTERED: Final[Mapping[str, tuple[Where, type, str]]] = MappingProxyType(
    {
        "gpulayer_register_probes": (Where.WORKER, Probe, "name"),
        "gpulayer_register_framework_checks": (Where.WORKER, FrameworkCheck, "name"),
        "gpulayer_register_environments": (Where.WORKER, EnvironmentBuilder, "name"),
        "gpulayer_register_launchers": (Where.WORKER, Launcher, "name"),
        "gpulayer_register_stagers": (Where.WORKER, Stager, "scheme"),
        "gpulayer_register_scorers": (Where.PLANE, Scorer, "name"),
        "gpulayer_register_providers": (Where.PLANE, Provider, "name"),
    }
)
"""By hook: where it is called, what it registers, and which attribute names that."""

_IMPORT: Final = """
import json, sys
from gpulayer.testing.unchanged import unchanged_process
import gpulayer.plugins
sys.path[:0] = json.loads(sys.argv[2])
with unchanged_process():
    __import__(sys.argv[1])
"""


class PluginContract:
    """``class TestMine(PluginContract)`` with a fixture ``plugin``, the module. ``options``: those that the plugin is
    set up with, where it needs any; ``name``: of its entry point, where it is not that of the module."""

    @pytest.fixture
    def plugin(self) -> ModuleType:
        raise NotImplementedError("a fixture `plugin` gives the module that the entry point names")

    @pytest.fixture
    def options(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def name(self, plugin: ModuleType) -> str:
        return plugin.__name__.partition(".")[0].removeprefix("gpulayer_").replace("_", "-")

    @pytest.fixture
    def context(self, name: str, options: Mapping[str, str]) -> Context:
        return Context(Where.CHECK, name, "0.1.0", MappingProxyType(dict(options)))

    def test_its_name_is_plain(self, name: str) -> None:
        check_plain_name(name)

    def test_it_says_which_api_it_was_written_for(self, plugin: ModuleType) -> None:
        said = getattr(plugin, "GPULAYER_API", None)
        assert isinstance(said, str), 'it says GPULAYER_API = "1.0", or another version'
        assert re.fullmatch(r"\d+\.\d+", said), f"GPULAYER_API = {said!r}: a version is like 1.0"
        asked, served = _version(said), _version(hooks.API_VERSION)
        assert asked[0] == served[0], f"it needs the API {said}, and this is {hooks.API_VERSION}"
        assert asked <= served, f"it needs the API {said}, and this is {hooks.API_VERSION}"

    def test_its_priority_is_a_number(self, plugin: ModuleType) -> None:
        priority = getattr(plugin, "GPULAYER_PRIORITY", 10)
        assert type(priority) is int, f"GPULAYER_PRIORITY = {priority!r}"

    def test_it_implements_a_hook(self, plugin: ModuleType) -> None:
        assert list(_hooks(plugin)), "no function of it is marked @hookimpl"

    def test_all_that_is_called_like_a_hook_is_one(self, plugin: ModuleType) -> None:
        marked = set(_hooks(plugin))
        for name, function in vars(plugin).items():
            if name.startswith("gpulayer_") and callable(function):
                assert name in marked, f"{name} is not marked @hookimpl, so nobody will call it"
        for name in marked:
            assert hasattr(hooks, name), f"there is no hook {name}"

    def test_its_hooks_can_be_called(self, plugin: ModuleType) -> None:
        for name, function in _hooks(plugin).items():
            assert not inspect.iscoroutinefunction(function), f"{name} is async, and nobody would await it"
            offered = inspect.signature(getattr(hooks, name)).parameters
            for parameter in inspect.signature(function).parameters.values():
                assert parameter.name in offered, f"{name}: there is no argument {parameter.name}"
                assert parameter.kind is not parameter.KEYWORD_ONLY, f"{name}: {parameter.name} is keyword-only"
                assert parameter.default is parameter.empty, f"{name}: {parameter.name} has a default"

    @pytest.mark.parametrize("where", list(Where))
    def test_what_it_registers_is_what_its_hooks_promise(
        self, where: Where, plugin: ModuleType, context: Context
    ) -> None:
        for hook, (home, kind, _) in _REGISTERED.items():
            if where in (home, Where.CHECK):
                for thing in _register(plugin, hook, where, context):
                    assert isinstance(thing, kind), f"{hook} gave a {type(thing).__name__}, which is no {kind.__name__}"

    def test_what_it_registers_has_plain_names_each_once(self, plugin: ModuleType, context: Context) -> None:
        for hook, (home, _, named) in _REGISTERED.items():
            names = [getattr(thing, named) for thing in _register(plugin, hook, home, context)]
            for name in names:
                check_plain_name(name)
            assert len(names) == len(set(names)), f"{hook}: {sorted(names)}"

    def test_another_process_would_find_the_same(self, plugin: ModuleType, context: Context) -> None:
        for hook, (home, _, named) in _REGISTERED.items():
            first = [getattr(thing, named) for thing in _register(plugin, hook, home, context)]
            assert [getattr(thing, named) for thing in _register(plugin, hook, home, context)] == first, hook

    def test_registering_prints_and_changes_nothing(
        self, plugin: ModuleType, context: Context, capfd: pytest.CaptureFixture[str]
    ) -> None:
        capfd.readouterr()
        with unchanged_process():
            for hook, (home, _, _) in _REGISTERED.items():
                _register(plugin, hook, home, context)
        assert capfd.readouterr() == ("", "")

    def test_importing_it_prints_and_changes_nothing(self, plugin: ModuleType) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT, plugin.__name__, json.dumps([place for place in sys.path if place])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"it can't be imported by itself:\n{done.stderr}"
        assert not done.stdout, f"it wrote to stdout: {done.stdout[:200]!r}"
        assert not done.stderr, f"it wrote to stderr: {done.stderr[:200]!r}"


def hook_of(plugin: ModuleType | str, name: str) -> Callable[..., Any]:  # Any: by hook
    """The plugin's implementation, to be called with all arguments of the hook by name; it gets those it takes."""
    module = import_module(plugin) if isinstance(plugin, str) else plugin
    function = _hooks(module).get(name)
    assert function is not None, f"it does not implement {name}, or not marked @hookimpl"
    taken = inspect.signature(function).parameters

    def call(**arguments: object) -> object:
        return function(**{key: value for key, value in arguments.items() if key in taken})

    return call


def _hooks(plugin: ModuleType) -> dict[str, Callable[..., Any]]:
    marker = f"{hooks.PROJECT}_impl"
    return {name: value for name, value in vars(plugin).items() if callable(value) and hasattr(value, marker)}


def _register(plugin: ModuleType, hook: str, where: Where, context: Context) -> Sequence[object]:
    if hook not in _hooks(plugin):
        return []
    here = Context(where, context.plugin, context.version, context.options)
    things = within(hooks.REGISTER_DEADLINE_S, lambda: hook_of(plugin, hook)(ctx=here))
    assert isinstance(things, Iterable), f"{hook} gave a {type(things).__name__} where a list is due"
    return list(things)


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)
