"""A space over the steps of a pipeline."""

from __future__ import annotations

import pytest

from search_spaces.candidate import Candidate, split_target
from search_spaces.space import SpaceRefused, parse_space
from search_spaces.targets import named_twice

STEPS = parse_space(
    {
        "decode.workers": [1, 2, 4],
        "recognize.variant": ["onnxruntime-fp32", "onnxruntime-int8"],
        "recognize.max_batch_size": [1, 4],
        "recognize.queue_delay_us": {
            "values": [0, 1000],
            "when": {"recognize.max_batch_size": {"above": 1}},
        },
        "recognize.parameters.threads": {"range": [1, 4]},
        "text.v2.workers": [1, 2],
        "server.pinned-memory": [0, 256],
        "prune": [
            {"product": ["decode.workers", "text.v2.workers"], "above": 6, "because": "crowded"},
            {"sum": ["decode.workers", "text.v2.workers"], "above": "cores"},
            {"when": {"recognize.max_batch_size": 4, "decode.workers": 1}, "because": "starved"},
        ],
    },
    "steps",
)


def settled(**changes: object) -> Candidate:
    values = {
        "decode.workers": 1,
        "recognize.variant": "onnxruntime-fp32",
        "recognize.max_batch_size": 1,
        "recognize.queue_delay_us": 0,
        "recognize.parameters.threads": 1,
        "text.v2.workers": 1,
        "server.pinned-memory": 0,
    }
    return STEPS.active({**values, **{k.replace("__", "."): v for k, v in changes.items()}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("max_batch_size", ("", "max_batch_size")),
        ("decode.workers", ("decode", "instances")),
        ("text.v2.queue_delay_us", ("text.v2", "queue_delay_us")),
        ("text.v2.parameters.a.b", ("text.v2", "parameters.a.b")),
        ("parameters.decode.workers", ("", "parameters.decode.workers")),
        ("server.instances", ("", "server.instances")),
    ],
)
def test_a_target_is_split_into_its_step_and_what_it_sets(target: str, parts: tuple[str, str]):
    assert split_target(target) == parts


def test_a_condition_on_a_step_s_value_takes_the_ineffective_setting_away():
    assert "recognize.queue_delay_us" not in settled(recognize__max_batch_size=1)
    assert "recognize.queue_delay_us" in settled(recognize__max_batch_size=4)


def test_rules_combine_the_workers_of_several_steps():
    many = settled(decode__workers=4, text__v2__workers=2)
    assert STEPS.pruned(many, cores=64) == (
        "decode.workers x text.v2.workers = 8 is above 6: crowded"
    )
    assert "above the 2 cores" in (STEPS.pruned(settled(decode__workers=2), cores=2) or "")
    assert STEPS.pruned(settled(recognize__max_batch_size=4), cores=2) == "starved"
    assert STEPS.pruned(settled(), cores=2) is None


def test_preferred_sizes_are_held_against_the_maximum_of_their_own_step_alone():
    odd = {"a.max_batch_size": 4, "b.max_batch_size": 8, "b.preferred_batch_sizes": (2, 8)}
    assert STEPS.pruned(Candidate(odd), cores=1) is None  # type: ignore[arg-type]
    reason = STEPS.pruned(Candidate({**odd, "b.max_batch_size": 4}), cores=1)  # type: ignore[arg-type]
    assert reason == ("preferred batch size 8 is above b.max_batch_size 4: Triton refuses it")


def test_a_step_s_variant_varies_slower_than_its_reloads_and_a_restart_slowest():
    assert STEPS.targets[:2] == ("server.pinned-memory", "recognize.variant")


def test_what_a_configuration_holds_as_text_is_found_as_the_space_s_own_value():
    found = STEPS.project(settled().replacing(**{"recognize.parameters.threads": "2"}))
    assert found is not None
    assert found["recognize.parameters.threads"] == 2


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("recognize.max_batch", "did you mean recognize.max_batch_size"),
        ("decode.worker", "did you mean decode.workers"),
        ("decode.threads", "is decode.parameters.threads"),
        ("decode.parameters.", "known: max_batch_size"),
        ("two words.workers", "<step>.workers"),
        ("workers", "of a pipeline's step it is <step>.workers, of a model alone instances"),
        ("decode.server.foo", "flags are the whole server's: server.foo"),
    ],
)
def test_a_target_that_no_step_has_is_refused_with_what_it_may_have_meant(target: str, words: str):
    with pytest.raises(SpaceRefused) as refused:
        parse_space({target: [1]}, "bad")
    assert words in str(refused.value)


def test_a_step_s_parameters_below_its_name_are_refused_with_how_they_are_written():
    with pytest.raises(SpaceRefused, match=r"did you mean decode\.workers") as refused:
        parse_space({"decode": {"workers": [1, 2]}}, "bad")
    assert refused.value.path == ("decode", "workers")


@pytest.mark.parametrize("values", [[0], [1.5], ["two"], [None]])
def test_the_values_of_a_step_s_workers_are_checked_as_instances_are(values: list[object]):
    with pytest.raises(SpaceRefused):
        parse_space({"decode.workers": values}, "bad")


def test_a_step_s_workers_and_instances_are_one_thing_and_given_once():
    with pytest.raises(SpaceRefused, match=r"decode\.instances and decode\.workers"):
        parse_space({"decode.instances": [1], "decode.workers": [1]}, "bad")
    assert named_twice(["a.workers", "b.workers", "instances"]) is None
