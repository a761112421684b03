"""What must not be read in a fault, a record, a log line or what a plugin prints: the values of options of plugins, and
tokens of GPUlayer's.

In what is told of a plugin, all values of its options are hidden, and secrets of others; a short value that looks like
none as a whole word only, or ``plugin`` would make paths unreadable. In what everybody logs, only
those that are secrets: an option may well be called ``worker``. Exact text only, but for its white space: a secret
that a plugin has encoded passes, and so does what a handler of its own writes. Whoever cuts a text hides first, or half
a secret stays.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TextIO

__all__ = ["MASK", "Printed", "SecretsHider", "hide_logged"]

MASK: Final = "***"

# Shorter values are words and numbers that are in any text.
_SHORTEST: Final = 4
# In what everybody logs: of several words that make up a secret, and of what no name tells to be one.
_SHORTEST_WORD: Final = 8
_LONG: Final = 16
_SECRET: Final = re.compile(
    r"(?:.*[^a-z])?(?:(?:api|access|secret|private|signing)?keys?|auth|cookies?|credentials?|dsn|pass(?:wd|phrase)?|pwd"
    r"|salt|signature|ur[il]s?|[a-z]*(?:password|secret|token)s?)(?:[^a-z].*)?",
    re.IGNORECASE,
)
_BETWEEN: Final = re.compile(r"[\s,]+")
_TOKEN: Final = re.compile(r"gl[a-z]_[A-Za-z0-9_-]{8,}")


class SecretsHider:
    """``options``: by plugin, then by option. Called with a plugin's name and a text, it gives the text without them;
    the name empty: without the secrets of all plugins. A value of several words (URLs, two keys) is hidden as a whole
    and word by word."""

    def __init__(self, options: Mapping[str, Mapping[str, str]] | None = None) -> None:
        known = options or {}
        secrets = [text for values in known.values() for text in _secrets(values)]
        self._patterns = {plugin: _pattern(secrets, values) for plugin, values in known.items()}
        self._of_all = self._patterns[""] = _pattern(secrets)

    def __call__(self, plugin: str, text: str) -> str:
        """Pure; linear in the text."""
        pattern = self._patterns.get(plugin, self._of_all)
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


def _values(options: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Each with whether it is hidden as a whole word only."""
    for option, value in options.items():
        for text in (value, *_BETWEEN.split(value)):
            if len(text) >= _SHORTEST:
                yield text, not (_SECRET.fullmatch(option) or _looks_secret(text))


def _looks_secret(text: str) -> bool:
    if len(text) < _LONG:
        return len(text) >= _SHORTEST_WORD and any(map(str.isdigit, text)) and any(map(str.isalpha, text))
    return True


def _secrets(options: Mapping[str, str]) -> Iterator[str]:
    for option, value in options.items():
        is_secret = _SECRET.fullmatch(option) is not None
        if len(value) >= (_SHORTEST if is_secret else _LONG):
            yield value
        yield from (word for word in _BETWEEN.split(value) if len(word) >= (_SHORTEST_WORD if is_secret else _LONG))


def _pattern(secrets: Iterable[str], options: Mapping[str, str] | None = None) -> re.Pattern[str] | None:
    is_word: dict[str, bool] = {}
    for text, only_whole in (*((secret, False) for secret in secrets), *_values(options or {})):
        plain = " ".join(text.split())
        is_word[plain] = only_whole and is_word.get(plain, True)
    is_word.pop("", None)
    # The longest first: one may be the beginning of another.
    found = sorted(is_word, key=lambda text: (-len(text), text))
    return re.compile("|".join(_regex(text, is_word=is_word[text]) for text in found)) if found else None


def _regex(text: str, *, is_word: bool) -> str:
    regex = r"\s+".join(map(re.escape, text.split()))
    if not is_word:
        return regex
    before, after = (r"(?<!\w)" if re.match(r"\w", text) else ""), (r"(?!\w)" if re.search(r"\w$", text) else "")
    return f"{before}{regex}{after}"
