"""The databases on which every suite of the service's stores runs, and their clock."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from storage.service import ServiceStore

POSTGRESQL = "AUTOTUNE_TEST_POSTGRESQL"
"""Names a database (its URL, driver and all) in which the tests may make schemas of their own; the
suites run there too if it is set."""


@dataclass
class Clock:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder}/service.db"


@contextmanager
def _postgresql(_folder: Path) -> Iterator[str]:
    where = os.environ[POSTGRESQL]
    schema = f"test_{uuid.uuid4().hex}"
    engine = create_engine(where)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    url = make_url(where).update_query_dict({"options": f"-csearch_path={schema}"})
    try:
        yield url.render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        engine.dispose()


DATABASES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"sqlite": _sqlite}
if POSTGRESQL in os.environ:
    DATABASES["postgresql"] = _postgresql


@pytest.fixture(params=DATABASES)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    with DATABASES[request.param](tmp_path) as url:
        yield url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(where: str, clock: Clock) -> Iterator[ServiceStore]:
    store = ServiceStore(where, now=clock)
    yield store
    store.close()


@pytest.fixture
def again(where: str, clock: Clock) -> Iterator[ServiceStore]:
    """The same database, opened by another process."""
    store = ServiceStore(where, now=clock)
    yield store
    store.close()
