"""Import one plugin's module, and say in a line why that failed; the same in the child that tries and for real."""

import os
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from gpulayer.plugins.discovery import Found
from gpulayer.plugins.inspection import Inspected, inspect_plugin
from gpulayer.plugins.record import PluginStatus

__all__ = ["IMPORT_HINT", "import_plugin", "inspected_of", "why_not_imported"]

IMPORT_HINT: Final = "a module of a plugin only defines things; what takes time or may fail belongs into its methods"

_SHOWN: Final = 300
_TOLD: Final = 8000


def import_plugin(module: str) -> tuple[object, Inspected]:
    """The module and what it is. Raises whatever it raises."""
    plugin = import_module(module)
    return plugin, inspect_plugin(plugin)


def why_not_imported(found: Found, error: BaseException) -> Inspected:
    """To be called where the import was: what an exception says of itself is the plugin's code. Whoever shows it hides
    the plugin's secrets first, and cuts it then: nothing is cut here that would be seen."""
    hint = f"{found.distribution} {found.version} may be broken: reinstall it, or look for another version"
    try:
        where = _where(error, found.module)
        kind = type(error).__name__
        if isinstance(error, SystemExit):
            return _broken(f"its import tried to end the process (exit {error.code!r}{where})"[:_TOLD], IMPORT_HINT)
        if isinstance(error, ModuleNotFoundError) and error.name:
            if found.module == error.name or found.module.startswith(f"{error.name}."):
                return _broken(f"its entry point names the module {found.module}, which is not there", hint)
            hint = f"{found.distribution} needs {error.name}, which is not installed in this Python"
        said = " ".join(str(error).split())
        # The place is to be seen even where the end of a long story is not.
        is_short = len(said) <= _SHOWN
        return _broken(f"{kind}: {said}{where}" if is_short else f"{kind}{where}: {said}"[:_TOLD], hint)
    except BaseException:
        return _broken("its import raised an exception that fails to say what it is", hint)


def inspected_of(fields: Mapping[str, object]) -> Inspected:
    """What a child has said of itself in JSON. Raises KeyError, TypeError and ValueError."""
    hooks = fields["hooks"]
    if not isinstance(hooks, list):
        raise TypeError("hooks")
    return Inspected(
        api=str(fields["api"]),
        hooks=tuple(str(hook) for hook in hooks),
        status=PluginStatus(str(fields["status"])),
        error=str(fields["error"]),
        hint=str(fields["hint"]),
    )


def _broken(error: str, hint: str) -> Inspected:
    return Inspected(status=PluginStatus.BROKEN, error=error, hint=hint)


def _where(error: BaseException, module: str) -> str:
    """The last line of the plugin's own package, which its author can mend; else the last of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # it says so itself
    frames = [
        (frame.f_globals.get("__name__"), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith("<frozen")
    ]
    package = module.partition(".")[0]
    own = [frame for frame in frames if str(frame[0]).partition(".")[0] == package]
    last = (own or frames)[-1:]
    if not last or last[0][1] in (__file__,):
        return ""
    return f" ({os.path.basename(last[0][1])}, line {last[0][2]})"
