"""The figures of a trial's page, and of a model's nights."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autotune.core.measurement import Gauge, Measurement, RequestSamples
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.schedules import NightRun, Outcome, RunState
from autotune.core.sla import Sla
from dashboards.figures.course import course, draw_course, told_gauges
from dashboards.figures.latency import draw_latencies
from dashboards.figures.nights import draw_nights, metrics_of, points
from tests.realistic import SLA, a_measurement

NAN = float("nan")


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return a_measurement()


def of_samples(measurement: Measurement, **times: Any) -> Measurement:
    """With these requests: two seconds' worth of window."""
    samples = RequestSamples(**{name: np.array(values) for name, values in times.items()})
    return replace(measurement, load=replace(measurement.load, samples=samples, window_s=2.0))


# ------------------------------------------------------------------------------------ the course
def test_in_flight_counts_what_is_due_and_not_answered(measurement: Measurement) -> None:
    found = course(
        of_samples(
            measurement,
            scheduled_s=[0.0, 0.5, 1.0],
            sent_s=[0.0, 0.5, NAN],
            done_s=[0.8, 1.5, NAN],
            ok=[True, True, False],
        )
    )
    assert found is not None
    at = dict(zip(found.flight_s, found.in_flight, strict=True))
    near = {wanted: at[min(at, key=lambda s: abs(s - wanted))] for wanted in (0.4, 0.7, 1.2, 1.9)}
    assert near == {0.4: 1, 0.7: 2, 1.2: 2, 1.9: 1}


def test_throughput_counts_good_answers_alone(measurement: Measurement) -> None:
    found = course(
        of_samples(
            measurement,
            scheduled_s=[0.0, 0.1, 0.2, 0.3],
            sent_s=[0.0, 0.1, 0.2, 0.3],
            done_s=[0.5, 0.6, 1.9, 1.95],
            ok=[True, False, True, True],
        )
    )
    assert found is not None
    width = found.rate_s[1] - found.rate_s[0]
    assert sum(found.throughput) * width == pytest.approx(3)


def test_without_raw_times_there_is_telemetry_alone(measurement: Measurement) -> None:
    bare = replace(measurement, load=replace(measurement.load, samples=None))
    figure = draw_course(course(bare), 80.0)
    assert figure is not None
    assert [trace["name"] for trace in figure["data"]] == ["utilization (process_cpu)"]


def test_panels_stand_below_one_another_and_name_their_lines(measurement: Measurement) -> None:
    figure = draw_course(course(measurement), 80.0)
    assert figure is not None
    domains = [v["domain"] for k, v in figure["layout"].items() if k.startswith("yaxis")]
    assert len(domains) == 4
    assert all(upper[0] > lower[1] for upper, lower in pairwise(domains))
    told = " ".join(each["text"] for each in figure["layout"]["annotations"])
    assert all(trace["name"] in told for trace in figure["data"])
    assert "SLA 80 ms" in told


def test_a_limit_far_above_does_not_flatten_what_was_measured(measurement: Measurement) -> None:
    figure = draw_course(course(measurement), 1e5)
    assert figure is not None
    assert not any("SLA" in trace["name"] for trace in figure["data"])


def test_gauges_that_are_shares_are_drawn_and_all_are_told(measurement: Measurement) -> None:
    gauges = {
        "sm_active": Gauge(value=0.41, source="gpm", series=((0.0, 0.4), (1.0, 0.42))),
        "sm_clock_mhz": Gauge(value=1755.0, source="nvml"),
    }
    telemetry = replace(measurement.telemetry, gauges=gauges)
    gpu = replace(measurement, telemetry=telemetry)
    figure = draw_course(course(gpu), None)
    assert figure is not None
    assert "SM active" in [trace["name"] for trace in figure["data"]]
    assert [(name, value) for name, value, _ in told_gauges(gpu)] == [
        ("SM active", "41.0%"),
        ("sm_clock_mhz", "1,755 MHz"),
    ]


# ----------------------------------------------------------------------------------- latencies
def test_percentiles_are_marked_at_their_share_and_the_limit_stands_across(
    measurement: Measurement,
) -> None:
    figure = draw_latencies([("trial 5", measurement)], SLA)
    assert figure is not None
    assert measurement.load.latency is not None
    marks = figure["data"][-1]
    at = {round(x): y for x, y in zip(marks["x"], marks["y"], strict=True)}
    assert at[20] == measurement.load.latency.at(95.0)
    (line,) = figure["layout"]["shapes"]
    assert (line["y0"], line["y1"]) == (80.0, 80.0)


def test_two_curves_have_two_colours_and_nothing_is_drawn_of_none(
    measurement: Measurement,
) -> None:
    figure = draw_latencies([("a", measurement), ("b", measurement)], Sla(latency_ms={99.0: 5.0}))
    assert figure is not None
    colours = {
        trace["line"]["color"] for trace in figure["data"] if trace.get("line", {}).get("shape")
    }
    assert len(colours) == 2
    assert draw_latencies([("a", None)], SLA) is None


# ------------------------------------------------------------------------------------- nights
def a_night(run: int, at: float, p95: float, **more: Any) -> NightRun:
    champion = {"trial": 0, "figures": {"p95_ms": {"value": p95, "interval": [p95 - 1, p95 + 2]}}}
    return NightRun(
        id=run,
        schedule_id=1,
        schedule="nightly",
        scheduled_for=at,
        state=RunState.DONE,
        outcome=Outcome.HOLDS,
        summary={"champion": champion, **more},
    )


def test_nights_are_drawn_oldest_first_in_the_readers_zone_with_their_intervals() -> None:
    nights = [a_night(2, 1_790_086_400.0, 34.0), a_night(1, 1_790_000_000.0, 31.0)]
    found = points(nights, "p95_ms")
    figure = draw_nights(found, "p95_ms", (), limit=None, zone=ZoneInfo("Asia/Tokyo"))
    assert figure is not None
    (trace,) = figure["data"]
    assert trace["y"] == [31.0, 34.0]
    assert trace["x"][0] == "2026-09-21T23:13:20"
    assert trace["error_y"]["array"] == [2.0, 2.0]
    assert trace["customdata"] == [1, 2]
    assert metrics_of(nights) == ["p95_ms"]


def test_what_was_put_into_service_and_taken_out_stands_beside_the_nights() -> None:
    promotion = Promotion(
        id=7,
        model="ocr",
        target=Target(grpc="localhost:8001"),
        study_id=1,
        trial=5,
        candidate={},
        state=PromotionState.ROLLED_BACK,
        applied_at=1_790_000_100.0,
        decided_at=1_790_000_200.0,
    )
    found = points([a_night(1, 1_790_000_000.0, 31.0)], "p95_ms")
    figure = draw_nights(found, "p95_ms", [promotion], limit=80.0)
    assert figure is not None
    told = written(figure)
    assert told[:2] == ["promotion 7", "rolled back"]


def written(figure: Any) -> list[str]:
    labels = [shape["label"]["text"] for shape in figure["layout"]["shapes"]]
    return [re.sub("<[^>]*>", "", label) for label in labels]


def test_words_of_moments_that_are_near_one_another_are_not_printed_over_one_another() -> None:
    first = 1_790_000_000.0
    promotions = [
        Promotion(
            id=number,
            model="ocr",
            target=Target(grpc="localhost:8001"),
            study_id=1,
            trial=5,
            candidate={},
            state=PromotionState.SUPERSEDED,
            applied_at=first + at,
        )
        for number, at in ((1, 60), (2, 180), (3, 300), (4, 360), (5, 50_000))
    ]
    nights = [a_night(2, first + 86_400, 33.0), a_night(1, first, 31.0)]
    figure = draw_nights(points(nights, "p95_ms"), "p95_ms", promotions, limit=None)
    assert figure is not None
    told = written(figure)
    assert told == ["promotion 1, promotion 2, promotion 3 and 1 more", "", "", "", "promotion 5"]


def test_a_night_that_measured_nothing_is_left_out() -> None:
    failed = replace(a_night(1, 1_790_000_000.0, 31.0), summary={}, state=RunState.FAILED)
    assert points([failed], "p95_ms") == []
    assert draw_nights([], "p95_ms", (), limit=None) is None
