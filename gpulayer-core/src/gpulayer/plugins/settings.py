"""What a process is told of its plugins. ``cli`` reads the variables and hands the result down."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PluginSettings"]


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """allowed: names of those that are loaded, None for all; core's own always are. strict: a fault ends the process or
    the call that met it, for debugging. options: by plugin, then by option; they may hold secrets.
    """

    allowed: frozenset[str] | None = None
    strict: bool = False
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "PluginSettings":
        """As the variables say."""
        names = environment.get("GPULAYER_PLUGINS")
        allowed = None if names is None else frozenset({name for name in names.split(",") if name} - {"none"})
        return cls(allowed, environment.get("GPULAYER_STRICT") == "1")
