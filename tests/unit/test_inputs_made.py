"""Request inputs that a Python function makes, or that lie in a folder, one file per request."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from autotune.core.errors import InputRefused
from autotune.core.model_interface import ModelInterface, TensorSpec
from autotune.core.workload import InputKind, InputSpec
from loadgen.bodies import build_bodies, load_bodies, save_bodies
from loadgen.inputs import build_samples

BINARY = b"\xff\xd8\xff\xe0\x00\x10JFIF\n\r\n" + bytes(range(256)) * 40 + b"\xff\xd9\x00\x00"
"""Like an image: not text of any encoding, with NULs in it and at its end."""


def model(*inputs: TensorSpec) -> ModelInterface:
    return ModelInterface(name="m", inputs=inputs, outputs=(), batched=True)


def tensor(name="IN", datatype="FP32", shape=(2,), **more) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape, **more)


IMAGE = model(tensor("IMAGE", "BYTES", (1,)))


def made(tmp_path: Path, code: str, the_model=None, *, count=2, function="make", **more):
    path = tmp_path / "inputs.py"
    path.write_text(dedent(code))
    spec = InputSpec(kind=InputKind.PYTHON, path=path, function=function, count=count, **more)
    return build_samples(the_model or model(tensor()), spec, seed=7)


# --------------------------------------------------------------------------------------- Python
GOOD = """
    import numpy as np

    def make(count, seed):
        rng = np.random.default_rng(seed)
        return [{"IN": rng.random(2, dtype=np.float32)} for _ in range(count)]
"""


def test_a_function_is_called_with_count_and_seed(tmp_path):
    samples = made(tmp_path, GOOD, count=5)
    rng = np.random.default_rng(7)
    assert [s["IN"].tolist() for s in samples] == [
        rng.random(2, dtype=np.float32).tolist() for _ in range(5)
    ]


def test_it_may_be_a_generator(tmp_path):
    samples = made(tmp_path, GOOD.replace("return [", "yield from [").rstrip())
    assert len(samples) == 2


def test_it_may_import_what_stands_beside_it(tmp_path):
    (tmp_path / "helping_with_inputs.py").write_text("VALUE = 3\n")
    (sample, _) = made(
        tmp_path,
        """
        import numpy as np

        def make(count, seed):
            from helping_with_inputs import VALUE
            return [{"IN": np.full(2, VALUE, np.float32)}] * count
        """,
    )
    assert sample["IN"].tolist() == [3, 3]


def test_it_may_use_dataclasses(tmp_path):
    made(
        tmp_path,
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass A:\n    x: int\n" + dedent(GOOD),
    )


def test_what_it_prints_is_kept_off_standard_output(tmp_path, capsys):
    made(tmp_path, GOOD.replace("rng = ", "print('rendering'); rng = "))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "rendering\n")


@pytest.mark.parametrize(
    "value", ["DATA", "[DATA]", "np.array([DATA], dtype=object)", "[[DATA]][0]"]
)
def test_bytes_are_given_in_several_ways_and_come_through_whole(tmp_path, value):
    code = f"""
        import numpy as np
        DATA = {BINARY!r}

        def make(count, seed):
            return [{{"IMAGE": {value}}}] * count
    """
    (sample, _) = made(tmp_path, code, IMAGE)
    assert sample["IMAGE"].tolist() == [BINARY]


def test_text_is_encoded_as_utf8(tmp_path):
    code = "def make(count, seed):\n    return [{'IMAGE': 'ä'}] * count\n"
    assert made(tmp_path, code, IMAGE)[0]["IMAGE"].tolist() == ["ä".encode()]


def test_an_error_of_the_users_code_is_refused_with_file_function_line_and_exception(tmp_path):
    code = "def make(count, seed):\n    return helper()\n\ndef helper():\n    return {}['key']\n"
    with pytest.raises(InputRefused) as refused:
        made(tmp_path, code)
    text = str(refused.value)
    assert f"{tmp_path / 'inputs.py'}:make failed in line 5" in text
    assert "KeyError: 'key'" in text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def make(count, seed:\n", "failed in line 1.*SyntaxError"),
        ("import nosuchmodule\n", "line 1.*ModuleNotFoundError.*in autotune's own environment"),
        ("import sys\nsys.exit(3)\n", "failed in line 2.*SystemExit: 3"),
        ("def makes(count, seed): pass\n", "no such function.*did you mean makes"),
        ("def make(): pass\n", "failed.*TypeError"),
        ("def make(c, s):\n    yield {}\n    raise ValueError('late')\n", "line 3.*late"),
        ("def make(c, s): return 3\n", "returns a list of requests.*int"),
        ("def make(c, s): return {'IN': 1}\n", "returns a list of requests.*dict"),
        ("def make(c, s): return []\n", "returned no request"),
        ("def make(c, s): return [1]\n", "request 0 must map"),
        ("def make(c, s): return [{'OUT': 1}]\n", "lacks input IN"),
        ("def make(c, s): return [{'IN': [1.0, 2.0]}]\n", "request 0, IN must be a NumPy array"),
    ],
)
def test_what_is_wrong_with_a_function_is_refused(tmp_path, code, words):
    with pytest.raises(InputRefused, match=f"(?s){words}"):
        made(tmp_path, code)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        ("np.zeros(2)", "FP32 takes dtype float32.*astype"),
        ("np.zeros(3, np.float32)", r"takes the shape \[2\]"),
        ("np.zeros((1, 2), np.float32)", "no batch dimension"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(tmp_path, array, words):
    code = f"import numpy as np\ndef make(c, s): return [{{'IN': {array}}}]\n"
    with pytest.raises(InputRefused, match=f"(?s){words}"):
        made(tmp_path, code)


def test_numbers_are_no_bytes(tmp_path):
    code = "def make(c, s): return [{'IMAGE': 3}]\n"
    with pytest.raises(InputRefused, match="BYTES takes bytes or strings"):
        made(tmp_path, code, model(tensor("IMAGE", "BYTES", ())))


def test_a_shape_that_the_study_states_is_kept_to(tmp_path):
    path = tmp_path / "inputs.py"
    path.write_text(dedent(GOOD))
    spec = InputSpec(kind=InputKind.PYTHON, path=path, function="make", shapes={"IN": (3,)})
    with pytest.raises(InputRefused, match=r"calibration.data.shapes says \[3\]"):
        build_samples(model(tensor(shape=(-1,))), spec, seed=1, key="calibration.data")


# --------------------------------------------------------------------------------------- folders
def filled(tmp_path: Path, **arrays) -> Path:
    folder = tmp_path / "requests"
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def in_folder(folder: Path, the_model: ModelInterface):
    return build_samples(the_model, InputSpec(kind=InputKind.FOLDER, path=folder), seed=0)


def test_a_folder_holds_one_request_per_file_in_the_order_of_their_names(tmp_path):
    ones = np.ones(2, np.float32)
    folder = filled(tmp_path, b=2 * ones, a=ones, c=3 * ones)
    (folder / "README.txt").write_text("not a request")
    assert [s["IN"].tolist() for s in in_folder(folder, model(tensor()))] == [
        [1, 1],
        [2, 2],
        [3, 3],
    ]


def test_requests_of_several_inputs_are_npz_files_by_name(tmp_path):
    folder = filled(tmp_path)
    np.savez(folder / "1.npz", IN=np.ones(2, np.float32), MASK=np.zeros(1, np.int64))
    two = model(tensor(), tensor("MASK", "INT64", (1,)))
    (sample,) = in_folder(folder, two)
    assert (sample["IN"].tolist(), sample["MASK"].tolist()) == ([1, 1], [0])


def test_strings_in_a_folder_become_bytes(tmp_path):
    folder = filled(tmp_path, a=np.array(["ä"]))
    assert in_folder(folder, IMAGE)[0]["IMAGE"].tolist() == ["ä".encode()]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones(2), "a.npy, IN: FP32 takes dtype float32"),
        (np.ones((1, 2), np.float32), "a.npy, IN: input IN takes the shape"),
        (np.array([{}], dtype=object), "pickled objects are never loaded"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path, array, words):
    with pytest.raises(InputRefused, match=words):
        in_folder(filled(tmp_path, a=array), model(tensor()))


def test_an_npy_for_a_model_of_several_inputs_is_refused(tmp_path):
    folder = filled(tmp_path, a=np.ones(2, np.float32))
    with pytest.raises(InputRefused, match=r"(?s)one array.*numpy.savez"):
        in_folder(folder, model(tensor(), tensor("OTHER")))


def test_a_folder_without_requests_is_refused(tmp_path):
    with pytest.raises(InputRefused, match=r"no .npy and no .npz"):
        in_folder(filled(tmp_path), model(tensor()))


def test_a_file_cut_short_is_refused(tmp_path):
    folder = filled(tmp_path, a=np.ones(2, np.float32))
    os.truncate(folder / "a.npy", 100)
    with pytest.raises(InputRefused, match=r"cannot be read as .npy"):
        in_folder(folder, model(tensor()))


# ------------------------------------------------------------------------------- binary BYTES
def test_binary_bytes_survive_the_way_to_the_load_process(tmp_path):
    sample = {"IMAGE": np.array([BINARY], dtype=object)}
    bodies = build_bodies(IMAGE, [sample, sample])
    save_bodies(bodies, tmp_path / "bodies.npz")
    for body in load_bodies(tmp_path / "bodies.npz"):
        assert body.json_size is not None
        head = json.loads(body.content[: body.json_size])
        assert head["inputs"][0]["parameters"]["binary_data_size"] == 4 + len(BINARY)
        content = io.BytesIO(body.content[body.json_size :])
        assert int.from_bytes(content.read(4), "little") == len(BINARY)
        assert content.read() == BINARY
