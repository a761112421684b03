"""Entries of the audit trail, as the control plane writes them: in the same commit as what they tell of."""

import json

from gpulayer.server.auth import SYSTEM, Caller
from gpulayer.server.store import AuditEntry
from gpulayer.server.tokens import TokenKind

__all__ = ["SYSTEM", "actor_of", "entry"]


def actor_of(caller: Caller) -> str:
    """``alice (1a2b3c4d5e6f)``: whose token it was, and which."""
    who = caller.owner if caller.kind is TokenKind.CLIENT else f"{caller.kind} token {caller.name}".rstrip()
    return f"{who} ({caller.token_id})"


def entry(wall_ms: int, actor: Caller | str, action: str, subject: str = "", **details: object) -> AuditEntry:
    """details: plain JSON values, and never anything secret; those that are None are left out."""
    told = {name: value for name, value in sorted(details.items()) if value is not None}
    text = json.dumps(told, separators=(",", ":"))
    return AuditEntry(wall_ms, actor if isinstance(actor, str) else actor_of(actor), action, subject, text)
