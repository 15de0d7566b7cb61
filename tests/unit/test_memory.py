"""What is known of memory before a candidate is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.memory import (
    RAN_OUT,
    answered_out_of_memory,
    blamed,
    cannot_fit,
    ran_out,
    tells_out_of_memory,
)
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate, Value
from tests.unit.made_trials import made_load, made_measurement

TOTAL = 10_000.0


def measured(
    number: int,
    memory: float | None,
    total: float | None = TOTAL,
    source: str = "nvml_device",
    **values: Value,
) -> Trial:
    taken = made_measurement(memory=memory)
    seen = replace(taken.telemetry, memory_total_mb=total, memory_source=source)
    return trial(number, TrialState.OK, values, taken=(replace(taken, telemetry=seen),))


def failed(number: int, reason: str = f"{RAN_OUT} under load: x", **values: Value) -> Trial:
    return trial(number, TrialState.FAILED, values, reason)


def trial(
    number: int, state: TrialState, values: Mapping[str, Value], reason="", taken=()
) -> Trial:
    return Trial(
        number=number,
        candidate=Candidate(values),
        state=state,
        reason=reason,
        measurements=taken,
    )


def why(trials: list[Trial], **values: Value) -> str | None:
    return cannot_fit(Candidate(values), trials)


# ------------------------------------------------------------------------------- whose words
@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of",
        "CUDA error: out of memory",
        "CUDA failure 2: out of memory ; GPU=0",
        "cudaErrorMemoryAllocation: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "Failed to allocate memory for requested buffer of size 1073741824",
        "failed to allocate CUDA memory with byte size 4194304",
        "Error Code 2: OutOfMemory (Requested size was 8388608 bytes.)",
        "Requested amount of GPU memory (99 bytes) could not be allocated.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        "MemoryError: ",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array",
        "Failed to increase the shared memory pool size for key 'autotune_1' to 67108992 bytes",
    ],
)
def test_words_for_memory_that_ran_out_are_known(text: str) -> None:
    assert tells_out_of_memory(text)


@pytest.mark.parametrize(
    "text",
    [
        "Unable to allocate pinned system memory, pinned memory pool will not be available: CUDA"
        " driver version is insufficient for CUDA runtime version",
        "failed to allocate pinned system memory: no pinned memory pool, falling back",
        "W0101 memory.cc:212] failed to allocate CUDA memory with byte size 602112 on GPU 0:"
        " CNMEM_STATUS_OUT_OF_MEMORY, falling back to pinned system memory",
        "CUDA memory pool disabled",
        "unexpected shape for input 'x'",
        "",
    ],
)
def test_words_that_only_name_memory_are_not_taken_for_it(text: str) -> None:
    assert not tells_out_of_memory(text)


def test_a_warning_in_a_log_hides_no_error_beside_it() -> None:
    warned = "failed to allocate CUDA memory, falling back to pinned system memory"
    assert tells_out_of_memory(f"{warned}\nCUDA out of memory\n{warned}")


def test_memory_is_blamed_only_where_the_evidence_tells_of_it() -> None:
    assert blamed("it died", "std::bad_alloc") == f"{RAN_OUT}: it died"
    assert blamed("it died", "segmentation fault") == "it died"


def test_an_answer_under_load_that_tells_of_it_is_found_among_others() -> None:
    texts = {"http_503": "busy", "http_500": "CUDA out of memory"}
    assert answered_out_of_memory(replace(made_load(), error_texts=texts)) == "CUDA out of memory"
    assert answered_out_of_memory(replace(made_load(), error_texts={"http_503": "busy"})) == ""


def test_a_trial_ran_out_of_memory_where_its_reason_says_so_in_its_first_line() -> None:
    assert ran_out(failed(1, f"{RAN_OUT}: the server cannot load instances=3: MemoryError"))
    assert not ran_out(
        failed(1, "the server hangs\n  its log:\n    an older one ran out of memory")
    )
    assert not ran_out(trial(1, TrialState.OK, {}, RAN_OUT))


# --------------------------------------------------------------------------- what ran out of it
def test_nothing_is_known_before_anything_was_tried() -> None:
    assert why([], instances=64) is None


def test_what_asks_for_at_least_as_much_as_one_that_ran_out_does_not_fit() -> None:
    out = [failed(3, instances=2, max_batch_size=8)]
    assert why(out, instances=2, max_batch_size=8) is not None
    assert "as trial 3, which ran out" in (why(out, instances=3, max_batch_size=8) or "")
    assert why(out, instances=4, max_batch_size=16) is not None


def test_what_asks_for_less_of_anything_may_fit() -> None:
    out = [failed(3, instances=2, max_batch_size=8)]
    assert why(out, instances=1, max_batch_size=8) is None
    assert why(out, instances=4, max_batch_size=4) is None


def test_another_variant_or_parameter_may_fit() -> None:
    out = [failed(3, instances=2, variant="onnxruntime-fp32")]
    assert why(out, instances=2, variant="onnxruntime-fp16") is None
    assert why([failed(3, **{"parameters.arena": "big"})], **{"parameters.arena": "small"}) is None


def test_a_delay_and_preferred_sizes_take_no_memory() -> None:
    out = [failed(3, instances=2, queue_delay_us=2000, preferred_batch_sizes=(4,))]
    assert why(out, instances=2, queue_delay_us=0, preferred_batch_sizes=None) is not None
    assert why(out, instances=2) is not None


def test_without_a_batcher_requests_are_executed_one_by_one_and_may_fit() -> None:
    out = [failed(3, instances=2, max_batch_size=8, queue_delay_us=0)]
    assert why(out, instances=2, max_batch_size=8, queue_delay_us=None) is None


def test_one_that_failed_for_another_reason_rules_nothing_out() -> None:
    assert why([failed(3, "the model does not load", instances=2)], instances=4) is None


def test_what_a_larger_one_had_room_for_fits_whatever_ran_out_beside_it() -> None:
    trials = [failed(1, instances=2), measured(2, 9_000, instances=4)]
    assert why(trials, instances=3) is None
    assert why(trials, instances=5) is not None


def test_a_pipelines_steps_are_told_apart() -> None:
    out = [failed(3, **{"decode.workers": 2, "recognize.instances": 4})]
    assert why(out, **{"decode.workers": 2, "recognize.instances": 4}) is not None
    assert why(out, **{"decode.instances": 3, "recognize.instances": 4}) is not None
    assert why(out, **{"decode.workers": 4, "recognize.instances": 3}) is None


# ---------------------------------------------------------------------------------- how it grows
def test_instances_that_would_need_more_than_there_is_do_not_fit() -> None:
    grown = [measured(0, 2_000, instances=1), measured(1, 4_000, instances=2)]
    assert why(grown, instances=5) is None
    assert why(grown, instances=6) == (
        "would need about 12,000 MB of memory, and there are 10,000: 2,000 MB for each of 6"
        " instances, as trials 0 and 1 took it"
    )


def test_a_larger_batch_needs_no_less() -> None:
    grown = [
        measured(0, 2_000, instances=1, max_batch_size=4),
        measured(1, 4_000, instances=2, max_batch_size=4),
    ]
    assert why(grown, instances=6, max_batch_size=8) is not None
    assert why(grown, instances=6, max_batch_size=2) is None


def test_the_growth_of_the_nearest_batch_counts() -> None:
    grown = [
        measured(0, 2_000, instances=1, max_batch_size=1),
        measured(1, 4_000, instances=2, max_batch_size=1),
        measured(2, 2_000, instances=1, max_batch_size=8),
        measured(3, 2_500, instances=2, max_batch_size=8),
    ]
    assert why(grown, instances=8, max_batch_size=8) is None


def test_of_several_pairs_the_widest_counts() -> None:
    grown = [
        measured(0, 2_000, instances=1),
        measured(1, 4_500, instances=2),
        measured(2, 5_000, instances=4),
    ]
    assert "1,000 MB for each" in (why(grown, instances=16) or "")


def test_a_pipelines_step_is_named_with_its_growth() -> None:
    grown = [
        measured(0, 2_000, **{"decode.workers": 1, "recognize.instances": 2}),
        measured(1, 4_000, **{"decode.workers": 2, "recognize.instances": 2}),
    ]
    told = why(grown, **{"decode.workers": 9, "recognize.instances": 2}) or ""
    assert "for each of 9 instances of decode" in told


@pytest.mark.parametrize(
    "second",
    [
        measured(1, None, instances=2),
        measured(1, 4_000, total=None, instances=2),
        measured(1, 4_000, total=20_000.0, instances=2),
        measured(1, 4_000, source="process_pss", instances=2),
        measured(1, 2_000, instances=2),
        measured(1, 4_000, instances=2, max_batch_size=4),
    ],
    ids=["unknown", "no total", "another total", "another source", "no growth", "another setting"],
)
def test_without_two_that_can_be_compared_nothing_is_predicted(second: Trial) -> None:
    assert why([measured(0, 2_000, instances=1), second], instances=64) is None


def test_one_that_failed_after_it_was_measured_tells_no_growth() -> None:
    second = replace(measured(1, 4_000, instances=2), state=TrialState.FAILED, reason="it died")
    assert why([measured(0, 2_000, instances=1), second], instances=64) is None


# ------------------------------------------------------------------------------------ properties
counts = st.integers(1, 12)
shapes = st.tuples(counts, st.sampled_from([1, 2, 4, 8]))


@given(
    tried=st.lists(shapes, min_size=1, max_size=8, unique=True),
    asked=shapes,
    base=st.floats(100, 3000),
    each=st.floats(1, 3000),
    per_sample=st.floats(0, 100),
)
def test_where_memory_grows_evenly_nothing_that_fits_is_ruled_out(
    tried: list[tuple[int, int]],
    asked: tuple[int, int],
    base: float,
    each: float,
    per_sample: float,
) -> None:
    def needed(instances: int, batch: int) -> float:
        return base + instances * (each + per_sample * batch)

    trials = [
        measured(n, needed(i, b), instances=i, max_batch_size=b)
        if needed(i, b) <= TOTAL
        else failed(n, instances=i, max_batch_size=b)
        for n, (i, b) in enumerate(tried)
    ]
    found = why(trials, instances=asked[0], max_batch_size=asked[1])
    assert found is None or needed(*asked) > TOTAL * (1 - 1e-9)


@given(
    tried=st.lists(st.tuples(shapes, st.booleans()), max_size=8),
    asked=shapes,
    more=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_what_asks_for_more_than_one_that_cannot_fit_cannot_either(
    tried: list[tuple[tuple[int, int], bool]], asked: tuple[int, int], more: tuple[int, int]
) -> None:
    trials = [
        measured(n, 1_000.0 * i, instances=i, max_batch_size=b)
        if fits
        else failed(n, instances=i, max_batch_size=b)
        for n, ((i, b), fits) in enumerate(tried)
    ]
    larger = (asked[0] + more[0], asked[1] + more[1])
    if why(trials, instances=larger[0], max_batch_size=larger[1]) is None:
        assert why(trials, instances=asked[0], max_batch_size=asked[1]) is None
