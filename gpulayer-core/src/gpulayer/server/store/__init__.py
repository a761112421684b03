"""The durable side: one transaction a micro-batch, and reads that never wait for it."""

from gpulayer.server.store import log, reads
from gpulayer.server.store.rows import (
    AuditEntry,
    AuditRow,
    Batch,
    EventRow,
    IdempotencyRow,
    IdentityRow,
    JobRow,
    Live,
    LogPage,
    LogRow,
    SecretRow,
    Side,
    StartRow,
    StoredElement,
    StoredEvent,
    StoredJob,
    TokenRow,
)
from gpulayer.server.store.store import IDEMPOTENCY_KEPT_MS, Store

__all__ = [
    "IDEMPOTENCY_KEPT_MS",
    "AuditEntry",
    "AuditRow",
    "Batch",
    "EventRow",
    "IdempotencyRow",
    "IdentityRow",
    "JobRow",
    "Live",
    "LogPage",
    "LogRow",
    "SecretRow",
    "Side",
    "StartRow",
    "Store",
    "StoredElement",
    "StoredEvent",
    "StoredJob",
    "TokenRow",
    "log",
    "reads",
]
