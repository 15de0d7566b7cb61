"""Whether a database takes what is written is tried without leaving anything."""

from __future__ import annotations

from storage.service import ServiceStore


def test_a_try_leaves_nothing_in_the_database(service: ServiceStore, again: ServiceStore) -> None:
    for store in (service, again, service):
        store.refuse_unwritable()
        assert store.is_current()
        assert again.is_current()
