"""The version of a store's schema: made new, left as it is, brought up to date, or refused.

Alembic is imported only where a migration has to run; it would cost most of a second of every start.
"""

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, func, insert, inspect, select

from gpulayer.errors import Conflict
from gpulayer.server.store.tables import SCHEMA_VERSION, counters, metadata, version

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["alembic_config", "ensure_schema", "expected"]


def ensure_schema(engine: Engine) -> None:
    """Make the schema current. Raises Conflict for a store that a newer version wrote."""
    with engine.begin() as connection:
        found = _version(connection)
        if found == SCHEMA_VERSION:
            return
        if found is None:
            metadata.create_all(connection)
            connection.execute(insert(version).values(version_num=SCHEMA_VERSION))
            store_id = func.lower(func.hex(func.randomblob(8)))
            connection.execute(
                insert(counters).values(id=1, next_epoch=1, next_seq=1, now_ms=0, probed=0, store_id=store_id)
            )
            return
        if found > SCHEMA_VERSION:
            raise Conflict(
                f"the store has schema {found}, and this version of gpulayer knows {SCHEMA_VERSION} at most",
                hint="a newer version wrote it: upgrade gpulayer, or use another --state folder",
            )
        _migrate(connection)


def expected() -> dict[str, frozenset[str]]:
    """The tables of this version and their columns."""
    return {table.name: frozenset(column.name for column in table.columns) for table in metadata.sorted_tables}


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(version.name):
        return None
    return connection.execute(select(version.c.version_num)).scalar_one_or_none()


def _migrate(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - see above

    command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection) -> "Config":
    """Alembic's settings for this connection; the migrations ship inside the package."""
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", "gpulayer.server.store:migrations")
    config.attributes["connection"] = connection
    return config
