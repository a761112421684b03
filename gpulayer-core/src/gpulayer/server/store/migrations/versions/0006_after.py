"""Which job a job repeats; elements of arrays. Older programs must not read a store with either: they would run a job
that comes after another at once, and an array once."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of what was there nobody knows what repeats what; none of it is an array."""
    op.add_column("tasks", sa.Column("state", sa.String(16), nullable=False, server_default=""))
    op.add_column("tasks", sa.Column("outcome", sa.Text))
    op.add_column("tasks", sa.Column("outputs", sa.String(64)))
    op.add_column("attempts", sa.Column("task_index", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("retry_of", sa.String(32), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("begun", sa.Integer, nullable=False, server_default="0"))
    op.create_index("ix_jobs_retry_of", "jobs", ["retry_of"], sqlite_where=sa.text("retry_of != ''"))
