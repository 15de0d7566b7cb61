"""The list of studies: what a row says, what is found, and what is said where there is nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dash import html

from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.records import StudyRecord, StudyState
from autotune.service_ports import StudySummary
from dashboards.web.pages.studies import listed
from dashboards.web.parts.progress import bar, progress_of, seconds_left
from dashboards.web.parts.tables import Sorted
from dashboards.web.parts.words import count, duration, moment
from tests.shown import links_of, parts_of, text_of


def a_summary(study_id: int, name: str, state: StudyState, **more: object) -> StudySummary:
    record = StudyRecord(
        id=study_id,
        name=name,
        state=state,
        definition={},
        digest="d",
        created_at=1000.0 * study_id,
        ended_at=None if state is StudyState.RUNNING else 1000.0 * study_id + 250,
        trials=10 * study_id,
    )
    given: dict[str, object] = {
        "model": "resnet",
        "sla": "p95 ≤ 80 ms, errors ≤ 0.1%",
        "planned": 30,
        "best": 4,
        "best_metrics": {"p95_ms": 100.0 / study_id, "saturation_qps": 120.0},
        "job": None,
    }
    return StudySummary(record=record, **{**given, **more})  # type: ignore[arg-type]


def a_job(**progress: object) -> Job:
    return Job(
        id=1,
        kind=JobKind.STUDY,
        state=JobState.RUNNING,
        title="ocr",
        payload={},
        created_at=0.0,
        created_by="cli:me",
        progress=progress,
    )


STUDIES = (
    a_summary(3, "ocr", StudyState.RUNNING, job=a_job(trial=12, of=30, text="trial 12 of 30")),
    a_summary(2, "detect", StudyState.DONE, model="yolo"),
    a_summary(1, "ocr", StudyState.FAILED, best=None, best_metrics={}),
)


def rows(**asked: object) -> list[str]:
    shown = listed(STUDIES, **{"words": "", "state": "all", **asked})  # type: ignore[arg-type]
    return [text_of(row) for row in parts_of(shown, html.Tr)[1:]]


def test_a_row_says_state_model_sla_best_and_progress() -> None:
    row = rows()[0]
    for words in ("ocr", "running", "resnet", "p95 ≤ 80 ms", "trial 4", "33.3 ms", "12 of 30"):
        assert words in row


def test_a_row_leads_to_the_study_and_to_its_best_trial() -> None:
    assert {"/study/2", "/study/2/trial/4"} <= set(links_of(listed(STUDIES, "", "all")))


def test_newest_come_first() -> None:
    assert ["run 3" in rows()[0], "run 1" in rows()[2]] == [True, True]


@pytest.mark.parametrize(
    ("by", "first"), [("study", "detect"), ("best", "33.3 ms"), ("trials", "run 1")]
)
def test_rows_stand_by_the_column_that_was_chosen(by: str, first: str) -> None:
    assert first in rows(order=Sorted(by=by))[0]


def test_the_heading_says_how_rows_stand() -> None:
    shown = listed(STUDIES, "", "all", Sorted(by="model", down=True))
    (heading,) = [
        th for th in parts_of(shown, html.Th) if "aria-sort" in th.to_plotly_json()["props"]
    ]
    assert (text_of(heading), heading.to_plotly_json()["props"]["aria-sort"]) == (
        "Model",
        "descending",
    )


def test_studies_are_found_by_name_or_model_and_by_state() -> None:
    assert len(rows(words="YOLO")) == 1
    assert len(rows(words="ocr", state="failed")) == 1


def test_where_nothing_matches_it_says_so() -> None:
    assert "Of 3 studies, none matches." in text_of(listed(STUDIES, "nothing like it", "all"))


def test_where_there_is_no_study_yet_it_says_how_to_run_one() -> None:
    assert "autotune tune study.yaml" in text_of(listed((), "", "all"))


def test_a_best_that_does_not_meet_the_sla_is_told_so() -> None:
    (summary,) = [a_summary(1, "ocr", StudyState.DONE, best_meets=False)]
    assert "none meets it; this comes nearest" in text_of(listed([summary], "", "all"))


# --------------------------------------------------------------------------------------- progress
def test_progress_says_how_far_and_how_long() -> None:
    shown = progress_of(
        a_job(trial=3, of=12, text="measuring", seconds_left=130.0), STUDIES[0].record
    )
    (told,) = parts_of(shown, html.Progress)
    assert (told.value, told.max) == ("3", "12")
    assert "3 of 12 · measuring · about 2 min 10 s left" in text_of(shown)


@pytest.mark.parametrize(
    ("job", "left"),
    [
        (a_job(stage="trial", seconds_left=130.0, at=1000.0), 80),
        (a_job(stage="trial", seconds_left=40.0, at=1000.0), None),
        (a_job(stage="finals", seconds_left=130.0, at=1000.0), None),
        (replace(a_job(seconds_left=130.0, at=1000.0), state=JobState.DONE), None),
        (a_job(stage="trial"), None),
        (None, None),
    ],
    ids=["moves", "is over", "ends without an estimate", "has ended", "told none", "no job"],
)
def test_what_is_left_grows_less_and_is_left_out_where_it_does_not_count(
    job: Job | None, left: float | None
) -> None:
    assert seconds_left(job, now=1050.0) == left


def test_a_study_that_the_command_line_runs_is_told_by_its_trials() -> None:
    assert "30 of 40 · 30 trials" in text_of(progress_of(None, STUDIES[0].record, planned=40))


def test_without_a_known_end_there_is_no_bar() -> None:
    assert not parts_of(bar(3, None, "3 trials"), html.Progress)


def test_what_is_over_has_no_progress() -> None:
    assert progress_of(None, STUDIES[1].record) == "–"


# ------------------------------------------------------------------------------------------ words
@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.6, "1 min"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
        (None, "–"),
    ],
)
def test_durations_are_told_in_the_two_largest_units(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_a_moment_is_told_in_utc() -> None:
    assert moment(0.0) == "1970-01-01 00:00 UTC"


def test_one_is_told_in_the_singular() -> None:
    assert [count(1, "study", "studies"), count(1200, "study", "studies")] == [
        "1 study",
        "1,200 studies",
    ]
