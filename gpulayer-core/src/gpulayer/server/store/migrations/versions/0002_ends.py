"""Who asked for a job's end, and the program's own failures counted apart from the infrastructure's."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of what is there, nobody knows by whom it was cancelled; and its retries begin anew for the program's part."""
    op.add_column("jobs", sa.Column("stop_by", sa.Text, nullable=False, server_default=""))
    op.add_column("tasks", sa.Column("program_failures", sa.Integer, nullable=False, server_default="0"))
