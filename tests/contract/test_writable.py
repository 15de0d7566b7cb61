"""Whether a database takes what is written is tried without leaving anything, and it is not waited
for for ever."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

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


def test_whoever_stops_in_the_middle_of_a_step_holds_others_up_for_a_while_only(
    shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ServiceStore(shared)) as other, monkeypatch.context() as soon:
        soon.setattr("storage.opening._IDLE_S", 0.3)
        with (
            closing(ServiceStore(shared)) as stops,
            suppress(SQLAlchemyError),  # its connection is gone
            stops.engine.begin() as step,
        ):
            step.execute(text("LOCK TABLE jobs"))
            assert other.jobs.submit(JobKind.STUDY, "tiny", {}, by="ci") == 1
