"""From a URL or a plain path to an engine whose schema is up to date.

Nothing is written before it is known that the database is ours: a file that is no database, a
database with other tables, and one with a newer schema are refused as they were found.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from autotune.core.errors import InputRefused, StoreFailed
from storage.failures import is_locked, translated
from storage.schema import VERSION_TABLE

_ADVISORY_LOCK = 0x6175746F
"""Any fixed number: what PostgreSQL's advisory locks are named by ("auto")."""

_SLICE_S = 2.0
"""How long SQLite itself waits for a lock: meanwhile Python hears no signal."""

_LIBPQ = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""A server whose machine is gone, or cut off, is given up after seconds and not hours. What a URL
says itself goes before."""

_KEEPALIVES = ("keepalives_idle", "keepalives_interval", "keepalives_count")
_IDLE_S = 60.0

_OTHER = "Give another path or URL with --db."


def parse_url(where: str) -> URL:
    """A SQLAlchemy URL, or the path of an SQLite file, made absolute."""
    if "://" not in where:
        return URL.create("sqlite", database=str(_absolute(where)))
    try:
        url = make_url(where)
    except ArgumentError as exc:
        raise InputRefused(
            "the database URL cannot be read",
            value=where.rpartition("@")[2],  # what stands before it may be a password
            next_step="e.g. sqlite:///autotune.db, or just a path",
        ) from exc
    if url.get_backend_name() != "sqlite":
        return url
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InputRefused("SQLite is used by its standard driver", value=url.drivername)
    return url.set(database=str(_absolute(url.database or "")))


def sqlite_file(where: str) -> Path | None:
    """The file of an SQLite database; None for a database of another kind."""
    return _sqlite_path(parse_url(where))


def _absolute(path: str) -> Path:
    if path in ("", ":memory:") or path.startswith("file:"):
        raise InputRefused(
            "a study is stored in a file", value=path, next_step="e.g. sqlite:///autotune.db"
        )
    return Path(path).expanduser().absolute()


def open_engine(url: URL, *, create: bool, busy_timeout_s: float) -> Engine:
    """Check, connect and migrate. Raises InputRefused for a place that cannot hold a database,
    StoreFailed for one that holds something else, is locked, or is of a newer schema.
    """
    where = shown(url)
    path = _sqlite_path(url)
    if path is not None:
        _check_path(path, create=create)
    engine = _engine(url, busy_timeout_s)
    try:
        with translated(where):
            if not is_current(engine, where):
                with _migration_lock(path, where, busy_timeout_s):
                    _migrate(engine, where, busy_timeout_s)
    except BaseException:
        engine.dispose()
        raise
    return engine


def shown(url: URL) -> str:
    """The URL for messages: without its password."""
    return url.database or "" if _sqlite_path(url) else url.render_as_string(hide_password=True)


def _sqlite_path(url: URL) -> Path | None:
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


# -------------------------------------------------------------------------------------- checks
def _check_path(path: Path, *, create: bool) -> None:
    """Without opening the file: whoever closes it takes all of this process's locks on it away
    (POSIX), those of the connections that it has already too, and SQLite then takes a database that
    is in use for one that is not. What is no database, SQLite tells itself."""
    try:
        _check_place(path, create=create)
        if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as exc:
        raise StoreFailed(
            f"the database cannot be read: {exc.strerror}", value=str(path), next_step=_OTHER
        ) from exc


def _check_place(path: Path, *, create: bool) -> None:
    if path.is_dir():
        raise InputRefused(
            "the database is a file, this is a directory",
            value=str(path),
            next_step=f"e.g. --db {path / 'autotune.db'}",
        )
    if not path.parent.is_dir():
        raise InputRefused(
            "the database's directory does not exist",
            value=str(path.parent),
            next_step="Create it, or give another path with --db.",
        )
    if not create and not path.exists():
        raise InputRefused(
            "there is no database yet",
            value=str(path),
            next_step="A study that is run makes one, and so does a schedule that is added; or name"
            " its database with --db.",
        )


def is_current(engine: Engine, where: str) -> bool:
    """Whether the schema is the newest; refuses one that is not ours or newer than we know."""
    with engine.connect() as connection:
        revision = _revision(connection, where)
    script = _script()
    if revision is None:
        return False
    try:
        script.get_revision(revision)
    except CommandError as exc:
        raise StoreFailed(
            "the database was written by a newer autotune, whose schema this one does not know",
            value=f"{where}, schema {revision}",
            next_step="Upgrade autotune, or give another database with --db. Nothing was changed.",
        ) from exc
    return revision == script.get_current_head()


def _revision(connection: Connection, where: str) -> str | None:
    """The schema's revision, None for an empty database."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE in tables:
        query = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
        return str(connection.scalar(query))
    if tables:
        raise StoreFailed(
            "the database belongs to something else: it has other tables and none of autotune's",
            value=f"{where}: {', '.join(sorted(tables)[:5])}",
            next_step=_OTHER + " Nothing was changed.",
        )
    return None


# ---------------------------------------------------------------------------------- connecting
def _engine(url: URL, busy_timeout_s: float) -> Engine:
    try:
        if _sqlite_path(url) is None:
            return _elsewhere(url, busy_timeout_s)
        engine = create_engine(url, connect_args={"timeout": min(_SLICE_S, busy_timeout_s)})
    except NoSuchModuleError as exc:
        raise InputRefused(
            "no such kind of database",
            value=url.drivername,
            next_step="sqlite or postgresql+psycopg",
        ) from exc
    except ModuleNotFoundError as exc:
        raise InputRefused(
            f"the driver for {url.drivername} is not installed",
            value=exc.name,
            next_step=f"Install it beside autotune: pip install {exc.name}",
        ) from exc
    event.listen(engine, "connect", partial(_on_connect, busy_timeout_s=busy_timeout_s))
    event.listen(engine, "begin", partial(_on_begin, busy_timeout_s=busy_timeout_s))
    return engine


def _elsewhere(url: URL, busy_timeout_s: float) -> Engine:
    by_libpq = url.get_driver_name() in ("psycopg", "psycopg2")
    ours = {key: value for key, value in _LIBPQ.items() if by_libpq and key not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=ours)
    if url.get_backend_name() != "postgresql":
        return engine
    event.listen(engine, "connect", partial(_bound_waits, busy_timeout_s=busy_timeout_s))
    return engine


def _bound_waits(connection: Any, _record: object, *, busy_timeout_s: float) -> None:
    """Others' locks are waited for as long as SQLite's; and whoever stops in the middle of a step,
    or whose machine is gone, keeps none for `_IDLE_S`."""
    limits = {
        "lock_timeout": max(round(busy_timeout_s * 1000), 1),
        "idle_in_transaction_session_timeout": round(_IDLE_S * 1000),
        **{f"tcp_{key}": _LIBPQ[key] for key in _KEEPALIVES},
    }
    with connection.cursor() as cursor:
        for name, limit in limits.items():
            cursor.execute(f"SET {name} = {limit}")
    connection.commit()


def _on_connect(connection: sqlite3.Connection, _record: object, *, busy_timeout_s: float) -> None:
    """FULL: a commit is on disk when it returns (in WAL mode, NORMAL would wait for the next
    checkpoint, and a power cut could lose trials that were reported as stored).
    """
    connection.isolation_level = None  # the driver's own transactions leave DDL outside of them
    connection.execute("PRAGMA foreign_keys = ON")
    _patiently(lambda: connection.execute("PRAGMA synchronous = FULL"), busy_timeout_s)


def _on_begin(connection: Connection, *, busy_timeout_s: float) -> None:
    """A writer takes its lock at once: two that had both read would else fail, not wait. A reader
    takes its own at once too, so that nothing after this has a lock to wait for."""
    if connection.get_execution_options().get("sqlite_begin") == "IMMEDIATE":
        lock = "BEGIN IMMEDIATE"
    else:
        connection.exec_driver_sql("BEGIN")
        lock = "SELECT count(*) FROM sqlite_master"
    _patiently(lambda: connection.exec_driver_sql(lock).close(), busy_timeout_s)


def _patiently(act: Callable[[], object], timeout_s: float) -> None:
    """Do it, waiting up to ``timeout_s`` in all for other processes' locks."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            act()
        except (DBAPIError, sqlite3.Error) as exc:
            if not is_locked(exc) or time.monotonic() >= deadline:
                raise
        else:
            return
        time.sleep(0.02)  # some locks SQLite does not wait for


WRITING = {"sqlite_begin": "IMMEDIATE"}
"""Execution options of a connection that is going to write."""


# ----------------------------------------------------------------------------------- migration
@contextmanager
def _migration_lock(path: Path | None, where: str, timeout_s: float) -> Iterator[None]:
    """One process at a time. Other databases are locked from within, by `_migrate`."""
    if path is None:
        yield
        return
    try:
        with FileLock(f"{path}.lock", timeout=timeout_s):
            yield
    except Timeout as exc:
        raise StoreFailed(
            "another process is preparing the database", value=where, next_step="Try again."
        ) from exc
    except OSError as exc:
        raise StoreFailed(
            f"the database cannot be written: {exc.strerror}",
            value=where,
            next_step="Give a path that you may write to with --db.",
        ) from exc


def _migrate(engine: Engine, where: str, busy_timeout_s: float) -> None:
    """Bring the schema to the newest revision in one transaction: all of it, or nothing."""
    if engine.dialect.name == "sqlite":
        _use_wal(engine, busy_timeout_s)
    with engine.connect().execution_options(**WRITING) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        _revision(connection, where)  # once more, now that nobody else can change it
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _use_wal(engine: Engine, busy_timeout_s: float) -> None:
    """Readers and one writer do not wait for each other. The mode is kept in the file."""
    raw = engine.raw_connection()  # the mode cannot be changed within a transaction
    try:
        with closing(raw.cursor()) as cursor:
            _patiently(lambda: cursor.execute("PRAGMA journal_mode = WAL"), busy_timeout_s)
    finally:
        raw.close()


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _script() -> ScriptDirectory:
    """Read once: it is asked at each opening, and whether a service is ready."""
    return ScriptDirectory.from_config(_config())
