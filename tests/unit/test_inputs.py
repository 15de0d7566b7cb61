from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.errors import InputRefused
from autotune.core.model_interface import NUMPY_DTYPES, ModelInterface, TensorSpec
from autotune.core.workload import InputKind, InputSpec
from loadgen.inputs import build_samples


def model(*inputs: TensorSpec) -> ModelInterface:
    return ModelInterface(name="m", inputs=inputs, outputs=(), batched=True)


def tensor(name="IN", datatype="FP32", shape=(2, 3), **more) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape, **more)


# --------------------------------------------------------------------------------------- random
@settings(deadline=None)
@given(st.sampled_from(sorted(NUMPY_DTYPES)), st.integers(0, 99))
def test_random_inputs_have_the_shape_and_dtype_of_the_model(datatype, seed):
    samples = build_samples(model(tensor(datatype=datatype)), InputSpec(count=3), seed=seed)
    assert len(samples) == 3
    for sample in samples:
        assert sample["IN"].shape == (2, 3)
        assert sample["IN"].dtype == np.dtype(NUMPY_DTYPES[datatype])


def test_random_floats_are_uniform_between_zero_and_one():
    (sample,) = build_samples(model(tensor(shape=(1000,))), InputSpec(count=1), seed=1)
    values = sample["IN"]
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() < 1


def test_random_integers_are_zero_or_one_unless_a_range_is_given():
    (sample,) = build_samples(
        model(tensor(datatype="INT64", shape=(200,))), InputSpec(count=1), seed=1
    )
    assert set(sample["IN"].tolist()) == {0, 1}


def test_a_range_of_integers_includes_both_ends():
    spec = InputSpec(count=1, ranges={"IN": (5, 7)})
    (sample,) = build_samples(model(tensor(datatype="INT32", shape=(200,))), spec, seed=1)
    assert set(sample["IN"].tolist()) == {5, 6, 7}


def test_the_same_seed_gives_the_same_inputs_and_another_does_not():
    one, same, other = (build_samples(model(tensor()), InputSpec(), seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(a["IN"], b["IN"]) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0]["IN"], other[0]["IN"])


def test_random_samples_differ_from_each_other():
    samples = build_samples(model(tensor()), InputSpec(count=2), seed=1)
    assert not np.array_equal(samples[0]["IN"], samples[1]["IN"])


def test_a_dynamic_dimension_takes_its_size_from_the_study():
    spec = InputSpec(count=1, shapes={"IN": (3, 48)})
    (sample,) = build_samples(model(tensor(shape=(3, -1))), spec, seed=1)
    assert sample["IN"].shape == (3, 48)


def test_a_dynamic_dimension_without_a_shape_is_refused_naming_input_and_key():
    with pytest.raises(InputRefused, match=r"(?s)IN.*workload.inputs.shapes"):
        build_samples(model(tensor(shape=(3, -1))), InputSpec(), seed=1)


def test_an_optional_input_is_left_out_unless_the_study_names_it():
    with_mask = model(tensor(), tensor("MASK", optional=True))
    (plain,) = build_samples(with_mask, InputSpec(count=1), seed=1)
    (named,) = build_samples(with_mask, InputSpec(count=1, shapes={"MASK": (2, 3)}), seed=1)
    assert (set(plain), set(named)) == ({"IN"}, {"IN", "MASK"})


@pytest.mark.parametrize(
    ("datatype", "spec", "message"),
    [
        ("FP32", InputSpec(shapes={"IN": (9, 3)}), "shape"),
        ("FP32", InputSpec(shapes={"IN": (2,)}), "shape"),
        ("FP32", InputSpec(shapes={"OUT": (2, 3)}), "does not have"),
        ("FP32", InputSpec(ranges={"OUT": (0, 1)}), "does not have"),
        ("FP32", InputSpec(ranges={"IN": (2, 1)}), "low"),
        ("INT8", InputSpec(ranges={"IN": (0, 300)}), "INT8"),
        ("INT8", InputSpec(ranges={"IN": (0.5, 3)}), "whole"),
        ("BYTES", InputSpec(ranges={"IN": (0, 3)}), "no range"),
        ("FP32", InputSpec(count=0), "count"),
        ("BF16", InputSpec(), "BF16"),
    ],
)
def test_an_input_spec_that_does_not_fit_the_model_is_refused(datatype, spec, message):
    with pytest.raises(InputRefused, match=message):
        build_samples(model(tensor(datatype=datatype)), spec, seed=1)


# ----------------------------------------------------------------------------------------- json
def from_json(tmp_path: Path, the_model: ModelInterface, data: object, **more):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(data))
    return build_samples(the_model, InputSpec(kind=InputKind.JSON, path=path, **more), seed=0)


def test_a_flat_list_is_given_the_shape_of_the_model(tmp_path):
    (sample,) = from_json(tmp_path, model(tensor()), {"data": [{"IN": [1, 2, 3, 4, 5, 6]}]})
    assert sample["IN"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert sample["IN"].dtype == np.float32


def test_content_comes_with_its_own_shape(tmp_path):
    entry = {"IN": {"content": [1, 2, 3, 4], "shape": [2, 2]}}
    (sample,) = from_json(tmp_path, model(tensor(shape=(-1, -1))), {"data": [entry]})
    assert sample["IN"].tolist() == [[1, 2], [3, 4]]


def test_base64_holds_the_raw_elements(tmp_path):
    raw = base64.b64encode(np.arange(6, dtype=np.int32).tobytes()).decode()
    (sample,) = from_json(
        tmp_path, model(tensor(datatype="INT32")), {"data": [{"IN": {"b64": raw}}]}
    )
    assert sample["IN"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_base64_strings_carry_their_lengths(tmp_path):
    raw = b"\x02\x00\x00\x00ab\x01\x00\x00\x00c"
    entry = {"IN": {"b64": base64.b64encode(raw).decode()}}
    (sample,) = from_json(tmp_path, model(tensor(datatype="BYTES", shape=(2,))), {"data": [entry]})
    assert sample["IN"].tolist() == [b"ab", b"c"]


def test_base64_without_lengths_is_one_string(tmp_path):
    entry = {"IN": {"b64": base64.b64encode(b"\xff\xd8\xff\xe0JFIF").decode()}}
    (sample,) = from_json(tmp_path, model(tensor(datatype="BYTES", shape=(1,))), {"data": [entry]})
    assert sample["IN"].tolist() == [b"\xff\xd8\xff\xe0JFIF"]


def test_strings_are_encoded_as_utf8(tmp_path):
    entry = {"IN": ["ä", "b"]}
    (sample,) = from_json(tmp_path, model(tensor(datatype="BYTES", shape=(2,))), {"data": [entry]})
    assert sample["IN"].tolist() == ["ä".encode(), b"b"]


def test_the_steps_of_a_stream_are_samples_of_their_own(tmp_path):
    step = {"IN": [0] * 6}
    samples = from_json(tmp_path, model(tensor()), {"data": [[step, step], step]})
    assert len(samples) == 3


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("FP32", [], "data"),
        ("FP32", {"data": []}, "data"),
        ("FP32", {"data": [3]}, "map input names"),
        ("FP32", {"data": [{"OTHER": [1]}]}, "lacks input IN"),
        ("FP32", {"data": [{"IN": [0] * 6, "OTHER": [1]}]}, "unknown input OTHER"),
        ("FP32", {"data": [{"IN": [1, 2, 3]}]}, "6 elements"),
        ("FP32", {"data": [{"IN": ["1"] * 6}]}, "numbers"),
        ("FP32", {"data": [{"IN": 1}]}, "must be a list"),
        ("FP16", {"data": [{"IN": [1e9] * 6}]}, "FP16 holds"),
        ("UINT8", {"data": [{"IN": [256] * 6}]}, "UINT8 holds"),
        ("INT64", {"data": [{"IN": [2**63] * 6}]}, "INT64 holds"),
        ("INT32", {"data": [{"IN": [1.5] * 6}]}, "whole numbers"),
        ("BOOL", {"data": [{"IN": [2] * 6}]}, "true or false"),
        ("BYTES", {"data": [{"IN": [1] * 6}]}, "strings"),
        ("FP32", {"data": [{"IN": {"b64": "?"}}]}, "base64"),
        ("FP32", {"data": [{"IN": {"b64": "AAA="}}]}, "bytes per element"),
        ("FP32", {"data": [{"IN": {"content": [1], "shape": [1, 1]}}]}, "takes the shape"),
        ("FP32", {"data": [{"IN": {"content": [1], "shape": "x"}}]}, "list of sizes"),
    ],
)
def test_an_input_data_file_that_does_not_fit_is_refused(tmp_path, datatype, data, message):
    with pytest.raises(InputRefused, match=message):
        from_json(tmp_path, model(tensor(datatype=datatype)), data)


def test_a_file_that_is_not_json_is_refused(tmp_path):
    path = tmp_path / "data.json"
    path.write_text("{")
    with pytest.raises(InputRefused, match="JSON"):
        build_samples(model(tensor()), InputSpec(kind=InputKind.JSON, path=path), seed=0)


# ------------------------------------------------------------------------------------------ npz
def from_npz(tmp_path: Path, the_model: ModelInterface, **arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return build_samples(the_model, InputSpec(kind=InputKind.NPZ, path=path), seed=0)


def test_the_first_axis_of_an_npz_runs_over_samples(tmp_path):
    array = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    samples = from_npz(tmp_path, model(tensor()), IN=array)
    assert [s["IN"].tolist() for s in samples] == array.tolist()


def test_a_scalar_input_of_an_npz_stays_an_array(tmp_path):
    samples = from_npz(tmp_path, model(tensor(shape=())), IN=np.ones(2, dtype=np.float32))
    assert all(isinstance(s["IN"], np.ndarray) and s["IN"].shape == () for s in samples)


@pytest.mark.parametrize("dtype", ["S2", "U2"])
def test_strings_of_an_npz_become_bytes(tmp_path, dtype):
    array = np.array([["ab"], ["c"]], dtype=dtype)
    samples = from_npz(tmp_path, model(tensor(datatype="BYTES", shape=(1,))), IN=array)
    assert [s["IN"].tolist() for s in samples] == [[b"ab"], [b"c"]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"IN": np.zeros((2, 2, 3))}, "dtype float32"),
        ({"IN": np.zeros((2, 3), np.float32)}, "takes the shape"),
        ({"IN": np.float32(1)}, "first axis"),
        ({"IN": np.zeros((0, 2, 3), np.float32)}, "first axis"),
        ({"OTHER": np.zeros(2)}, "lacks input IN"),
        ({"IN": np.zeros((2, 2, 3), np.float32), "OTHER": np.zeros(2)}, "unknown input OTHER"),
        ({"IN": np.array([None, {}], dtype=object)}, "never loaded"),
    ],
)
def test_an_npz_that_does_not_fit_is_refused(tmp_path, arrays, message):
    with pytest.raises(InputRefused, match=message):
        from_npz(tmp_path, model(tensor()), **arrays)


def test_inputs_with_unequal_counts_of_samples_are_refused(tmp_path):
    two = model(tensor("A", shape=(1,)), tensor("B", shape=(1,)))
    with pytest.raises(InputRefused, match="A: 2, B: 3"):
        from_npz(tmp_path, two, A=np.zeros((2, 1), np.float32), B=np.zeros((3, 1), np.float32))


def test_a_file_that_is_not_an_npz_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(InputRefused, match="npz"):
        build_samples(model(tensor()), InputSpec(kind=InputKind.NPZ, path=path), seed=0)
