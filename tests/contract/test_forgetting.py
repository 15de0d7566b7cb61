"""What is removed of old studies, and what stays."""

from __future__ import annotations

from dataclasses import replace

from autotune.core.measurement import Measurement
from autotune.core.records import StudyState
from storage.service import ServiceStore
from tests.contract.conftest import Clock
from tests.realistic import a_candidate, a_measurement
from tests.sameness import comparable


def test_of_studies_that_ended_long_ago_the_raw_times_go_and_nothing_else(
    service: ServiceStore, clock: Clock
) -> None:
    measured = a_measurement(a_candidate(8, 2), window_s=2)
    ended, late, runs = (_study(service, measured) for _ in range(3))
    service.trials.set_study_state(ended, StudyState.DONE)
    clock.at += 100
    service.trials.set_study_state(late, StudyState.DONE)
    assert service.forget_samples(clock.at, 1) == 1
    assert service.forget_samples(clock.at, 10) == 1
    assert service.forget_samples(clock.at, 10) == 0
    without = replace(measured, load=replace(measured.load, samples=None))
    assert comparable(_stored(service, ended)) == comparable([without, without])
    assert comparable(_stored(service, late)) == comparable([measured, measured])
    assert comparable(_stored(service, runs)) == comparable([measured, measured])


def _study(service: ServiceStore, measured: Measurement) -> int:
    study = service.trials.create_study("ocr", {}, "digest")
    service.trials.begin_trial(study, 0, a_candidate(8, 2))
    for _ in range(2):
        service.trials.add_measurement(study, 0, measured)
    return study


def _stored(service: ServiceStore, study: int) -> list[Measurement]:
    (trial,) = service.trials.trials(study, samples=True)
    return list(trial.measurements)
