"""What SQLite and the machine can do to a store: kills, locks, full disks, files of others."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, event

from autotune.core.errors import AutotuneError, InputRefused, StoreFailed
from autotune.core.measurement import Ended
from autotune.core.trial import TrialState
from autotune.studyfile import read_definition
from storage import SqlTrialStore
from storage.schema import VERSION_TABLE, Base
from tests.realistic import a_candidate, a_measurement, comparisons
from tests.sameness import comparable

ROOT = Path(__file__).parents[2]

_WRITER = """
import sys
from autotune.core.trial import TrialState
from storage import SqlTrialStore
from tests.realistic import a_candidate, a_measurement

store = SqlTrialStore(sys.argv[1])
study = store.create_study(sys.argv[2], {}, "d")
measured = a_measurement(window_s=1)
for number in range(int(sys.argv[3])):
    store.begin_trial(study, number, a_candidate(4, number + 1))
    store.add_measurement(study, number, measured)
    store.end_trial(study, number, TrialState.OK)
    print(number, flush=True)
store.close()
"""


def _writer(path: Path, study: str, trials: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(path), study, str(trials)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "autotune.db"


@pytest.fixture
def stored(path: Path) -> Path:
    """A database with one study in it."""
    store = SqlTrialStore(str(path))
    store.create_study("ocr", {}, "d")
    store.close()
    return path


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# ---------------------------------------------------------------------------------- durability
def test_a_killed_writer_loses_at_most_the_running_trial(path: Path) -> None:
    with _writer(path, "killed", 100_000) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(12)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.stdout.read().split()]
    store = SqlTrialStore(str(path))
    trials = store.trials(store.study("killed").id, samples=True)
    store.close()
    ended = [t.number for t in trials if t.state is TrialState.OK and t.measurement is not None]
    assert ended[: len(told)] == told
    assert len(trials) - len(ended) <= 1


def test_two_processes_that_open_and_write_at_once_lose_nothing(path: Path) -> None:
    writers = [_writer(path, name, 25) for name in ("a", "b")]
    assert [writer.communicate(timeout=120)[0].count("\n") for writer in writers] == [25, 25]
    assert [writer.returncode for writer in writers] == [0, 0]
    store = SqlTrialStore(str(path))
    counts = [sum(t.measurement is not None for t in store.trials(store.study(n).id)) for n in "ab"]
    store.close()
    assert counts == [25, 25]


def test_a_commit_is_synced_and_the_journal_is_a_write_ahead_log(stored: Path) -> None:
    store = SqlTrialStore(str(stored))
    with store._engine.connect() as connection:
        asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in asked]
    store.close()
    assert pragmas == ["wal", 2, 1, 2_000]


# ------------------------------------------------------------------------------ older databases
@pytest.fixture
def older(path: Path) -> Path:
    """A database of schema 0001, written by the autotune that had it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((ROOT / "tests/data/schema_0001.sql").read_text())
    return path


def _tables(path: Path) -> dict[str, list[dict[str, object]]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        names = [
            n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        return {n: [dict(row) for row in connection.execute(f"SELECT * FROM {n}")] for n in names}


def test_an_older_database_is_upgraded_in_place_and_keeps_every_value(older: Path) -> None:
    before = _tables(older)
    SqlTrialStore(str(older)).close()
    after = _tables(older)
    assert before.pop(VERSION_TABLE) != after.pop(VERSION_TABLE)
    assert (after.pop("comparisons"), after.pop("variants")) == ([], [])
    kept = {
        name: [{key: row[key] for key in old} for old, row in zip(rows, after[name], strict=True)]
        for name, rows in before.items()
    }
    assert kept == before
    assert len(before["measurements"]) == 3


def test_an_older_databases_measurements_read_back_with_the_new_fields_unknown(
    older: Path,
) -> None:
    store = SqlTrialStore(str(older))
    trials = store.trials(1, samples=True)
    store.close()
    first, confirmed, invalid = (m for trial in trials for m in trial.measurements)
    assert first.saturation_qps is not None
    assert math.isnan(first.saturation_qps)
    assert first.load.generator_cpu == math.inf
    assert confirmed.load.samples is not None
    assert len(confirmed.load.samples.done_s) == confirmed.load.scheduled == 40
    assert invalid.invalid_because == ("the generator fell behind",)
    for each in (first, confirmed, invalid):
        assert (each.intervals, each.traffic, each.saturation_s) == ({}, None, 0.0)
        assert (each.load.warmup_s, each.load.steady) == (0.0, None)
        assert each.load.ended is Ended.MAXIMUM
        assert each.telemetry.foreign_cpu is None
        assert each.accuracy_drop is None
        assert each.server is None or (each.server.instances, each.server.steps) == (0, {})
        assert (each.telemetry.foreign_gpu, each.telemetry.throttled) == ((), ())
        assert (each.telemetry.gauges, each.telemetry.memory_total_mb) == ({}, None)
        assert each.price_per_hour is None
        assert (each.energy_j_per_1000, each.cost_per_1000) == (None, None)


def test_an_older_database_takes_new_measurements_and_comparisons(older: Path) -> None:
    measured = a_measurement(window_s=1, cv=2.0)
    store = SqlTrialStore(str(older))
    store.add_measurement(1, 0, measured)
    store.add_comparisons(1, comparisons()[:1])
    trials, compared = store.trials(1, samples=True), store.comparisons(1)
    store.close()
    assert comparable(trials[0].measurements[-1]) == comparable(measured)
    assert compared == comparisons()[:1]


def test_an_older_study_is_still_understood(older: Path) -> None:
    store = SqlTrialStore(str(older))
    record = store.study("ocr")
    store.close()
    study = read_definition(record.definition)
    assert study.digest == record.digest
    assert (study.workload.warmup_s, study.workload.longest_s) == (2.0, 12.0)
    assert study.finals.candidates == 0


def test_an_upgrade_that_finds_the_disk_full_changes_nothing(older: Path) -> None:
    before = _tables(older)
    with closing(sqlite3.connect(older)) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    with _at_most(pages), pytest.raises(StoreFailed, match="disk is full"):
        SqlTrialStore(str(older))
    assert _tables(older) == before
    SqlTrialStore(str(older)).close()


@contextmanager
def _at_most(pages: int) -> Iterator[None]:
    """Every database opened meanwhile finds the disk full beyond that size."""

    def fill(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Engine, "connect", fill)
    try:
        yield
    finally:
        event.remove(Engine, "connect", fill)


# -------------------------------------------------------------------------------------- schema
def test_the_migrations_build_exactly_what_the_models_say(stored: Path) -> None:
    store = SqlTrialStore(str(stored))
    with store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        differences = compare_metadata(context, Base.metadata)
    store.close()
    assert differences == []


def test_the_metrics_can_be_asked_for_in_plain_sql(stored: Path) -> None:
    measured = a_measurement(window_s=2)
    assert measured.load.latency is not None
    store = SqlTrialStore(str(stored))
    store.begin_trial(1, 0, a_candidate(4, 2))
    store.add_measurement(1, 0, measured)
    store.close()
    query = """
        SELECT t.number, json_extract(t.candidate, '$.instances'), m.p95_ms, m.error_rate,
               m.mean_batch, m.utilization, m.utilization_source, length(m.samples) > 0
        FROM measurements m JOIN trials t ON t.id = m.trial_id JOIN studies s ON s.id = t.study_id
        WHERE s.name = 'ocr' AND m.valid"""
    with sqlite3.connect(stored) as connection:
        (row,) = connection.execute(query).fetchall()
    connection.close()
    expected = (0, 2, measured.load.latency.at(95.0), 0.0, measured.metric("mean_batch"))
    assert row == (*expected, measured.telemetry.utilization, "process_cpu", 1)


def test_a_newer_schema_is_refused_and_left_as_it_is(stored: Path) -> None:
    with sqlite3.connect(stored) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    before = _contents(stored.parent)
    with pytest.raises(StoreFailed, match=r"newer autotune.*schema 9999"):
        SqlTrialStore(str(stored))
    assert _contents(stored.parent) == before


def test_opening_does_not_write_to_a_database_that_is_up_to_date(stored: Path) -> None:
    before = stored.read_bytes()
    SqlTrialStore(str(stored)).close()
    assert stored.read_bytes() == before


# -------------------------------------------------------------------------------- files of others
def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.close()
    before = _contents(path.parent)
    with pytest.raises(StoreFailed, match=r"something else.*alembic_version, studies"):
        SqlTrialStore(str(path))
    assert _without_lock(path.parent) == before


def _without_lock(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in _contents(folder).items() if not name.endswith(".lock")}


@pytest.mark.parametrize("content", [b"study: ocr\n", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(
    path: Path, content: bytes
) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreFailed, match=r"not a database|damaged"):
        SqlTrialStore(str(path))
    assert path.read_bytes() == content


USES_IT_ONCE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT * FROM studies").fetchall()
connection.close()
"""


def test_a_database_that_is_opened_twice_in_a_process_is_still_known_to_be_in_use(
    path: Path,
) -> None:
    """Another process that thinks it is the last one takes the write-ahead log away, from under
    those that use it."""
    first = SqlTrialStore(str(path))
    first.create_study("tiny", {}, "digest")
    second = SqlTrialStore(str(path))
    with closing(first), closing(second):
        subprocess.run([sys.executable, "-c", USES_IT_ONCE, str(path)], check=True, timeout=60)
        assert path.with_name(path.name + "-wal").exists()


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    store = SqlTrialStore(str(path))
    assert list(store.studies()) == []
    store.close()


# ---------------------------------------------------------------------------------------- places
@pytest.mark.parametrize(
    ("where", "rule"),
    [
        ("{tmp}", "this is a directory"),
        ("{tmp}/none/autotune.db", "directory does not exist"),
        ("sqlite:///{tmp}/none/autotune.db", "directory does not exist"),
        (":memory:", "stored in a file"),
        ("sqlite://", "stored in a file"),
        ("sqlite+aiosqlite:///x.db", "standard driver"),
        ("nosuch://host/db", "no such kind of database"),
        ("mysql+nosuchdriver://host/db", "no such kind of database"),
        ("://", "cannot be read"),
    ],
)
def test_a_place_that_cannot_hold_a_database_is_refused(
    tmp_path: Path, where: str, rule: str
) -> None:
    with pytest.raises(InputRefused, match=rule):
        SqlTrialStore(where.format(tmp=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_driver_is_named_and_the_password_is_not_shown() -> None:
    with pytest.raises(AutotuneError) as refused:
        SqlTrialStore("postgresql+psycopg2cffi://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(refused.value)


def test_a_missing_database_is_not_created_for_a_reader(path: Path) -> None:
    with pytest.raises(InputRefused, match="no database yet"):
        SqlTrialStore(str(path), create=False)
    assert list(path.parent.iterdir()) == []


def test_a_plain_path_and_a_url_mean_the_same_file(stored: Path) -> None:
    store = SqlTrialStore(f"sqlite:///{stored}", create=False)
    assert store.study("ocr").id == 1
    store.close()


def test_a_path_of_odd_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "100% #1?x=é.db"
    SqlTrialStore(str(path)).close()
    assert path.is_file()


def test_a_store_stays_in_its_place_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqlTrialStore("sqlite:///autotune.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store._engine.dispose()
    store.create_study("ocr", {}, "d")
    store.close()
    assert not list((tmp_path / "elsewhere").iterdir())


# ------------------------------------------------------------------------------ locked, full, shut
def test_a_writer_waits_for_another_processes_lock_and_then_says_so(stored: Path) -> None:
    store = SqlTrialStore(str(stored), busy_timeout_s=0.2)
    other = sqlite3.connect(stored, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match="locked by another process") as failed:
        store.create_study("late", {}, "d")
    assert str(stored) in str(failed.value)
    assert [record.name for record in store.studies()] == ["ocr"]  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    store.create_study("late", {}, "d")
    store.close()


def test_a_lock_that_ends_in_time_is_waited_out(stored: Path) -> None:
    store = SqlTrialStore(str(stored))
    other = sqlite3.connect(stored, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO environments VALUES (1, 1, 0.0, '{}')")
    release = threading.Timer(3.0, lambda: other.execute("COMMIT"))  # longer than SQLite waits
    release.start()
    store.set_environment(1, {"host": "here"})
    release.join()
    other.close()
    assert store.study("ocr").environment == {"host": "here"}
    store.close()


def test_a_reader_waits_out_a_process_that_has_the_file_for_itself(stored: Path) -> None:
    store = SqlTrialStore(str(stored))
    store._engine.dispose()
    other = sqlite3.connect(stored, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM environments")
    other.execute("COMMIT")
    release = threading.Timer(3.0, other.close)
    release.start()
    assert [record.name for record in store.studies()] == ["ocr"]
    release.join()
    store.close()


def test_a_signal_ends_the_wait_for_a_lock(stored: Path) -> None:
    # A test session in the background has SIGINT ignored, and its children with it.
    waiter = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    waiter += (
        "import sys, storage\nstore = storage.SqlTrialStore(sys.argv[1])\nprint(1, flush=True)"
    )
    waiter += "\nstore.create_study('late', {}, 'd')"
    with closing(sqlite3.connect(stored, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        command = [sys.executable, "-c", waiter, str(stored)]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in said


def test_a_database_locked_for_good_is_not_waited_for_forever(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreFailed, match="locked by another process"):
            SqlTrialStore(str(path), busy_timeout_s=0.2)
    other.close()


def test_a_full_disk_fails_one_call_and_keeps_what_was_stored(stored: Path) -> None:
    store = SqlTrialStore(str(stored))

    def fill(connection: sqlite3.Connection, _record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    event.listen(store._engine, "connect", fill)
    store._engine.dispose()
    store.begin_trial(1, 0, a_candidate(4, 2))
    with pytest.raises(StoreFailed, match="disk is full"):
        store.add_measurement(1, 0, a_measurement(window_s=12))
    event.remove(store._engine, "connect", fill)
    store._engine.dispose()
    (trial,) = store.trials(1)
    assert (trial.number, list(trial.measurements)) == (0, [])
    store.add_measurement(1, 0, a_measurement(window_s=2))
    store.close()


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory that a user without root's privileges owns, this process being that user."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    if root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_read_only_directory_is_named(unprivileged: Path) -> None:
    unprivileged.chmod(0o555)
    with pytest.raises(StoreFailed, match=r"read-only|cannot be written|may not be") as failed:
        SqlTrialStore(str(unprivileged / "autotune.db"))
    assert str(unprivileged) in str(failed.value)


def test_a_read_only_file_can_be_read_and_refuses_writes(unprivileged: Path) -> None:
    path = unprivileged / "autotune.db"
    store = SqlTrialStore(str(path))
    store.create_study("ocr", {}, "d")
    store.close()
    path.chmod(0o444)
    store = SqlTrialStore(str(path))
    assert store.study("ocr").id == 1
    with pytest.raises(StoreFailed, match="read-only"):
        store.create_study("more", {}, "d")
    store.close()


def test_a_file_that_may_not_be_read_is_named(unprivileged: Path) -> None:
    path = unprivileged / "autotune.db"
    SqlTrialStore(str(path)).close()
    path.chmod(0o000)
    with pytest.raises(StoreFailed, match="cannot be read") as failed:
        SqlTrialStore(str(path))
    assert str(path) in str(failed.value)
