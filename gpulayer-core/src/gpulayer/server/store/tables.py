"""The tables, as SQLAlchemy Core metadata. They never leave ``server/store``.

``SCHEMA_VERSION`` names the last revision under ``migrations/``; a test holds metadata and migrations equal.
Nested values (outcomes, nodes, facts) are JSON text in the forms of ``codec``: they are only ever read whole.
"""

from typing import Final

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
)

__all__ = [
    "APPEND_ONLY",
    "SCHEMA_VERSION",
    "attempts",
    "audit",
    "counters",
    "events",
    "facts",
    "idempotency",
    "identities",
    "jobs",
    "metadata",
    "secrets",
    "sink_cursors",
    "tasks",
    "tokens",
    "version",
    "workers",
]

SCHEMA_VERSION: Final = "0006"

metadata: Final = MetaData()

# Alembic's own table: a fresh store is stamped without importing Alembic, which costs most of a second.
version: Final = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))

jobs: Final = Table(
    "jobs",
    metadata,
    # The rows lie in the order of their submission, which is how they are listed; ids are random.
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("id", String(32), nullable=False),
    Column("is_live", Boolean(create_constraint=False), nullable=False),
    Column("state", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("submitter", Text, nullable=False),
    Column("client", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("schedule", Text, nullable=False),
    Column("submitted_wall_ms", BigInteger, nullable=False),
    Column("reason_code", Text, nullable=False),
    Column("reason_message", Text, nullable=False),
    Column("stop", String(32)),
    Column("stop_grace_ms", BigInteger, nullable=False),
    Column("started_wall_ms", BigInteger),
    Column("ended_wall_ms", BigInteger),
    Column("outcome", Text),
    Column("outputs", String(64)),
    Column("verdicts", Text),
    Column("stop_by", Text, nullable=False, server_default=""),
    Column("token_id", String(12), nullable=False, server_default=""),
    Column("retry_of", String(32), nullable=False, server_default=""),
    Column("begun", Integer, nullable=False, server_default="0"),
    Index("ix_jobs_id", "id", unique=True),
    Index("ix_jobs_name", "name"),
    Index("ix_jobs_state", "state", "seq"),
)

# ``state``, ``outcome``, ``outputs``: of an array's element that is done; empty for any other task.
tasks: Final = Table(
    "tasks",
    metadata,
    Column("job_id", String(32), ForeignKey("jobs.id"), primary_key=True),
    Column("task_index", Integer, primary_key=True),
    Column("is_done", Boolean(create_constraint=False), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("avoid", Text, nullable=False),
    Column("program_failures", Integer, nullable=False, server_default="0"),
    Column("held_until_ms", BigInteger, nullable=False, server_default="0"),
    Column("state", String(16), nullable=False, server_default=""),
    Column("outcome", Text),
    Column("outputs", String(64)),
)

attempts: Final = Table(
    "attempts",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("job_id", String(32), ForeignKey("jobs.id"), nullable=False),
    Column("is_live", Boolean(create_constraint=False), nullable=False),
    Column("image", Text, nullable=False),
    Column("task_index", Integer, nullable=False, server_default="0"),
    Index("ix_attempts_job", "job_id", "epoch"),
)

facts: Final = Table(
    "facts",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("facts", Text, nullable=False),
)

workers: Final = Table(
    "workers",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("is_draining", Boolean(create_constraint=False), nullable=False),
    Column("facts_digest", String(64), ForeignKey("facts.digest"), nullable=False),
    Column("boot", BigInteger, nullable=False),
    Column("seen_wall_ms", BigInteger, nullable=False),
)

# ``probed``: counts commits, and the writes that tell whether the store can be written again (``mark``). ``store_id``:
# made with the store.
counters: Final = Table(
    "counters",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("next_epoch", BigInteger, nullable=False),
    Column("next_seq", BigInteger, nullable=False),
    Column("now_ms", BigInteger, nullable=False),
    Column("probed", BigInteger, nullable=False),
    Column("store_id", String(16), nullable=False, server_default=""),
)

events: Final = Table(
    "events",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("wall_ms", BigInteger, nullable=False),
    Column("engine", String(16), nullable=False),
    Column("job_id", String(32)),
    Column("worker", String(32)),
    Column("kind", String(32), nullable=False),
    Column("body", Text, nullable=False),
    Index("ix_events_job", "job_id", "seq"),
)

idempotency: Final = Table(
    "idempotency",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_digest", String(64), nullable=False),
    Column("job_ids", Text, nullable=False),
    Column("wall_ms", BigInteger, nullable=False),
    Index("ix_idempotency_wall", "wall_ms"),
)

tokens: Final = Table(
    "tokens",
    metadata,
    Column("id", String(12), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("created_wall_ms", BigInteger, nullable=False),
    Column("expires_wall_ms", BigInteger),
    Column("is_revoked", Boolean(create_constraint=False), nullable=False),
    Column("is_local", Boolean(create_constraint=False), nullable=False),
    Column("role", String(16), nullable=False, server_default=""),
    Column("owner", Text, nullable=False, server_default=""),
    Column("max_uses", Integer, nullable=False, server_default="1"),
    Column("uses", Integer, nullable=False, server_default="0"),
    Column("labels", Text, nullable=False, server_default="{}"),
    Column("max_devices", Integer),
    Column("used_wall_ms", BigInteger),
    Column("replaces", String(12), nullable=False, server_default=""),
    Column("removed_keys", Text, nullable=False, server_default="[]"),
)

identities: Final = Table(
    "identities",
    metadata,
    Column("worker", String(32), primary_key=True),
    Column("public_key", String(64), nullable=False),
    Column("counter", BigInteger, nullable=False),
    Column("is_local", Boolean(create_constraint=False), nullable=False),
    Column("token_id", String(12), nullable=False, server_default=""),
    Column("labels", Text, nullable=False, server_default="{}"),
    Column("max_devices", Integer),
    Column("boot", BigInteger, nullable=False, server_default="0"),
    Column("instance", String(64), nullable=False, server_default=""),
    Column("started_wall_ms", BigInteger, nullable=False, server_default="0"),
    Index("ix_identities_key", "public_key", unique=True),
)

# Hashes are chained: see ``wire.trail``.
audit: Final = Table(
    "audit",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("wall_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(32), nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", Text, nullable=False),
    Column("hash", String(64), nullable=False),
)

# Sealed under a key that is not in the store, and apart from the jobs, whose rows people see.
secrets: Final = Table(
    "secrets",
    metadata,
    Column("job_id", String(32), ForeignKey("jobs.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
)

# How far each event sink has been told the log.
sink_cursors: Final = Table(
    "sink_cursors",
    metadata,
    Column("sink", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

APPEND_ONLY: Final = (
    "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END",
    "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END",
    # INSERT OR REPLACE takes a row out without asking the trigger above.
    "CREATE TRIGGER audit_no_insert BEFORE INSERT ON audit WHEN EXISTS (SELECT 1 FROM audit WHERE seq >= NEW.seq)"
    " BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END",
)
"""The database itself refuses to change an entry, to take one out and to slip one in."""

for _statement in APPEND_ONLY:
    event.listen(audit, "after_create", DDL(_statement))  # type: ignore[no-untyped-call] # SQLAlchemy's

# Rebuilding reads the live rows alone, however many ended ones there are. (Naming another dialect's twin of
# ``sqlite_where`` here would import that dialect: 50 ms of every start.)
Index("ix_jobs_live", jobs.c.seq, sqlite_where=jobs.c.is_live)
Index("ix_jobs_retry_of", jobs.c.retry_of, sqlite_where=jobs.c.retry_of != "")
Index("ix_attempts_live", attempts.c.epoch, sqlite_where=attempts.c.is_live)
