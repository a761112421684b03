"""What must not be read in a fault, a record, a log line or what a plugin prints: the values of options of plugins, and
tokens of GPUlayer's.

Exact text only: a secret that a plugin has encoded passes.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TextIO

__all__ = ["MASK", "Printed", "SecretsHider", "hide_logged"]

MASK: Final = "***"

# Shorter values are words and numbers that are in any text.
_SHORTEST: Final = 4
_TOKEN: Final = re.compile(r"gl[a-z]_[A-Za-z0-9_-]{8,}")


class SecretsHider:
    """``options``: by plugin, then by option. Called with a plugin's name and a text, it gives the text without them;
    the name empty: without those of all plugins."""

    def __init__(self, options: Mapping[str, Mapping[str, str]] | None = None) -> None:
        by_plugin = {plugin: set(values.values()) for plugin, values in (options or {}).items()}
        everything: set[str] = set().union(*by_plugin.values())
        self._patterns = {plugin: _pattern(values) for plugin, values in {**by_plugin, "": everything}.items()}

    def __call__(self, plugin: str, text: str) -> str:
        """Pure; linear in the text."""
        pattern = self._patterns.get(plugin)
        return _TOKEN.sub(MASK, text if pattern is None else pattern.sub(MASK, text))


def hide_logged(hider: SecretsHider) -> Callable[[], None]:
    """Have it applied to whatever the handlers of the root logger write from now on, whoever logs it: plugins log what
    they like. Returns what undoes it."""
    kept = _Filter(hider)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(kept)

    def undo() -> None:
        for handler in handlers:
            handler.removeFilter(kept)

    return undo


class Printed:
    """``stream`` for plugins to print to, in a process whose output is a log: what is written to it has nothing of the
    hider's in it. A piece at a time, as ``print`` hands its arguments on; what a plugin puts together itself, too."""

    def __init__(self, stream: TextIO, hider: SecretsHider) -> None:
        self._stream = stream
        self._hider = hider

    def write(self, text: str) -> int:
        self._stream.write(self._hider("", text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # Any: whatever the stream has
        return getattr(self._stream, name)


class _Filter(logging.Filter):
    """Writes the message anew where something had to be hidden; its arguments are not formatted again."""

    def __init__(self, hider: SecretsHider) -> None:
        super().__init__()
        self._hider = hider

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:
            return True  # the handler says what is wrong with it
        hidden = self._hider("", said)
        if hidden != said:
            record.msg, record.args = hidden, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._hider("", record.exc_text)
        return True


def _pattern(values: set[str]) -> re.Pattern[str] | None:
    # The longest first: one may be the beginning of another.
    found = sorted((value for value in values if len(value) >= _SHORTEST), key=lambda value: (-len(value), value))
    return re.compile("|".join(map(re.escape, found))) if found else None
