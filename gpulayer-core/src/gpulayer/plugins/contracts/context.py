"""What every hook is told of where it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

__all__ = ["Context", "Where"]


class Where(StrEnum):
    """``check``: nowhere for real: ``gpulayer plugins check`` looks what would be registered."""

    PLANE = "plane"
    WORKER = "worker"
    CHECK = "check"


@dataclass(frozen=True, slots=True)
class Context:
    """``plugin``: its own name. ``version``: of gpulayer.

    options: the plugin's settings, from the variables ``GPULAYER_PLUGIN_<NAME>_<OPTION>`` of the process that loads it,
    by option in lower case. They may hold secrets, so they are never shown.
    """

    where: Where
    plugin: str
    version: str
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
