"""Entries of the audit trail in their places of the chain that ``wire.trail`` defines. Pure."""

from collections.abc import Iterable

from gpulayer.server.store.rows import AuditEntry, AuditRow
from gpulayer.wire.trail import entry_hash

__all__ = ["chained"]


def chained(entries: Iterable[AuditEntry], *, seq: int, after: str) -> list[AuditRow]:
    """The rows that follow number ``seq``, whose hash is ``after``."""
    rows: list[AuditRow] = []
    for entry in entries:
        seq += 1
        after = entry_hash(
            after=after,
            seq=seq,
            wall_ms=entry.wall_ms,
            actor=entry.actor,
            action=entry.action,
            subject=entry.subject,
            details=entry.details,
        )
        rows.append(AuditRow(seq, entry, after))
    return rows
