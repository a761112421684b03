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
    """What the wire does not take is cut and mended: one plugin's long story, or an odd name that may be what is wrong
    with it, must not cost its worker a report."""
    return {
        "name": _shown(record.name, _WORD) or "?",
        "distribution": _shown(record.distribution, _LINE),
        "version": _shown(record.version, _WORD),
        "api": _shown(record.api, _WORD),
        "is_builtin": record.is_builtin,
        "status": record.status.value,
        "error": _cut(record.error, _LINE),
        "hint": _cut(record.hint, _LINE),
        "hooks": [_shown(hook, _WORD) for hook in record.hooks[:_HOOKS]],
        "provides": [_shown(provided, _LINE) for provided in record.provides[:_PROVIDED]],
        "faults": record.faults,
        "last_faults": [
            {"at": iso_utc(fault.wall_ms), "hook": _shown(fault.hook, _WORD), "message": _cut(fault.message, _LINE)}
            for fault in record.last_faults[-_FAULTS:]
        ],
    }


def _shown(text: str, limit: int) -> str:
    return _cut("".join(character if character.isprintable() else "?" for character in text), limit)


def _cut(text: str, limit: int) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()  # what is no text on the wire would cost the report, too
    return text if len(text) <= limit else text[: limit - 1] + "…"
