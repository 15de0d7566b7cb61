"""The simulation of examples/starved-gpu, and what it says of the published case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.adapters.triton.config import read
from autotune.adapters.triton.pipeline import check_model_targets
from autotune.adapters.triton.repository import from_repository
from autotune.studyfile import read_study_file
from tests.benchmarks.starved_gpu import (
    DEVICE_MS,
    IMPROVED,
    Pipeline,
    closed_loop,
    open_loop,
    synchronous,
)

MODELS = Path(__file__).parents[2] / "examples" / "starved-gpu" / "models"
EXACT = Pipeline(jitter=0.0)


def published(workers: int, **changes: float) -> Pipeline:
    return replace(Pipeline(), workers=workers, max_batch=8, **changes)


def improved(workers: int, **changes: float) -> Pipeline:
    return replace(IMPROVED, workers=workers, **{"max_batch": 8, **changes})


# ------------------------------------------------------------------------------- the simulation
def test_requests_that_never_meet_take_the_sum_of_their_steps():
    outcome = open_loop(EXACT, qps=0.01, requests=200)
    assert np.median(outcome.latency_ms) == pytest.approx(EXACT.alone_ms)
    assert EXACT.alone_ms == 617


def test_waiting_for_one_device_is_as_long_as_pollaczek_and_khinchine_say():
    busy, service_ms = 0.7, 72.0
    pipeline = replace(EXACT, preprocess_ms=0.0, postprocess_ms=0.0)
    outcome = open_loop(pipeline, qps=busy / service_ms * 1e3, requests=30_000)
    waited_ms = float(np.mean(outcome.latency_ms)) - (pipeline.alone_ms)
    assert waited_ms == pytest.approx(busy * service_ms / (2 * (1 - busy)), rel=0.05)
    assert outcome.utilization == pytest.approx(busy, rel=0.02)


def test_a_batch_waits_for_its_delay_and_no_longer():
    outcome = open_loop(replace(EXACT, max_batch=8, delay_ms=40.0), qps=0.01, requests=200)
    assert np.median(outcome.latency_ms) == pytest.approx(EXACT.alone_ms + 40)


def test_a_closed_loop_keeps_as_many_in_flight_as_it_has_clients():
    outcome = closed_loop(improved(8), in_flight=9, requests=2_000)
    in_flight = outcome.achieved_qps * float(np.mean(outcome.latency_ms)) / 1e3
    assert in_flight == pytest.approx(9, rel=0.03)


# --------------------------------------------------------------------------- the published case
def test_the_untuned_row_is_one_worker_that_does_everything_in_turn():
    qps, busy = synchronous(Pipeline())
    assert (round(qps, 1), round(busy, 2)) == (1.6, 0.12)


def test_a_pipeline_with_one_worker_does_more_than_the_untuned_row():
    outcome = open_loop(Pipeline(workers=1), requests=2_000)
    assert outcome.achieved_qps == pytest.approx(2.70, rel=0.01)
    assert outcome.utilization == pytest.approx(0.194, abs=0.005)


def test_four_workers_at_the_published_time_cannot_carry_the_load():
    assert published(4).most_qps["preprocess"] == pytest.approx(10.8, abs=0.05)


@pytest.mark.parametrize("workers", [12, 16])
def test_as_published_no_number_of_workers_holds_the_limit(workers):
    outcome = open_loop(published(workers), requests=8_000)
    assert 830 < outcome.p95_ms < 890


def test_as_published_waiting_for_larger_batches_does_not_help_either():
    waiting = replace(published(12), max_batch=16, delay_ms=100.0)
    assert open_loop(waiting, requests=8_000).p95_ms > 880


@pytest.mark.parametrize("workers", [6, 8])
def test_with_preprocessing_halved_the_limit_is_held_at_nine_tenths_busy(workers):
    outcome = open_loop(improved(workers), requests=8_000)
    assert 650 < outcome.p95_ms < 720
    assert 0.88 <= outcome.utilization <= 0.91


def test_more_utilization_alone_breaks_the_limit():
    pick, busier = (open_loop(improved(8, max_batch=n), requests=8_000) for n in (8, 2))
    assert busier.utilization > pick.utilization + 0.03
    assert busier.p95_ms > 800 > pick.p95_ms


def test_the_published_tuned_row_is_that_of_nine_clients_in_a_closed_loop():
    outcome = closed_loop(improved(8, delay_ms=12.0), in_flight=9)
    assert outcome.achieved_qps == pytest.approx(17.6, rel=0.03)
    assert outcome.p95_ms == pytest.approx(520, rel=0.02)


# ----------------------------------------------------------------------------------- the example
def test_the_example_has_the_times_of_the_simulation():
    def setting(step: str, key: str) -> str:
        return read(MODELS / step / "config.pbtxt").parameters[key].string_value

    pipeline = Pipeline()
    for step in ("receive", "preprocess", "postprocess", "respond"):
        assert float(setting(step, "work_ms")) == getattr(pipeline, f"{step}_ms")
    table = ", ".join(f"{size}:{ms:g}" for size, ms in DEVICE_MS)
    assert setting("device", "batch_ms") == setting("service", "batch_ms") == table
    whole = [float(setting("service", key)) for key in ("work_ms", "after_ms")]
    assert sum(whole) + DEVICE_MS[0][1] == pipeline.alone_ms


@pytest.mark.parametrize("name", ["untuned", "study", "improved"])
def test_what_its_studies_sweep_can_be_set_on_its_models(name, tmp_path):
    study = read_study_file(MODELS.parent / f"{name}.yaml")
    assert study.model.repository is not None
    model = from_repository(study.model.repository, study.model.name, tmp_path)
    check_model_targets(model, study.space.targets)
