"""The audit trail's chain: each entry's hash covers the entry and the hash before it. Pure.

So whoever keeps the newest hash elsewhere can tell later that nothing before it was changed, taken out or slipped in.
"""

import hashlib
import json
from typing import Final

from gpulayer.server.store.rows import AuditEntry, AuditRow

__all__ = ["FIRST_HASH", "chained"]

FIRST_HASH: Final = "0" * 64
"""What the first entry builds on."""


def chained(entry: AuditEntry, *, seq: int, after: str) -> AuditRow:
    """The row of this entry as number ``seq``; after: the hash of the row before it."""
    fields = [seq, entry.wall_ms, entry.actor, entry.action, entry.subject, entry.details]
    text = json.dumps([after, *fields], separators=(",", ":"), ensure_ascii=True)
    return AuditRow(seq, entry, hashlib.sha256(text.encode("ascii")).hexdigest())
