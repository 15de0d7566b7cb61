"""The PyTorch runner over stand-ins for PyTorch, a GPU and the Python backend."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_torch import (
    GPU,
    HOST,
    PINNED,
    FakeTorch,
    ModelError,
    PbTensor,
    Program,
    Request,
    Response,
    Served,
)

ADD_ONE = Program(lambda x: x + np.float32(1), [("x", "Tensor")])


def config(
    inputs: str = "x", outputs: str = "y", *, kind: str = "TYPE_FP32", batch: int = 8
) -> dict[str, Any]:
    return {
        "max_batch_size": batch,
        "input": [{"name": name, "data_type": "TYPE_FP32"} for name in inputs.split()],
        "output": [{"name": name, "data_type": kind} for name in outputs.split()],
    }


def request(value: float, *, rows: int = 1, width: int = 2, memory: str = HOST) -> Request:
    array = np.full((rows, width), value, np.float32)
    return Request([PbTensor("x", array, memory)], ("y",))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Served:
    return Served(monkeypatch, tmp_path, FakeTorch())


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Served:
    return Served(monkeypatch, tmp_path, FakeTorch(gpus=2))


# -------------------------------------------------------------------------------- requests
def test_requests_of_equal_shape_are_one_run_and_each_gets_its_rows(served: Served) -> None:
    model = served.load(ADD_ONE, config())
    requests = [request(1), request(2, rows=3), request(3, width=5), request(4)]
    responses = model.execute(requests)
    assert [response["y"][0, 0] for response in responses] == [2, 3, 4, 5]
    assert [response["y"].shape for response in responses] == [(1, 2), (3, 2), (1, 5), (1, 2)]
    assert served.torch.runs == 2


def test_a_request_that_cannot_be_run_fails_alone(served: Served) -> None:
    def pick(x: Any) -> Any:
        if (x > 5).any():
            raise IndexError("out of range")
        return x

    model = served.load(Program(pick, [("x", "Tensor")]), config())
    lacking = Request([], ("y",))
    good, bad, none, other = model.execute([request(1), request(9), lacking, request(2)])
    assert (good["y"][0, 0], other["y"][0, 0]) == (1, 2)
    assert bad.error == "out of range"
    assert none.error == "the request has no input x"


def test_a_model_whose_answer_has_no_row_for_each_sample_is_run_for_each_request(
    served: Served,
) -> None:
    whole = Program(lambda x: x.sum(axis=0, keepdims=True), [("x", "Tensor")])
    responses = served.load(whole, config()).execute([request(1), request(2)])
    assert [response["y"][0, 0] for response in responses] == [1, 2]


def test_only_the_outputs_that_are_asked_for_are_answered(served: Served) -> None:
    both = Program(lambda x: (x, -x), [("x", "Tensor")], "(Tensor, Tensor)")
    model = served.load(both, config(outputs="a b"))
    (response,) = model.execute([Request([PbTensor("x", np.ones((1, 2), np.float32))], ("b",))])
    assert [tensor.name for tensor in response.tensors] == ["b"]
    assert response["b"][0, 0] == -1


def test_a_model_without_batches_takes_whole_tensors(served: Served) -> None:
    model = served.load(ADD_ONE, config(batch=0))
    responses = model.execute([request(1, rows=2), request(2, rows=2)])
    assert served.torch.runs == 2
    assert responses[1]["y"].shape == (2, 2)


def test_an_answer_of_another_type_than_declared_is_no_answer(served: Served) -> None:
    model = served.load(ADD_ONE, config(kind="TYPE_INT64"))
    (response,) = model.execute([request(1)])
    assert response.error == "output y is TYPE_FP32 in the PyTorch model, not TYPE_INT64"


# ------------------------------------------------------------------------------------ names
SUBTRACT = Program(lambda a, b: a - b, [("a", "Tensor"), ("b", "Tensor")])


@pytest.mark.parametrize(
    ("names", "difference"),
    [("a b", 1), ("b a", -1), ("INPUT__1 INPUT__0", -1), ("x__0 y__1", 1), ("left right", 1)],
)
def test_inputs_are_found_by_argument_else_by_number_else_in_order(
    served: Served, names: str, difference: float
) -> None:
    model = served.load(SUBTRACT, config(inputs=names))
    first, second = names.split()
    two, one = np.full((1, 1), 2, np.float32), np.full((1, 1), 1, np.float32)
    (response,) = model.execute([Request([PbTensor(first, two), PbTensor(second, one)], ("y",))])
    assert response["y"][0, 0] == difference


@pytest.mark.parametrize(
    ("names", "values"), [("OUTPUT__1 OUTPUT__0", [2, 1]), ("one other", [1, 2])]
)
def test_outputs_are_found_by_number_else_in_order(
    served: Served, names: str, values: list[int]
) -> None:
    both = Program(lambda x: (x, x + np.float32(1)), [("x", "Tensor")], "(Tensor, Tensor)")
    model = served.load(both, config(outputs=names))
    tensors = [PbTensor("x", np.ones((1, 1), np.float32))]
    (response,) = model.execute([Request(tensors, tuple(names.split()))])
    assert [response[name][0, 0] for name in names.split()] == values


# ---------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("program", "declared", "words"),
    [
        (SUBTRACT, config(inputs="a"), "forward() takes a, b, and the configuration names a"),
        (SUBTRACT, config(inputs="I__0 I__2"), "and the configuration names I__0, I__2"),
        (ADD_ONE, config(outputs="OUTPUT__1"), "gives 1 outputs, and the configuration names"),
        (ADD_ONE, config(inputs=""), "must name inputs and outputs"),
        (ADD_ONE, config(kind="TYPE_STRING"), "output y is TYPE_STRING"),
        (Program(ADD_ONE.run, [("x", "int")]), config(), "takes x: int: only tensors can be fed"),
        (
            Program(ADD_ONE.run, [("x", "Tensor")], "Dict[str, Tensor]"),
            config(),
            "returns Dict[str, Tensor]: only tensors can be served",
        ),
    ],
)
def test_a_configuration_that_is_not_the_models_is_refused(
    served: Served, program: Program, declared: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError) as refused:
        served.load(program, declared)
    assert words in str(refused.value)


def test_an_argument_with_a_default_need_not_be_named(served: Served) -> None:
    optional = Program(lambda a: a, [("a", "Tensor"), ("b", "Optional[Tensor]")])
    served.load(optional, config(inputs="a"))


def test_a_file_that_is_no_model_is_refused_by_its_telling_line(served: Served) -> None:
    (served.folder / "broken.pt").write_text("nothing")
    with pytest.raises(ModelError) as refused:
        served.load(ADD_ONE, config(), model_file="broken.pt")
    said = "PyTorch 2.99.0 cannot load broken.pt: ValueError: not TorchScript: nothing"
    assert str(refused.value) == said


def test_a_file_that_is_missing_and_a_switch_that_is_none_are_refused(served: Served) -> None:
    with pytest.raises(ModelError, match=r"there is no other\.pt beside the runner"):
        served.load(ADD_ONE, config(), model_file="other.pt")
    with pytest.raises(ModelError, match="tf32 is true or false, not maybe"):
        served.load(ADD_ONE, config(), tf32="maybe")


def test_a_compiled_program_is_refused_with_what_to_serve_instead(served: Served) -> None:
    path = served.folder / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/aotinductor/model.so", "")
    with pytest.raises(ModelError, match="compiled already"):
        served.module.load(path, served.torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("GPU", "is to run on GPU 0, and PyTorch 2.99.0 sees none: it was built without CUDA"),
        ("MODEL", "KIND_GPU or KIND_CPU here, not KIND_MODEL"),
    ],
)
def test_an_instance_that_pytorch_cannot_place_is_refused(
    served: Served, kind: str, words: str
) -> None:
    with pytest.raises(ModelError) as refused:
        served.load(ADD_ONE, config(), kind=kind)
    assert words in str(refused.value)


# ---------------------------------------------------------------------------------- switches
def test_tf32_is_off_in_both_places_unless_it_is_asked_for(on_gpu: Served) -> None:
    backends = on_gpu.torch.backends
    on_gpu.load(ADD_ONE, config(), kind="GPU")
    assert (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32) == (False, False)
    on_gpu.load(ADD_ONE, config(), kind="GPU", tf32="true")
    assert (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32) == (True, True)


@pytest.mark.parametrize(
    ("parameters", "threads"),
    [
        ({}, {"intra": 1, "inter": 1}),
        ({"INTRA_OP_THREAD_COUNT": "3"}, {"intra": 3, "inter": 1}),
        ({"INTRA_OP_THREAD_COUNT": "3", "intra_op_threads": "2"}, {"intra": 2, "inter": 1}),
        ({"intra_op_threads": "0", "inter_op_threads": "0"}, {}),
    ],
)
def test_threads_go_by_our_names_then_by_tritons_and_0_is_pytorchs_own_choice(
    served: Served, parameters: dict[str, str], threads: dict[str, int]
) -> None:
    served.load(ADD_ONE, config(), **parameters)
    assert served.torch.threads == threads


def test_optimized_execution_can_be_switched_off_as_in_tritons_backend(served: Served) -> None:
    served.load(ADD_ONE, config()).execute([request(1)])
    served.load(ADD_ONE, config(), DISABLE_OPTIMIZED_EXECUTION="true").execute([request(1)])
    assert served.torch.optimized == [True, False]


# ------------------------------------------------------------------------------------- a GPU
def answered(model: Any, *values: float) -> list[float]:
    responses: list[Response] = model.execute([request(value) for value in values])
    return [float(response["y"][0, 0]) for response in responses]


def test_requests_go_to_the_gpu_in_one_copy_and_come_back_in_one(on_gpu: Served) -> None:
    model = on_gpu.load(ADD_ONE, config(), kind="GPU", device=1)
    assert str(model.run.device) == "cuda:1"
    assert answered(model, 1, 2, 3) == [2, 3, 4]
    assert on_gpu.torch.copies == [(PINNED, GPU, (3, 2)), (GPU, PINNED, (3, 2))]


def test_inputs_that_are_on_the_gpu_are_taken_there(on_gpu: Served) -> None:
    model = on_gpu.load(ADD_ONE, config(), kind="GPU")
    responses = model.execute([request(1, memory=GPU), request(2, memory=GPU)])
    assert [response["y"][0, 0] for response in responses] == [2, 3]
    assert on_gpu.torch.copies == [(GPU, PINNED, (2, 2))]


def test_a_cpu_instance_takes_inputs_off_a_gpu(on_gpu: Served) -> None:
    (response,) = on_gpu.load(ADD_ONE, config()).execute([request(1, memory=GPU)])
    assert response["y"][0, 0] == 2


def test_a_signature_is_captured_after_its_first_runs_and_replayed_with_new_inputs(
    on_gpu: Served,
) -> None:
    model = on_gpu.load(ADD_ONE, config(), kind="GPU")
    assert [answered(model, value) for value in (1, 2, 3)] == [[2], [3], [4]]
    assert (on_gpu.torch.runs, on_gpu.torch.replays) == (3, 0)
    assert [answered(model, value) for value in (4, 5, 6)] == [[5], [6], [7]]
    # Run once as a check and once recorded; replayed for that check, and for each request.
    assert (on_gpu.torch.runs, on_gpu.torch.replays) == (5, 4)
    assert on_gpu.backend.logged == ["captured a CUDA graph for inputs of [1, 2]"]


def test_each_signature_has_a_graph_of_its_own(on_gpu: Served) -> None:
    model = on_gpu.load(ADD_ONE, config(), kind="GPU")
    for _ in range(5):
        assert answered(model, 1) == [2]
        assert answered(model, 1, 2) == [2, 3]
    assert len(on_gpu.backend.logged) == 2
    assert answered(model, 7, 8) == [8, 9]


def test_what_cannot_be_captured_goes_on_without_a_graph_and_says_so_once(on_gpu: Served) -> None:
    on_gpu.torch.refuses_capture = "operation not permitted when stream is capturing"
    model = on_gpu.load(ADD_ONE, config(), kind="GPU")
    assert [answered(model, value) for value in range(6)] == [[v + 1] for v in range(6)]
    (line,) = on_gpu.backend.logged
    assert line.startswith("no CUDA graph for inputs of [1, 2], which go on without")
    assert line.endswith(on_gpu.torch.refuses_capture)


def test_a_graph_that_answers_otherwise_than_the_model_is_not_used(on_gpu: Served) -> None:
    calls = iter(range(100))
    changing = Program(lambda x: x * 0 + np.float32(next(calls)), [("x", "Tensor")])
    model = on_gpu.load(changing, config(), kind="GPU")
    for _ in range(5):
        answered(model, 1)
    assert "answers otherwise than run" in on_gpu.backend.logged[0]


def test_graphs_can_be_switched_off_and_are_limited_in_number(on_gpu: Served) -> None:
    off = on_gpu.load(ADD_ONE, config(), kind="GPU", cuda_graphs="false")
    for _ in range(6):
        answered(off, 1)
    assert on_gpu.torch.replays == 0
    model = on_gpu.load(ADD_ONE, config(), kind="GPU")
    for width in range(1, on_gpu.module.MOST_GRAPHS + 3):
        for _ in range(4):
            (response,) = model.execute([request(1, width=width)])
            assert response["y"].shape == (1, width)
    assert len(on_gpu.backend.logged) == on_gpu.module.MOST_GRAPHS
