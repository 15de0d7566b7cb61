"""What a candidate means for the models of a pipeline, and which of them are loaded for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf import json_format

from autotune.adapters.triton import statistics
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


def test_a_step_without_a_batch_dimension_limits_nothing(tmp_path: Path):
    config = put_pipeline(tmp_path) / "first" / "config.pbtxt"
    text = config.read_text().replace("max_batch_size: 8", "max_batch_size: 0")
    config.write_text(text.replace("dims: [ -1 ]", "dims: [ -1, -1 ]"))
    model = from_repository(tmp_path, "pipe", tmp_path)
    assert configs(model, said(second__max_batch_size=4))["pipe"].max_batch_size == 4


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
@dataclass(slots=True)
class Recorder:
    """Stands for a server's model control. ``broken`` does not load; loading an ensemble puts its
    steps back to their files where the release ``puts_back``."""

    model: ServedModel
    broken: str = ""
    puts_back: bool = False
    loads: list[str] = field(default_factory=list)
    held: dict[str, ModelConfig] = field(default_factory=dict)

    def load(self, override: str | None, timeout_s: float, model: str = "") -> None:
        name = model or self.model.name
        self.loads.append(f"{name} as its files say" if override is None else name)
        if name == self.broken:
            raise ServerFailed("the server refused")
        every = {**self.model.composing, self.model.name: self.model}
        needed = [step.model_name for step in every[name].config.ensemble_scheduling.step]
        if override is None:
            self.held = {each: one.config for each, one in every.items()}
            return
        self.held[name] = json_format.Parse(override, ModelConfig())
        if self.puts_back:
            self.held |= {each: every[each].config for each in needed}

    def loaded(self, name: str) -> bool:
        return name in self.held

    def config(self, name: str) -> ModelConfig:
        return self.held[name]

    def statistics(self, steps: object) -> statistics.Mark:
        return statistics.Mark({})


def brought(loading: Loading, control: Recorder, candidate: Candidate) -> tuple[list[str], ...]:
    """What was loaded, and what was said to have been."""
    control.loads.clear()
    wanted = configs(control.model, candidate)
    reloaded = loading.bring(control, wanted, 1.0)  # type: ignore[arg-type]
    assert {name: control.held[name] for name in wanted} == wanted
    return list(control.loads), list(reloaded)


def started(model: ServedModel) -> Loading:
    loading = Loading(model)
    loading.restarted()
    return loading


def test_only_what_changes_is_loaded_again(pipe: ServedModel):
    loading, control = started(pipe), Recorder(pipe)
    everything = ["first", "second", "third", "pipe"]
    assert brought(loading, control, said()) == (["pipe as its files say"], everything)
    assert brought(loading, control, said()) == ([], [])
    assert brought(loading, control, said(first__workers=2)) == (["first"], ["first"])
    both = said(first__workers=3, third__workers=2)
    assert brought(loading, control, both) == (["first", "third"], ["first", "third"])
    loading.restarted()
    again = ["pipe as its files say", "first", "third"]
    assert brought(loading, control, both) == (again, everything)


@pytest.mark.parametrize("size", [4, 32])
def test_steps_are_loaded_before_the_ensembles_that_need_them(nested: ServedModel, size: int):
    loading, control = started(nested), Recorder(nested)
    brought(loading, control, said())
    low = ["third", "pipe", "outer"] if size < 8 else ["third"]
    assert brought(loading, control, said(third__max_batch_size=size))[0] == low
    assert brought(loading, control, said())[0] == low


def test_what_the_load_of_an_ensemble_put_back_is_loaded_again(pipe: ServedModel):
    loading, control = started(pipe), Recorder(pipe, puts_back=True)
    brought(loading, control, said(first__workers=2))
    lower = said(first__workers=2, second__max_batch_size=4)
    loads, reloaded = brought(loading, control, lower)
    assert loads == ["second", "pipe", "first", "second"]
    assert reloaded == ["first", "second", "pipe"]


def test_after_a_load_that_failed_everything_is_loaded_again(pipe: ServedModel):
    loading, control = started(pipe), Recorder(pipe)
    brought(loading, control, said())
    control.broken = "first"
    with pytest.raises(ServerFailed):
        brought(loading, control, said(first__workers=2))
    control.broken = ""
    assert brought(loading, control, said())[0] == ["first", "second", "third", "pipe"]


def test_a_server_that_was_not_started_here_is_given_every_configuration(pipe: ServedModel):
    loading, control = Loading(pipe), Recorder(pipe)
    assert brought(loading, control, said())[0] == ["first", "second", "third", "pipe"]


def test_a_server_that_something_else_controls_is_no_measurement(pipe: ServedModel):
    class Contested(Recorder):
        def config(self, name: str) -> ModelConfig:
            self.held[name].version_policy.latest.num_versions += 1
            return ModelConfig.FromString(self.held[name].SerializeToString())

    with pytest.raises(ServerFailed, match="does not keep"):
        Loading(pipe).bring(Contested(pipe), configs(pipe, said()), 1.0)  # type: ignore[arg-type]


def test_a_model_that_is_tuned_alone_is_loaded_each_time(alone: ServedModel):
    loading, control = started(alone), Recorder(alone)
    assert brought(loading, control, said()) == (["m"], ["m"])
    assert brought(loading, control, said()) == (["m"], ["m"])


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
