"""When a request is sent again, and after how long. Pure: time and chance are parameters.

The delay doubles from 50 ms to 2 s, each drawn from its upper half (so that many clients do not come back at once).
"""

from typing import Final

from gpulayer.client.answers import ErrorKind

__all__ = ["decide"]

_FIRST_MS: Final = 50
_LONGEST_MS: Final = 2_000


def decide(
    *,
    attempt: int,
    error_kind: ErrorKind,
    idempotent: bool,
    elapsed_ms: int,
    deadline_ms: int,
    random01: float,
    retry_after_ms: int | None = None,
) -> int | None:
    """Milliseconds to wait before try ``attempt + 1`` (the first try is 1), or None to give up."""
    if error_kind == "dropped" and not idempotent:
        return None
    ceiling = min(_FIRST_MS * 2 ** min(attempt - 1, 10), _LONGEST_MS)
    delay = int(ceiling / 2 + random01 * ceiling / 2)
    if retry_after_ms is not None:
        delay = max(delay, retry_after_ms)
    return delay if elapsed_ms + delay <= deadline_ms else None
