"""The plugins of one process: found, tried, loaded, registered; and asked, each behind the guard.

What is wrong with one is in its record, and everything else works on. With ``strict`` it is raised instead.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpulayer.clock import Clock
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.discovery import Found, discover
from gpulayer.plugins.guard import Guard, Life
from gpulayer.plugins.hooks import DEPRECATED, REGISTER_DEADLINE_S
from gpulayer.plugins.loading import Loader
from gpulayer.plugins.record import PluginRecord
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.plugins.settings import PluginSettings

__all__ = ["Host", "load_plugins"]

T = TypeVar("T")
R = TypeVar("R")


class Host:
    """``registry``: what may be asked, through ``call`` and ``acall``. ``close`` it in the end."""

    def __init__(
        self,
        registry: Registry,
        guard: Guard,
        records: Callable[[], tuple[PluginRecord, ...]],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.registry = registry
        self._guard = guard
        self._records = records
        self._close = close

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

        ``ask`` calls it and checks what it gives (``plugins.results``). Raises PluginFault, PluginResting where it was
        not asked, and what ``passes``.
        """
        return self._guard.call(
            registered.plugin,
            method,
            lambda: ask(registered.thing),
            thing=registered.key,
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
            thing=registered.key,
            deadline_s=deadline_s,
            passes=passes,
            life=life,
        )

    def is_resting(self, registered: Registered[Any]) -> bool:  # Any: of any kind
        """Whether a call of any of its methods would be refused now with PluginResting, because others failed."""
        return self._guard.is_resting(registered.plugin, registered.key)

    def line(self, text: str) -> str:
        """What a plugin says to others, as a line: of a bearable length, and without the secrets of all plugins. Of its
        options it may tell the others."""
        return self._guard.line("", text)

    def hidden(self, registered: Registered[Any], text: str) -> str:  # Any: of any kind
        """What it has said, without the secrets of its plugin; to be asked before the text is cut."""
        return self._guard.hidden(registered.plugin, text)

    def note(self, plugin: str, method: str, message: str) -> None:
        """Put into a plugin's record what showed elsewhere than in a call of it."""
        self._guard.note(plugin, method, message)

    def close(self) -> None:
        """Let go of the threads that are idle. A call that hangs keeps its own, which ends with the process. May be
        repeated."""
        self._guard.close()
        self._close()


def load_plugins(
    where: Where,
    settings: PluginSettings,
    *,
    clock: Clock,
    version: str,
    python: str = sys.executable,
    marks: Path | None = None,
    discover: Callable[[], tuple[Found, ...]] = discover,
    register_deadline_s: float = REGISTER_DEADLINE_S,
    deprecated: Mapping[str, str] = DEPRECATED,
    begun: Callable[[Callable[[], None]], None] = lambda close: None,
    trying: Callable[[tuple[str, ...]], None] = lambda names: None,
) -> Host:
    """Find, try and register all plugins. Blocks, for some seconds where one hangs at its import.

    python: runs the child that tries imports first. marks: the file, of this process alone, that says at the next start
    which plugin's call ended the process, see ``plugins.marks``. deprecated: see ``hooks.DEPRECATED``. With
    ``settings.strict`` nothing is tried first, so that what a plugin raises is raised here; raises PluginFault for all
    else that is wrong with one. begun: told how to let go of it all where this does not return, before anything of a
    plugin runs; from any thread, more than once. trying: told which plugins are being imported whenever that changes,
    for whoever waits for them; none in the end.
    """
    loader = Loader(
        where,
        settings,
        clock=clock,
        version=version,
        python=python,
        marks=marks,
        discover=discover,
        register_deadline_s=register_deadline_s,
        deprecated=deprecated,
        trying=trying,
    )
    try:
        begun(loader.close)
        registry = loader.load()
    except BaseException:
        loader.close()
        raise
    return Host(registry, loader.guard, loader.records, loader.close)
