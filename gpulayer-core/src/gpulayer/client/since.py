"""``--since``: a time as people write it. Pure."""

from datetime import datetime, time, timedelta

from gpulayer.errors import UsageError
from gpulayer.spec.units import parse_duration_ms

__all__ = ["parse_since"]


def parse_since(text: str, *, now: datetime, what: str = "since") -> int:
    """Milliseconds since 1970. ``10m`` and ``2h`` are so long before ``now``; ``14:30`` is the last one there was;
    else an ISO time, by default in the time zone of ``now``. Raises UsageError."""
    word = text.strip()
    try:
        return max(0, _ms(now) - parse_duration_ms(word))
    except UsageError:
        pass
    try:
        at = datetime.combine(now.date(), time.fromisoformat(word), tzinfo=now.tzinfo)
        return _ms(at if at <= now else at - timedelta(days=1))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(word)
        return max(0, _ms(found if found.tzinfo else found.replace(tzinfo=now.tzinfo)))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{what}: {text[:40]!r} is not a time", hint="write it like 10m, 2h, 14:30 or 2026-11-30T14:30"
        ) from None


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
