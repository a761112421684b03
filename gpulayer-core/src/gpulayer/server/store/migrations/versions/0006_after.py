"""Which job a job repeats. Jobs that come after others stand in what is there: so older programs must not read it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of what was there nobody knows what repeats what."""
    op.add_column("jobs", sa.Column("retry_of", sa.String(32), nullable=False, server_default=""))
    op.create_index("ix_jobs_retry_of", "jobs", ["retry_of"], sqlite_where=sa.text("retry_of != ''"))
