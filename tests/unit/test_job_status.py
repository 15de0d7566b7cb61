"""What a job's process says that its study, or its promotion, came to."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from autotune.bootstrap import job_run
from autotune.core.errors import InputRefused, LoadFailed
from autotune.core.jobs import JobKind
from autotune.core.promotions import Promotion, PromotionState, Target
from storage.service import ServiceStore


@pytest.mark.parametrize(("exported", "status"), [(True, 0), (False, 3)])
def test_a_study_with_a_verdict_has_done_its_work(status: int, *, exported: bool) -> None:
    assert job_run._status(exported=exported, verdict=True) == status


def test_a_study_that_could_measure_nothing_has_failed() -> None:
    with pytest.raises(LoadFailed, match="no verdict"):
        job_run._status(exported=False, verdict=False)


@pytest.mark.parametrize(
    ("kind", "state"),
    [(JobKind.PROMOTE, PromotionState.DONE), (JobKind.ROLLBACK, PromotionState.ROLLED_BACK)],
)
def test_what_an_earlier_attempt_has_done_is_not_done_again(
    database: Path, tmp_path: Path, kind: JobKind, state: PromotionState
) -> None:
    with closing(ServiceStore(str(database))) as store:
        assert (
            job_run.run_job(_queued(store, kind, state, tmp_path), db=_url(store), say=print) == 0
        )
        assert store.promotions.audit() == []


def test_a_repository_that_is_elsewhere_is_told_with_this_machines_name_and_nothing_is_begun(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_MACHINE", "gpu-b")
    with closing(ServiceStore(str(database))) as store:
        job_id = _queued(store, JobKind.PROMOTE, PromotionState.APPLYING, tmp_path)
        with pytest.raises(InputRefused, match=r"repository of the promotion is not .* gpu-b"):
            job_run.run_job(job_id, db=_url(store), say=print)
        (promotion,) = store.promotions.promotions()
        assert promotion.state is PromotionState.APPLYING


def _queued(store: ServiceStore, kind: JobKind, state: PromotionState, folder: Path) -> int:
    """A job of a promotion to a repository that is not there."""
    promotion = store.promotions.propose(
        Promotion(
            id=0,
            model="ocr",
            target=Target(repository=folder / "nowhere"),
            study_id=1,
            trial=0,
            candidate={},
            state=state,
        )
    )
    return store.jobs.submit(kind, "ocr", {"promotion": promotion}, by="ops")


def _url(store: ServiceStore) -> str:
    return store.engine.url.render_as_string(hide_password=False)
