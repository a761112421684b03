"""Plugins on the wire: what each is, whether it works, and what went wrong with it."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen
from typing_extensions import TypedDict

__all__ = ["PluginFaultFields", "PluginFields", "PluginPage", "PluginRecord"]

Line = Annotated[str, MaxLen(512)]
Word = Annotated[str, MaxLen(64)]
Status = Literal["ok", "disabled", "incompatible", "broken", "duplicate", "suspended"]


class PluginFaultFields(TypedDict):
    """One call that went wrong. ``at``: ISO text in UTC. ``hook``: the hook, or the method of what it registered."""

    at: Word | None
    hook: Word
    message: Line


class PluginFields(TypedDict):
    """See ``plugins.record.PluginRecord``. ``faults`` counts all, ``last_faults`` has the newest, oldest first."""

    name: Word
    distribution: Line
    version: Word
    api: Word
    is_builtin: bool
    status: Status
    error: Line
    hint: Line
    hooks: Annotated[list[Word], MaxLen(32)]
    provides: Annotated[list[Line], MaxLen(64)]
    faults: Annotated[int, Ge(0), Le(2**53)]
    last_faults: Annotated[list[PluginFaultFields], MaxLen(8)]


class PluginRecord(PluginFields):
    """``where``: ``plane`` or ``worker NAME``: each loads its own, from its own environment."""

    where: str


class PluginPage(TypedDict):
    """By where, then name. ``next`` is None: there is one page."""

    plugins: list[PluginRecord]
    next: str | None
