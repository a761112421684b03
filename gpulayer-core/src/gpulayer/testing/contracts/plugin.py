"""The contract of plugins, as tests: of the module that an entry point names, and of its hooks."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, Final

import pytest

from gpulayer import __version__
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.hooks import REGISTER_DEADLINE_S
from gpulayer.plugins.inspection import hooks_of, inspect_plugin, parameters_of
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.registering import KINDS, Kind, things_of
from gpulayer.testing.contracts.contract import check_plain_name, within
from gpulayer.testing.unchanged import unchanged_process

__all__ = ["PluginContract", "hook_of"]

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
        return Context(Where.CHECK, name, __version__, MappingProxyType(dict(options)))

    def test_its_name_is_plain(self, name: str) -> None:
        check_plain_name(name)

    def test_it_can_be_a_plugin(self, plugin: ModuleType) -> None:
        """Its API version, its priority, and the form of its hooks."""
        inspected = inspect_plugin(plugin)
        assert inspected.status is PluginStatus.OK, f"{inspected.error} ({inspected.hint})"

    @pytest.mark.parametrize("where", list(Where))
    def test_what_it_registers_is_what_its_hooks_promise(
        self, where: Where, plugin: ModuleType, context: Context
    ) -> None:
        for kind in KINDS:
            if where in (*kind.wheres, Where.CHECK):
                _registered(plugin, kind, where, context)

    def test_another_process_would_find_the_same(self, plugin: ModuleType, context: Context) -> None:
        for kind in KINDS:
            names = _registered(plugin, kind, Where.CHECK, context)
            assert _registered(plugin, kind, Where.CHECK, context) == names, kind.hook

    def test_registering_prints_and_changes_nothing(
        self, plugin: ModuleType, context: Context, capfd: pytest.CaptureFixture[str]
    ) -> None:
        capfd.readouterr()
        with unchanged_process():
            for kind in KINDS:
                _registered(plugin, kind, Where.CHECK, context)
        assert capfd.readouterr() == ("", ""), "what it says belongs into a logger"

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
    function = hooks_of(module)[name]
    taken = parameters_of(function)

    def call(**arguments: object) -> object:
        return function(**{key: value for key, value in arguments.items() if key in taken})

    return call


def _registered(plugin: ModuleType, kind: Kind, where: Where, context: Context) -> list[str]:
    """Names, of things that are what they should be."""
    if kind.hook not in hooks_of(plugin):
        return []
    here = Context(where, context.plugin, context.version, context.options)
    ask = hook_of(plugin, kind.hook)
    return [one.name for one in within(REGISTER_DEADLINE_S, lambda: things_of(kind, ask(ctx=here)))]
