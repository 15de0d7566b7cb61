"""A database is made, and brought to the newest schema, by one of those that open it at once."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from alembic import command
from sqlalchemy import text

from autotune.core.jobs import JobKind
from autotune.core.schedules import RunState
from storage.opening import _config, _engine, parse_url
from storage.service import ServiceStore

OPEN = """
import sys
from storage.service import ServiceStore
sys.stdin.readline()
ServiceStore(sys.argv[1]).close()
"""
AT_ONCE = 3


def test_of_processes_that_open_an_empty_database_at_once_all_find_it_ready(blank: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, blank],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        for _ in range(AT_ONCE)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * AT_ONCE, told
    store = ServiceStore(blank, create=False)
    assert store.jobs.jobs() == []
    store.close()


# ------------------------------------------------------------------------------ older databases
STUDY = """
INSERT INTO studies (id, name, digest, definition, state, reason, created_at)
VALUES (1, 'ocr', 'digest', '{"study": "ocr"}', 'running', '', 900.0)"""
SCHEDULE = """
INSERT INTO schedules
    (id, name, definition, cron, timezone, policy, margin, target, state, created_at, created_by)
VALUES (3, 'nightly', '{}', '0 2 * * *', 'UTC', 'report', 0.05, '{}', 'active', 1234.5, 'me')"""
RUN = """
INSERT INTO schedule_runs
    (id, schedule_id, schedule, scheduled_for, state, job_id, study_id, reason, summary)
VALUES (1, 3, 'nightly', 2000.0, 'queued', 1, 1, '', '{}')"""
JOB = """
INSERT INTO jobs
    (id, kind, state, title, payload, devices, measuring, created_at, created_by, attempt, cancel,
     reason, study_id, progress)
VALUES (1, 'nightly', 'queued', 'n', '{"schedule": "nightly", "run": 1}', '["h/cpu"]', true,
    2000.0, 'ci', 0, false, '', 1, '{}')"""


def test_a_database_of_studies_becomes_one_of_the_service(blank: str) -> None:
    _written(blank, "0004", STUDY)
    with closing(ServiceStore(blank)) as store:
        assert [study.name for study in store.trials.studies()] == ["ocr"]
        job_id = store.jobs.submit(JobKind.STUDY, "ocr", {}, devices=["h/cpu"], by="me")
        store.jobs.set_study(job_id, 1)
        assert store.jobs.job(job_id).study_id == 1


def test_the_schedules_and_the_queue_of_an_older_service_go_on(blank: str) -> None:
    _written(blank, "0005", STUDY, SCHEDULE, JOB, RUN)
    with closing(ServiceStore(blank)) as store:
        (schedule,) = store.schedules.schedules()
        assert (schedule.name, schedule.created_at, schedule.active_since) == (
            "nightly",
            1234.5,
            1234.5,
        )
        job = store.jobs.claim("w", ttl_s=30, measuring=True)
        assert job is not None
        assert job.payload == {"schedule": "nightly", "run": 1}
        assert store.schedules.run(1).state is RunState.QUEUED


def _written(where: str, revision: str, *statements: str) -> None:
    """By the autotune that had the schema of that revision."""
    engine = _engine(parse_url(where), 10.0)
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for statement in statements:
            connection.execute(text(statement.replace(":", "\\:")))
    engine.dispose()
