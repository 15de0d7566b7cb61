"""The statistics of a pipeline: of its steps, and of a request on its whole way."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from autotune.adapters.triton import statistics
from autotune.core.errors import ServerFailed
from autotune.core.measurement import BatchStat

MS = 1_000_000
STEPS = ("decode", "recognize")


def reading(**models: dict[str, int]) -> statistics.Mark:
    """``models``: by name, requests, executions, queue_ms and infer_ms in all, of one size."""
    response = service_pb2.ModelStatisticsResponse()
    for name, said in models.items():
        version = response.model_stats.add(name=name, version="1")
        requests, executions = said["requests"], said.get("executions", said["requests"])
        version.execution_count = executions
        version.inference_stats.success.count = requests
        for duration in ("queue", "compute_infer"):
            counter = getattr(version.inference_stats, duration)
            counter.count, counter.ns = requests, said.get(duration, 0) * MS
        batch = version.batch_stats.add(batch_size=max(1, requests // max(1, executions)))
        batch.compute_infer.count = executions
        batch.compute_infer.ns = said.get("compute_infer", 0) * MS
    return statistics.read_pipeline(response, "ocr", STEPS)


NOTHING = reading(**{name: {"requests": 0} for name in ("ocr", *STEPS)})
LOADED = reading(
    ocr={"requests": 10, "queue": 999, "compute_infer": 999},
    decode={"requests": 10, "queue": 20, "compute_infer": 100},
    recognize={"requests": 8, "executions": 2, "queue": 80, "compute_infer": 60},
    stranger={"requests": 1000, "queue": 1000},
)


def test_each_step_has_its_own_window_with_its_batches_and_instances():
    window = statistics.between(NOTHING, LOADED, instances={"decode": 3, "recognize": 1})
    assert list(window.steps) == list(STEPS)
    recognize = window.steps["recognize"]
    assert (recognize.requests, recognize.executions, recognize.instances) == (8, 2, 1)
    assert recognize.batches == {4: BatchStat(executions=2, compute_ms=30)}
    assert recognize.queue_ms == pytest.approx(10)
    assert window.steps["decode"].instances == 3
    assert window.steps["decode"].busy_s == pytest.approx(0.1)


def test_the_whole_is_what_a_request_meets_on_its_way():
    window = statistics.between(NOTHING, LOADED)
    assert (window.requests, window.executions, window.batches) == (10, 12, {})
    assert window.queue_ms == pytest.approx(20 / 10 + 80 / 8)
    assert window.compute_ms == pytest.approx(100 / 10 + 60 / 8)
    assert (window.instances, window.mean_batch) == (0, None)


def test_a_step_that_a_request_passes_twice_counts_twice():
    window = statistics.between(NOTHING, LOADED, calls={"decode": 2, "recognize": 1})
    assert window.queue_ms == pytest.approx(2 * 20 / 10 + 80 / 8)
    assert [step.calls for step in window.steps.values()] == [2, 1]


def test_a_step_that_was_reloaded_within_the_window_is_no_measurement():
    reloaded = reading(
        ocr={"requests": 12},
        decode={"requests": 12, "queue": 30, "compute_infer": 110},
        recognize={"requests": 1},
    )
    with pytest.raises(ServerFailed, match="began anew"):
        statistics.between(LOADED, reloaded)
    assert statistics.began_anew(LOADED, reloaded) == {"recognize"}


def test_an_idle_pipeline_has_zeros():
    window = statistics.between(LOADED, LOADED)
    assert (window.requests, window.executions, window.queue_ms) == (0, 0, 0)


def test_a_model_that_is_tuned_alone_has_no_steps_and_tells_its_instances():
    response = service_pb2.ModelStatisticsResponse()
    response.model_stats.add(name="m").inference_stats.success.count = 5
    window = statistics.between(statistics.Mark({}), statistics.read(response), instances={"": 2})
    assert (window.requests, window.instances, window.steps) == (5, 2, {})
