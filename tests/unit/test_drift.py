"""Whether a champion is what it was, and why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.core.comparison import Relation
from autotune.core.drift import SERVER, TRAFFIC_FILES, Drift, Likelihood, Observation
from autotune.core.drift import drift_between as between
from autotune.core.intervals import Interval
from autotune.core.measurement import (
    Gauge,
    LatencySummary,
    Measurement,
    Purpose,
    RequestSamples,
    TelemetryWindow,
    Traffic,
)
from autotune.core.sla import Sla
from tests.unit.made_trials import made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})
HERE: dict[str, Any] = {
    "model_digest": "aaa",
    "triton": "2.51.0",
    "processor": "a processor",
    "cores": 8,
    "gpus": ["H100"],
    "gpu_uuids": ["GPU-1"],
    "driver": "580.1",
    "cuda": "13.0",
    "system": "Linux 6.1",
    "packages": {"numpy": "1.26.4", "onnxruntime": "1.20.0"},
    "versions": {"triton-autotune": "0.1.0"},
    "python": "3.11.2",
    "load_average": 0.2,
    "memory_mb": 16_000,
    SERVER: {"launch": "embedded", "flags": {"a": 1}},
    TRAFFIC_FILES: {"inputs": "x"},
}


def measured(
    p95: float, *, width: float = 0.04, saturation: float = 150.0, **telemetry: Any
) -> Measurement:
    """With intervals of that relative half width."""
    made = made_measurement(
        p95=p95,
        saturation=saturation,
        within={
            "p95_ms": (p95 * (1 - width), p95 * (1 + width)),
            "saturation_qps": (saturation * 0.99, saturation * 1.01),
        },
        qps=100.0,
    )
    window = TelemetryWindow(utilization=0.5, memory_mb=500.0, **telemetry)
    return replace(made, telemetry=window)


def seen(measurement: Measurement, study_id: int = 1, **environment: Any) -> Observation:
    return Observation(
        study_id=study_id,
        at=0.0,
        measurements=(measurement,),
        environment={**HERE, **environment},
    )


def drift_between(before: Observation, after: Observation, sla: Sla) -> Drift:
    return between(before, after, sla, timeout_s=10.0)


def kinds(before: Observation, after: Observation) -> list[str]:
    return [cause.kind for cause in drift_between(before, after, SLA).causes]


def test_a_difference_within_the_intervals_is_no_drift() -> None:
    drift = drift_between(seen(measured(40.0, width=0.2)), seen(measured(48.0, width=0.2)), SLA)
    assert not drift.drifted
    assert drift.words == "no drift is seen"


def test_a_difference_beyond_narrow_intervals_but_within_the_run_to_run_allowance_is_none() -> None:
    """2 × 2.5% from run to run is 6.9% at 95%."""
    before, after = (seen(measured(p95, width=0.001)) for p95 in (40.0, 42.4))
    assert not drift_between(before, after, SLA).drifted


def test_a_difference_beyond_both_is_a_drift_in_the_metrics_own_direction() -> None:
    drift = drift_between(seen(measured(40.0)), seen(measured(50.0), 2), SLA)
    (shift,) = drift.found
    assert (shift.metric, shift.relation) == ("p95_ms", Relation.WORSE)
    assert shift.effect == pytest.approx(0.25)
    assert shift.interval.low > 0.1
    assert drift.worse
    assert drift.words.startswith("p95 40.0 to 50.0 ms (+25.0%; +")


def sampled(slower: float = 1.0, *, seed: int = 1, arrivals: int = 5) -> Measurement:
    """Of 1,000 requests whose latencies are as many times as long, with hardly any other noise than
    the arrivals', which are those of a seed."""
    latencies = 20.0 + np.random.default_rng(arrivals).exponential(10.0, 1000)
    latencies *= slower * np.random.default_rng(seed).normal(1, 0.01, 1000)
    scheduled = np.arange(1000) / 100
    samples = RequestSamples(
        scheduled_s=scheduled,
        sent_s=scheduled,
        done_s=scheduled + latencies / 1000,
        ok=np.ones(1000, bool),
    )
    made = measured(float(np.percentile(latencies, 95)), width=0.2)
    traffic = Traffic(qps=100.0, arrival="poisson", cv=1.0, seed=arrivals)
    load = replace(made.load, samples=samples, latency=LatencySummary.of(latencies))
    return replace(made, load=load, traffic=traffic)


def test_under_the_same_arrivals_their_luck_takes_no_part() -> None:
    """Intervals of ± 20% overlap; run against run, 15% stand out."""
    drift = drift_between(seen(sampled()), seen(sampled(1.15, seed=2)), SLA)
    assert [shift.metric for shift in drift.found] == ["p95_ms"]


def test_what_is_told_is_of_the_requests_that_both_windows_had() -> None:
    """Tonight's window closed early."""
    before, whole = sampled(), sampled(1.15, seed=2)
    kept = slice(0, 400)
    assert whole.load.samples is not None
    samples = RequestSamples(
        scheduled_s=whole.load.samples.scheduled_s[kept],
        sent_s=whole.load.samples.sent_s[kept],
        done_s=whole.load.samples.done_s[kept],
        ok=whole.load.samples.ok[kept],
    )
    short = replace(whole, load=replace(whole.load, samples=samples))
    (shift,) = drift_between(seen(before), seen(short), SLA).found
    assert shift.after / shift.before == pytest.approx(1 + shift.effect)


def test_under_other_arrivals_the_intervals_decide() -> None:
    other = seen(sampled(1.15, seed=2, arrivals=6))
    assert not drift_between(seen(sampled()), other, SLA).drifted


def test_nor_is_it_a_drift_within_the_allowance_from_run_to_run() -> None:
    assert not drift_between(seen(sampled()), seen(sampled(1.08, seed=2)), SLA).drifted


def test_a_rate_has_to_be_off_by_three_standard_deviations_too_however_narrow_the_one_before() -> (
    None
):
    """Intervals of ± 10% tonight and of ± 1% before, after many runs: they do not overlap."""
    before, tonight = measured(40.0), measured(40.0, saturation=133.0)
    ends = {"saturation_qps": Interval(low=120.0, high=147.0)}
    tonight = replace(tonight, intervals={**tonight.intervals, **ends})
    assert before.intervals["saturation_qps"].low > ends["saturation_qps"].high
    assert not drift_between(seen(before), seen(tonight), SLA).drifted


def test_of_what_became_worse_and_better_the_gravest_is_what_became_worse() -> None:
    before, after = seen(measured(40.0)), seen(measured(20.0, saturation=100.0))
    drift = drift_between(before, after, SLA)
    assert [shift.metric for shift in drift.found] == ["p95_ms", "saturation_qps"]
    assert drift.gravest.metric == "saturation_qps"


def test_what_became_faster_has_drifted_too() -> None:
    before, after = seen(measured(40.0)), seen(measured(40.0, saturation=180.0))
    drift = drift_between(before, after, SLA)
    assert [shift.metric for shift in drift.found] == ["saturation_qps"]
    assert not drift.worse


def test_a_metric_without_an_interval_takes_more_to_drift() -> None:
    bare = replace(measured(40.0), intervals={})
    slower = replace(measured(45.0), intervals={})
    assert not drift_between(seen(bare), seen(slower), SLA).drifted


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"model_digest": "bbb"},
            "model",
            "the model's files or its configuration changed: hash aaa",
        ),
        ({"driver": "590.2"}, "driver", "580.1 before, 590.2 now"),
        ({"cuda": "13.1"}, "cuda", "13.0 before"),
        ({"triton": "2.60.0"}, "triton", "Triton: 2.51.0 before, 2.60.0 now"),
        ({"packages": {"numpy": "2.0.0"}}, "packages", "numpy 1.26.4 to 2.0.0, onnxruntime gone"),
        ({"system": "Linux 6.12"}, "kernel", "Linux 6.12 now"),
        ({"processor": "another"}, "hardware", "the processor"),
        ({"gpus": ["A10"]}, "gpu", "H100 before, A10 now"),
        ({"gpu_uuids": ["GPU-2"]}, "gpu", "of the same kind"),
        ({"gpu_limits": ["300 W"]}, None, ""),
        ({"memory_mb": 16_010}, None, ""),
        ({"memory_mb": 8_000}, "hardware", "16000 MB before, 8000 now"),
        ({SERVER: {"flags": {"a": 2}}}, "triton", "flags {'a': 1} to {'a': 2}"),
        ({TRAFFIC_FILES: {"inputs": "y"}}, "traffic", "other contents of the file of its inputs"),
        ({"load_average": 3.0}, "neighbours", "load average"),
        ({"versions": {"triton-autotune": "0.2.0"}}, "autotune", "0.1.0 to 0.2.0"),
    ],
)
def test_what_changed_is_a_likely_cause(
    change: dict[str, Any], kind: str | None, words: str
) -> None:
    """What only one of the two studies recorded did not change."""
    drift = drift_between(seen(measured(40.0)), seen(measured(60.0), **change), SLA)
    assert [cause.kind for cause in drift.causes] == ([kind] if kind else [])
    assert all(words in cause.words for cause in drift.causes)


def test_a_promotion_that_changed_only_what_is_tuned_did_not_change_the_model() -> None:
    before = seen(measured(40.0), model_basis="same")
    after = seen(measured(60.0), model_basis="same", model_digest="bbb")
    assert kinds(before, after) == []


@pytest.mark.parametrize(("then", "now", "found"), [(0.0, 0.08, True), (0.08, 0.0, False)])
def test_neighbours_are_a_cause_only_where_they_explain_the_direction(
    then: float, now: float, found: bool
) -> None:
    before = seen(measured(40.0, foreign_cpu=then))
    after = seen(measured(60.0, foreign_cpu=now))
    assert kinds(before, after) == (["neighbours"] if found else [])


def test_more_processes_of_others_on_the_gpu_are_neighbours_and_fewer_explain_nothing() -> None:
    alone, beside = measured(40.0), measured(60.0, foreign_gpu=(4711,))
    assert kinds(seen(alone), seen(beside)) == ["neighbours"]
    alone, beside = measured(60.0), measured(40.0, foreign_gpu=(4711,))
    assert kinds(seen(beside), seen(alone)) == []


@pytest.mark.parametrize(("p95", "found"), [(20.0, True), (60.0, False)])
def test_a_quota_that_holds_no_more_explains_what_is_faster(p95: float, found: bool) -> None:
    held = measured(40.0, notes={"cpu_quota": "held back 12% of the time"})
    causes = drift_between(seen(held), seen(measured(p95)), SLA).causes
    assert [cause.words for cause in causes] == (
        ["not any more: held back 12% of the time"] if found else []
    )


@pytest.mark.parametrize(("now", "found"), [(1400.0, True), (1975.0, False), (2400.0, False)])
def test_a_lower_clock_explains_what_is_slower(now: float, found: bool) -> None:
    clock = {"sm_clock_mhz": Gauge(value=1980.0, source="nvml")}
    lower = {"sm_clock_mhz": Gauge(value=now, source="nvml")}
    before, after = seen(measured(40.0, gauges=clock)), seen(measured(60.0, gauges=lower))
    assert kinds(before, after) == (["clocks"] if found else [])


def test_traffic_that_was_offered_otherwise_is_a_cause() -> None:
    slow, fast = measured(40.0), measured(60.0)
    fast = replace(fast, load=replace(fast.load, offered_qps=140.0))
    assert kinds(seen(slow), seen(fast)) == ["traffic"]


def test_several_causes_come_with_the_likeliest_first() -> None:
    after = seen(measured(60.0), system="Linux 6.12", driver="590.2")
    drift = drift_between(seen(measured(40.0)), after, SLA)
    assert [cause.kind for cause in drift.causes] == ["driver", "kernel"]
    assert [cause.likelihood for cause in drift.causes] == [
        Likelihood.LIKELY,
        Likelihood.POSSIBLE,
    ]
    assert drift.sure.startswith("2 things that are recorded changed")


def test_where_nothing_that_is_recorded_changed_it_says_so() -> None:
    drift = drift_between(seen(measured(40.0)), seen(measured(60.0)), SLA)
    assert drift.sure.startswith("nothing that is recorded changed")


def test_no_cause_is_looked_for_where_nothing_drifted() -> None:
    assert kinds(seen(measured(40.0)), seen(measured(40.0), driver="590.2")) == []


def test_what_a_search_found_is_seen_with_the_runs_taken_of_it_later() -> None:
    lucky = replace(measured(40.0), purpose=Purpose.TRIAL)
    later = [replace(measured(44.0), purpose=Purpose.COMPARE) for _ in range(3)]
    trial = made_trial(3, lucky, *later)
    observed = Observation.of(trial, 1, HERE)
    assert observed is not None
    assert len(observed.measurements) == 4


def test_a_trial_that_is_not_believed_is_no_observation() -> None:
    assert Observation.of(made_trial(0, made_measurement(invalid=("x",))), 1, HERE) is None
    assert Observation.of(None, 1, HERE) is None


def test_a_drift_is_plain_data() -> None:
    plain = drift_between(seen(measured(40.0)), seen(measured(60.0), driver="590.2"), SLA).to_json()
    assert plain["drifted"] is True
    assert plain["causes"][0]["likelihood"] == "likely"
    assert plain["shifts"][0]["relation"] == "worse"
