"""The audit trail's chain: each entry's hash covers the entry and the hash before it. Pure; both sides compute it.

So whoever keeps the newest number and hash elsewhere can tell later that nothing up to it was changed, taken out or
slipped in, without believing the control plane that shows it.
"""

import hashlib
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpulayer.wire.tokens import AuditRecord

__all__ = ["FIRST_HASH", "ChainCheck", "entry_hash"]

FIRST_HASH: Final = "0" * 64
"""What the first entry builds on."""


def entry_hash(*, after: str, seq: int, wall_ms: int, actor: str, action: str, subject: str, details: str) -> str:
    """Of entry number ``seq``, in hex. after: the hash of the entry before it; details: the text as it is stored."""
    text = json.dumps([after, seq, wall_ms, actor, action, subject, details], separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class ChainCheck:
    """Takes all entries in order, from the first. seq, hash: of the last good one (0 before the first)."""

    def __init__(self) -> None:
        self.seq = 0
        self.hash = FIRST_HASH

    def take(self, record: "AuditRecord") -> bool:
        """Whether this entry is the next one and unchanged; a false one is not counted."""
        expected = entry_hash(
            after=self.hash,
            seq=self.seq + 1,
            wall_ms=record["wall_ms"],
            actor=record["actor"],
            action=record["action"],
            subject=record["subject"],
            details=record["details"],
        )
        if record["seq"] != self.seq + 1 or record["hash"] != expected:
            return False
        self.seq, self.hash = record["seq"], record["hash"]
        return True
