"""What a job's process says that its study came to."""

from __future__ import annotations

import pytest

from autotune.bootstrap import job_run
from autotune.core.errors import LoadFailed


@pytest.mark.parametrize(("exported", "status"), [(True, 0), (False, 3)])
def test_a_study_with_a_verdict_has_done_its_work(status: int, *, exported: bool) -> None:
    assert job_run._status(exported=exported, verdict=True) == status


def test_a_study_that_could_measure_nothing_has_failed() -> None:
    with pytest.raises(LoadFailed, match="no verdict"):
        job_run._status(exported=False, verdict=False)
