from __future__ import annotations

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from loadgen.results import Code, RawRun, summarise

NAN = float("nan")


def run(*requests: tuple[float, float, float, int], **more) -> RawRun:
    """Requests as (scheduled, sent, done, code)."""
    columns = list(zip(*requests, strict=True)) if requests else [[], [], [], []]
    return RawRun(
        scheduled_s=np.array(columns[0], dtype=np.float64),
        sent_s=np.array(columns[1], dtype=np.float64),
        done_s=np.array(columns[2], dtype=np.float64),
        code=np.array(columns[3], dtype=np.int16),
        opened_s=more.get("opened", 1.0),
        closed_s=more.get("closed", 3.0),
        generator_cpu=more.get("cpu", 0.1),
        max_in_flight=1,
        cap_hit=False,
        texts=more.get("texts", {}),
    )


def summary(raw: RawRun, **how):
    return summarise(raw, timeout_s=5.0, **how)


def test_only_requests_scheduled_in_the_window_are_counted():
    result = summary(
        run((0.5, 0.5, 0.6, 1), (1.0, 1.0, 1.1, 1), (2.9, 2.9, 3.1, 1), (3.0, 3.0, 3.1, 1))
    )
    assert (result.scheduled, result.ok, result.offered_qps) == (2, 2, 1.0)
    assert result.samples is not None
    assert result.samples.scheduled_s.tolist() == pytest.approx([0, 1.9])


def test_latency_counts_from_the_schedule_and_service_latency_from_the_send():
    result = summary(run((1.0, 1.4, 1.5, 1)))
    assert result.latency is not None
    assert result.service_latency is not None
    assert result.send_lag is not None
    assert result.latency.at(95.0) == pytest.approx(500)
    assert result.service_latency.at(95.0) == pytest.approx(100)
    assert result.send_lag.at(95.0) == pytest.approx(400)


def test_a_failed_request_counts_with_its_time_out():
    result = summary(run((1.0, 1.0, 1.001, 503), (1.5, 1.5, NAN, Code.TIMEOUT)))
    assert result.latency is not None
    assert result.latency.max_ms == result.latency.at(50.0) == 5000
    assert result.service_latency is None
    assert result.error_rate == 1


def test_the_first_words_of_each_kind_of_error_are_kept():
    result = summary(run(texts={500: "CUDA out of memory", Code.CONNECTION: "refused"}))
    assert result.error_texts == {"http_500": "CUDA out of memory", "connection": "refused"}


def test_errors_are_counted_by_kind():
    codes = [503, 503, 400, *(Code.TIMEOUT, Code.CONNECTION, Code.BAD_ANSWER, Code.UNSENT)]
    result = summary(run(*((1.5, NAN, NAN, code) for code in codes)))
    assert result.errors == {
        "http_503": 2,
        "http_400": 1,
        "timeout": 1,
        "connection": 1,
        "bad_answer": 1,
        "unsent": 1,
    }


def test_answers_that_arrive_after_the_window_are_not_achieved_throughput():
    result = summary(run((1.0, 1.0, 1.1, 1), (1.5, 1.5, 3.5, 1)))
    assert (result.ok, result.achieved_qps) == (2, 0.5)


def test_a_result_says_how_long_its_warm_up_and_its_window_were():
    result = summary(run((1.0, 1.0, 1.1, 1), opened=0.7, closed=1.2))
    assert (result.warmup_s, result.window_s, result.offered_qps) == (0.7, 0.5, 2.0)


def test_a_request_that_is_not_settled_counts_as_timed_out():
    result = summary(run((1.0, 1.0, NAN, Code.PENDING), (1.1, 1.1, 1.2, 1)))
    assert (result.sent, result.ok, result.errors) == (2, 1, {"timeout": 1})
    assert result.latency is not None
    assert result.latency.max_ms == 5000


def test_completions_hold_the_answers_to_requests_from_before_the_window():
    raw = run((0.5, 0.5, 0.9, 1), (0.9, 0.9, 1.5, 1), (2.5, 2.5, 3.5, 1), (0.8, 0.8, 1.2, 503))
    samples = summary(raw, completions=True).samples
    assert samples is not None
    assert samples.done_s.tolist() == pytest.approx([0.5, 2.5])
    assert samples.scheduled_s.tolist() == pytest.approx([-0.1, 1.5])


def test_requests_never_sent_and_never_answered_are_told_apart():
    result = summary(run((1.0, NAN, NAN, Code.UNSENT), (1.1, 1.1, NAN, Code.TIMEOUT)))
    assert (result.scheduled, result.sent, result.completed) == (2, 1, 0)


def test_an_empty_window_has_no_latency():
    result = summary(run())
    assert (result.scheduled, result.latency, result.error_rate) == (0, None, 0.0)


def test_the_histogram_decodes_to_the_latencies_in_microseconds():
    result = summary(run(*((1.0, 1.0, 1.0 + ms / 1e3, 1) for ms in (1, 2, 3, 4))))
    histogram = HdrHistogram.decode(result.histogram)
    assert histogram.get_total_count() == 4
    assert histogram.get_max_value() == pytest.approx(4000, rel=1e-3)
