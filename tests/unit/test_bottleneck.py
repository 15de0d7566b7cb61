"""Which step of a pipeline limits, what would help, and how it is said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autotune.core.bottleneck import Breakdown, Means, Remedy, breakdown, most_instances, remedy
from autotune.core.decision import Decision, decide
from autotune.core.explain_steps import limiting
from autotune.core.measurement import BatchStat, Ended, Measurement, ServerWindow
from autotune.core.sla import Sla, judge
from autotune.core.study import PickRule
from autotune.core.trial import Trial
from autotune.core.workload import Workload
from search_spaces.space import parse_space
from tests.unit.made_trials import (
    WINDOW_S,
    made_measurement,
    made_pipeline_measurement,
    made_step,
    starved_candidate,
    starved_steps,
    starved_study,
)

SLA = Sla(latency_ms={95.0: 800.0})
CANDIDATE = starved_candidate(12, 8)


def found_in(measured: Measurement) -> Breakdown:
    found = breakdown(measured, CANDIDATE)
    assert found is not None
    return found


def helping(measured: Measurement, **most: int) -> Remedy:
    found = remedy(found_in(measured), judge(measured, SLA), most)
    assert found is not None
    return found


def near_miss(device_queue_ms: float = 90.0, *, p95: float = 862.0) -> Measurement:
    """Twelve workers hold 18/s; p95 misses 800 ms by a little."""
    device = made_step(150.0, batch=4, queue_ms=device_queue_ms)
    return made_pipeline_measurement(
        starved_steps(workers=12, device=device), p95=p95, within=(p95 - 22, p95 + 23)
    )


def untuned(workers: int = 1) -> Measurement:
    rate = workers / 0.37
    steps = {
        "preprocess": made_step(370.0, instances=workers, queue_ms=8200.0, rate=rate),
        "device": made_step(72.0, rate=rate, queue_ms=3.0),
        "postprocess": made_step(95.0, rate=rate),
    }
    return made_pipeline_measurement(
        steps, p95=9600.0, answered=rate, ended=Ended.FELL_BEHIND, utilization=0.12
    )


# ------------------------------------------------------------------------------------- the steps
def test_a_step_is_told_by_its_own_instances_batches_and_times() -> None:
    preprocess, device, postprocess = found_in(near_miss()).steps
    assert (preprocess.instances, preprocess.queue_ms, preprocess.compute_ms) == (12, 1.0, 370.0)
    assert preprocess.utilization == pytest.approx(18 * 0.37 / 12)
    assert preprocess.work_ms == pytest.approx(370.0)
    assert preprocess.capacity_qps == pytest.approx(12 / 0.37)
    assert device.mean_batch == 4
    assert device.work_ms == pytest.approx(150 / 4)
    assert device.utilization == pytest.approx(18 * 0.150 / 4)
    assert postprocess.latency_ms == 96.0


def test_what_no_step_accounts_for_is_outside_of_them() -> None:
    assert found_in(near_miss()).outside_ms == pytest.approx(80.0)


def test_steps_that_overlap_leave_nothing_to_say_of_the_outside() -> None:
    measured = made_pipeline_measurement(
        starved_steps(workers=12, device=made_step(150.0, batch=4)), p95=700.0, outside_ms=-90.0
    )
    assert found_in(measured).outside_ms is None


def test_a_batching_step_takes_at_least_what_was_seen_where_larger_batches_are_allowed() -> None:
    seen = {
        1: BatchStat(executions=40, compute_ms=72.0),
        4: BatchStat(executions=80, compute_ms=150.0),
        8: BatchStat(executions=1, compute_ms=90.0),
    }
    measured = near_miss()
    assert measured.server is not None
    device = replace(measured.server.steps["device"], batches=seen, requests=368)
    steps = {**measured.server.steps, "device": device}
    found = found_in(replace(measured, server=replace(measured.server, steps=steps)))
    assert found.of("device").capacity_qps == pytest.approx(4 / 0.150)
    assert found.of("device").at_least
    assert not found.of("preprocess").at_least


def test_instances_that_are_unknown_leave_utilization_and_capacity_unknown() -> None:
    measured = made_pipeline_measurement(
        {"a": made_step(20.0, instances=0), "b": made_step(30.0, instances=0)}, p95=200.0
    )
    found = found_in(measured)
    assert {(step.utilization, step.capacity_qps) for step in found.steps} == {(None, None)}
    assert found.limiting == "b"


def test_a_pipeline_within_a_pipeline_is_told_by_the_steps_that_execute() -> None:
    inner = ServerWindow(
        requests=360, executions=0, failures=0, queue_ms=0.0, compute_input_ms=0.0,
        compute_infer_ms=50.0, compute_output_ms=0.0, steps={"resize": made_step(50.0)},
    )  # fmt: skip
    found = found_in(made_pipeline_measurement({"pre": inner, "net": made_step(20.0)}, p95=200.0))
    assert [step.name for step in found.steps] == ["resize", "net"]


def test_a_step_that_a_request_passes_twice_counts_twice() -> None:
    twice = replace(made_step(20.0, instances=2, rate=36.0), calls=2)
    found = found_in(made_pipeline_measurement({"a": made_step(5.0), "b": twice}, p95=200.0))
    assert found.of("b").compute_ms == 40.0
    assert found.of("b").work_ms == pytest.approx(40.0)
    assert found.of("b").capacity_qps == pytest.approx(2 / 0.040)


def test_a_step_that_a_request_passes_twice_is_told_so_where_the_pipeline_falls_behind() -> None:
    """More pass it than come out in the end: their ratio tells nothing."""
    twice = replace(made_step(40.0, rate=25.0, queue_ms=300.0), calls=2)
    steps = {"a": made_step(5.0), "b": twice, "c": made_step(5.0, rate=11.0)}
    measured = made_pipeline_measurement(steps, p95=2000.0, answered=11.0, ended=Ended.FELL_BEHIND)
    found = found_in(measured)
    assert found.of("b").compute_ms == 80.0
    assert found.of("b").work_ms == pytest.approx(80.0)
    assert found.of("b").capacity_qps == pytest.approx(12.5)
    assert helping(measured, b=4).instances == 2  # 18/s × 80 ms = 1.44


def test_a_single_model_has_no_steps() -> None:
    assert breakdown(made_measurement(), CANDIDATE) is None


def test_a_pipeline_as_a_whole_has_no_mean_batch() -> None:
    assert near_miss().metric("mean_batch") is None


# ------------------------------------------------------------------------------ which step limits
def test_where_the_pipeline_falls_behind_the_step_with_the_busiest_instances_limits() -> None:
    found = found_in(untuned(4))
    assert found.saturated
    assert found.limiting == "preprocess"
    assert found.outside_ms is None


def test_of_two_steps_that_are_full_the_one_with_the_longer_queue_limits() -> None:
    full = {
        "a": made_step(1000 / 18, queue_ms=300.0),
        "b": made_step(990 / 18, queue_ms=900.0),
    }
    found = found_in(made_pipeline_measurement(full, p95=2000.0, ended=Ended.FELL_BEHIND))
    assert found.limiting == "b"


def test_a_step_that_is_full_limits_though_another_takes_longer() -> None:
    steps = {"a": made_step(400.0, instances=12), "b": made_step(54.0, queue_ms=200.0)}
    found = found_in(made_pipeline_measurement(steps, p95=900.0))
    assert found.saturated
    assert found.limiting == "b"


def test_where_nothing_is_full_the_step_with_the_largest_part_of_the_latency_limits() -> None:
    assert found_in(near_miss()).limiting == "preprocess"
    assert found_in(near_miss(300.0)).limiting == "device"
    assert not found_in(near_miss()).saturated


def test_of_steps_that_take_about_as_long_none_clearly_limits() -> None:
    steps = {"scale": made_step(10.2), "summ": made_step(10.0), "last": made_step(2.0)}
    measured = made_pipeline_measurement(steps, p95=900.0)
    found = found_in(measured)
    assert not any(found.limits(step.name) for step in found.steps)
    assert found.first_full is None
    told = found.to_json()
    assert (told["limiting"], told["saturates_first"]) == (None, None)
    assert not any(step["limiting"] for step in told["steps"])
    assert limiting(found) == (
        "no step clearly limits: scale (10 ms) and summ (10 ms) take about as long"
    )


def test_of_steps_that_take_about_as_long_the_first_to_saturate_is_named() -> None:
    steps = {"scale": made_step(10.2), "summ": made_step(10.0, instances=2)}
    said = limiting(found_in(made_pipeline_measurement(steps, p95=900.0)))
    assert said.endswith("take about as long; scale would be the first to saturate, at 98.0/s")


def test_the_step_that_would_saturate_first_is_the_one_that_can_take_least() -> None:
    first = found_in(near_miss()).first_full
    assert first is not None
    assert (first.name, first.at_least) == ("device", True)


# --------------------------------------------------------------------------------- what would help
@pytest.mark.parametrize("device_queue_ms", [90.0, 300.0])
def test_the_step_that_works_longest_for_a_request_is_to_be_shortened_by_what_is_missing(
    device_queue_ms: float,
) -> None:
    """Not the device, whose batches are shared, be its queue the longest of all."""
    help_ = helping(near_miss(device_queue_ms), preprocess=12)
    assert (help_.means, help_.step, help_.metric) == (Means.SHORTEN, "preprocess", "p95_ms")
    assert help_.excess_ms == pytest.approx(62.0)
    assert help_.sure_ms == pytest.approx(85.0)
    assert help_.to_ms == pytest.approx(308.0)
    assert help_.factor == pytest.approx(370 / 308)


def test_a_miss_by_more_than_the_step_takes_is_not_made_up_for_by_it_alone() -> None:
    help_ = helping(near_miss(p95=1300.0))
    assert (help_.step, help_.to_ms, help_.factor) == ("preprocess", None, None)
    assert help_.excess_ms == pytest.approx(500.0)


def test_a_latency_that_straddles_its_limit_is_to_fall_by_what_it_may_be_above() -> None:
    help_ = helping(near_miss(p95=795.0))
    assert help_.excess_ms == pytest.approx(18.0)


def test_a_step_that_is_full_needs_as_many_instances_as_its_work_fills() -> None:
    help_ = helping(untuned(), preprocess=16)
    assert (help_.means, help_.step) == (Means.INSTANCES, "preprocess")
    assert help_.instances == 7  # 18/s × 370 ms = 6.66


@pytest.mark.parametrize("workers", [1, 4])
def test_where_the_space_has_too_few_instances_the_step_must_become_faster_by_a_factor(
    workers: int,
) -> None:
    help_ = helping(untuned(workers), preprocess=4)
    assert (help_.means, help_.step, help_.most) == (Means.SHORTEN, "preprocess", 4)
    assert help_.factor == pytest.approx(18 * 0.370 / 4)
    assert help_.to_ms == pytest.approx(4 / 18 * 1000)
    assert help_.excess_ms is None


def test_a_step_that_is_full_is_counted_by_the_batches_that_it_made_not_the_best_of_them() -> None:
    """Three batches of 8 would hold 80/s; it made hardly any, though requests waited."""
    seen = {
        1: BatchStat(executions=284, compute_ms=66.0),
        8: BatchStat(executions=3, compute_ms=100.0),
    }
    steps = {"a": made_step(62.0, rate=308 / WINDOW_S, batches=seen), "b": made_step(5.0)}
    measured = made_pipeline_measurement(steps, p95=2000.0, answered=15.0, ended=Ended.FELL_BEHIND)
    help_ = helping(measured)
    assert (help_.means, help_.step, help_.instances) == (Means.SHORTEN, "a", 2)
    assert help_.factor == pytest.approx(18 * (284 * 0.066 + 3 * 0.1) / 308)
    assert helping(measured, a=2).means is Means.INSTANCES


@pytest.mark.parametrize("rate", [5.0, 17.5])
def test_a_step_that_can_hold_the_rate_is_not_said_to_need_more_for_it(rate: float) -> None:
    """It falls behind all the same, for what no statistics tell: then the latency is what is
    missed, and nothing is to be shortened 1.00 times."""
    steps = {"a": made_step(55.0, rate=rate), "b": made_step(5.0, rate=rate)}
    measured = made_pipeline_measurement(steps, p95=830.0, answered=rate, ended=Ended.FELL_BEHIND)
    help_ = helping(measured)
    assert (help_.means, help_.metric) == (Means.SHORTEN, "p95_ms")
    assert help_.factor == pytest.approx(55 / 25)


def test_a_pipeline_that_meets_its_sla_needs_no_help() -> None:
    measured = near_miss(p95=600.0)
    assert remedy(found_in(measured), judge(measured, SLA), {}) is None


def test_the_most_instances_are_the_spaces() -> None:
    space = parse_space(
        {
            "preprocess.workers": [1, 4, 12],
            "device.instances": {"range": [1, 3]},
            "device.max_batch_size": [1, 64],
        },
        "pipeline",
    )
    assert most_instances(space) == {"preprocess": 12, "device": 3}


# -------------------------------------------------------------------------------------- sentences
def decided(trials: list[Trial], **space: list[int]) -> Decision:
    return decide(
        trials,
        SLA,
        [],
        PickRule.CHEAPEST,
        workload=Workload(target_qps=15.0, measure_s=WINDOW_S),
        space=parse_space(space or {"preprocess.workers": [1, 4, 12]}, "pipeline"),
    )


def test_a_study_that_no_candidate_meets_names_the_step_to_shorten_and_by_how_much() -> None:
    decision = decided(starved_study())
    assert decision.pick is None
    assert decision.nearest_miss == 2
    said = "\n".join(decision.reasons)
    assert "a request of trial 2 takes 787 ms on average: preprocess 371 ms" in said
    assert "preprocess limits: it takes 47% of a request's time" in said
    assert (
        "p95 is 62 ms (85 ms by its interval) above its limit: to meet it, shorten preprocess"
        " by about 62 ms, from 370 ms to 308 ms (1.20 times as fast)" in said
    )


def test_where_another_step_takes_longer_it_is_said_why_it_is_not_the_one_to_shorten() -> None:
    measured = near_miss(300.0)
    trials = [replace(starved_study()[2], measurements=(measured,))]
    said = "\n".join(decided(trials).reasons)
    assert "device limits: it takes 45% of a request's time" in said
    assert "device takes longer, 450 ms, but works only 38 ms for one request" in said


def test_a_pipeline_that_is_full_is_told_what_it_can_take_and_how_many_instances_it_needs() -> None:
    said = "\n".join(decided(starved_study()[:1]).reasons)
    assert (
        "preprocess limits: its only instance is busy for 100% of the time; it takes 2.7/s of the"
        " 18.0/s offered, and device 13.9/s and postprocess 10.5/s" in said
    )
    assert "at 370 ms each it needs at least 7 to hold 18.0/s" in said


def test_where_no_number_of_instances_in_the_space_holds_the_rate_the_factor_is_told() -> None:
    said = "\n".join(decided(starved_study()[:2], **{"preprocess.workers": [1, 4]}).reasons)
    assert (
        "4 instances of preprocess, the most that the space has, cannot hold 18.0/s: shorten it"
        " from 370 ms to less than 222 ms (1.67 times as fast), or allow at least 7 instances"
        in said
    )


def test_what_is_to_be_shortened_by_very_little_is_not_said_to_be_fast_enough() -> None:
    measured = near_miss(p95=800.4)
    trials = [replace(starved_study()[2], measurements=(replace(measured, intervals={}),))]
    said = "\n".join(decided(trials).reasons)
    assert "(1.01 times as fast)" in said


def test_a_pick_is_told_by_its_steps_without_a_remedy() -> None:
    decision = decided(starved_study(preprocess_ms=185.0))
    assert decision.pick == 2
    assert decision.remedy is None
    said = "\n".join(decision.reasons)
    assert "a request of trial 2 takes 602 ms on average: preprocess 186 ms" in said
    assert "device limits: it takes 40% of a request's time" in said


def test_the_decision_as_json_carries_the_split_and_the_remedy() -> None:
    told = json.loads(json.dumps(decided(starved_study()).to_json(), allow_nan=False))
    assert (told["steps"]["trial"], told["steps"]["limiting"]) == (2, "preprocess")
    assert [step["name"] for step in told["steps"]["steps"]] == [
        "preprocess",
        "device",
        "postprocess",
    ]
    assert told["remedy"]["step"] == "preprocess"
    first = told["judged"][0]
    assert (first["utilization_source"], first["steps"]["saturated"]) == ("emulated", True)


def test_the_decision_on_a_single_model_carries_no_split() -> None:
    trial = replace(starved_study()[0], measurements=(made_measurement(),))
    told = decided([trial]).to_json()
    assert (told["steps"], told["remedy"], told["judged"][0]["steps"]) == (None, None, None)
