"""What every TrialStore does, on every database of `tests.contract.conftest`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.core.comparison import Comparison, Relation
from autotune.core.errors import InputRefused, StoreFailed
from autotune.core.intervals import Interval
from autotune.core.measurement import (
    GAUGES,
    METRICS,
    PERCENTILES,
    BatchStat,
    Ended,
    Gauge,
    LatencySummary,
    LoadResult,
    Measurement,
    Purpose,
    RequestSamples,
    ServerWindow,
    TelemetryWindow,
    Traffic,
)
from autotune.core.records import DecisionRecord, StudyState
from autotune.core.trial import TrialState
from autotune.core.variants import ALL, Attempt, VariantRecord
from autotune.core.workload import ArrivalKind
from autotune.ports import TrialStore
from search_spaces.candidate import Candidate
from storage import SqlTrialStore
from tests.realistic import a_candidate, a_measurement
from tests.realistic import comparisons as realistic_comparisons
from tests.sameness import comparable

Open = Callable[[], TrialStore]


@pytest.fixture
def reopen(where: str) -> Open:
    """Opens the same store again, as another process would."""
    ticks = itertools.count(1000)
    return lambda: SqlTrialStore(where, now=lambda: float(next(ticks)))


@pytest.fixture
def store(reopen: Open) -> Iterator[TrialStore]:
    store = reopen()
    yield store
    store.close()


@pytest.fixture
def study(store: TrialStore) -> int:
    return store.create_study("ocr", {"study": "ocr"}, "digest")


# ------------------------------------------------------------------------------------- studies
def test_a_new_store_holds_no_studies(store: TrialStore) -> None:
    assert list(store.studies()) == []


def test_a_study_is_found_by_its_id_and_by_its_name(store: TrialStore) -> None:
    created = store.create_study("ocr", {"sla": {"p95_ms": 80}}, "abc")
    by_id, by_name = store.study(str(created)), store.study("ocr")
    assert by_id == by_name
    assert (by_id.id, by_id.digest, by_id.definition) == (created, "abc", {"sla": {"p95_ms": 80}})
    assert (by_id.state, by_id.ended_at, by_id.trials) == (StudyState.RUNNING, None, 0)


def test_a_name_means_its_latest_study(store: TrialStore, study: int) -> None:
    later = store.create_study("ocr", {}, "other")
    assert store.study("ocr").id == later != study


def test_a_study_whose_name_is_a_number_is_found_unless_an_id_is_meant(store: TrialStore) -> None:
    numbered = store.create_study("4711", {}, "d")
    assert store.study("4711").id == numbered


@pytest.mark.parametrize("reference", ["ocl", "99", "²", "", "9" * 40])
def test_an_unknown_study_is_refused_and_names_are_suggested(
    store: TrialStore, study: int, reference: str
) -> None:
    with pytest.raises(InputRefused, match="no such study") as refused:
        store.study(reference)
    assert "ocr" in refused.value.next_step


def test_studies_are_listed_newest_first(store: TrialStore) -> None:
    ids = [store.create_study(name, {}, "d") for name in ("a", "b", "c")]
    assert [record.id for record in store.studies()] == ids[::-1]


def test_an_unfinished_study_of_a_definition_is_found_among_the_studies(store: TrialStore) -> None:
    wanted = store.create_study("ocr", {}, "same")
    store.set_study_state(wanted, StudyState.INTERRUPTED, "Ctrl-C")
    store.create_study("ocr", {}, "different")
    store.set_study_state(store.create_study("ocr", {}, "same"), StudyState.DONE)
    unfinished = [
        record.id
        for record in store.studies()
        if record.name == "ocr" and record.digest == "same" and record.state is not StudyState.DONE
    ]
    assert unfinished == [wanted]


def test_a_study_ends_with_its_state_its_reason_and_its_time(store: TrialStore, study: int) -> None:
    store.set_study_state(study, StudyState.FAILED, "outputs differ")
    record = store.study("ocr")
    assert (record.state, record.reason) == (StudyState.FAILED, "outputs differ")
    assert record.ended_at is not None
    assert record.ended_at > record.created_at


def test_a_study_that_runs_again_has_not_ended(store: TrialStore, study: int) -> None:
    store.set_study_state(study, StudyState.INTERRUPTED, "SIGTERM")
    store.set_study_state(study, StudyState.RUNNING)
    assert store.study("ocr").ended_at is None


def test_a_study_has_its_latest_environment(store: TrialStore, study: int) -> None:
    assert store.study("ocr").environment is None
    store.set_environment(study, {"host": {"cores": 2}, "gpu": None})
    store.set_environment(study, {"host": {"cores": 4}, "gpu": None})
    assert store.study("ocr").environment == {"host": {"cores": 4}, "gpu": None}


def test_a_definition_with_infinity_and_nan_comes_back(store: TrialStore) -> None:
    definition = {"a": [math.inf, -math.inf, math.nan], "b": {"c": True, "d": None, "e": "é"}}
    store.create_study("odd", definition, "d")
    assert comparable(store.study("odd").definition) == comparable(definition)


def test_a_name_of_any_characters_is_found_again(store: TrialStore) -> None:
    name = "'; DROP TABLE studies; -- \udcff\0 ☃"
    created = store.create_study(name, {"n": name}, "d")
    assert store.study(name).id == created


# -------------------------------------------------------------------------------------- trials
def test_a_trial_that_has_begun_is_running(store: TrialStore, study: int) -> None:
    store.begin_trial(study, 0, a_candidate(1, 1))
    (trial,) = store.trials(study)
    assert (trial.number, trial.candidate, trial.state) == (
        0,
        a_candidate(1, 1),
        TrialState.RUNNING,
    )
    assert trial.ended_at is None
    assert store.study("ocr").trials == 1


def test_a_candidate_comes_back_with_the_types_of_its_values(store: TrialStore, study: int) -> None:
    candidate = Candidate(
        {
            "sizes": (4, 8),
            "empty": (),
            "on": True,
            "one": 1,
            "ratio": 1.0,
            "engine": "trt",
            "no": None,
        }
    )
    store.begin_trial(study, 0, candidate)
    (trial,) = store.trials(study)
    assert {name: (type(v), v) for name, v in trial.candidate.values.items()} == {
        name: (type(v), v) for name, v in candidate.values.items()
    }


def test_a_trial_ends_with_its_state_and_reason(store: TrialStore, study: int) -> None:
    store.begin_trial(study, 3, a_candidate(8, 2))
    store.end_trial(study, 3, TrialState.FAILED, "did not load")
    (trial,) = store.trials(study)
    assert (trial.state, trial.reason) == (TrialState.FAILED, "did not load")
    assert trial.ended_at is not None
    assert trial.ended_at > trial.started_at


def test_trials_come_in_the_order_of_their_numbers(store: TrialStore, study: int) -> None:
    for number in (2, 0, 1):
        store.begin_trial(study, number, a_candidate(1, number + 1))
    assert [trial.number for trial in store.trials(study)] == [0, 1, 2]


def test_a_running_trial_is_replaced_together_with_its_measurements(
    store: TrialStore, study: int
) -> None:
    store.begin_trial(study, 0, a_candidate(1, 1))
    store.add_measurement(study, 0, a_measurement(window_s=2))
    store.begin_trial(study, 0, a_candidate(4, 2))
    (trial,) = store.trials(study)
    assert (trial.candidate, list(trial.measurements)) == (a_candidate(4, 2), [])


def test_a_trial_that_has_ended_is_never_replaced(store: TrialStore, study: int) -> None:
    store.begin_trial(study, 0, a_candidate(1, 1))
    store.end_trial(study, 0, TrialState.OK)
    with pytest.raises(StoreFailed, match="stored already"):
        store.begin_trial(study, 0, a_candidate(4, 2))
    assert store.trials(study)[0].candidate == a_candidate(1, 1)


def test_trials_of_another_study_are_not_mixed_in(store: TrialStore, study: int) -> None:
    other = store.create_study("other", {}, "d")
    store.begin_trial(study, 0, a_candidate(1, 1))
    store.begin_trial(other, 0, a_candidate(2, 2))
    assert [trial.candidate for trial in store.trials(other)] == [a_candidate(2, 2)]


def test_a_trial_needs_its_study_and_a_measurement_its_trial(store: TrialStore, study: int) -> None:
    with pytest.raises(StoreFailed, match="no such study"):
        store.begin_trial(study + 1, 0, a_candidate(1, 1))
    with pytest.raises(StoreFailed, match="no such trial"):
        store.add_measurement(study, 0, a_measurement(window_s=2))
    with pytest.raises(StoreFailed, match="no such trial"):
        store.end_trial(study, 0, TrialState.OK)


# -------------------------------------------------------------------------------- measurements
def test_a_measurement_comes_back_equal_from_another_process(
    store: TrialStore, study: int, reopen: Open
) -> None:
    measured = a_measurement(a_candidate(8, 2), window_s=3)
    store.begin_trial(study, 0, a_candidate(8, 2))
    store.add_measurement(study, 0, measured)
    again = reopen()
    (trial,) = again.trials(study, samples=True)
    again.close()
    assert comparable(trial.measurements) == comparable([measured])


def test_samples_are_loaded_only_on_request(store: TrialStore, study: int) -> None:
    measured = a_measurement(window_s=2)
    store.begin_trial(study, 0, a_candidate(4, 2))
    store.add_measurement(study, 0, measured)
    (trial,) = store.trials(study)
    without = replace(measured, load=replace(measured.load, samples=None))
    assert comparable(trial.measurements) == comparable([without])


def test_measurements_keep_their_order_and_may_follow_the_trials_end(
    store: TrialStore, study: int
) -> None:
    store.begin_trial(study, 0, a_candidate(4, 2))
    store.add_measurement(study, 0, a_measurement(window_s=2, invalid_because=("late", "hot")))
    store.add_measurement(study, 0, a_measurement(window_s=2))
    store.end_trial(study, 0, TrialState.OK)
    store.add_measurement(study, 0, a_measurement(window_s=2, purpose=Purpose.CONFIRM))
    (trial,) = store.trials(study)
    kinds = [(m.purpose, m.invalid_because) for m in trial.measurements]
    expected = [(Purpose.TRIAL, ("late", "hot")), (Purpose.TRIAL, ()), (Purpose.CONFIRM, ())]
    assert kinds == expected


floats = st.floats(width=64)
finite = st.floats(min_value=0, max_value=1e9)
counts = st.integers(min_value=0, max_value=2**31 - 1)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
maybe = st.none() | floats
summaries = st.none() | st.builds(
    LatencySummary,
    count=counts,
    mean_ms=floats,
    max_ms=floats,
    percentiles_ms=st.dictionaries(st.sampled_from([*PERCENTILES, 10.0, 99.9]), floats),
)


@st.composite
def raw_samples(draw: st.DrawFn) -> RequestSamples:
    n = draw(st.integers(0, 5))
    times = st.lists(floats, min_size=n, max_size=n).map(np.array)
    scheduled, sent, done = (draw(times).astype(np.float64) for _ in range(3))
    ok = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
    return RequestSamples(scheduled_s=scheduled, sent_s=sent, done_s=done, ok=ok)


loads = st.builds(
    LoadResult,
    offered_qps=floats,
    achieved_qps=floats,
    window_s=floats,
    scheduled=counts,
    sent=counts,
    completed=counts,
    ok=counts,
    errors=st.dictionaries(words, counts, max_size=3),
    latency=summaries,
    service_latency=summaries,
    send_lag=summaries,
    generator_cpu=floats,
    max_in_flight=counts,
    in_flight_cap_hit=st.booleans(),
    histogram=words,
    samples=st.none() | raw_samples(),
    warmup_s=floats,
    steady=st.none() | st.booleans(),
    ended=st.sampled_from(Ended),
    error_texts=st.dictionaries(words, words, max_size=3),
)
batches = st.dictionaries(
    st.integers(1, 512), st.builds(BatchStat, executions=counts, compute_ms=floats), max_size=4
)


def windows(steps: st.SearchStrategy[dict[str, ServerWindow]]) -> st.SearchStrategy[ServerWindow]:
    return st.builds(
        ServerWindow,
        requests=counts,
        executions=counts,
        failures=counts,
        queue_ms=floats,
        compute_input_ms=floats,
        compute_infer_ms=floats,
        compute_output_ms=floats,
        batches=batches,
        instances=counts,
        calls=st.integers(1, 9),
        steps=steps,
    )


names = st.sampled_from(["preprocess", "device", "décode", "a.b"])
servers = st.none() | st.recursive(
    windows(st.just({})),
    lambda inner: windows(st.dictionaries(names, inner, max_size=3)),
    max_leaves=4,
).map(lambda whole: replace(whole, calls=1))
series = st.lists(st.tuples(floats, floats), max_size=3).map(tuple)
telemetries = st.builds(
    TelemetryWindow,
    utilization=maybe,
    source=st.none() | words,
    memory_mb=maybe,
    memory_source=st.none() | words,
    memory_total_mb=maybe,
    series=series,
    gauges=st.dictionaries(
        st.sampled_from([*GAUGES]),
        st.builds(Gauge, value=floats, source=words, series=series),
        max_size=3,
    ),
    foreign_cpu=maybe,
    foreign_gpu=st.lists(counts, max_size=2).map(tuple),
    throttled=st.lists(words, max_size=2).map(tuple),
    notes=st.dictionaries(words, words, max_size=2),
)
intervals = st.builds(Interval, low=floats, high=floats)
traffics = st.builds(
    Traffic,
    qps=floats,
    arrival=st.sampled_from(ArrivalKind).map(str),
    cv=maybe,
    seed=st.integers(0, 2**63 - 1),
)
measurements = st.builds(
    Measurement,
    purpose=st.sampled_from(Purpose),
    started_at=finite,
    load=loads,
    server=servers,
    telemetry=telemetries,
    saturation_qps=maybe,
    instances=counts,
    reload_s=floats,
    invalid_because=st.lists(words, max_size=2).map(tuple),
    intervals=st.dictionaries(st.sampled_from([*METRICS]), intervals, max_size=3),
    traffic=st.none() | traffics,
    saturation_s=floats,
    accuracy_drop=maybe,
    price_per_hour=maybe,
)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(measured=measurements)
def test_any_measurement_comes_back_exactly(store: TrialStore, measured: Measurement) -> None:
    study = store.create_study("any", {}, "d")
    store.begin_trial(study, 0, a_candidate(1, 1))
    store.add_measurement(study, 0, measured)
    (trial,) = store.trials(study, samples=True)
    assert comparable(trial.measurements) == comparable([measured])


# ---------------------------------------------------------------------------------------- doubt
def test_doubt_makes_every_measurement_of_a_study_invalid_for_its_reason(
    store: TrialStore, study: int
) -> None:
    for number in (0, 1):
        store.begin_trial(study, number, a_candidate(4, number + 1))
        store.add_measurement(study, number, a_measurement(window_s=1))
    store.doubt_measurements(study, "the machine changed")
    reasons = [m.invalid_because for trial in store.trials(study) for m in trial.measurements]
    assert reasons == [("the machine changed",)] * 2


def test_doubt_leaves_the_reasons_of_what_was_invalid_already(
    store: TrialStore, study: int
) -> None:
    store.begin_trial(study, 0, a_candidate(4, 2))
    store.add_measurement(study, 0, a_measurement(window_s=1, invalid_because=("late", "hot")))
    store.doubt_measurements(study, "the machine changed")
    store.doubt_measurements(study, "and again")
    (trial,) = store.trials(study)
    assert [m.invalid_because for m in trial.measurements] == [("late", "hot")]


def test_doubt_touches_nothing_else_of_a_measurement(store: TrialStore, study: int) -> None:
    measured = a_measurement(window_s=1)
    store.begin_trial(study, 0, a_candidate(4, 2))
    store.add_measurement(study, 0, measured)
    store.doubt_measurements(study, "odd \0 \udcff ☃")
    (trial,) = store.trials(study, samples=True)
    expected = replace(measured, invalid_because=("odd \0 \udcff ☃",))
    assert comparable(trial.measurements) == comparable([expected])


def test_doubt_concerns_neither_other_studies_nor_what_comes_after(
    store: TrialStore, study: int
) -> None:
    other = store.create_study("other", {}, "d")
    for each in (study, other):
        store.begin_trial(each, 0, a_candidate(4, 2))
        store.add_measurement(each, 0, a_measurement(window_s=1))
    store.doubt_measurements(study, "the machine changed")
    store.add_measurement(study, 0, a_measurement(window_s=1))
    assert [m.valid for m in store.trials(study)[0].measurements] == [False, True]
    assert [m.valid for m in store.trials(other)[0].measurements] == [True]


def test_a_study_that_does_not_exist_can_be_neither_doubted_nor_compared_in(
    store: TrialStore, study: int
) -> None:
    with pytest.raises(StoreFailed, match="no such study"):
        store.doubt_measurements(study + 1, "why")
    with pytest.raises(StoreFailed, match="no such study"):
        store.add_comparisons(study + 1, realistic_comparisons()[:1])


# --------------------------------------------------------------------------------- comparisons
def test_comparisons_come_back_in_the_order_they_were_taken(
    store: TrialStore, study: int, reopen: Open
) -> None:
    other = store.create_study("other", {}, "d")
    later, earlier = realistic_comparisons()[:2]
    for each in (later, earlier):
        store.add_comparisons(study, [each])
    again = reopen()
    found, none = list(again.comparisons(study)), list(again.comparisons(other))
    again.close()
    assert (found, none) == ([later, earlier], [])


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    compared=st.builds(
        Comparison,
        first=counts,
        second=counts,
        metric=st.sampled_from([*METRICS]),
        effect=floats,
        interval=intervals,
        relation=st.sampled_from(Relation),
        pairs=counts,
        taken_at=finite,
    )
)
def test_any_comparison_comes_back_exactly(store: TrialStore, compared: Comparison) -> None:
    study = store.create_study("any", {}, "d")
    store.add_comparisons(study, [compared])
    assert comparable(store.comparisons(study)) == comparable([compared])


# ------------------------------------------------------------------------------------ variants
known = st.none() | st.floats(allow_nan=False, width=64)
variant_records = st.builds(
    VariantRecord,
    variant=st.sampled_from(ALL),
    step=words,
    digest=st.text("0123456789abcdef", max_size=64),
    file=words,
    size_mb=known,
    seconds=finite,
    cached=st.booleans(),
    accuracy_drop=known,
    served_drop=known,
    refused=words,
    attempts=st.lists(
        st.builds(
            Attempt,
            what=words,
            accuracy_drop=known,
            seconds=finite,
            kept=st.booleans(),
            note=words,
        ),
        max_size=3,
    ).map(tuple),
    tools=st.dictionaries(words, words, max_size=2),
    notes=st.lists(words, max_size=2).map(tuple),
)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(records=st.lists(variant_records, max_size=3))
def test_any_variants_come_back_exactly_and_in_their_order(
    store: TrialStore, records: list[VariantRecord]
) -> None:
    study = store.create_study("any", {}, "d")
    store.set_variants(study, records)
    assert comparable(store.variants(study)) == comparable(records)


def test_variants_replace_those_of_their_study_alone(
    store: TrialStore, study: int, reopen: Open
) -> None:
    other = store.create_study("other", {}, "d")
    first, second, third = (VariantRecord(variant=variant) for variant in ALL[:3])
    store.set_variants(study, [first, second])
    store.set_variants(other, [first])
    store.set_variants(study, [third])
    again = reopen()
    found, others = list(again.variants(study)), list(again.variants(other))
    again.close()
    assert (found, others) == ([third], [first])


def test_a_study_without_variants_has_none_and_an_unknown_study_takes_none(
    store: TrialStore, study: int
) -> None:
    assert list(store.variants(study)) == []
    with pytest.raises(StoreFailed, match="no such study"):
        store.set_variants(study + 1, [VariantRecord(variant=ALL[0])])


# ----------------------------------------------------------------------------------- decisions
def test_a_study_without_a_decision_has_none(store: TrialStore, study: int) -> None:
    assert store.decision(study) is None


def test_the_latest_decision_counts(store: TrialStore, study: int) -> None:
    first = DecisionRecord(study_id=study, taken_at=1.0, rule="fastest", pick=None, detail={})
    second = DecisionRecord(
        study_id=study,
        taken_at=2.0,
        rule="cheapest",
        pick=4,
        detail={"front": [1, 4], "margin": math.inf, "why": {"runner_up": None}},
        exported_to="out/é",
    )
    store.add_decision(first)
    store.add_decision(second)
    assert store.decision(study) == second


def test_a_closed_store_may_be_closed_again(store: TrialStore) -> None:
    store.close()
    store.close()
