"""Alembic's entry: runs the migrations on the connection that ``schema`` hands over, in its transaction."""

from alembic import context

from gpulayer.server.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
