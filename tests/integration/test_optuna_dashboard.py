"""The file beside a study is read by optuna-dashboard's own application."""

from __future__ import annotations

import io
import json
import sqlite3
import warnings
from pathlib import Path
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

from autotune.adapters.search import OptunaSearch
from autotune.core.errors import StoreFailed
from autotune.core.study import Objective
from autotune.core.trial import TrialState
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.space import parse_space

SPACE = parse_space(
    {
        "max_batch_size": [1, 2, 4, 8],
        "instances": [1, 2],
        "preferred_batch_sizes": {
            "values": [None, [2], [2, 4]],
            "when": {"max_batch_size": {"above": 2}},
        },
    },
    "s",
)
BASELINE = Candidate({"max_batch_size": 16, "instances": 1})


def make(path: Path) -> OptunaSearch:
    return OptunaSearch(
        SPACE,
        baseline=BASELINE,
        objectives=(Objective.of("saturation_qps"), Objective.of("p95_ms")),
        seed=1,
        cores=2,
        storage_path=path,
        study_name="ocr",
        constraints=("p95_ms", "error_rate", "achieved"),
    )


def outcome(candidate: Candidate, *, saturation: float | None = 100.0) -> TrialOutcome:
    p95 = 10.0 * candidate["max_batch_size"]
    return TrialOutcome(
        state=TrialState.OK,
        values=(saturation, p95),
        violations=((p95 - 50) / 50, -1.0, 0.0),
    )


def grow(search: OptunaSearch, trials: int) -> list[tuple[Candidate, TrialOutcome]]:
    told = []
    for _ in range(trials):
        candidate = search.ask()
        told.append((candidate, outcome(candidate)))
        search.tell(*told[-1])
    return told


def stored(path: Path) -> optuna.Study:
    storage = RDBStorage(f"sqlite:///{path}", engine_kwargs={"poolclass": NullPool})
    return optuna.load_study(study_name="ocr", storage=storage)


def get(path: Path, url: str) -> dict:
    with warnings.catch_warnings():
        # What its own imports warn about is not ours to mend.
        warnings.simplefilter("ignore")
        from optuna_dashboard import wsgi  # noqa: PLC0415

        storage = RDBStorage(f"sqlite:///{path}", engine_kwargs={"poolclass": NullPool})
        environ: dict[str, object] = {}
        setup_testing_defaults(environ)
        environ |= {"PATH_INFO": url, "QUERY_STRING": "", "wsgi.input": io.BytesIO()}
        status: list[str] = []
        body = wsgi(storage)(environ, lambda line, *_: status.append(line))
        text = b"".join(body)
    assert status == ["200 OK"], text
    return json.loads(text)


def test_the_dashboard_shows_the_study_with_its_trials_values_and_violations(tmp_path):
    path = tmp_path / "optuna.db"
    told = grow(make(path), 6)
    studies = get(path, "/api/studies")["study_summaries"]
    assert [s["study_name"] for s in studies] == ["ocr"]
    detail = get(path, f"/api/studies/{studies[0]['study_id']}")
    assert detail["directions"] == ["maximize", "minimize"]
    assert detail["objective_names"] == ["saturation_qps", "p95_ms"]
    assert [t["values"] for t in detail["trials"]] == [list(o.values) for _, o in told]
    assert [t["state"] for t in detail["trials"]] == ["Complete"] * 6
    shown = {attr["key"]: attr["value"] for attr in detail["trials"][0]["user_attrs"]}
    assert float(shown["violation p95_ms"]) == pytest.approx(told[0][1].violations[0])


def test_optunas_own_best_trials_are_only_those_that_keep_the_sla(tmp_path):
    path = tmp_path / "optuna.db"
    grow(make(path), 17)
    best = stored(path).best_trials
    assert best
    assert all(max(trial.constraints.values()) <= 0 for trial in best)
    assert any(max(trial.constraints.values()) > 0 for trial in stored(path).trials)


def test_settings_are_readable_and_constraints_are_named(tmp_path):
    path = tmp_path / "optuna.db"
    told = grow(make(path), 17)
    trials = stored(path).trials
    by_text = {t.user_attrs["candidate"]: t for t in trials}
    wanted = Candidate({"max_batch_size": 4, "instances": 2, "preferred_batch_sizes": (2, 4)})
    assert wanted in [candidate for candidate, _ in told]
    shown = by_text[str(wanted)]
    assert shown.params == {
        "max_batch_size": 4,
        "instances": 2,
        "preferred_batch_sizes": "[2, 4]",
    }
    assert shown.constraints == {
        "p95_ms": pytest.approx(-0.2),
        "error_rate": -1.0,
        "achieved": 0.0,
    }


def test_a_baseline_outside_the_space_is_shown_with_what_lies_within(tmp_path):
    path = tmp_path / "optuna.db"
    grow(make(path), 1)
    first = stored(path).trials[0]
    assert first.params == {"instances": 1}
    assert first.user_attrs["candidate"] == str(BASELINE)


def test_failed_invalid_and_pruned_trials_are_shown_as_such(tmp_path):
    path = tmp_path / "optuna.db"
    search = make(path)
    for state in (TrialState.FAILED, TrialState.INVALID, TrialState.PRUNED):
        search.tell(search.ask(), TrialOutcome(state=state, values=(None, None), violations=None))
    assert [t.state.name for t in stored(path).trials] == ["FAIL", "FAIL", "PRUNED"]
    assert [t.user_attrs["state"] for t in stored(path).trials] == ["failed", "invalid", "pruned"]


def test_what_memory_rules_out_is_shown_as_pruned_and_infeasible(tmp_path):
    path = tmp_path / "optuna.db"
    search = make(path)
    told = TrialOutcome(
        state=TrialState.FAILED, values=(None, None), violations=None, infeasible=True
    )
    search.tell(search.ask(), told)
    (kept,) = stored(path).trials
    assert kept.user_attrs["state"] == "failed"
    assert kept.user_attrs["violation ruled out"] > 0


def test_on_resume_the_file_is_filled_again_from_the_stored_trials(tmp_path):
    path = tmp_path / "optuna.db"
    told = grow(make(path), 5)
    path.unlink()
    resumed = make(path)
    for candidate, known in told:
        resumed.tell(candidate, known)
    assert [t.values for t in stored(path).trials] == [list(o.values) for _, o in told]


def test_an_older_file_of_the_study_is_replaced_and_other_studies_stay(tmp_path):
    path = tmp_path / "optuna.db"
    grow(make(path), 3)
    storage = RDBStorage(f"sqlite:///{path}", engine_kwargs={"poolclass": NullPool})
    optuna.create_study(study_name="another", storage=storage)
    grow(make(path), 2)
    assert optuna.get_all_study_names(storage) == ["another", "ocr"]
    assert len(stored(path).trials) == 2


def test_an_objective_that_a_trial_lacks_is_not_shown_and_no_value_is_made_up(tmp_path):
    path = tmp_path / "optuna.db"
    search = make(path)
    grow(search, 2)
    candidate = search.ask()
    search.tell(candidate, outcome(candidate, saturation=None))
    study = stored(path)
    assert study.metric_names == ["p95_ms"]
    assert [len(t.values) for t in study.trials] == [1, 1, 1]


def test_a_path_that_is_not_optunas_is_refused(tmp_path):
    other = tmp_path / "notes.db"
    other.write_text("not a database")
    with pytest.raises(StoreFailed) as refused:
        make(other)
    assert str(other) in str(refused.value)
    assert other.read_text() == "not a database"


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(StoreFailed):
        make(tmp_path / "none" / "optuna.db")


def test_a_file_that_is_lost_midway_does_not_stop_the_search(tmp_path, caplog):
    path = tmp_path / "optuna.db"
    search = make(path)
    grow(search, 2)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE trials")
    database.close()
    grow(search, 2)
    assert "not written any more" in search.mirror_problem
    assert len(caplog.records) == 1
