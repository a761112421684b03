"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes all tables and indexes of an empty store."""
    op.create_table(
        "jobs",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("is_live", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("submitter", sa.Text, nullable=False),
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("schedule", sa.Text, nullable=False),
        sa.Column("submitted_wall_ms", sa.BigInteger, nullable=False),
        sa.Column("reason_code", sa.Text, nullable=False),
        sa.Column("reason_message", sa.Text, nullable=False),
        sa.Column("stop", sa.String(32)),
        sa.Column("stop_grace_ms", sa.BigInteger, nullable=False),
        sa.Column("started_wall_ms", sa.BigInteger),
        sa.Column("ended_wall_ms", sa.BigInteger),
        sa.Column("outcome", sa.Text),
        sa.Column("outputs", sa.String(64)),
        sa.Column("verdicts", sa.Text),
    )
    op.create_index("ix_jobs_id", "jobs", ["id"], unique=True)
    op.create_index("ix_jobs_name", "jobs", ["name"])
    op.create_index("ix_jobs_state", "jobs", ["state", "seq"])
    live = sa.column("is_live", sa.Boolean)
    op.create_index("ix_jobs_live", "jobs", ["seq"], sqlite_where=live)
    op.create_table(
        "tasks",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("task_index", sa.Integer, primary_key=True),
        sa.Column("is_done", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("avoid", sa.Text, nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("is_live", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("image", sa.Text, nullable=False),
    )
    op.create_index("ix_attempts_job", "attempts", ["job_id", "epoch"])
    op.create_index("ix_attempts_live", "attempts", ["epoch"], sqlite_where=live)
    op.create_table(
        "facts",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("facts", sa.Text, nullable=False),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("is_draining", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("facts_digest", sa.String(64), sa.ForeignKey("facts.digest"), nullable=False),
        sa.Column("boot", sa.BigInteger, nullable=False),
        sa.Column("seen_wall_ms", sa.BigInteger, nullable=False),
    )
    counters = op.create_table(
        "counters",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next_epoch", sa.BigInteger, nullable=False),
        sa.Column("next_seq", sa.BigInteger, nullable=False),
        sa.Column("now_ms", sa.BigInteger, nullable=False),
        sa.Column("probed", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(counters, [{"id": 1, "next_epoch": 1, "next_seq": 1, "now_ms": 0, "probed": 0}])
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("wall_ms", sa.BigInteger, nullable=False),
        sa.Column("engine", sa.String(16), nullable=False),
        sa.Column("job_id", sa.String(32)),
        sa.Column("worker", sa.String(32)),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_events_job", "events", ["job_id", "seq"])
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("body_digest", sa.String(64), nullable=False),
        sa.Column("job_ids", sa.Text, nullable=False),
        sa.Column("wall_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_idempotency_wall", "idempotency", ["wall_ms"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("created_wall_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_wall_ms", sa.BigInteger),
        sa.Column("is_revoked", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("is_local", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("used_by", sa.String(32)),
    )
    op.create_table(
        "identities",
        sa.Column("worker", sa.String(32), primary_key=True),
        sa.Column("public_key", sa.String(64), nullable=False),
        sa.Column("counter", sa.BigInteger, nullable=False),
        sa.Column("is_local", sa.Boolean(create_constraint=False), nullable=False),
    )
    op.create_index("ix_identities_key", "identities", ["public_key"], unique=True)
