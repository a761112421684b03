"""Roles, owners, uses and limits of tokens; whose token joined a worker; the audit trail; secrets of jobs."""

import sqlalchemy as sa
from alembic import op

from gpulayer.server.store.tables import APPEND_ONLY

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A token that was used stays used, and is good for its worker alone. Client tokens of before could do everything;
    they were this machine's own, which a start makes anew, and so are the jobs that were submitted with them."""
    op.add_column("jobs", sa.Column("token_id", sa.String(12), nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("role", sa.String(16), nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("owner", sa.Text, nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("max_uses", sa.Integer, nullable=False, server_default="1"))
    op.add_column("tokens", sa.Column("uses", sa.Integer, nullable=False, server_default="0"))
    op.add_column("tokens", sa.Column("labels", sa.Text, nullable=False, server_default="{}"))
    op.add_column("tokens", sa.Column("max_devices", sa.Integer))
    op.add_column("tokens", sa.Column("used_wall_ms", sa.BigInteger))
    op.add_column("tokens", sa.Column("replaces", sa.String(12), nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("removed_keys", sa.Text, nullable=False, server_default="[]"))
    op.add_column("identities", sa.Column("token_id", sa.String(12), nullable=False, server_default=""))
    op.add_column("identities", sa.Column("labels", sa.Text, nullable=False, server_default="{}"))
    op.add_column("identities", sa.Column("max_devices", sa.Integer))
    op.add_column("identities", sa.Column("boot", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("identities", sa.Column("instance", sa.String(64), nullable=False, server_default=""))
    op.add_column("identities", sa.Column("started_wall_ms", sa.BigInteger, nullable=False, server_default="0"))
    op.execute(
        "UPDATE identities SET boot = COALESCE((SELECT boot FROM workers WHERE workers.id = identities.worker), 0)"
    )
    op.execute("UPDATE jobs SET token_id = owner, owner = 'local'")
    op.execute("UPDATE tokens SET uses = 1 WHERE used_by IS NOT NULL")
    op.execute(
        "UPDATE identities SET token_id = COALESCE("
        "(SELECT id FROM tokens WHERE tokens.used_by = identities.worker LIMIT 1), '')"
    )
    op.drop_column("tokens", "used_by")
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("wall_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    for statement in APPEND_ONLY:
        op.execute(statement)
    op.create_table(
        "secrets",
        sa.Column("job_id", sa.String(32), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
