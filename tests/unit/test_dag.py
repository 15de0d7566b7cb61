"""An ensemble's steps, walked one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from autotune.adapters.triton.config import ModelConfig, parse
from autotune.adapters.triton.dag import Dag, Wire
from autotune.core.errors import InputRefused


def config(name: str, inputs: Sequence[str], outputs: Sequence[str], *steps: str) -> ModelConfig:
    def tensors(kind: str, names: Sequence[str]) -> str:
        return "".join(f"{kind} {{ name: '{n}' data_type: TYPE_FP32 dims: 1 }}" for n in names)

    scheduling = f"ensemble_scheduling {{ {' '.join(steps)} }}" if steps else ""
    text = f"name: '{name}' {tensors('input', inputs)} {tensors('output', outputs)} {scheduling}"
    return parse(text, name)


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [f"input_map {{ key: '{k}' value: '{v}' }}" for k, v in inputs.items()]
    maps += [f"output_map {{ key: '{k}' value: '{v}' }}" for k, v in outputs.items()]
    return f"step {{ model_name: '{model}' model_version: -1 {' '.join(maps)} }}"


class Server:
    """Models that add, and what they were asked."""

    def __init__(self, added: Mapping[str, float]) -> None:
        self.added = added
        self.asked: list[str] = []

    def __call__(self, model: str, requests: Sequence[Wire]) -> Sequence[Wire]:
        self.asked.append(model)
        return [{"o": sum(request.values()) + self.added[model]} for request in requests]


MODELS = {
    "a": config("a", ["i"], ["o"]),
    "b": config("b", ["i"], ["o"]),
    "join": config("join", ["left", "right"], ["o"]),
}
DIAMOND = {
    **MODELS,
    "e": config(
        "e",
        ["x"],
        ["y"],
        # Given last step first: the order is the tensors', not the text's.
        step("join", {"left": "t", "right": "u"}, {"o": "y"}),
        step("b", {"i": "x"}, {"o": "u"}),
        step("a", {"i": "x"}, {"o": "t"}),
    ),
}


def requests(*values: float) -> list[Wire]:
    return [{"x": np.array([value])} for value in values]


def outputs(walk: Any) -> list[float]:
    return [float(each["y"][0]) for each in walk.outputs]


def test_each_step_is_asked_once_it_has_what_it_waits_for() -> None:
    server = Server({"a": 1, "b": 10, "join": 100})
    walk = Dag.of("e", DIAMOND).walk(requests(1, 2), server)
    assert outputs(walk) == [1 + 1 + 1 + 10 + 100, 2 + 1 + 2 + 10 + 100]
    assert sorted(server.asked[:2]) == ["a", "b"]
    assert server.asked[2:] == ["join"]
    (call,) = walk.of("join")
    assert [float(each["left"][0]) for each in call.inputs] == [2, 3]


def test_what_stands_for_a_step_goes_through_the_steps_that_follow_and_through_no_other() -> None:
    server = Server({"a": 1, "b": 10, "join": 100})
    dag = Dag.of("e", DIAMOND)
    before = dag.walk(requests(1, 2), server)
    server.asked.clear()
    replaced = {"a": [{"o": np.array([0.0])}, {"o": np.array([-5.0])}]}
    after = dag.walk(before.sent, server, before=before, replaced=replaced)
    assert outputs(after) == [0 + 11 + 100, -5 + 12 + 100]
    assert server.asked == ["join"]


def test_an_ensemble_within_an_ensemble_stands_in_its_place() -> None:
    inner = config(
        "inner",
        ["p"],
        ["q"],
        step("a", {"i": "p"}, {"o": "t"}),
        step("b", {"i": "t"}, {"o": "q"}),
    )
    outer = config(
        "e",
        ["x"],
        ["y"],
        step("a", {"i": "x"}, {"o": "t"}),  # of the same name as the inner one's
        step("inner", {"p": "t"}, {"q": "y"}),
    )
    server = Server({"a": 1, "b": 10})
    walk = Dag.of("e", {**MODELS, "inner": inner, "e": outer}).walk(requests(0), server)
    assert outputs(walk) == [12]
    assert server.asked == ["a", "a", "b"]
    assert [float(call.inputs[0]["i"][0]) for call in walk.of("a")] == [0, 1]


def test_of_a_step_that_is_taken_twice_each_use_is_replaced_in_order() -> None:
    twice = config(
        "e",
        ["x"],
        ["y"],
        step("a", {"i": "x"}, {"o": "t"}),
        step("a", {"i": "t"}, {"o": "y"}),
    )
    dag, server = Dag.of("e", {**MODELS, "e": twice}), Server({"a": 1})
    before = dag.walk(requests(1, 2), server)
    assert outputs(before) == [3, 4]
    given = [{"o": np.array([value])} for value in (10.0, 20.0, 30.0, 40.0)]
    assert outputs(dag.walk(before.sent, server, before=before, replaced={"a": given})) == [30, 40]


def test_a_model_that_is_tuned_alone_is_one_step() -> None:
    alone = {"m": config("m", ["x"], ["o"])}
    walk = Dag.of("m", alone).walk(requests(1), Server({"m": 5}))
    assert float(walk.outputs[0]["o"][0]) == 6


def test_steps_that_wait_for_a_tensor_that_none_gives_are_refused() -> None:
    lost = config("e", ["x"], ["y"], step("a", {"i": "nowhere"}, {"o": "y"}))
    with pytest.raises(InputRefused, match="wait for a tensor that no step gives") as refused:
        Dag.of("e", {**MODELS, "e": lost})
    assert refused.value.value == "nowhere"
