"""Tokens and the audit trail on the wire. A token itself is shown once, in the answer to its making."""

from typing import Annotated, Literal, NotRequired

from annotated_types import Ge, Le, MaxLen, MinLen
from typing_extensions import TypedDict

__all__ = ["AuditPage", "AuditRecord", "TokenBody", "TokenPage", "TokenRecord", "TokenReply"]

Name = Annotated[str, MinLen(1), MaxLen(100)]
Text = Annotated[str, MaxLen(4096)]


class TokenBody(TypedDict):
    """name: of a client token, whose it is: tokens of one name manage the same jobs; of a join token, for people.

    expires_in_s: the default of its role where absent. max_uses, labels, max_devices: of a join token: how many workers
    it may join, their labels, and how many devices each of them may offer.
    """

    role: Literal["admin", "submitter", "reader", "join"]
    name: NotRequired[Name]
    expires_in_s: NotRequired[Annotated[int, Ge(1), Le(10 * 365 * 86_400)]]
    max_uses: NotRequired[Annotated[int, Ge(1), Le(100_000)]]
    labels: NotRequired[Annotated[dict[Text, Text], MaxLen(64)]]
    max_devices: NotRequired[Annotated[int, Ge(0), Le(1024)]]


class TokenReply(TypedDict):
    """``token`` is shown this once and never again."""

    token: str
    token_id: str
    role: str
    name: str
    expires_in_s: int


class TokenRecord(TypedDict):
    """state: ``valid``, ``expired``, ``revoked``, or of a join token ``used up``. last_used_at: to the minute.
    replaces: the id of the token that was rotated into this one.

    Of join tokens alone: max_uses, uses, labels, max_devices (None: all).
    """

    id: str
    kind: str
    role: str
    name: str
    state: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    max_uses: int | None
    uses: int
    labels: dict[str, str]
    max_devices: int | None
    replaces: NotRequired[str | None]


class TokenPage(TypedDict):
    """Newest first. ``next`` is None: there is one page."""

    tokens: list[TokenRecord]
    next: str | None


class AuditRecord(TypedDict):
    """``details``: JSON text, as it was hashed. ``hash``: see ``server.store.trail``."""

    seq: int
    at: str
    wall_ms: int
    actor: str
    action: str
    subject: str
    details: str
    hash: str


class AuditPage(TypedDict):
    """Oldest first. ``next``: the ``after`` of the following page; unchanged where there was nothing new."""

    entries: list[AuditRecord]
    next: int
