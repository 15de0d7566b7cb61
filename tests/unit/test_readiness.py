"""Ready is what can be written: a full disk is noticed, and told in the log once."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from autotune.bootstrap.readiness import EVERY_S, SILENT_S, Readiness
from autotune.core.errors import StoreFailed
from storage.service import ServiceStore


@dataclass
class Part:
    lives: bool = True

    def alive(self) -> bool:
        return self.lives


class Bench:
    def __init__(self, database: Path) -> None:
        self.at = 0.0
        self.told: list[Any] = []
        self.store = ServiceStore(str(database))
        self.worker = Part()
        self.ready = Readiness(
            self.store, parts={"worker": self.worker}, folder=database.parent, now=lambda: self.at
        )


@pytest.fixture
def bench(database: Path) -> Iterator[Bench]:
    made = Bench(database)
    with closing(made.store), structlog.testing.capture_logs() as made.told:
        yield made


@contextmanager
def no_room() -> Iterator[None]:
    """No file of this process grows meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_with_all_parts_alive_and_room_it_is_ready(bench: Bench) -> None:
    assert bench.ready.problems() == []


def test_a_part_that_has_died_is_named(bench: Bench) -> None:
    bench.worker.lives = False
    assert bench.ready.problems() == ["worker"]


def test_a_disk_without_room_is_noticed_and_its_end_too(bench: Bench) -> None:
    with no_room():
        found = bench.ready.problems()
    assert found == ["database", "files"]
    bench.at = EVERY_S
    assert bench.ready.problems() == []


def test_writing_is_not_tried_at_every_question(bench: Bench) -> None:
    assert bench.ready.problems() == []
    bench.at = EVERY_S - 1
    with no_room():
        assert bench.ready.problems() == []


def test_a_database_that_takes_too_long_is_named_to_whoever_asks_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def hangs() -> None:
        for seconds in (SILENT_S - 1, 1):
            bench.at += seconds
            asked.append(bench.ready.problems())

    monkeypatch.setattr(bench.store, "refuse_unwritable", hangs)
    assert bench.ready.problems() == []
    assert asked == [[], ["database"]]


def test_what_is_wrong_is_in_the_log_once(bench: Bench) -> None:
    with no_room():
        for bench.at in (0.0, EVERY_S):
            bench.ready.problems()
    bench.at = 2 * EVERY_S
    bench.ready.problems()
    assert [(line["log_level"], line["what"]) for line in bench.told] == [
        ("error", "database"),
        ("error", "files"),
        ("info", "database"),
        ("info", "files"),
    ]


def test_a_database_without_room_refuses_the_try(bench: Bench) -> None:
    with no_room(), pytest.raises(StoreFailed):
        bench.store.refuse_unwritable()
