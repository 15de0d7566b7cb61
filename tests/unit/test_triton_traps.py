from __future__ import annotations

import pytest

from autotune.adapters.triton.config import parse
from autotune.adapters.triton.traps import study_traps, traps
from search_spaces.candidate import Candidate, Value

BATCHED = "backend: 'python' max_batch_size: 8 dynamic_batching { }"


def found(text: str, cores: int = 4, **values: Value) -> str:
    names = {name.replace("__", "."): value for name, value in values.items()}
    return "\n".join(traps(parse(text, "test"), Candidate(names), cores=cores))


def test_a_plain_candidate_has_no_trap():
    assert found(BATCHED, max_batch_size=8, queue_delay_us=0, instances=2) == ""


def test_preferred_sizes_below_the_maximum_are_a_trap_only_with_a_delay():
    assert "server#8141" in found(BATCHED, preferred_batch_sizes=(2, 4), queue_delay_us=50_000)
    assert "grow to 5" in found(BATCHED, preferred_batch_sizes=(2, 4), queue_delay_us=50_000)
    assert found(BATCHED, preferred_batch_sizes=(2, 4), queue_delay_us=0) == ""
    assert found(BATCHED, preferred_batch_sizes=(4, 8), queue_delay_us=50_000) == ""


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ("priority_levels: 2 default_priority_level: 1", "priority_levels"),
        ("default_queue_policy { default_timeout_microseconds: 1 }", "default_timeout"),
        ("default_queue_policy { allow_timeout_override: true }", "allow_timeout_override"),
        ("default_queue_policy { max_queue_size: 1 }", "max_queue_size"),
    ],
)
def test_what_switches_prefetch_off_is_a_trap(fields: str, cause: str):
    text = found(f"max_batch_size: 8 dynamic_batching {{ {fields} }}")
    assert "server#8870" in text
    assert cause in text


def test_a_queue_policy_that_limits_nothing_is_no_trap():
    assert found("max_batch_size: 8 dynamic_batching { default_queue_policy { } }") == ""


def test_a_model_without_a_batch_dimension_is_a_trap():
    assert "max_batch_size is 0" in found("max_batch_size: 0")


def test_a_short_delay_is_a_trap_with_the_measured_figures():
    assert "49.5 ms at 2 ms" in found(BATCHED, queue_delay_us=2000)
    assert found(BATCHED, max_batch_size=1, queue_delay_us=2000) == (
        found(BATCHED, max_batch_size=1)
    )


def test_more_threads_than_cores_are_a_trap():
    text = found(BATCHED, cores=2, instances=2, parameters__intra_op_threads=2)
    assert "4 threads on 2 cores" in text
    assert found(BATCHED, cores=4, instances=2, parameters__intra_op_threads=2) == ""


@pytest.mark.parametrize("threads", [None, 0, "all"])
def test_threads_that_are_not_given_are_not_guessed(threads: Value):
    assert found(BATCHED, cores=1, instances=2, parameters__intra_op_threads=threads) == ""


def test_threads_do_not_matter_for_instances_on_a_gpu():
    text = BATCHED + " instance_group { kind: KIND_GPU }"
    assert found(text, cores=1, instances=2, parameters__intra_op_threads=2) == ""


def test_a_maximum_below_the_one_in_service_is_a_trap_for_the_clients():
    assert "more than 4 samples" in found(BATCHED, max_batch_size=4)


def test_a_response_cache_and_preserved_ordering_are_said():
    assert "response cache" in found(BATCHED + " response_cache { enable: true }")
    assert "core#449" in found("max_batch_size: 2 dynamic_batching { preserve_ordering: true }")


def test_a_candidate_that_cannot_be_applied_has_no_trap():
    assert found(BATCHED, max_batch_size=4, preferred_batch_sizes=(8,)) == ""


def test_over_a_study_each_trap_is_told_once_with_how_many_fall_into_it():
    config = parse(BATCHED, "test")
    candidates = [Candidate({"queue_delay_us": delay}) for delay in (0, 1000, 2000)]
    (text,) = study_traps(config, candidates, cores=2)
    assert "1000 us" in text
    assert text.endswith("[2 of 3 candidates]")
