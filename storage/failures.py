"""The database's errors in autotune's words: rule, value, next step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from autotune.core.errors import StoreFailed

_NOT_OURS = "Give another path or URL with --db."

_BY_CODE: dict[str, tuple[str, str]] = {
    "SQLITE_BUSY": (
        "the database is locked by another process",
        "Wait until that process is done, or give this run its own database with --db.",
    ),
    "SQLITE_FULL": (
        "the disk is full: the last step was not stored, everything before it was",
        "Make room, then run it again.",
    ),
    "SQLITE_READONLY": (
        "the database cannot be written: its file or directory is read-only",
        "Give a path that you may write to with --db.",
    ),
    "SQLITE_CANTOPEN": (
        "the database cannot be opened: its file or directory may not be read or written",
        "Give a path that you may write to with --db.",
    ),
    "SQLITE_NOTADB": ("the file is not a database", _NOT_OURS),
    "SQLITE_CORRUPT": (
        "the database is damaged",
        "Restore it from a copy, or give a new path with --db.",
    ),
    "SQLITE_IOERR": (
        "the database's file could not be read or written",
        "Look at the disk (full, gone, over quota?), then run it again.",
    ),
}
_BY_CODE["53100"] = _BY_CODE["SQLITE_FULL"]
"""PostgreSQL's disk_full."""
_BY_CODE["55P03"] = _BY_CODE["SQLITE_BUSY"]
"""PostgreSQL's lock_not_available: it was waited for long enough."""
_BY_CODE["25P03"] = (
    "the database has given up this step, which had stopped in its middle",
    "Run it again.",
)
"""PostgreSQL's idle_in_transaction_session_timeout."""
_BY_CODE["SQLITE_LOCKED"] = _BY_CODE["SQLITE_BUSY"]
_BY_CODE["SQLITE_PERM"] = _BY_CODE["SQLITE_CANTOPEN"]


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn whatever the database raises into StoreFailed; ``where`` names the database."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as exc:
        raise _translation(exc, where) from exc


def is_locked(exc: SQLAlchemyError | sqlite3.Error) -> bool:
    """Whether another process's lock is in the way."""
    return _code(exc).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _original(exc: SQLAlchemyError | sqlite3.Error) -> BaseException | None:
    return exc.orig if isinstance(exc, DBAPIError) else exc


def _code(exc: SQLAlchemyError | sqlite3.Error) -> str:
    """SQLite's name of the failure, extended ones too, such as SQLITE_BUSY_SNAPSHOT; or
    PostgreSQL's code."""
    original = _original(exc)
    return str(getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", ""))


def _translation(exc: SQLAlchemyError | sqlite3.Error, where: str) -> StoreFailed:
    name = _code(exc)
    for code, (rule, next_step) in _BY_CODE.items():
        if name.startswith(code):
            return StoreFailed(rule, value=where, next_step=next_step, told=rule)
    first_line = str(_original(exc)).partition("\n")[0]
    return StoreFailed(
        f"the database refused: {first_line}",
        value=where,
        next_step="Check that it runs, and that the user, password and database name are right.",
    )
