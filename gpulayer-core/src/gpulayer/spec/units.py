"""Sizes and durations as people write them.

Sizes follow the vendors: ``GB`` is 10^9 and ``GiB`` is 2^30 bytes; a bare letter (``24g``) is read as the
decimal unit. Durations take ``ms``, ``s``, ``m``, ``h``, ``d`` and may be joined: ``1h30m``.
"""

import re
from decimal import Decimal
from typing import Final

from gpulayer.errors import UsageError

__all__ = ["format_bytes", "format_duration", "parse_bytes", "parse_duration_ms"]

_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_MAX: Final = 2**63 - 1  # what a 64-bit counter holds; also keeps a thousand digits from becoming a number
_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_bytes(text: str, *, what: str = "size") -> int:
    """``24GB``, ``24GiB``, ``24g`` or a plain number of bytes, to bytes. Raises UsageError with an example."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{what}: {text!r} is not a size", hint="write it like 24GB, 24GiB or 512MB")
    base = 1024 if match[3] else 1000
    return _whole(Decimal(match[1]) * base ** _POWERS[match[2].lower()], text, what)


def parse_duration_ms(text: str, *, what: str = "duration") -> int:
    """``90s``, ``2h``, ``1h30m`` or a plain number of seconds, to milliseconds. Raises UsageError."""
    stripped = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        return _whole(Decimal(stripped) * 1000, text, what)
    parts = _DURATION.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped:
        raise UsageError(f"{what}: {text!r} is not a duration", hint="write it like 90s, 2h or 1h30m")
    return _whole(sum((Decimal(number) * _MS[unit] for number, unit in parts), Decimal(0)), text, what)


def format_bytes(count: int) -> str:
    """Three significant digits in decimal units: ``24 GB``, ``1.5 MB``, ``312 B``."""
    value, units = float(count), ["PB", "TB", "GB", "MB", "kB", "B"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop()
    digits = f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return f"{digits} {units[-1]}"


def format_duration(ms: int) -> str:
    """The two largest units: ``340 ms``, ``2.4 s``, ``3m 12s``, ``2h 5m``, ``3d 4h``."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 59_950:  # above that, one digit would be rounded to 60.0 s
        return f"{ms / 1000:.1f} s"
    minutes, rest = divmod(max(ms // 1000, 60), 60)
    if minutes < 60:
        return f"{minutes}m {rest}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


def _whole(value: Decimal, text: str, what: str) -> int:
    if value > _MAX:
        raise UsageError(f"{what}: {text[:40]!r} is too large", hint=f"the largest is {_MAX}")
    return int(value)
