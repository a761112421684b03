"""Alembic revisions; ``schema.ensure_schema`` runs them."""
