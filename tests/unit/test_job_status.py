"""What a job's process says that its study, or its promotion, came to."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from autotune.bootstrap import job_run
from autotune.core.errors import LoadFailed
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
    tmp_path: Path, kind: JobKind, state: PromotionState
) -> None:
    db = str(tmp_path / "service.db")
    with closing(ServiceStore(db)) as store:
        promotion = store.promotions.propose(
            Promotion(
                id=0,
                model="ocr",
                target=Target(repository=tmp_path / "nowhere"),
                study_id=1,
                trial=0,
                candidate={},
                state=state,
            )
        )
        job_id = store.jobs.submit(kind, "ocr", {"promotion": promotion}, by="ops")
        assert job_run.run_job(job_id, db=db, say=print) == job_run.DONE
        assert store.promotions.audit() == []
