"""What is known of one plugin, for people: whether it works, what it adds, what went wrong with it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["LEFT_RUNNING", "PUT_BACK", "Fault", "PluginRecord", "PluginStatus", "is_note"]

# How a fault reads that hindered nothing.
PUT_BACK: Final = "which all of the process share; that was put back"
LEFT_RUNNING: Final = "its import left a process running"


class PluginStatus(StrEnum):
    """Only what is ``ok`` or ``suspended`` is loaded, and then all of it. ``suspended``: it failed several times in a
    row and is not asked for a while; then it is tried again, and stays suspended until that has worked."""

    OK = "ok"
    DISABLED = "disabled"  # by GPULAYER_PLUGINS; or it was installed after this process started
    INCOMPATIBLE = "incompatible"  # it needs another API version, or says none
    BROKEN = "broken"  # it could not be imported, or what it registers is not what it should be
    DUPLICATE = "duplicate"  # another plugin has its name, or registers something of the same name
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Fault:
    """``hook``: the hook, or the method of what it registered: ``Probe.look``. ``message``: one line, no secrets."""

    wall_ms: int
    hook: str
    message: str


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """A snapshot. ``name``: of its entry point. ``distribution`` and ``version``: of the package that it came with.
    ``api``: what it says that it needs. ``hint``: what to do about ``error``; without one, about a deprecated hook.
    ``provides``: ``probe licences``, ``launcher torch``.
    """

    name: str
    distribution: str = ""
    version: str = ""
    api: str = ""
    is_builtin: bool = False
    status: PluginStatus = PluginStatus.OK
    error: str = ""
    hint: str = ""
    hooks: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    faults: int = 0
    last_faults: tuple[Fault, ...] = ()


def is_note(message: str) -> bool:
    """Whether a fault of that message is no failure: what the plugin was asked for, it did."""
    return message.endswith(PUT_BACK) or message.startswith(LEFT_RUNNING)
