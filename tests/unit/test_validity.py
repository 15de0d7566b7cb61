from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.core.measurement import Ended, LatencySummary, LoadResult, TelemetryWindow
from autotune.core.sla import Sla
from autotune.core.study import Trust
from autotune.core.validity import LOST_GPU, MOST_FOREIGN, saturated, why_invalid
from tests.fakes import load_result

SLA = Sla(latency_ms={95.0: 80.0})


def phase(*, errors: dict[str, int]) -> LoadResult:
    """Ten seconds of 100 requests/s, of which some ended so."""
    kept = 1 - sum(errors.values()) / 1000
    return replace(load_result(20.0, offered_qps=100, window_s=10, kept=kept), errors=errors)


@pytest.mark.parametrize("kind", ["timeout", "unsent", "http_503"])
def test_a_server_that_leaves_requests_unanswered_is_saturated(kind: str) -> None:
    assert saturated(phase(errors={kind: 100}))


@pytest.mark.parametrize("kind", ["http_400", "http_500", "bad_answer", "connection"])
def test_a_server_that_answers_errors_in_time_is_not_saturated(kind: str) -> None:
    assert not saturated(phase(errors={kind: 100}))


def test_a_server_that_answers_late_is_saturated() -> None:
    late = replace(load_result(20.0, offered_qps=100, window_s=10), achieved_qps=90.0)
    assert saturated(late)


def test_a_load_that_was_ended_because_requests_piled_up_saturated_the_server() -> None:
    early = replace(phase(errors={}), ended=Ended.FELL_BEHIND)
    assert saturated(early)


def short(*, latency_ms: float, missing: int, errors: dict[str, int] | None = None) -> LoadResult:
    """A second of 50 requests/s, so many fewer answered in it than were scheduled."""
    full = load_result(latency_ms, offered_qps=50, window_s=1)
    return replace(full, achieved_qps=50.0 - missing, errors=errors or {})


def test_requests_in_flight_at_the_edges_of_a_short_window_do_not_make_a_server_saturated() -> None:
    assert not saturated(short(latency_ms=20.0, missing=4))
    assert not saturated(short(latency_ms=700.0, missing=9))


@pytest.mark.parametrize("latency_ms", [20.0, 700.0])
def test_in_a_short_window_too_a_server_that_leaves_a_third_unanswered_is_saturated(
    latency_ms: float,
) -> None:
    assert saturated(short(latency_ms=latency_ms, missing=17))


def test_a_server_that_answers_nothing_is_saturated_however_short_the_window() -> None:
    hung = load_result(10_000.0, offered_qps=4, window_s=1)
    assert saturated(replace(hung, achieved_qps=0.0, ok=0, errors={"timeout": 4}))


# ------------------------------------------------------------------------------------- generator
def test_a_phase_without_fault_is_valid() -> None:
    quiet = TelemetryWindow(foreign_cpu=0.02)
    assert why_invalid(phase(errors={}), SLA, quiet, asked_qps=100.0) == ()


@pytest.mark.parametrize(("lag_ms", "valid"), [(7.9, True), (8.1, False)])
def test_the_send_lag_is_held_to_a_share_of_the_tightest_latency(
    lag_ms: float, valid: bool
) -> None:
    late = load_result(20.0, offered_qps=100, window_s=10, lag_ms=lag_ms)
    assert (why_invalid(late, SLA) == ()) is valid


def test_the_send_lag_may_always_be_two_milliseconds() -> None:
    late = load_result(2.0, offered_qps=100, window_s=10, lag_ms=1.9)
    assert why_invalid(late, Sla(latency_ms={95.0: 5.0})) == ()


def test_trust_says_what_is_allowed() -> None:
    late = replace(load_result(20.0, offered_qps=100, window_s=10, lag_ms=15.0), generator_cpu=0.95)
    busy = TelemetryWindow(foreign_cpu=0.5)
    assert len(why_invalid(late, SLA, busy)) == 3
    assert why_invalid(late, SLA, busy, Trust(send_lag=0.2, generator_cpu=1, foreign_cpu=1)) == ()


def test_a_generator_that_uses_its_whole_core_is_named_with_its_share() -> None:
    busy = replace(phase(errors={}), generator_cpu=0.97)
    assert "used 97% of its core, allowed 90%" in why_invalid(busy, SLA)[0]


# -------------------------------------------------------------------------------------- requests
def test_a_full_cap_is_the_measuring_s_fault_only_where_the_server_kept_up() -> None:
    kept_up = replace(phase(errors={}), in_flight_cap_hit=True)
    fell_behind = replace(phase(errors={"unsent": 100}), in_flight_cap_hit=True, sent=900)
    assert "raise workload.max_in_flight" in why_invalid(kept_up, SLA)[0]
    assert why_invalid(fell_behind, SLA) == ()


def test_requests_that_were_not_sent_although_there_was_room_make_it_invalid() -> None:
    assert "only 980 of 1000" in why_invalid(replace(phase(errors={}), sent=980), SLA)[0]


def test_a_few_requests_unsent_at_the_end_of_a_short_window_are_forgiven() -> None:
    few = load_result(20.0, offered_qps=50, window_s=1)
    assert why_invalid(replace(few, sent=48), SLA) == ()
    assert "only 46 of 50" in why_invalid(replace(few, sent=46), SLA)[0]


@pytest.mark.parametrize("kind", ["timeout", "connection"])
def test_requests_without_any_answer_are_the_measuring_s_fault_where_the_server_kept_up(
    kind: str,
) -> None:
    reasons = why_invalid(phase(errors={kind: 30}), SLA)
    assert f"30 {kind}" in reasons[0]
    assert len(reasons) == 1


@pytest.mark.parametrize("kind", ["http_500", "http_503", "bad_answer"])
def test_bad_answers_are_the_candidate_s_fault(kind: str) -> None:
    assert why_invalid(phase(errors={kind: 30}), SLA) == ()


def test_requests_without_an_answer_are_the_candidate_s_fault_where_it_fell_behind() -> None:
    assert why_invalid(phase(errors={"timeout": 300}), SLA) == ()
    stopped = replace(phase(errors={"timeout": 40}), ended=Ended.FELL_BEHIND)
    assert why_invalid(stopped, SLA) == ()


def test_answers_that_come_after_the_window_are_the_candidate_s_fault() -> None:
    late = replace(load_result(20.0, offered_qps=100, window_s=10), achieved_qps=97.0)
    assert why_invalid(late, SLA) == ()


def test_a_hopeless_candidate_whose_requests_are_open_at_the_end_is_judged() -> None:
    """Steady answers after 2 s; those still open when the load ended count as timed out."""
    slow = replace(
        load_result(2000.0, offered_qps=100, window_s=2),
        ended=Ended.HOPELESS,
        latency=LatencySummary.of(np.full(200, 2000.0)),
        achieved_qps=93.0,
        ok=110,
        errors={"timeout": 90},
    )
    assert why_invalid(slow, SLA) == ()


def test_a_window_without_requests_says_nothing() -> None:
    nothing = replace(phase(errors={}), scheduled=0)
    assert "no request" in why_invalid(nothing, SLA)[0]


# ---------------------------------------------------------------------------------- what was asked
@pytest.mark.parametrize(("offered_qps", "valid"), [(100.0, True), (93.0, True), (85.0, False)])
def test_the_offered_rate_is_held_to_the_asked_one_as_far_as_chance_goes(
    offered_qps: float, valid: bool
) -> None:
    offered = load_result(20.0, offered_qps=offered_qps, window_s=10)
    assert (why_invalid(offered, SLA, asked_qps=100.0) == ()) is valid


def test_what_was_asked_is_not_judged_where_it_has_no_count() -> None:
    assert why_invalid(load_result(20.0, offered_qps=50, window_s=10), SLA) == ()


# ------------------------------------------------------------------------------------ the machine
def test_others_that_took_the_processor_are_named_with_their_share() -> None:
    taken = TelemetryWindow(foreign_cpu=0.34, notes={MOST_FOREIGN: "make (process 7) took 30%"})
    reasons = why_invalid(phase(errors={}), SLA, taken)
    assert reasons[0].startswith(
        "others took 34% of this machine's processor, allowed 10% (make (process 7) took 30%): stop"
    )


def test_what_is_unknown_of_the_machine_is_not_held_against_a_measurement() -> None:
    assert why_invalid(phase(errors={}), SLA, TelemetryWindow()) == ()
    assert why_invalid(phase(errors={}), SLA, None) == ()


def test_work_of_others_on_the_gpu_makes_it_invalid() -> None:
    shared = TelemetryWindow(foreign_gpu=(12, 40))
    assert "(12, 40)" in why_invalid(phase(errors={}), SLA, shared)[0]


def test_lowered_clocks_make_it_invalid_each_with_its_reason() -> None:
    hot = TelemetryWindow(throttled=("the processor was hot", "GPU 0 was hot"))
    reasons = why_invalid(phase(errors={}), SLA, hot)
    assert ["the processor was hot" in reasons[0], "GPU 0 was hot" in reasons[1]] == [True, True]


def test_a_gpu_that_went_away_makes_it_invalid_and_says_where_to_look() -> None:
    lost = TelemetryWindow(notes={LOST_GPU: "NVML: GPU is lost"})
    (reason,) = why_invalid(phase(errors={}), SLA, lost)
    assert "(NVML: GPU is lost)" in reason
    assert "Xid" in reason
