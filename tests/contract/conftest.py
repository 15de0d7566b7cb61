"""The databases on which every suite of the service's stores runs, and their clock."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from storage.schema import VERSION_TABLE, Base
from storage.service import ServiceStore


@dataclass
class Clock:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


DATABASES = ("sqlite", "postgresql")


def own_schema(url: str) -> str:
    """An empty schema of a PostgreSQL database, as a URL. It goes with the server."""
    schema = f"test_{uuid.uuid4().hex}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    engine.dispose()
    inside = make_url(url).update_query_dict({"options": f"-csearch_path={schema}"})
    return inside.render_as_string(hide_password=False)


@pytest.fixture(params=DATABASES)
def blank(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/service.db"
    return own_schema(request.getfixturevalue("postgresql"))


@pytest.fixture(scope="session")
def prepared(postgresql: str) -> str:
    url = own_schema(postgresql)
    ServiceStore(url).close()
    return url


@pytest.fixture
def shared(prepared: str) -> Iterator[str]:
    """The URL of a PostgreSQL database whose tables are empty."""
    yield prepared
    _empty(prepared)


@pytest.fixture(params=DATABASES)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database whose tables are empty."""
    if request.param == "sqlite":
        path = tmp_path / "service.db"
        shutil.copy(request.getfixturevalue("migrated"), path)
        yield f"sqlite:///{path}"
        return
    yield request.getfixturevalue("shared")


def _empty(url: str) -> None:
    """As it was when it was made; tables that others have added are gone."""
    engine = create_engine(url)
    ours = set(Base.metadata.tables)
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '20s'"))  # of a test that left one open
        for table in inspect(connection).get_table_names():
            if table not in ours | {VERSION_TABLE}:
                connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text(f"TRUNCATE {', '.join(ours)} RESTART IDENTITY"))
    engine.dispose()


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
