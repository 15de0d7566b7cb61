from __future__ import annotations

import json

import numpy as np
import pytest

from autotune.core.errors import InputRefused
from autotune.core.model_interface import ModelInterface, TensorSpec
from loadgen.bodies import build_bodies, load_bodies, save_bodies

SAMPLE = {"IN": np.arange(4, dtype=np.float32)}


def model(*, batched: bool, datatype: str = "FP32") -> ModelInterface:
    return ModelInterface(
        name="m",
        inputs=(TensorSpec(name="IN", datatype=datatype, shape=(4,)),),
        outputs=(TensorSpec(name="OUT", datatype="FP32", shape=(4,)),),
        batched=batched,
    )


@pytest.mark.parametrize(("batched", "shape"), [(True, [1, 4]), (False, [4])])
def test_a_batched_model_gets_a_batch_dimension_of_one(batched, shape):
    (body,) = build_bodies(model(batched=batched), [SAMPLE])
    head = json.loads(body.content[: body.json_size])
    assert head["inputs"][0]["shape"] == shape
    assert body.content[body.json_size :] == SAMPLE["IN"].tobytes()


def test_every_output_is_asked_for_in_binary():
    (body,) = build_bodies(model(batched=True), [SAMPLE])
    head = json.loads(body.content[: body.json_size])
    assert head["outputs"] == [{"name": "OUT", "parameters": {"binary_data": True}}]


def test_strings_are_sent_with_their_lengths():
    strings = {"IN": np.array([b"ab", b"c", b"", b"d"], dtype=np.object_)}
    (body,) = build_bodies(model(batched=False, datatype="BYTES"), [strings])
    assert body.content[body.json_size :].startswith(b"\x02\x00\x00\x00ab\x01\x00\x00\x00c")


def test_saved_bodies_come_back_unchanged(tmp_path):
    bodies = build_bodies(model(batched=True), [SAMPLE, {"IN": np.ones(4, np.float32)}])
    save_bodies(bodies, tmp_path / "bodies.npz")
    assert load_bodies(tmp_path / "bodies.npz") == bodies


def test_no_sample_is_refused():
    with pytest.raises(InputRefused, match="at least one"):
        build_bodies(model(batched=True), [])


def test_a_sample_of_another_dtype_is_refused():
    with pytest.raises(InputRefused, match="IN"):
        build_bodies(model(batched=True), [{"IN": np.zeros(4, np.int32)}])
