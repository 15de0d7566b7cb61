"""When a challenger takes the champion's place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.core.challenge import Ground, Verdict, judge_challenge
from autotune.core.comparison import Comparison, relation
from autotune.core.intervals import Interval
from autotune.core.judged import Judged, judge_trial
from autotune.core.measurement import Purpose
from autotune.core.memory_noise import MemoryNoise
from autotune.core.sla import Sla
from tests.unit.made_trials import made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})
STEADY = MemoryNoise()


def judged(
    number: int,
    *,
    p95: float = 40.0,
    instances: int = 1,
    memory: float = 500.0,
    confirmed: bool = True,
    paired_p95: float | None = None,
) -> Judged:
    def taken(purpose: Purpose, p95: float):
        return made_measurement(
            p95=p95,
            instances=instances,
            memory=memory,
            purpose=purpose,
            within={"p95_ms": (p95 * 0.97, p95 * 1.03)},
        )

    measurements = [taken(Purpose.TRIAL, p95)]
    if confirmed:
        measurements.append(taken(Purpose.CONFIRM, p95))
    if paired_p95 is not None:
        measurements.append(taken(Purpose.COMPARE, paired_p95))
    found = judge_trial(made_trial(number, *measurements), SLA)
    assert found is not None
    return found


def compared(
    latency: float = 0.0, rate: float = 0.0, *, half: float = 0.03, metrics: int = 2
) -> list[Comparison]:
    """The effects on both, with intervals of that half width."""
    found = []
    for metric, effect in (("p95_ms", latency), ("saturation_qps", rate))[:metrics]:
        interval = Interval(effect - half, effect + half)
        found.append(
            Comparison(
                first=0,
                second=3,
                metric=metric,
                effect=effect,
                interval=interval,
                relation=relation(metric, effect, interval),
                pairs=6,
            )
        )
    return found


def verdict(
    comparisons: list[Comparison],
    champion: Judged | None = None,
    challenger: Judged | None = None,
    margin: float = 0.05,
    noise: MemoryNoise = STEADY,
) -> Verdict:
    return judge_challenge(
        champion or judged(0),
        challenger or judged(3),
        comparisons,
        margin=margin,
        sla=SLA,
        noise=noise,
    )


def test_one_that_is_faster_by_more_than_the_margin_is_promoted() -> None:
    found = verdict(compared(-0.12))
    assert found.ground is Ground.BETTER
    assert found.words.startswith("p95 −12.0% (−15.0% to −9.0%; 6 pairs of runs)")


def test_one_that_takes_more_is_promoted_too() -> None:
    assert verdict(compared(0.0, 0.2)).ground is Ground.BETTER


def test_one_that_is_better_by_less_than_the_margin_is_not() -> None:
    found = verdict(compared(-0.04, half=0.01))
    assert not found.promoted
    assert "neither better nor cheaper by the margin of 5%" in found.words


def test_one_whose_interval_holds_zero_is_not_however_much_it_seems_better() -> None:
    assert not verdict(compared(-0.12, half=0.15)).promoted


def test_one_that_is_better_in_one_metric_and_worse_in_another_is_not() -> None:
    found = verdict(compared(-0.2, -0.1))
    assert not found.promoted
    assert "the challenger is worse: saturation −10.0%" in found.words


def test_comparisons_told_from_the_other_side_mean_the_same() -> None:
    turned = [each.turned() for each in compared(-0.12)]
    assert verdict(turned).ground is Ground.BETTER
    assert not verdict([each.turned() for each in compared(0.12)]).promoted


def test_one_that_takes_fewer_instances_and_is_no_worse_is_promoted() -> None:
    found = verdict(compared(), champion=judged(0, instances=2))
    assert found.ground is Ground.CHEAPER
    assert "1 instance instead of 2" in found.words


def test_one_that_is_cheaper_and_worse_is_not() -> None:
    found = verdict(compared(0.12), champion=judged(0, instances=2))
    assert not found.promoted
    assert "1 instance instead of 2" in found.reasons


@pytest.mark.parametrize(("before", "promoted"), [(700.0, True), (530.0, False)])
def test_as_many_instances_in_less_memory_are_cheaper_beyond_its_noise(
    before: float, promoted: bool
) -> None:
    assert verdict(compared(), champion=judged(0, memory=before)).promoted is promoted


def test_a_quarter_less_memory_of_a_small_server_is_not_cheaper() -> None:
    found = verdict(compared(), judged(0, memory=73.0), judged(3, memory=58.0))
    assert (found.promoted, found.reasons[1:]) == (False, verdict(compared()).reasons[1:])


def test_less_memory_within_what_the_study_s_memory_varies_by_is_not_cheaper() -> None:
    less = judged(0, memory=1000.0), judged(3, memory=850.0)
    assert verdict(compared(), *less).ground is Ground.CHEAPER
    found = verdict(compared(), *less, noise=MemoryNoise(spread=0.12))
    assert not found.promoted
    assert not any("MB" in reason for reason in found.reasons)


def test_less_memory_in_more_instances_is_not_cheaper() -> None:
    found = verdict(compared(), judged(0, memory=900.0), judged(3, instances=2))
    assert not found.promoted


def test_one_that_saves_less_than_the_margin_is_not_promoted() -> None:
    found = verdict(compared(), judged(0, instances=4), judged(3, instances=3), margin=0.3)
    assert not found.promoted


def test_one_that_meets_the_sla_takes_the_place_of_one_that_misses_it() -> None:
    found = verdict(compared(0.0), champion=judged(0, p95=120.0))
    assert found.ground is Ground.SLA


def test_a_champion_that_met_it_in_the_paired_runs_does_not_miss_it_beyond_doubt() -> None:
    assert not verdict(compared(0.0), champion=judged(0, p95=120.0, paired_p95=40.0)).promoted


def test_a_champion_that_fails_under_load_gives_way_without_a_comparison() -> None:
    found = judge_challenge(None, judged(3), [], margin=0.05, sla=SLA, noise=STEADY)
    assert found.ground is Ground.SLA


def test_without_a_comparison_nothing_else_is_promoted() -> None:
    found = verdict([], champion=judged(0, instances=2))
    assert not found.promoted
    assert "could not be compared" in found.words


@pytest.mark.parametrize(
    ("challenger", "words"),
    [
        (judged(3, confirmed=False), "not confirmed"),
        (judged(3, p95=79.5), "does not meet the SLA beyond doubt"),
        (judged(3, paired_p95=90.0), "in the paired runs"),
    ],
)
def test_whatever_it_gains_it_must_meet_the_sla_and_have_been_confirmed(
    challenger: Judged, words: str
) -> None:
    found = verdict(compared(-0.3), champion=judged(0, p95=200.0), challenger=challenger)
    assert not found.promoted
    assert words in found.words


def test_paired_runs_that_only_straddle_a_limit_from_within_are_no_objection() -> None:
    assert verdict(compared(-0.3), challenger=judged(3, paired_p95=79.0)).promoted


def test_a_margin_of_none_still_wants_a_clear_difference() -> None:
    assert verdict(compared(-0.03, half=0.01), margin=0.0).promoted
    assert not verdict(compared(-0.01, half=0.005), margin=0.0).promoted


def test_a_verdict_is_plain_data() -> None:
    plain = verdict(compared(-0.12)).to_json()
    assert (plain["promoted"], plain["ground"]) == (True, "better")
    assert replace(verdict(compared()), reasons=("x",)).to_json()["ground"] is None


def test_where_the_cheapest_is_asked_for_a_cheaper_one_may_be_slower() -> None:
    slower, champion = compared(0.3, -0.4), judged(0, instances=2)

    def found(challenger: Judged, *, cheapest: bool) -> Verdict:
        return judge_challenge(
            champion,
            challenger,
            slower,
            margin=0.05,
            sla=SLA,
            noise=STEADY,
            cheapest=cheapest,
        )

    assert found(judged(3), cheapest=True).ground is Ground.CHEAPER
    assert not found(judged(3), cheapest=False).promoted
    assert not found(judged(3, p95=200.0), cheapest=True).promoted
    assert not found(judged(3, instances=2), cheapest=True).promoted
