"""Typed identifiers and how they are made.

Ids are opaque lower-case hex. Randomness is a parameter, so that the simulator makes the same ids for the
same seed. An ``Epoch`` is not random: it comes from one durable counter, names one attempt for ever, and is
the fencing token of its lease.
"""

import secrets
from collections.abc import Callable
from typing import Final, NewType

__all__ = [
    "ID_LENGTH",
    "Digest",
    "Epoch",
    "JobId",
    "RandomBytes",
    "TokenId",
    "WorkerId",
    "is_digest",
    "new_id",
    "new_job_id",
    "new_worker_id",
]

JobId = NewType("JobId", str)
WorkerId = NewType("WorkerId", str)
TokenId = NewType("TokenId", str)
Epoch = NewType("Epoch", int)
Digest = NewType("Digest", str)  # sha256 of the content, 64 lower-case hex characters

RandomBytes = Callable[[int], bytes]

ID_LENGTH: Final = 16
_HEX: Final = frozenset("0123456789abcdef")


def new_id(random_bytes: RandomBytes = secrets.token_bytes, length: int = ID_LENGTH) -> str:
    """``length`` hex characters; 16 of them keep the chance of a clash among 100,000 below 1e-9."""
    return random_bytes((length + 1) // 2).hex()[:length]


def new_job_id(random_bytes: RandomBytes = secrets.token_bytes) -> JobId:
    """Opaque and never used before."""
    return JobId(new_id(random_bytes))


def new_worker_id(random_bytes: RandomBytes = secrets.token_bytes) -> WorkerId:
    """Opaque and never used before."""
    return WorkerId(new_id(random_bytes))


def is_digest(text: str) -> bool:
    """True for 64 lower-case hex characters, which is the only form a digest ever has."""
    return len(text) == 64 and _HEX.issuperset(text)
