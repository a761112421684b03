"""Until when a task of an exclusive job is lent to nobody."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is held yet: a worker that was removed before is forgotten."""
    op.add_column("tasks", sa.Column("held_until_ms", sa.BigInteger, nullable=False, server_default="0"))
