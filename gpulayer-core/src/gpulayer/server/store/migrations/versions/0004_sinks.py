"""An id of the store itself, which makes those of its events; and how far each event sink has been told the log."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody has been told of anything yet."""
    op.add_column("counters", sa.Column("store_id", sa.String(16), nullable=False, server_default=""))
    op.execute("UPDATE counters SET store_id = lower(hex(randomblob(8)))")
    op.create_table(
        "sink_cursors",
        sa.Column("sink", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )
