"""Alembic's entry point: it migrates the connection that ``migrate`` hands it."""

from alembic import context

from turnsaga.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite can't alter a table in place; a later revision then copies it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
