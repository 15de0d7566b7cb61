"""The studies' desk on a real database: narrow reads, what is kept, files of a trial."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.bootstrap.desk_studies import Kept, LazyTrials, Studies
from autotune.bootstrap.study_lines import decided_lines, line_of
from autotune.core.errors import InputRefused, NotFound
from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.judged import judge_trial
from autotune.core.measurement import METRICS, Purpose
from autotune.core.records import DecisionRecord, StudyState
from autotune.core.standing import Standing
from autotune.core.trial import Trial, TrialState
from autotune.core.variants import Variant, VariantRecord
from storage.service.database import Database
from storage.store import SqlTrialStore
from storage.summaries import SqlStudyReader
from tests.many_trials import a_definition, many_trials, store_study
from tests.onnx_models import linear
from tests.realistic import SLA, a_candidate, a_finished_study, a_measurement, comparisons
from tests.serving import studies_desk
from tests.unit.made_trials import made_measurement, made_trial

MANY = many_trials(60, seed=3)


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "studies.db")


def _reader(where: str) -> SqlStudyReader:
    return SqlStudyReader(Database(where))


def _desk(where: str, jobs: Sequence[Job] = ()) -> Studies:
    return studies_desk(where, Path(where).parent, jobs)


def _job(study_id: int, **more: object) -> Job:
    given: dict[str, object] = {
        "id": 7,
        "kind": JobKind.STUDY,
        "state": JobState.RUNNING,
        "title": "ocr",
        "payload": {},
        "created_at": 0.0,
        "created_by": "cli:me",
        "study_id": study_id,
    }
    return Job(**{**given, **more})  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- narrow reads
def test_a_trial_read_narrowly_says_the_same_metrics_and_is_judged_alike(where: str) -> None:
    trials = a_finished_study()
    study_id = store_study(where, "ocr", trials, state=StudyState.RUNNING)
    for narrow, whole in zip(_reader(where).trials(study_id), trials, strict=True):
        assert line_of(narrow, SLA) == line_of(whole, SLA)
        ours, theirs = judge_trial(narrow, SLA), judge_trial(whole, SLA)
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.verdicts == theirs.verdicts


def test_named_trials_alone_are_read(where: str) -> None:
    study_id = store_study(where, "ocr", MANY)
    assert [t.number for t in _reader(where).trials(study_id, [40, 2, 7])] == [2, 7, 40]


def test_a_trial_is_read_whole_for_its_own_page(where: str) -> None:
    trial = a_finished_study()[5]
    study_id = store_study(where, "ocr", [trial], state=StudyState.RUNNING)
    found = _desk(where).trial(study_id, 5, samples=True)
    assert found.measurements[0].load.histogram == trial.measurements[0].load.histogram
    assert found.measurements[0].load.samples is not None
    assert _desk(where).trial(study_id, 5).measurements[0].load.samples is None


def test_a_trial_that_there_is_not_is_refused(where: str) -> None:
    study_id = store_study(where, "ocr", MANY)
    with pytest.raises(NotFound, match="no such trial"):
        _desk(where).trial(study_id, 999)


# --------------------------------------------------------------------------------------- lines
def test_lines_from_the_decision_are_those_that_judging_anew_gives(where: str) -> None:
    trials = a_finished_study()
    study_id = store_study(where, "ocr", trials)
    reader = _reader(where)
    decided = reader.decision(study_id)
    assert decided is not None
    lines = decided_lines(reader, study_id, SLA, decided[1])
    for line, trial in zip(lines, trials, strict=True):
        assert line == line_of(trial, SLA)


def test_a_study_that_is_done_is_shown_as_it_was_decided(where: str) -> None:
    detail = _desk(where).study(str(store_study(where, "ocr", MANY)))
    assert [line.number for line in detail.lines] == [trial.number for trial in MANY]
    assert detail.decision is not None
    assert detail.decision.detail["pick"] == detail.decision.pick
    assert "judged" not in detail.decision.detail


def test_of_a_running_study_only_what_has_changed_is_read_again(where: str) -> None:
    study_id = store_study(where, "ocr", MANY, state=StudyState.RUNNING)
    desk = _desk(where)
    before = desk.study(str(study_id))
    store = SqlTrialStore(where)
    store.begin_trial(study_id, 60, a_candidate(4, 2))
    store.add_measurement(study_id, 60, a_measurement(a_candidate(4, 2)))
    store.end_trial(study_id, 60, TrialState.OK)
    after = desk.study(str(study_id))
    assert after.version != before.version
    assert after.lines[60].standing is Standing.MEETS
    assert all(new is old for new, old in zip(after.lines, before.lines, strict=False))


def test_a_measurement_that_is_put_in_doubt_is_judged_again(where: str) -> None:
    study_id = store_study(where, "ocr", MANY[:3], state=StudyState.RUNNING)
    desk = _desk(where)
    assert desk.study(str(study_id)).lines[0].standing is not Standing.DOUBTED
    SqlTrialStore(where).doubt_measurements(study_id, "the machine changed")
    assert desk.study(str(study_id)).lines[0].standing is Standing.DOUBTED


def test_trials_are_read_when_they_are_looked_at(where: str) -> None:
    detail = _desk(where).study(str(store_study(where, "ocr", MANY)))
    assert len(detail.trials) == len(MANY)
    assert detail.trials[4].candidate == MANY[4].candidate


def test_trials_are_read_once() -> None:
    read: list[int] = []

    def trials() -> list[Trial]:
        read.append(1)
        return MANY[:2]

    lazy = LazyTrials(trials)
    assert (len(lazy), lazy[1], read) == (2, MANY[1], [1])


# ------------------------------------------------------------------------------------- versions
def test_the_version_changes_with_everything_that_is_stored(where: str) -> None:
    study_id = store_study(where, "ocr", MANY[:4], state=StudyState.RUNNING)
    store, reader = SqlTrialStore(where), _reader(where)
    writes = (
        lambda: store.begin_trial(study_id, 4, a_candidate(1, 1)),
        lambda: store.add_measurement(study_id, 4, a_measurement(a_candidate(1, 1))),
        lambda: store.end_trial(study_id, 4, TrialState.OK),
        lambda: store.doubt_measurements(study_id, "the machine changed"),
        lambda: store.add_comparisons(study_id, comparisons()),
        lambda: store.set_variants(study_id, [_variant()]),
        lambda: store.add_decision(_decision(study_id)),
        lambda: store.set_environment(study_id, {"host": "other"}),
        lambda: store.set_study_state(study_id, StudyState.DONE),
    )
    seen = [reader.version(study_id)]
    for write in writes:
        write()
        seen.append(reader.version(study_id))
    assert len(set(seen)) == len(seen)


def _variant() -> VariantRecord:
    return VariantRecord(
        variant=Variant.parse("onnxruntime-fp32"),
        digest="d",
        file="f",
        size_mb=1.0,
        seconds=0.0,
        cached=True,
    )


def _decision(study_id: int) -> DecisionRecord:
    return DecisionRecord(study_id=study_id, taken_at=1.0, rule="cheapest", pick=None, detail={})


def test_the_desk_s_version_is_that_of_what_it_gives(where: str) -> None:
    study_id = store_study(where, "ocr", MANY)
    desk = _desk(where)
    assert desk.version(study_id) == desk.study("ocr").version


def test_what_another_study_stores_leaves_the_version_as_it_is(where: str) -> None:
    study_id = store_study(where, "ocr", MANY[:2])
    before = _reader(where).version(study_id)
    store_study(where, "other", MANY[:3])
    assert _reader(where).version(study_id) == before


# ----------------------------------------------------------------------------------------- lists
def test_the_list_has_the_pick_of_what_is_done_and_the_best_so_far_of_what_runs(where: str) -> None:
    done = store_study(where, "done", MANY)
    running = store_study(where, "running", MANY, state=StudyState.RUNNING, planned=90)
    newest, oldest = _desk(where).studies()
    assert (newest.record.id, oldest.record.id) == (running, done)
    decided = _reader(where).decision(done)
    assert decided is not None
    assert oldest.best == decided[0].pick
    assert (oldest.model, oldest.sla) == ("ocr", "p95 ≤ 80 ms, errors ≤ 0.1%")
    assert (newest.planned, newest.best_meets) == (90, True)
    assert set(newest.best_metrics) <= set(METRICS)


def test_the_best_so_far_goes_by_what_memory_was_seen_to_vary_by(where: str) -> None:
    trials = [
        made_trial(0, made_measurement(p95=30.0, memory=1000.0)),
        made_trial(1, made_measurement(p95=60.0, memory=850.0)),
    ]
    study_id = store_study(where, "ocr", trials, state=StudyState.RUNNING)
    desk, store = _desk(where), SqlTrialStore(where)
    assert [summary.best for summary in desk.studies()] == [1]
    again = made_measurement(p95=30.0, memory=1400.0, purpose=Purpose.CANARY)
    store.add_measurement(study_id, 0, again)
    assert [summary.best for summary in desk.studies()] == [0]


def test_a_study_in_which_nothing_meets_the_sla_lists_what_comes_nearest(where: str) -> None:
    slow = [t for t in MANY if line_of(t, SLA).standing is Standing.MISSES]
    store_study(where, "ocr", [replace(t, number=n) for n, t in enumerate(slow)])
    (summary,) = _desk(where).studies()
    assert summary.best is not None
    assert not summary.best_meets


def test_a_study_is_listed_with_the_latest_job_that_ran_it(where: str) -> None:
    study_id = store_study(where, "ocr", MANY[:2], state=StudyState.RUNNING)
    jobs = [_job(study_id, id=9), _job(study_id, id=4)]
    (summary,) = _desk(where, jobs).studies()
    assert summary.job is not None
    assert summary.job.id == 9
    detail = _desk(where, jobs).study(str(study_id))
    assert detail.job is not None
    assert detail.job.id == 9


def test_no_more_studies_are_listed_than_asked_for(where: str) -> None:
    for name in "abc":
        store_study(where, name, MANY[:1])
    assert [s.record.name for s in _desk(where).studies(limit=2)] == ["c", "b"]


# ----------------------------------------------------------------------------------------- files
@pytest.fixture
def tuned(where: str, tmp_path: Path) -> tuple[Studies, int]:
    """A study of a model that is there."""
    onnx = linear(tmp_path / "ocr.onnx")
    definition = {**a_definition("ocr", 3), "model": {"onnx": str(onnx)}}
    study_id = store_study(where, "ocr", MANY[:3], definition=definition)
    return _desk(where), study_id


def test_a_trial_s_config_is_told_with_what_differs_from_the_one_in_service(
    tuned: tuple[Studies, int],
) -> None:
    desk, study_id = tuned
    texts = desk.config(study_id, 1)
    wanted = MANY[1].candidate["max_batch_size"]
    assert f"max_batch_size: {wanted}" in texts.config["ocr"]
    assert set(texts.in_service) == set(texts.config)
    assert f"+max_batch_size: {wanted}" in texts.diff


def test_a_trial_s_repository_comes_as_a_zip_archive(tuned: tuple[Studies, int]) -> None:
    desk, study_id = tuned
    archive = zipfile.ZipFile(io.BytesIO(b"".join(desk.repository_zip(study_id, 0))))
    assert archive.testzip() is None
    assert {"ocr/config.pbtxt", "ocr/1/model.onnx", "provenance.json"} <= set(archive.namelist())


def test_the_report_is_the_study_s(tuned: tuple[Studies, int]) -> None:
    desk, study_id = tuned
    assert "ocr: autotune report" in desk.report(study_id)


def test_without_its_model_a_trial_has_no_config_and_the_study_still_its_report(where: str) -> None:
    study_id = store_study(where, "ocr", MANY[:3])
    desk = _desk(where)
    with pytest.raises(InputRefused):
        desk.config(study_id, 0)
    assert "ocr: autotune report" in desk.report(study_id)


# ---------------------------------------------------------------------------------------- keeping
def test_what_is_kept_is_made_again_when_its_version_is_another() -> None:
    kept: Kept[int] = Kept(2)
    made = iter(range(9))
    assert [kept.get("a", version, made.__next__) for version in (1, 1, 2, 2)] == [0, 0, 1, 1]


def test_no_more_is_kept_than_was_said() -> None:
    kept: Kept[int] = Kept(2)
    made = iter(range(9))
    assert [kept.get(name, 0, made.__next__) for name in "abcab"] == [0, 1, 2, 3, 4]


def test_what_fails_to_be_made_is_tried_again_and_leaves_nothing_behind() -> None:
    kept: Kept[int] = Kept(2)

    def fails() -> int:
        raise InputRefused("not now")

    with pytest.raises(InputRefused):
        kept.get("a", 0, fails)
    assert kept._making == {}
    assert kept.get("a", 0, lambda: 3) == 3
