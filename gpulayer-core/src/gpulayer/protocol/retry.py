"""When to try again, and when not: one policy for clients and agents. Pure: time and random numbers are parameters.

A request is *safe* (it changes nothing), *idempotent* (repeated it changes nothing more: it has an idempotency key or
is a PUT by content or offset), or *once* (a repetition may act twice). What may be tried again follows from that and
from how far the first try got.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = [
    "DEFAULT_BACKOFF",
    "Backoff",
    "Failure",
    "FailureKind",
    "Repeatable",
    "asked_ms",
    "backoff_ms",
    "next_try_ms",
]


class Repeatable(StrEnum):
    """What a second try of the same request does: nothing, what the first has done, or it over again."""

    SAFE = "safe"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class FailureKind(StrEnum):
    """How far a request came."""

    NOT_SENT = "not_sent"  # no connection: the other side has seen nothing
    NO_ANSWER = "no_answer"  # sent, perhaps acted upon
    ANSWERED = "answered"  # with an error status


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed try. ``retry_after_ms``: what the answer's Retry-After asked for."""

    kind: FailureKind
    status: int = 0
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """``base_ms`` doubles with every try up to ``cap_ms``; what is waited is drawn evenly below that (full jitter),
    so that a thousand workers whose control plane was restarted do not come back in step.

    floor_ms keeps a lucky draw from spinning.
    """

    base_ms: int = 200
    cap_ms: int = 5_000
    floor_ms: int = 20


DEFAULT_BACKOFF: Final = Backoff()

_NOT_NOW: Final = frozenset({429, 503})  # refused before anything was done
_UNKNOWN: Final = frozenset({502, 504})  # a proxy's: the server behind it may have acted


def backoff_ms(tries: int, *, random: float, backoff: Backoff = DEFAULT_BACKOFF) -> int:
    """How long to wait after ``tries`` failed tries in a row (at least 1). random: from [0, 1)."""
    ceiling = min(backoff.cap_ms, backoff.base_ms * 2 ** min(max(tries, 1) - 1, 30))
    return max(backoff.floor_ms, int(ceiling * random))


def asked_ms(retry_after_ms: int, *, random: float) -> int:
    """How long to wait where Retry-After was said: never less, and up to half as long again, because all who were
    turned away in one second were told the same. random: from [0, 1)."""
    return retry_after_ms + int(retry_after_ms * random / 2)


def next_try_ms(
    failure: Failure,
    *,
    repeatable: Repeatable,
    tries: int,
    random: float,
    left_ms: int | None = None,
    backoff: Backoff = DEFAULT_BACKOFF,
) -> int | None:
    """How long to wait before the next try, or None: give up and show the failure.

    left_ms: until the caller's deadline; a try that could only begin after it is not made.
    """
    if not _may_repeat(failure, repeatable):
        return None
    wait_ms = backoff_ms(tries, random=random, backoff=backoff)
    if failure.retry_after_ms is not None:
        wait_ms = max(wait_ms, asked_ms(failure.retry_after_ms, random=random))
    if left_ms is not None and wait_ms >= left_ms:
        return None
    return wait_ms


def _may_repeat(failure: Failure, repeatable: Repeatable) -> bool:
    match failure.kind:
        case FailureKind.NOT_SENT:
            return True
        case FailureKind.NO_ANSWER:
            return repeatable is not Repeatable.ONCE
        case FailureKind.ANSWERED:
            if failure.status in _NOT_NOW:
                return True
            return failure.status in _UNKNOWN and repeatable is not Repeatable.ONCE
