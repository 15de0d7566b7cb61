"""Whether a database takes what is written is tried without leaving anything, and it is not waited
for for ever."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import text

from autotune.core.errors import StoreFailed
from autotune.core.jobs import JobKind
from storage.service import ServiceStore


def test_a_try_leaves_nothing_in_the_database(service: ServiceStore, again: ServiceStore) -> None:
    for store in (service, again, service):
        store.refuse_unwritable()
        assert store.is_current()
        assert again.is_current()


def test_a_database_that_somebody_keeps_locked_is_told_after_a_while(
    service: ServiceStore, where: str
) -> None:
    with (
        service.engine.connect() as somebody,
        closing(ServiceStore(where, busy_timeout_s=0.2)) as store,
    ):
        somebody.begin()  # on SQLite, that is all
        if service.engine.dialect.name == "postgresql":
            somebody.execute(text("LOCK TABLE jobs"))
        with pytest.raises(StoreFailed, match="locked by another process"):
            store.jobs.submit(JobKind.STUDY, "tiny", {}, by="ci")
