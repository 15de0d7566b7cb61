"""Alembic's folder. A new revision is written by ``alembic.command.revision(...,
autogenerate=True)`` on a connection to a database at head; a test holds models and migrations
equal.
"""
