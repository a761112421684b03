"""The plugins of one process: found, tried, loaded, registered; and asked, each behind the guard.

What is wrong with one is in its record, and everything else works on. With ``strict`` it is raised instead.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import pluggy

from gpulayer.clock import Clock
from gpulayer.plugins import hooks
from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.guard import Guard, Life
from gpulayer.plugins.record import PluginRecord
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.plugins.settings import PluginSettings

__all__ = ["Host", "load_plugins"]

T = TypeVar("T")
R = TypeVar("R")


class Host:
    """``registry``: what may be asked, through ``call`` and ``acall``. ``close`` it in the end."""

    def __init__(self, registry: Registry, guard: Guard, records: Callable[[], tuple[PluginRecord, ...]]) -> None:
        self.registry = registry
        self._guard = guard
        self._records = records

    def records(self) -> tuple[PluginRecord, ...]:
        """Of all plugins that were found, whatever became of them; by name, core's own first."""
        return self._records()

    def call(
        self,
        registered: Registered[T],
        method: str,
        ask: Callable[[T], R],
        *,
        deadline_s: float,
        passes: tuple[type[Exception], ...] = (),
        life: Life | None = None,
    ) -> R:
        """Ask something registered; see ``Guard.call``. ``method``: for people: ``Probe.look``.

        ``ask`` calls it and checks what it gives (``plugins.results``). Raises PluginFault, and what ``passes``.
        """
        return self._guard.call(
            registered.plugin,
            method,
            lambda: ask(registered.thing),
            deadline_s=deadline_s,
            passes=passes,
            life=life,
        )

    async def acall(
        self,
        registered: Registered[T],
        method: str,
        ask: Callable[[T], R],
        *,
        deadline_s: float,
        passes: tuple[type[Exception], ...] = (),
        life: Life | None = None,
    ) -> R:
        """``call`` for an event loop."""
        return await self._guard.acall(
            registered.plugin,
            method,
            lambda: ask(registered.thing),
            deadline_s=deadline_s,
            passes=passes,
            life=life,
        )

    def note(self, plugin: str, method: str, message: str) -> None:
        """Put into a plugin's record what showed elsewhere than in a call of it."""
        self._guard.note(plugin, method, message)

    def close(self) -> None:
        """Let go of the threads that are idle. A call that hangs keeps its own, which ends with the process."""
        self._guard.close()


def load_plugins(
    where: Where, settings: PluginSettings, *, clock: Clock, version: str, python: str = sys.executable
) -> Host:
    """Find, try and register all plugins. Blocks, for some seconds where one hangs at its import.

    python: runs the child that tries imports first.
    """
    guard = Guard(clock=clock, strict=settings.strict)
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    records = []
    for name, module in BUILTINS.items():
        manager.register(import_module(module), name)
        records.append(PluginRecord(name, "gpulayer-core", version, hooks.API_VERSION, is_builtin=True))
    return Host(_registry(manager, where, settings, version), guard, lambda: tuple(records))


def _registry(manager: pluggy.PluginManager, where: Where, settings: PluginSettings, version: str) -> Registry:
    def ask(hook: str) -> list[Registered[Any]]:  # Any: by hook
        found: list[Registered[Any]] = []
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            name = implementation.plugin_name
            ctx = Context(where, name, version, settings.options.get(name, {}))
            found.extend(Registered(name, thing) for thing in implementation.function(ctx))
        return found

    return Registry(
        probes=tuple(ask("gpulayer_register_probes")),
        framework_checks=tuple(ask("gpulayer_register_framework_checks")),
        environments={one.thing.name: one for one in ask("gpulayer_register_environments")},
        launchers={one.thing.name: one for one in ask("gpulayer_register_launchers")},
        stagers={one.thing.scheme: one for one in ask("gpulayer_register_stagers")},
        scorers=tuple(ask("gpulayer_register_scorers")),
        providers={one.thing.name: one for one in ask("gpulayer_register_providers")},
        event_sinks=tuple(ask("gpulayer_register_event_sinks")) if where is not Where.WORKER else (),
    )
