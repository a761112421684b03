"""Commands that plugins add, by the entry-point group ``gpulayer.commands``; found and imported only when one is named.

``NAME = module:app``: app is a ``typer.Typer``, a click command, or a function as typer takes it. Names of core's own
commands, of this and of later versions, stay core's, and a name that two distributions add belongs to neither.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from gpulayer.cli.later import LATER_COMMANDS
from gpulayer.cli.quick import QuickTyper
from gpulayer.errors import PluginFault, UsageError
from gpulayer.plugins.discovery import COMMANDS, GROUP, EntryPoint, installed_points
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.settings import PLUGINS_VARIABLE, PluginSettings
from gpulayer.spec.capabilities import is_plain_name
from gpulayer.spec.plain import plain_line

__all__ = ["PluginCommand", "find_command", "find_commands", "load_command"]

_LONGEST: Final = 400
_OWN_COMPLETION: Final = ("install_completion", "show_completion")


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """``target``: what its entry point says, ``module:object``. ``error``, ``hint``: why it can't be used, as far as
    that shows without importing it; empty where it can (``status`` is ``ok``)."""

    name: str
    distribution: str
    version: str
    target: str
    status: PluginStatus = PluginStatus.OK
    error: str = ""
    hint: str = ""

    @property
    def origin(self) -> str:
        """Its distribution, for people."""
        return f"{self.distribution} {self.version}".strip()


def find_commands(settings: PluginSettings, *, taken: Collection[str]) -> list[PluginCommand]:
    """All that are installed, by name, those that can't be used as well. Imports none.

    taken: names of core's own commands.
    """
    found = sorted(_installed(settings), key=lambda command: (command.name, command.distribution))
    later = {command.partition(" ")[0] for command in LATER_COMMANDS if " " not in command}
    return [_judged(command, found, own={*taken, *later}) for command in found]


def find_command(name: str, settings: PluginSettings, *, taken: Collection[str]) -> PluginCommand | None:
    """The one of that name, or None. Raises PluginFault where it is known that it can't be used, UsageError where it
    shall not be."""
    found = [command for command in find_commands(settings, taken=taken) if command.name == name]
    for command in found:
        if command.status is PluginStatus.OK:
            return command
    if not found:
        return None
    kind = UsageError if found[0].status is PluginStatus.DISABLED else PluginFault
    raise kind(f"gpulayer {name}: {found[0].error}", hint=found[0].hint)


def load_command(command: PluginCommand) -> Any:  # Any: typer's own command type is private
    """Import it. Raises PluginFault with the reason, whatever its module does; blocks as long as that does."""
    module, _, path = command.target.partition(":")
    try:
        app: object = import_module(module)
        for part in path.split("."):
            app = getattr(app, part)
        return _command_of(app, command)
    except (PluginFault, KeyboardInterrupt):
        raise
    except BaseException as error:
        what = "it ends the program" if isinstance(error, SystemExit) else f"{type(error).__name__}: {_first(error)}"
        raise PluginFault(
            f"gpulayer {command.name}, of {command.origin}, can't be loaded: {what}",
            hint=f"GPULAYER_DEBUG=1 shows where; pip uninstall {command.distribution} removes it",
            details={"plugin": command.distribution},
        ) from error


def _first(error: BaseException) -> str:
    """The first line of what it says of itself, which is the plugin's code, too."""
    try:
        return plain_line(str(error).strip().partition("\n")[0], _LONGEST)
    except BaseException:
        return "(it can't say what)"


def _installed(settings: PluginSettings) -> Iterator[PluginCommand]:
    by_distribution: dict[str, list[EntryPoint]] = {}
    for point in installed_points():
        by_distribution.setdefault(point.distribution, []).append(point)
    for points in by_distribution.values():
        yield from _of(points, settings)


def _of(points: list[EntryPoint], settings: PluginSettings) -> Iterator[PluginCommand]:
    """Of one distribution."""
    plugins = {point.name for point in points if point.group == GROUP}
    allowed = settings.allowed
    # A command alone is no plugin, so that no list names it; it runs only when somebody types it.
    is_wanted = allowed is None or bool(allowed & plugins) or (bool(allowed) and not plugins)
    for point in points:
        if point.group != COMMANDS:
            continue
        command = PluginCommand(point.name, point.distribution, point.version, point.value)
        if not is_wanted:
            hint = f"unset it, or add {min(plugins)}" if plugins else "unset it"
            command = replace(
                command, status=PluginStatus.DISABLED, error=f"{PLUGINS_VARIABLE} leaves it out", hint=hint
            )
        yield command


def _judged(command: PluginCommand, all_of_them: list[PluginCommand], *, own: Collection[str]) -> PluginCommand:
    if command.error:
        return command
    remove = f"pip uninstall {command.distribution}"
    rivals = [
        each.origin
        for each in all_of_them
        if each.name == command.name and each.origin != command.origin and each.status is not PluginStatus.DISABLED
    ]
    module, colon, path = command.target.partition(":")
    status = PluginStatus.BROKEN
    if command.name in own:
        status, error = PluginStatus.DUPLICATE, "gpulayer has a command of that name itself"
        hint = f"{remove}, or have its author rename it"
    elif not is_plain_name(command.name):
        error = f"{command.name[:60]!r} can't be the name of a command"
        hint = "its author has to take a lower-case letter, then letters, digits and . _ + -"
    elif rivals:
        status, error = PluginStatus.DUPLICATE, f"{' and '.join([command.origin, *rivals])} add a command of that name"
        hint = f"uninstall one of them: {remove}"
    elif not (colon and module and path):
        error, hint = f"its entry point says {command.target!r}, which is no object", "its author has to say module:app"
    else:
        return command
    return replace(command, status=status, error=error, hint=hint)


def _command_of(app: object, command: PluginCommand) -> Any:  # Any: typer's own command type is private
    click = sys.modules.get("click")  # loaded by whoever makes a command with it
    if isinstance(app, typer.Typer):
        found = typer.main.get_command(app)
        found.params = [parameter for parameter in found.params if parameter.name not in _OWN_COMPLETION]
    elif isinstance(app, TyperCommand | TyperGroup):
        found = app
    elif click is not None and isinstance(app, click.Command):
        found = _Handed(app.main, command.name)
    elif inspect.isfunction(app) and not inspect.iscoroutinefunction(app):
        own = QuickTyper()
        own.command()(app)
        found = typer.main.get_command(own)
    else:
        what = "an async function" if inspect.iscoroutinefunction(app) else f"a {type(app).__name__}"
        raise PluginFault(
            f"gpulayer {command.name}, of {command.origin}, can't be loaded: {command.target} is {what}",
            hint="a typer.Typer, a click command or a function can be a command",
            details={"plugin": command.distribution},
        )
    found.name = command.name
    return found


class _Handed(TyperCommand):
    """Stands for a command of the click library, which typer knows nothing of: it gets its words as they are, prints
    its own usage errors and ends the program itself."""

    def __init__(self, main: Callable[..., object], name: str) -> None:
        super().__init__(name, callback=None, add_help_option=False)
        self._main = main

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: typer's context class is private
        ctx.args = list(args)
        return []

    def invoke(self, ctx: Any) -> object:
        return self._main(args=ctx.args, prog_name=ctx.command_path)
