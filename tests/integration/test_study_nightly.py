"""Nights of a schedule on a real server: they search, they hold, they tell of a drift."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.bootstrap.nightly import run_night
from autotune.core.notices import Event, Notice, NoticeState
from autotune.core.schedules import NightRun, Outcome, RunState, Schedule
from autotune.studyfile import read_study_file
from storage.service import ServiceStore
from tests.integration.studies import Tool, next_turn, own_model, tool

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]
SLEEP = "time.sleep(0.12)"
SLOWER = "time.sleep(0.5)"
"""Long, so that other work of a busy machine hardly tells; the second cannot take the rate."""
SEARCHED = "every candidate of the space has been measured"


class Nights:
    """A schedule of a model that sleeps, in two instances, and its runs so far."""

    def __init__(self, cli: Tool) -> None:
        self.cli = cli
        self.repository = cli.folder / "models"
        self.runs: list[NightRun] = []
        model = own_model(self.repository, SLEEP)
        with (self.repository / "own" / "config.pbtxt").open("a") as config:
            config.write("instance_group { count: 2 kind: KIND_CPU }\n")
        study = read_study_file(
            cli.study(
                model=model,
                space={"instances": [2]},
                workload={"target_qps": 8, "warmup_s": 0.4, "measure_s": 2.7, "saturation_s": 0},
                sla={"p50_ms": 400, "min_achieved": 0.6},
                objectives=["p50_ms"],
            )
        )
        with closing(ServiceStore(str(cli.db))) as store:
            schedule = Schedule(id=0, name="nightly", definition=study.definition, cron="0 2 * * *")
            self.schedule_id = store.schedules.add(schedule)

    def run(self) -> None:
        with closing(ServiceStore(str(self.cli.db))) as store:
            run_id = store.schedules.due(self.schedule_id, time.time())
        assert run_id is not None
        with pytest.MonkeyPatch.context() as here, next_turn():
            for name, value in self.cli._settings().items():
                here.setenv(name, value)
            here.setenv("AUTOTUNE_WEBHOOK_URL", "http://127.0.0.1:9/secret-path-of-the-test")
            ended = run_night(
                run_id, db=str(self.cli.db), out=self.cli.out, by="test", listen=lambda _: None
            )
        self.runs.append(ended)

    def notices(self) -> list[Notice]:
        with closing(ServiceStore(str(self.cli.db))) as store:
            return list(store.notices.notices())

    def replace(self, body: str) -> None:
        model = self.repository / "own" / "1" / "model.py"
        model.write_text(model.read_text().replace(SLEEP, body))


@pytest.fixture(scope="module")
def nights(
    tmp_path_factory: pytest.TempPathFactory,
    cache_dir: Path,
    server_environment: ServerEnvironment,
) -> Iterator[Nights]:
    """A first one, one that holds, and a last one, before which the model has become slower."""
    for cli in tool(tmp_path_factory.mktemp("nights"), cache_dir):
        nights = Nights(cli)
        nights.run()
        for _ in range(3):  # where other tests slow the machine down, a drift may be real
            nights.run()
            if not nights.runs[-1].summary["drift"]["drifted"]:
                break
        nights.replace(SLOWER)
        nights.run()
        yield nights


def test_the_first_night_searches(nights: Nights) -> None:
    first = nights.runs[0]
    assert (first.state, first.outcome) == (RunState.DONE, Outcome.HOLDS)
    assert first.summary["drift"] is None
    assert first.summary["searched"]["why"].startswith(SEARCHED)
    assert (nights.cli.out / "own" / "config.pbtxt").is_file()


def test_the_next_night_ends_with_the_champion_which_is_what_it_was(nights: Nights) -> None:
    next_one = nights.runs[-2]
    assert (next_one.state, next_one.outcome) == (RunState.DONE, Outcome.HOLDS)
    assert next_one.summary["drift"]["drifted"] is False
    assert next_one.summary["searched"] == {"trials": 1, "why": next_one.reason}
    assert "still wins" in next_one.reason


def test_a_night_whose_model_is_slower_tells_of_the_drift_with_its_cause_and_searches(
    nights: Nights,
) -> None:
    last, before = nights.runs[-1], nights.runs[-2]
    drift = last.summary["drift"]
    assert (drift["drifted"], drift["worse"], drift["since"]) == (True, True, before.study_id)
    assert drift["causes"][0]["kind"] == "model"
    assert last.summary["searched"]["why"].startswith(SEARCHED)
    assert last.outcome is Outcome.NO_PICK


def test_what_is_told_waits_to_be_sent_where_nobody_takes_it_and_holds_no_secret(
    nights: Nights,
) -> None:
    lost, drift = nights.notices()[:2]
    assert (lost.event, drift.event) == (Event.SLA_LOST, Event.DRIFT)
    assert "the model's files" in drift.text
    assert (drift.state, drift.attempts) == (NoticeState.WAITING, 1)
    assert "secret-path" not in f"{lost} {drift}"
