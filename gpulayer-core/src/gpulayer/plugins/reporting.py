"""Plugin records as they are sent: what a worker tells its control plane, and what that tells everybody."""

from typing import Final

from gpulayer.clock import iso_utc
from gpulayer.plugins.record import PluginRecord
from gpulayer.wire.plugins import PluginFields

__all__ = ["plugin_to_wire"]

_WORD: Final = 64
_LINE: Final = 512
_HOOKS: Final = 32
_PROVIDED: Final = 64
_FAULTS: Final = 8


def plugin_to_wire(record: PluginRecord) -> PluginFields:
    """What is longer than the wire takes is cut: one plugin's long story must not cost its worker a report."""
    return {
        "name": _cut(record.name, _WORD),
        "distribution": _cut(record.distribution, _LINE),
        "version": _cut(record.version, _WORD),
        "api": _cut(record.api, _WORD),
        "is_builtin": record.is_builtin,
        "status": record.status.value,
        "error": _cut(record.error, _LINE),
        "hint": _cut(record.hint, _LINE),
        "hooks": [_cut(hook, _WORD) for hook in record.hooks[:_HOOKS]],
        "provides": [_cut(provided, _LINE) for provided in record.provides[:_PROVIDED]],
        "faults": record.faults,
        "last_faults": [
            {"at": iso_utc(fault.wall_ms), "hook": _cut(fault.hook, _WORD), "message": _cut(fault.message, _LINE)}
            for fault in record.last_faults[-_FAULTS:]
        ],
    }


def _cut(text: str, limit: int) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()  # what is no text on the wire would cost the report, too
    return text if len(text) <= limit else text[: limit - 1] + "…"
