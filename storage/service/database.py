"""One database for all of the service's stores, shared by threads and by processes."""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from autotune.core.errors import NotFound
from storage.failures import translated
from storage.opening import WRITING, is_current, open_engine, parse_url, shown
from storage.schema import VERSION_TABLE, Base

_LARGEST_ID = 2**31 - 1
_TURN = 0x6175746F6A
"""What the advisory lock is named by: "autoj"."""
_PROBE = "can this be written"
_PUT = text(f"INSERT INTO {VERSION_TABLE} (version_num) VALUES (:row)")  # noqa: S608
_TAKEN = text(f"DELETE FROM {VERSION_TABLE} WHERE version_num = :row")  # noqa: S608
_Row = TypeVar("_Row", bound=Base)


class Database:
    """``writing`` is the engine of connections that are going to write: on SQLite they take the
    write lock at once. ``where`` may be shown: it has no password."""

    def __init__(
        self,
        where: str,
        *,
        create: bool = True,
        busy_timeout_s: float = 60.0,
        now: Callable[[], float] | None = None,
    ) -> None:
        url = parse_url(where)
        self.where = shown(url)
        self.now = now or time.time
        self._is_told = now is not None
        self._engine = open_engine(url, create=create, busy_timeout_s=busy_timeout_s)
        self.writing: Engine = self._engine.execution_options(**WRITING)

    @contextmanager
    def read(self) -> Iterator[Session]:
        with translated(self.where), Session(self._engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: all of it, or nothing."""
        with translated(self.where), Session(self.writing) as session, session.begin():
            yield session

    def one_at_a_time(self, session: Session) -> None:
        """Whoever calls this waits for the others that did, until their transactions have ended. On
        SQLite every writer does."""
        if self.writing.dialect.name == "postgresql":
            session.execute(select(func.pg_advisory_xact_lock(_TURN)))

    @contextmanager
    def held(self, name: str) -> Iterator[bool]:
        """Whether nobody else who uses the database holds what goes by that name; if so it is held,
        until the end, or that of the process. By a lock of PostgreSQL; those who use SQLite are on
        one machine, and share the names of its sockets (Linux)."""
        digest = hashlib.sha256(name.encode())
        if self.writing.dialect.name != "postgresql":
            digest.update(os.path.realpath(self._engine.url.database or "").encode())
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
                yield _bound(lock, f"\0triton-autotune.{digest.hexdigest()[:32]}")
            return
        key = int.from_bytes(digest.digest()[:8], "big", signed=True)
        with translated(self.where), self._engine.connect() as connection:
            lone = connection.execution_options(isolation_level="AUTOCOMMIT")
            taken = bool(lone.execute(select(func.pg_try_advisory_lock(key))).scalar_one())
            try:
                yield taken
            finally:
                with suppress(SQLAlchemyError):  # a connection that was lost has let go of it
                    if taken:
                        lone.execute(select(func.pg_advisory_unlock(key)))

    def common_now(self, session: Session) -> float:
        """By a clock that all who use the database share, once the transaction has what it waited
        for: those of an SQLite database are on one machine, those of PostgreSQL need not be."""
        session.connection()
        if self._is_told or self.writing.dialect.name != "postgresql":
            return self.now()
        epoch: Any = func.extract("epoch", func.clock_timestamp())
        return float(session.execute(select(epoch)).scalar_one())

    def is_current(self) -> bool:
        with translated(self.where):
            return is_current(self._engine, self.where)

    def refuse_unwritable(self) -> None:
        """StoreFailed unless a row can be stored. None stays: the one transaction takes it away."""
        with self.write() as session:
            for step in (_PUT, _TAKEN):
                session.execute(step, {"row": _PROBE})
                session.flush()

    def close(self) -> None:
        self._engine.dispose()


def _bound(lock: socket.socket, name: str) -> bool:
    try:
        lock.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def by_id(session: Session, kind: type[_Row], row_id: int, *, lock: bool = False) -> _Row | None:
    """The row as it is now. None, too, for a number beyond those that databases give."""
    if not 0 < row_id <= _LARGEST_ID:
        return None
    return session.get(kind, row_id, with_for_update=lock or None, populate_existing=True)


def added(session: Session, *rows: Base) -> bool:
    """Add the rows, all or none of them; False if a unique constraint is in the way."""
    try:
        with session.begin_nested():
            session.add_all(rows)
            session.flush()
    except IntegrityError:
        return False
    return True


def no_such(kind: str, name: str, names: Iterable[str]) -> NotFound:
    """The refusal of a name that is not there, with what may have been meant."""
    known = sorted(set(names))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        next_step = f"Did you mean {' or '.join(near)}?"
    elif known:
        next_step = f"There is {', '.join(known[:5])}{', …' if len(known) > 5 else ''}."
    else:
        next_step = f"There is no {kind} yet."
    return NotFound(f"no such {kind}", value=name, next_step=next_step)
