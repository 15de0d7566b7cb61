"""What a candidate means for the models of a pipeline, and which of them are loaded for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.adapters.triton.config import ModelConfig, render
from autotune.adapters.triton.loading import Loading, applied
from autotune.adapters.triton.pipeline import (
    calls,
    check_model_targets,
    configs,
    present_model,
    steps,
)
from autotune.adapters.triton.repository import ServedModel, from_repository
from autotune.adapters.triton.traps import model_traps
from autotune.core.errors import CandidateFailed, InputRefused, ServerFailed
from autotune.tuner.measure import enough_in_flight
from search_spaces.candidate import Candidate, Value
from tests import onnx_models
from tests.pipelines import put_ensemble, put_pipeline, put_step

ALL = ("max_batch_size", "queue_delay_us", "preferred_batch_sizes")


@pytest.fixture
def pipe(tmp_path: Path) -> ServedModel:
    return from_repository(put_pipeline(tmp_path), "pipe", tmp_path)


@pytest.fixture
def nested(tmp_path: Path) -> ServedModel:
    """``outer``: ``pipe``, then ``first`` once more, then ``last``."""
    put_pipeline(tmp_path)
    put_step(tmp_path, "last", "+ 1")
    put_ensemble(tmp_path, "outer", ["pipe", "first", "last"])
    return from_repository(tmp_path, "outer", tmp_path)


@pytest.fixture
def alone(tmp_path: Path) -> ServedModel:
    put_step(tmp_path, "m", "+ 1", "dynamic_batching { }")
    return from_repository(tmp_path, "m", tmp_path)


def said(**values: Value) -> Candidate:
    return Candidate({name.replace("__", "."): value for name, value in values.items()})


# ------------------------------------------------------------------------------------- configs
def test_each_step_is_as_the_candidate_says_and_the_tuned_model_comes_last(pipe: ServedModel):
    made = configs(
        pipe,
        said(first__workers=3, second__max_batch_size=4, second__queue_delay_us=100,
             second__parameters__threads=2, server__pinned=1),
    )  # fmt: skip
    assert list(made) == ["first", "second", "third", "pipe"]
    assert made["first"].instance_group[0].count == 3
    assert made["second"].max_batch_size == 4
    assert made["second"].dynamic_batching.max_queue_delay_microseconds == 100
    assert made["second"].parameters["threads"].string_value == "2"
    assert made["third"] == pipe.composing["third"].config


def test_lowering_a_step_lowers_the_ensemble_and_nothing_else_of_it(pipe: ServedModel):
    made = configs(pipe, said(second__max_batch_size=2))
    before, after = render(pipe.config), render(made["pipe"])
    assert after == before.replace("max_batch_size: 8", "max_batch_size: 2")
    assert before != after
    assert pipe.config.max_batch_size == 8


def test_raising_a_step_does_not_raise_the_ensemble(pipe: ServedModel):
    assert configs(pipe, said(second__max_batch_size=32))["pipe"] == pipe.config


def test_an_ensemble_within_is_lowered_too(nested: ServedModel):
    made = configs(nested, said(third__max_batch_size=4, last__max_batch_size=2))
    assert list(made) == ["first", "second", "third", "pipe", "last", "outer"]
    assert (made["pipe"].max_batch_size, made["outer"].max_batch_size) == (4, 2)


def test_a_model_that_is_tuned_alone_is_configured_as_ever(alone: ServedModel):
    made = configs(alone, said(max_batch_size=4, instances=2))
    assert list(made) == ["m"]
    assert (made["m"].max_batch_size, made["m"].instance_group[0].count) == (4, 2)


def test_a_candidate_that_contradicts_a_step_fails_with_the_step_s_name(pipe: ServedModel):
    with pytest.raises(CandidateFailed, match="second: a preferred batch size cannot be above"):
        configs(pipe, said(second__max_batch_size=2, second__preferred_batch_sizes=(4,)))


def test_a_variant_that_was_not_built_fails_with_the_step_s_name(pipe: ServedModel):
    with pytest.raises(CandidateFailed, match=r"second.*no such variant"):
        configs(pipe, said(second__variant="onnxruntime-int8"))


def test_a_request_is_executed_by_a_step_as_often_as_the_ensembles_name_it(nested: ServedModel):
    assert calls(nested) == {"first": 2, "second": 1, "third": 1, "last": 1}
    assert list(steps(nested)) == ["first", "second", "third", "last"]


# ---------------------------------------------------------------------------------- in service
def test_the_values_in_service_are_each_step_s_own(pipe: ServedModel):
    targets = ("first.workers", *(f"second.{name}" for name in ALL), "third.max_batch_size",
               "third.parameters.threads", "server.pinned")  # fmt: skip
    found = present_model(pipe, targets)
    assert found == Candidate(
        {
            "first.workers": 1,
            "second.max_batch_size": 8,
            "second.queue_delay_us": 0,
            "second.preferred_batch_sizes": None,
            "third.max_batch_size": 1,  # it has no batcher
            "third.parameters.threads": None,
            "server.pinned": None,
        }
    )
    assert configs(pipe, found)["pipe"] == pipe.config


def test_the_variant_in_service_is_the_step_s(tmp_path: Path):
    put_step(tmp_path, "decode", "+ 1")
    put_ensemble(tmp_path, "ocr", ["decode", "recognize"], 4)
    (tmp_path / "recognize" / "1").mkdir(parents=True)
    onnx_models.linear(tmp_path / "recognize" / "1" / "model.onnx")
    model = from_repository(tmp_path, "ocr", tmp_path / "work")
    found = present_model(model, ["recognize.variant", "decode.variant"])
    assert found == said(recognize__variant="onnxruntime-fp32", decode__variant=None)


# ---------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("max_batch_size", "Name the step: first.max_batch_size, second.max_batch_size or third"),
        ("parameters.threads", "Name the step: first.parameters.threads"),
        ("variant", "Name the step: first.variant"),
        ("secnd.workers", "Did you mean second.workers"),
        ("zzz.workers", "Its steps: first, second, third"),
        ("pipe.workers", "is the ensemble itself"),
    ],
)
def test_a_target_that_the_pipeline_does_not_have_is_refused_with_its_neighbours(
    pipe: ServedModel, target: str, words: str
):
    with pytest.raises(InputRefused, match=words) as refused:
        check_model_targets(pipe, [target, "first.workers"])
    assert refused.value.value == target
    with pytest.raises(CandidateFailed):
        configs(pipe, Candidate({target: 1}))


def test_a_step_that_is_an_ensemble_is_refused_with_its_own_steps(nested: ServedModel):
    with pytest.raises(InputRefused, match=r"Name one of its steps: first\.instances, second"):
        check_model_targets(nested, ["pipe.instances"])


def test_a_step_of_a_model_that_is_tuned_alone_is_refused_with_its_own_word(alone: ServedModel):
    with pytest.raises(InputRefused, match=r"no steps.*\n\s*Say instances"):
        check_model_targets(alone, ["decode.workers"])
    check_model_targets(alone, [*ALL, "instances", "variant", "server.pinned"])


def test_workers_and_instances_of_one_step_are_refused_together(pipe: ServedModel):
    with pytest.raises(InputRefused, match="the same thing"):
        check_model_targets(pipe, ["first.workers", "first.instances"])


def test_what_has_no_effect_on_a_step_is_refused_by_the_step_s_name(tmp_path: Path):
    put_pipeline(tmp_path, size=1)
    config = tmp_path / "second" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 1"))
    model = from_repository(tmp_path, "pipe", tmp_path)
    with pytest.raises(InputRefused, match=r"second\.queue_delay_us would have no effect"):
        check_model_targets(model, ["second.queue_delay_us"])
    check_model_targets(model, ["second.queue_delay_us", "second.max_batch_size"])


# --------------------------------------------------------------------------------------- traps
def test_traps_are_told_of_the_step_that_falls_into_them(pipe: ServedModel):
    candidates = [said(second__queue_delay_us=delay, first__workers=1) for delay in (0, 1000)]
    (text,) = model_traps(pipe, candidates, cores=2)
    assert text.startswith("second: a queue delay of 1000 us")
    assert text.endswith("[1 of 2 candidates]")


def test_that_clients_may_send_less_is_told_of_the_pipeline(pipe: ServedModel):
    candidates = [said(second__max_batch_size=size) for size in (2, 4, 8)]
    (text,) = model_traps(pipe, candidates, cores=2)
    assert "max_batch_size 2 of second lowers the ensemble's own, 8" in text
    assert text.endswith("[2 of 3 candidates]")


def test_a_candidate_with_a_variant_has_its_traps_all_the_same(pipe: ServedModel):
    odd = said(second__variant="onnxruntime-int8", second__queue_delay_us=1000)
    assert len(model_traps(pipe, [odd], cores=2)) == 1


# ----------------------------------------------------------------------------------------- loads
class Recorder:
    """Stands for a server's model control: remembers the loads, and fails those of ``broken``."""

    def __init__(self, broken: str = "") -> None:
        self.loads: list[tuple[str, int]] = []
        self.broken = broken

    def load(self, override: str | None, timeout_s: float, model: str) -> None:
        size = json.loads(override or "{}").get("max_batch_size", 0)
        self.loads.append((model, size))
        if model == self.broken:
            raise ServerFailed("the server refused")

    def wait_until_ready(self, timeout_s: float) -> None:
        pass


def brought(loading: Loading, control: Recorder, model: ServedModel, candidate: Candidate):
    control.loads.clear()
    reloaded = loading.bring(control, configs(model, candidate), 1.0)  # type: ignore[arg-type]
    return [name for name, _ in control.loads], list(reloaded)


def test_only_what_changes_is_loaded_again(pipe: ServedModel):
    loading, control = Loading(pipe), Recorder()
    everything = ["first", "second", "third", "pipe"]
    assert brought(loading, control, pipe, said()) == (["pipe"], everything)
    assert brought(loading, control, pipe, said()) == ([], [])
    more = said(first__workers=2)
    assert brought(loading, control, pipe, more) == (["first"], ["first"])
    both = said(first__workers=3, third__workers=2)
    assert brought(loading, control, pipe, both) == (["third", "first"], ["first", "third"])
    loading.forget()
    assert brought(loading, control, pipe, more) == (["pipe", "first"], everything)


def test_an_ensemble_that_changes_is_loaded_before_its_steps_which_it_puts_back(
    pipe: ServedModel,
):
    loading, control = Loading(pipe), Recorder()
    brought(loading, control, pipe, said(first__workers=2))
    lower = said(first__workers=2, second__max_batch_size=4)
    assert brought(loading, control, pipe, lower) == (
        ["pipe", "second", "first"],
        ["first", "second", "pipe"],
    )
    assert control.loads[0] == ("pipe", 4)


def test_ensembles_within_are_loaded_between_the_outer_one_and_the_steps(nested: ServedModel):
    loading, control = Loading(nested), Recorder()
    lower = said(third__max_batch_size=4)
    brought(loading, control, nested, said())
    assert brought(loading, control, nested, lower)[0] == ["outer", "pipe", "third"]


def test_after_a_load_that_failed_everything_is_loaded_again(pipe: ServedModel):
    loading = Loading(pipe)
    brought(loading, Recorder(), pipe, said())
    with pytest.raises(ServerFailed):
        brought(loading, Recorder(broken="first"), pipe, said(first__workers=2))
    assert brought(loading, Recorder(), pipe, said())[0] == ["pipe"]


def test_a_model_that_is_tuned_alone_is_loaded_each_time(alone: ServedModel):
    loading, control = Loading(alone), Recorder()
    assert brought(loading, control, alone, said()) == (["m"], ["m"])
    assert brought(loading, control, alone, said()) == (["m"], ["m"])


# --------------------------------------------------------------------------------------- applied
def loaded(**sizes: tuple[int, int]) -> dict[str, ModelConfig]:
    found = {}
    for step, (size, count) in sizes.items():
        found[step] = ModelConfig(max_batch_size=size, backend="python")
        found[step].dynamic_batching.SetInParent()
        found[step].instance_group.add(count=count)
    return found


def test_the_instances_of_a_pipeline_are_those_of_its_steps_together():
    done = applied(
        loaded(decode=(1, 3), recognize=(8, 2)), seconds=1.0, restarted=False, reloaded=("decode",)
    )
    assert (done.instances, done.by_step) == (5, {"decode": 3, "recognize": 2})
    assert done.largest_batches == {"decode": 1, "recognize": 8}
    one = applied({"": loaded(m=(8, 2))["m"]}, seconds=1.0, restarted=False, reloaded=("m",))
    assert (one.instances, one.by_step, one.largest_batches) == (2, {}, {"": 8})


def test_a_burst_keeps_every_step_s_next_batches_full():
    done = applied(
        loaded(decode=(1, 3), recognize=(8, 2)), seconds=1.0, restarted=False, reloaded=()
    )
    assert enough_in_flight(said(), done) == 3 * (1 * 3 + 8 * 2)
    assert enough_in_flight(said(recognize__max_batch_size=4), done) == 3 * (1 * 3 + 4 * 2)
    assert enough_in_flight(said(recognize__max_batch_size=1, decode__workers=3), done) == 16
