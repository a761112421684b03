"""How the plugins of a process come to be loaded, and what becomes of each: the work of ``host.load_plugins``.

Core's own come first and are never tried or refused. Of the others, everything that can be known without running their
code is decided first (names, duplicates, who is allowed); then a child tries the imports; then this process imports
what is left, behind the guard, and asks the hooks that belong here.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

import pluggy

from gpulayer.clock import Clock, iso_utc
from gpulayer.errors import PluginFault, UsageError
from gpulayer.plugins import hooks
from gpulayer.plugins.ambient import Ambient
from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.discovery import Found, Installed
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.hiding import SecretsHider, hide_logged
from gpulayer.plugins.importing import IMPORT_HINT, import_plugin, why_not_imported
from gpulayer.plugins.inspection import Inspected, deprecation, inspect_plugin
from gpulayer.plugins.marks import STRIKES, Marks
from gpulayer.plugins.preflight import Tried, try_imports
from gpulayer.plugins.record import PUT_BACK, PluginRecord, PluginStatus
from gpulayer.plugins.registering import (
    KINDS,
    Implementation,
    Kind,
    Offered,
    bound,
    clashes,
    provided,
    registry_of,
    things_of,
)
from gpulayer.plugins.registry import Registry
from gpulayer.plugins.settings import IMPORT_VARIABLE, PLUGINS_VARIABLE, PluginSettings, variable_of

__all__ = ["Loader"]

_log: Final = logging.getLogger(__name__)

_CORE: Final = "gpulayer-core"
_OWN_PRIORITY: Final = 0
_LOOKED_FOR_MS: Final = 10_000
_IMPORT: Final = "import"
_RESTART: Final = "; on your own machine: gpulayer down, then start again"
_JOB_CHECK: Final = "gpulayer_check_job"
_EVENT_SINK: Final = "gpulayer_on_event"
_NOW: Final = f"or where {PLUGINS_VARIABLE} names it, which leaves out all that it does not name"


@dataclass(slots=True)
class _Plugin:
    """One that was found. found: None for core's own."""

    record: PluginRecord
    found: Found | None = None
    priority: int = _OWN_PRIORITY

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def is_ok(self) -> bool:
        return self.record.status is PluginStatus.OK


class Loader:
    """``load`` once; then ``records`` at any time, from any thread."""

    def __init__(
        self,
        where: Where,
        settings: PluginSettings,
        *,
        clock: Clock,
        version: str,
        python: str,
        marks: Path | None,
        discover: Callable[[], tuple[Found, ...]],
        register_deadline_s: float,
        deprecated: Mapping[str, str],
        trying: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._where = where
        self._settings = settings
        self._clock = clock
        self._version = version
        self._python = python
        self._installed = Installed(discover)
        self._import_deadline_s = settings.import_s
        self._register_deadline_s = register_deadline_s
        self._deprecated = deprecated
        self._trying = trying
        found = self._installed.now()
        names = {one.name for one in found} | set(BUILTINS)
        self._options = {name: settings.options_of(name, names) for name in sorted(names)}
        hider = SecretsHider(self._options)
        # Who only looks is told by the records.
        self._level = logging.DEBUG if where is Where.CHECK else logging.WARNING
        self._marks = _marks(marks, found, clock)
        self.guard = Guard(clock=clock, strict=settings.strict, hide=hider, marks=self._marks, level=self._level)
        self._undo = hide_logged(hider) if found or any(self._options.values()) else lambda: None
        self._manager = pluggy.PluginManager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        self._plugins = [_Plugin(_of(one), one) for one in found]
        self._lock = threading.Lock()
        self._looked_ms: int | None = None
        self._gone: dict[str, tuple[str, str]] = {}
        self._since: tuple[PluginRecord, ...] = ()

    def load(self) -> Registry:
        """Raises PluginFault, and what plugins raise, with ``strict`` alone."""
        builtins = [self._load_own(name, module) for name, module in BUILTINS.items()]
        self._note_marks()
        self._refuse_names()
        self._refuse_unwanted()
        self._try()
        for plugin in self._plugins:
            if plugin.is_ok:
                self._trying((plugin.name,))
                with self._blamed(plugin):
                    self._import(plugin)
        self._trying(())
        self._plugins = builtins + self._plugins
        return self._register()

    def records(self) -> tuple[PluginRecord, ...]:
        """Of all; by name, core's own first."""
        gone = self._vanished()
        return (*(self._record(plugin, gone) for plugin in self._plugins), *self._since)

    def close(self) -> None:
        """May be repeated."""
        self.guard.close()
        self._undo()

    # What is decided without running anything of theirs.

    def _load_own(self, name: str, module: str) -> _Plugin:
        plugin = import_module(module)
        self._manager.register(plugin, name)
        inspected = inspect_plugin(plugin)
        record = PluginRecord(name, _CORE, self._version, inspected.api, is_builtin=True, hooks=inspected.hooks)
        return _Plugin(record)

    def _note_marks(self) -> None:
        for mark in self._marks.left if self._marks is not None else ():
            if any(plugin.name == mark.plugin for plugin in self._plugins):
                self.guard.note(mark.plugin, mark.hook, f"the process before this one ended during {mark.hook}")

    def _refuse_names(self) -> None:
        for plugin in self._plugins:
            found = plugin.found
            assert found is not None, "only core's own have none"
            if found.error:
                self._refuse(plugin, PluginStatus.BROKEN, found.error, found.hint)
                continue
            others = [_whose(one.record) for one in self._plugins if one is not plugin and one.name == plugin.name]
            if plugin.name in BUILTINS:
                self._refuse(
                    plugin,
                    PluginStatus.DUPLICATE,
                    f"{plugin.name} is the name of a plugin of gpulayer itself",
                    f"uninstall {found.distribution}, or ask its author to choose another name",
                )
            elif others:
                self._refuse(
                    plugin,
                    PluginStatus.DUPLICATE,
                    f"{' and '.join(sorted([_whose(plugin.record), *others]))} both have a plugin {plugin.name}",
                    "uninstall one of them; until then neither is loaded",
                )

    def _refuse_unwanted(self) -> None:
        allowed = self._settings.allowed
        for plugin in self._plugins:
            is_named = allowed is not None and plugin.name in allowed
            if not plugin.is_ok:
                continue
            if allowed is not None and not is_named:
                plugin.record = replace(
                    plugin.record,
                    status=PluginStatus.DISABLED,
                    error=f"{PLUGINS_VARIABLE} does not name it",
                    hint=f"add it to {PLUGINS_VARIABLE}, or unset that",
                )
                continue
            mark = self._marks.gave_up(plugin.name, is_named=is_named) if self._marks is not None else None
            if mark is not None:
                self._refuse(
                    plugin,
                    PluginStatus.BROKEN,
                    f"the process ended during {mark.hook} of it, {STRIKES} times in a row",
                    f"another version of {plugin.record.distribution} is tried at once, this one after a day, {_NOW}",
                )
            elif self._marks is not None and self._marks.hangs(plugin.name, self._import_deadline_s, is_named=is_named):
                self._refuse(
                    plugin,
                    PluginStatus.BROKEN,
                    f"its import took longer than {self._import_deadline_s:g} s when it was tried last",
                    f"it is tried again after an hour, in another version, with more time ({IMPORT_VARIABLE}), {_NOW}",
                )
        names = {plugin.name for plugin in self._plugins} | set(BUILTINS)
        for name in sorted((allowed or frozenset()) - names):
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "it is not installed in this Python"
            unknown = _Plugin(PluginRecord(name))
            self._plugins.append(unknown)
            self._refuse(
                unknown, PluginStatus.BROKEN, f"{PLUGINS_VARIABLE} names it, and there is no such plugin", hint
            )
        self._plugins.sort(key=lambda plugin: (plugin.name, plugin.record.distribution))

    # From here on their code runs.

    def _try(self) -> None:
        if self._settings.strict:
            return
        wanted = {plugin.name: plugin for plugin in self._plugins if plugin.is_ok}
        founds = [plugin.found for plugin in wanted.values() if plugin.found is not None]
        left = list(wanted)
        self._trying(tuple(left))

        def told(name: str, tried: Tried) -> None:
            left.remove(name)
            self._trying(tuple(left))
            self._keep(wanted[name], tried.inspected)
            if tried.is_late and self._marks is not None:
                self._marks.hung(name, self._import_deadline_s)
            for fault in tried.faults:
                self.guard.note(name, _IMPORT, fault)

        try_imports(founds, python=self._python, deadline_s=self._import_deadline_s, told=told)

    def _import(self, plugin: _Plugin) -> None:
        found = plugin.found
        assert found is not None, "only core's own have none"
        before = Ambient(is_shared=True)
        try:
            module, inspected = self.guard.call(
                plugin.name, _IMPORT, lambda: self._module(found), deadline_s=self._import_deadline_s
            )
        except PluginFault as fault:
            if self._settings.strict:
                raise
            self._refuse(plugin, PluginStatus.BROKEN, fault.message, "gpulayer plugins has its faults")
            return
        finally:
            changed, lasting = before.put_back(), before.lasting()
        for what in changed:
            self.guard.note(plugin.name, _IMPORT, f"its import changed {what}, {PUT_BACK}")
        if lasting:
            changes = ", ".join(lasting)
            error = f"its import changed {changes}, which all of the process share, so that it can't be put back"
            self._refuse(plugin, PluginStatus.BROKEN, error, IMPORT_HINT)
        self._keep(plugin, inspected)
        if module is not None and inspected.status is PluginStatus.OK:
            plugin.priority = inspected.priority
            hint = self._line(plugin, deprecation(inspected.hooks, self._deprecated))
            plugin.record = replace(plugin.record, hint=hint)  # a note: it works

    def _module(self, found: Found) -> tuple[ModuleType | None, Inspected]:
        """Behind the guard."""
        try:
            module, inspected = import_plugin(found.module)
        except BaseException as error:
            if self._settings.strict:
                raise
            return None, why_not_imported(found, error)
        if not isinstance(module, ModuleType) or inspected.status is not PluginStatus.OK:
            return None, inspected
        other = self._manager.get_name(module)
        if other is not None:
            error_text = f"its module {found.module} is that of the plugin {other} already"
            hint = f"one of the two entry points of {found.distribution} is too many"
            return None, replace(inspected, status=PluginStatus.BROKEN, error=error_text, hint=hint)
        self._manager.register(module, found.name)
        return module, inspected

    def _register(self) -> Registry:
        """All or nothing: of a plugin that registers one thing badly, none is used."""
        by_name = {plugin.name: plugin for plugin in self._plugins if plugin.is_ok}
        offered: list[Offered] = []
        for kind in KINDS:
            if self._where in (*kind.wheres, Where.CHECK):
                for one in self._implementations(kind.hook):
                    with self._blamed(by_name[one.plugin]):
                        offered += self._ask(kind, one)
        for name, reasons in clashes(self._used(offered), builtins=frozenset(BUILTINS)).items():
            hint = f"uninstall one of the two, or have {PLUGINS_VARIABLE} name one; what has one name must be one thing"
            self._refuse(by_name[name], PluginStatus.DUPLICATE, "; ".join(reasons), hint)
        is_plane = self._where in (Where.PLANE, Where.CHECK)
        registry = registry_of(
            self._used(offered),
            self._implementations(_JOB_CHECK) if is_plane else (),
            self._implementations(_EVENT_SINK) if is_plane else (),
        )
        for name, words in provided(registry).items():
            by_name[name].record = replace(by_name[name].record, provides=tuple(words))
        return registry

    def _used(self, offered: Sequence[Offered]) -> list[Offered]:
        """Without those of plugins that are refused by now."""
        used = {plugin.name for plugin in self._plugins if plugin.is_ok}
        return [one for one in offered if one.plugin in used]

    def _implementations(self, hook: str) -> list[Implementation]:
        by_name = {plugin.name: plugin for plugin in self._plugins if plugin.is_ok}
        found = []
        for one in getattr(self._manager.hook, hook).get_hookimpls():
            plugin = by_name.get(one.plugin_name)
            if plugin is not None:
                context = Context(self._where, plugin.name, self._version, self._options[plugin.name])
                found.append(Implementation(plugin.name, plugin.priority, one.function, context))
        return sorted(found, key=lambda one: (one.priority, one.plugin))

    def _ask(self, kind: Kind, one: Implementation) -> list[Offered]:
        [plugin] = [each for each in self._plugins if each.name == one.plugin and each.is_ok]
        ask = bound(one)
        try:
            things = self.guard.call(
                one.plugin,
                kind.hook,
                lambda: things_of(kind, ask(), plugin=one.plugin),
                deadline_s=self._register_deadline_s,
                passes=(UsageError,),
            )
        except UsageError as error:  # of its options
            self._refuse(plugin, PluginStatus.BROKEN, error.message, error.hint)
            return []
        except PluginFault as fault:
            if self._settings.strict:
                raise
            self._refuse(plugin, PluginStatus.BROKEN, fault.message, self._advice(plugin))
            return []
        return [Offered(kind, one.plugin, one.priority, things)]

    def _advice(self, plugin: _Plugin) -> str:
        """What may mend it. Options are read in the hooks that register, so that one of them may be what is wrong."""
        options = sorted(self._options[plugin.name])
        if not options:
            return "tell the plugin's author; see its faults"
        named = ", ".join(variable_of(plugin.name, option) for option in options)
        return f"look at its options ({named}); gpulayer plugins check {plugin.name} shows where it failed"

    # What is told of them.

    def _keep(self, plugin: _Plugin, inspected: Inspected) -> None:
        plugin.record = replace(plugin.record, api=self._line(plugin, inspected.api), hooks=inspected.hooks)
        if inspected.status is not PluginStatus.OK:
            self._refuse(plugin, inspected.status, inspected.error, inspected.hint)

    def _refuse(self, plugin: _Plugin, status: PluginStatus, error: str, hint: str) -> None:
        # The first reason is the one to act on.
        if plugin.is_ok:
            error, hint = self._line(plugin, error), self._line(plugin, hint)
            plugin.record = replace(plugin.record, status=status, error=error, hint=hint)
            _log.log(self._level, "plugin %s: %s", plugin.name, error)
        if self._settings.strict:
            self._raise(plugin)

    def _raise(self, plugin: _Plugin) -> NoReturn:
        record = plugin.record
        raise PluginFault(
            f"plugin {record.name}: {record.error}{_by(record)}", hint=record.hint, details={"plugin": record.name}
        )

    @contextmanager
    def _blamed(self, plugin: _Plugin) -> Iterator[None]:
        """With ``strict`` what a plugin raised is raised as it is; this says whose it was."""
        try:
            yield
        except PluginFault as fault:
            if fault.message.endswith(_by(plugin.record)):
                raise
            message = f"{fault.message}{_by(plugin.record)}"
            raise PluginFault(message, hint=fault.hint, details=fault.details) from fault
        except BaseException as error:
            with suppress(Exception):  # it is the plugin's, and may refuse that, too
                BaseException.add_note(error, f"(raised by plugin {plugin.name} of {_whose(plugin.record)})")
            raise

    def _line(self, plugin: _Plugin, text: str) -> str:
        return self.guard.line(plugin.name, text)

    def _record(self, plugin: _Plugin, gone: dict[str, tuple[str, str]]) -> PluginRecord:
        record = plugin.record
        faults, last = self.guard.faults_of(plugin.name)
        record = replace(record, faults=faults, last_faults=last)
        if record.status is not PluginStatus.OK:
            return record
        if self.guard.is_suspended(plugin.name):
            record = replace(
                record,
                status=PluginStatus.SUSPENDED,
                error=last[-1].message if last else "",
                hint=f"it failed several times in a row, and is tried again {self._again(plugin.name)}",
            )
        elif plugin.name in gone:
            error, hint = gone[plugin.name]
            record = replace(record, error=error, hint=hint)
        return record

    def _again(self, name: str) -> str:
        at_ms = self.guard.tried_again_ms(name)
        # A time, and not how long: what a worker tells again whenever it changes must not change by itself.
        return "when it is needed next" if at_ms is None else f"at {str(iso_utc(at_ms))[11:19]} UTC"

    def _vanished(self) -> dict[str, tuple[str, str]]:
        """Loaded, and not installed any more as they were: by name, what to say of it. Also finds what was installed
        since. Looks every few seconds."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if self._looked_ms is not None and now_ms - self._looked_ms < _LOOKED_FOR_MS:
                return self._gone
            self._looked_ms = now_ms
            found = self._installed.now()
            installed = {(one.name, one.distribution): one.version for one in found}
            tried = {(plugin.record.name, plugin.record.distribution) for plugin in self._plugins}
            self._since = tuple(_installed_since(one) for one in found if (one.name, one.distribution) not in tried)
            self._gone = {}
            for plugin in self._plugins:
                record = plugin.record
                if plugin.found is None or not plugin.is_ok:
                    continue
                version = installed.get((record.name, record.distribution))
                if version is None:
                    self._gone[record.name] = (
                        f"{_whose(record)} is not installed any more",
                        f"it works on as it was loaded until this process starts again{_RESTART}",
                    )
                elif version != record.version:
                    self._gone[record.name] = (
                        f"{record.distribution} {version} is installed now, and {record.version} runs",
                        f"start this process again to use it{_RESTART}",
                    )
            return self._gone


def _of(found: Found) -> PluginRecord:
    return PluginRecord(found.name, found.distribution, found.version)


def _by(record: PluginRecord) -> str:
    return f" (of {_whose(record)})" if record.distribution else ""


def _installed_since(found: Found) -> PluginRecord:
    return replace(
        _of(found),
        status=PluginStatus.DISABLED,
        error="it was installed after this process started",
        hint=f"start this process again to load it{_RESTART}",
    )


def _whose(record: PluginRecord) -> str:
    return f"{record.distribution} {record.version}"


def _marks(path: Path | None, found: Sequence[Found], clock: Clock) -> Marks | None:
    if path is None or not found:
        return None
    try:
        return Marks(path, {one.name: one.version for one in found}, wall_ms=clock.wall_ms())
    except OSError as error:
        _log.warning("%s can't be had: which plugin ends the process will not be known: %s", path, error.strerror)
        return None
