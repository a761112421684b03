"""Plugin records as they are sent: what a worker tells its control plane, and what that tells everybody."""

from typing import TYPE_CHECKING, Final

from gpulayer.clock import iso_utc
from gpulayer.plugins.record import Fault, PluginRecord
from gpulayer.spec.plain import plain_line

if TYPE_CHECKING:  # a command that lists plugins needs nothing of the wire
    from gpulayer.wire.plugins import PluginFaultFields, PluginFields

__all__ = ["plugin_to_wire"]

_WORD: Final = 64
_LINE: Final = 512
_HOOKS: Final = 32
_PROVIDED: Final = 64
_FAULTS: Final = 8


def plugin_to_wire(record: PluginRecord) -> "PluginFields":
    """What is longer than the wire takes, or no text there, is cut: one plugin's story must not cost a report, nor a
    name that may be what is wrong with it."""
    return {
        "name": plain_line(record.name, _WORD) or "?",
        "distribution": plain_line(record.distribution, _LINE),
        "version": plain_line(record.version, _WORD),
        "api": plain_line(record.api, _WORD),
        "is_builtin": record.is_builtin,
        "status": record.status.value,
        "error": plain_line(record.error, _LINE),
        "hint": plain_line(record.hint, _LINE),
        "hooks": [plain_line(hook, _WORD) for hook in record.hooks[:_HOOKS]],
        "provides": [plain_line(provided, _LINE) for provided in record.provides[:_PROVIDED]],
        "faults": record.faults,
        "last_faults": [_fault(fault) for fault in record.last_faults[-_FAULTS:]],
    }


def _fault(fault: Fault) -> "PluginFaultFields":
    return {
        "at": iso_utc(fault.wall_ms),
        "hook": plain_line(fault.hook, _WORD),
        "message": plain_line(fault.message, _LINE),
    }
