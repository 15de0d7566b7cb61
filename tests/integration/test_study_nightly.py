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
    pytest.mark.timeout(400),  # a test may wait for its turn
]
SLEEP = "time.sleep(0.06)"
SLOWER = "time.sleep(0.11)"


class Nights:
    """A schedule of a model that sleeps, and its runs so far."""

    def __init__(self, cli: Tool) -> None:
        self.cli = cli
        self.repository = cli.folder / "models"
        self.runs: list[NightRun] = []
        study = read_study_file(
            cli.study(
                model=own_model(self.repository, SLEEP),
                space={"instances": [1, 2]},
                workload={"target_qps": 8, "measure_s": 2.7},
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

    def trials(self, run: NightRun) -> list[int]:
        """Their numbers."""
        with closing(ServiceStore(str(self.cli.db))) as store:
            return [trial.number for trial in store.trials.trials(run.study_id or 0)]

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
        for _ in range(4):  # where other tests slow the machine down, a drift may be real
            nights.run()
            if nights.trials(nights.runs[-1]) == [0]:
                break
        nights.replace(SLOWER)
        nights.run()
        yield nights


def test_the_first_night_searches(nights: Nights) -> None:
    first = nights.runs[0]
    assert (first.state, first.outcome) == (RunState.DONE, Outcome.HOLDS)
    assert first.summary["drift"] is None
    assert nights.trials(first) == [0, 1]
    assert (nights.cli.out / "own" / "config.pbtxt").is_file()


def test_the_next_night_ends_with_the_champion_which_is_what_it_was(nights: Nights) -> None:
    next_one = nights.runs[-2]
    assert (next_one.state, next_one.outcome) == (RunState.DONE, Outcome.HOLDS)
    if all(night.summary["drift"]["drifted"] for night in nights.runs[1:-1]):
        pytest.skip("other work made the model's figures drift at every try: no night could hold")
    assert next_one.summary["drift"]["drifted"] is False
    assert nights.trials(next_one) == [0]
    assert "still wins" in next_one.reason


def test_a_night_whose_model_is_slower_tells_of_the_drift_with_its_cause_and_searches(
    nights: Nights,
) -> None:
    last, before = nights.runs[-1], nights.runs[-2]
    drift = last.summary["drift"]
    assert (drift["drifted"], drift["worse"], drift["since"]) == (True, True, before.study_id)
    assert drift["causes"][0]["kind"] == "model"
    assert nights.trials(last) == [0, 1]


def test_the_drift_waits_to_be_sent_where_nobody_takes_it_and_holds_no_secret(
    nights: Nights,
) -> None:
    notice = next(each for each in nights.notices() if each.event is Event.DRIFT)
    assert "the model's files" in notice.text
    assert (notice.state, notice.attempts) == (NoticeState.WAITING, 1)
    assert "secret-path" not in f"{notice}"
