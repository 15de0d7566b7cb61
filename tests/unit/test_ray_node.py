"""What a device of a Ray cluster tells of itself; that it measures is in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters import machine
from autotune.adapters.ray.slots import Slot
from autotune.adapters.ray.trials import Asked
from autotune.bootstrap.ray_node import (
    Order,
    looked_at,
    refuse_other_software,
)
from autotune.bootstrap.shipping import Shipment
from autotune.core.errors import ServerFailed
from autotune.core.kinds import Kind
from autotune.core.measurement import Purpose
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate
from tests.runner_bench import ONE, TWO, Bench, study

TRIAL = Trial(number=0, candidate=Candidate({"instances": 1}), state=TrialState.RUNNING)


def order(out: Path) -> Order:
    return Order(
        shipment=Shipment(study=study(), names={}, archive=b""),
        slot=Slot(cpus=1),
        kind=Kind(processor="another", cores=1),
        out=out,
    )


def test_a_device_that_cannot_be_made_ready_ends_the_study_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bench = order(tmp_path).open()
    assert bench.canary().error is not None
    outcome = bench.measure(Asked(trial=TRIAL, so_far=()))
    assert outcome.error is not None
    assert outcome.error.rule.startswith(f"{machine.describe()['host']}, a machine of the Ray")
    assert "this device is not of the kind" in outcome.error.rule
    assert "`ray stop`" in outcome.error.next_step


def test_a_device_with_other_software_is_refused_by_its_names_and_versions() -> None:
    unasked = {"Triton": "2.60.0", "numpy": "2.3"}
    there = {**unasked, "torch of the server": "2.9", "numpy of the server": "2.3"}
    refuse_other_software(there, there)
    refuse_other_software(unasked, there)
    here = {"Triton": "2.59.0", "numpy": "2.3", "numpy of the server": "2.3"}
    with pytest.raises(ServerFailed) as refused:
        refuse_other_software(here, there)
    assert refused.value.value == (
        "Triton: 2.59.0 instead of 2.60.0; torch of the server: none instead of 2.9"
    )


def test_a_device_is_looked_at_by_what_the_configuration_in_service_measures_on_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, study(), [TWO])
    here = bench.here()
    here.prepare(lambda _stage, _text: None)
    measured = looked_at(here)
    assert measured is not None
    assert measured.purpose is Purpose.CANARY
    assert {"p50_ms", "saturation_qps"} <= set(measured.intervals)
    assert bench.server.applied[-1] == ONE
    assert not bench.store.trials(bench.study_id), "nothing of it is a trial's"


def test_of_a_device_on_which_no_measurement_can_be_believed_nothing_is_told(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, study(), [TWO])
    here = bench.here()
    here.prepare(lambda _stage, _text: None)
    bench.load.lags_ms = [500.0] * 9
    assert looked_at(here) is None


def test_of_a_queue_that_grows_the_latency_tells_nothing_of_a_device(tmp_path: Path) -> None:
    no_burst = {"target_qps": 500.0, "measure_s": 5.0, "saturation_s": 0.0}
    overloaded = study(workload=no_burst, objectives=["p95_ms", "utilization"])
    here = Bench(tmp_path, overloaded, [TWO]).here()
    here.prepare(lambda _stage, _text: None)
    assert looked_at(here) is None
