"""Run by Alembic, on a connection (and in a transaction) that `storage.opening` hands over."""

from alembic import context

from storage.schema import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
