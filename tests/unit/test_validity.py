from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.core.measurement import LoadResult
from autotune.core.sla import Sla
from autotune.core.validity import saturated, why_invalid
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


def test_a_full_cap_is_the_measuring_s_fault_only_where_the_server_kept_up() -> None:
    kept_up = replace(phase(errors={}), in_flight_cap_hit=True)
    fell_behind = replace(phase(errors={"unsent": 100}), in_flight_cap_hit=True, sent=900)
    assert "raise workload.max_in_flight" in why_invalid(kept_up, SLA)[0]
    assert why_invalid(fell_behind, SLA) == ()


def test_requests_that_were_not_sent_although_there_was_room_make_it_invalid() -> None:
    assert "only 980 of 1000" in why_invalid(replace(phase(errors={}), sent=980), SLA)[0]
