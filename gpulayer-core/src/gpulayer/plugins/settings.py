"""What a process is told of its plugins. ``cli`` reads the variables and hands the result down."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from gpulayer.errors import UsageError
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.spec.capabilities import is_plain_name

__all__ = [
    "IMPORT_S",
    "IMPORT_VARIABLE",
    "OPTION_PREFIX",
    "PLUGINS_VARIABLE",
    "STRICT_VARIABLE",
    "PluginSettings",
    "variable_of",
]

PLUGINS_VARIABLE: Final = "GPULAYER_PLUGINS"
STRICT_VARIABLE: Final = "GPULAYER_STRICT"
IMPORT_VARIABLE: Final = "GPULAYER_PLUGINS_IMPORT_S"
OPTION_PREFIX: Final = "GPULAYER_PLUGIN_"

IMPORT_S: Final = 10.0
_LONGEST_IMPORT_S: Final = 60.0

_TO_VARIABLE: Final = str.maketrans("-.+", "___")
_YES_NO: Final = {"": False, "0": False, "false": False, "1": True, "true": True}


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """allowed: names of those that are loaded, None for all; core's own always are. strict: a fault ends the process or
    the call that met it, for debugging. options: by plugin, then by option; they may hold secrets. variables: options
    as they stand in the environment, without the prefix; which plugin they belong to shows when plugins are known.
    import_s: how long each may take to be imported.
    """

    allowed: frozenset[str] | None = None
    strict: bool = False
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    import_s: float = IMPORT_S

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "PluginSettings":
        """``GPULAYER_PLUGINS`` (``none``, or names with commas; empty: all), ``GPULAYER_STRICT`` (``1``),
        ``GPULAYER_PLUGINS_IMPORT_S`` (seconds) and ``GPULAYER_PLUGIN_<NAME>_<OPTION>``. Raises UsageError."""
        strict = environment.get(STRICT_VARIABLE, "").strip().lower()
        if strict not in _YES_NO:
            raise UsageError(f"{STRICT_VARIABLE}={strict[:60]!r} is neither yes nor no", hint="write 1 or 0")
        return cls(
            allowed=_names(environment.get(PLUGINS_VARIABLE, "")),
            strict=_YES_NO[strict],
            variables={
                name[len(OPTION_PREFIX) :]: value
                for name, value in environment.items()
                if name.startswith(OPTION_PREFIX)
            },
            import_s=_seconds(environment.get(IMPORT_VARIABLE, "").strip()),
        )

    def strangers(self, plugins: Collection[str]) -> dict[str, str]:
        """Variables of options that fit none of these plugins, each with the one that may be meant, else empty."""
        prefixes = {_prefix(plugin): plugin for plugin in plugins}
        found = {}
        for name in sorted(self.variables):
            if any(name.startswith(prefix) and len(name) > len(prefix) for prefix in prefixes):
                continue
            starts = [name[: at + 1] for at, letter in enumerate(name) if letter == "_"] or [f"{name}_"]
            near = [close for start in starts for close in get_close_matches(start, prefixes, n=1, cutoff=0.75)]
            found[OPTION_PREFIX + name] = prefixes[near[-1]] if near else ""
        return found

    def options_of(self, plugin: str, among: Collection[str] = ()) -> Mapping[str, str]:
        """Of this plugin, by option in lower case. A variable that fits several plugins is of the one with the longest
        name among these: ``CHEAP_HOUR_ZONE`` is ``zone`` of ``cheap-hour``, and not ``hour_zone`` of ``cheap``."""
        prefix = _prefix(plugin)
        longer = tuple(one for one in map(_prefix, among) if len(one) > len(prefix) and one.startswith(prefix))
        found = {
            name[len(prefix) :].lower(): value
            for name, value in self.variables.items()
            if name.startswith(prefix) and len(name) > len(prefix) and not name.startswith(longer)
        }
        return MappingProxyType(found | dict(self.options.get(plugin, {})))

    def hide(self, text: str) -> str:
        """Without the values of all options, whosever they are: for what nobody can put down to one plugin."""
        options = {f"{plugin}.{option}": value for plugin, its in self.options.items() for option, value in its.items()}
        return SecretsHider({"any": {**self.variables, **options}})("any", text)


def variable_of(plugin: str, option: str) -> str:
    """That sets it: ``GPULAYER_PLUGIN_CHEAP_HOUR_ZONE``."""
    return f"{OPTION_PREFIX}{_prefix(plugin)}{option.upper()}"


def _prefix(plugin: str) -> str:
    return f"{plugin.upper().translate(_TO_VARIABLE)}_"


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text else IMPORT_S
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _LONGEST_IMPORT_S:
        raise UsageError(
            f"{IMPORT_VARIABLE}={text[:60]!r} is not a number of seconds that an import may take",
            hint=f"write a number from 1 to {_LONGEST_IMPORT_S:g}, or unset it: then it is {IMPORT_S:g}",
        )
    return seconds


def _names(text: str) -> frozenset[str] | None:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        return None
    if names == ["none"]:
        return frozenset()
    for name in names:
        if not is_plain_name(name) or name == "none":
            raise UsageError(
                f"{PLUGINS_VARIABLE}: {name[:60]!r} can't be the name of a plugin",
                hint="names with commas between them, as `gpulayer plugins` lists them, or none",
            )
    return frozenset(names)
