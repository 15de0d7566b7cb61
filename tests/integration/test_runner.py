"""The ONNX runner in the real Python backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
import tritonclient.http
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from autotune.adapters.triton.config import ModelConfig, parse
from autotune.adapters.triton.environment import ServerEnvironment, prepare_on
from autotune.adapters.triton.interpreter import find_installed
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.repository import RUNNER, ServedModel
from autotune.core.errors import CandidateFailed
from search_spaces.candidate import Candidate
from tests.integration.conftest import FAST, saveable

pytestmark = pytest.mark.server

Array: TypeAlias = NDArray[Any]
Types: TypeAlias = dict[str, tuple[int, Array]]
AS_FOUND = Candidate({})

TYPES: Types = {
    "FP32": (TensorProto.FLOAT, np.array([[1.5, -2, 3]], np.float32)),
    "FP16": (TensorProto.FLOAT16, np.array([[0.5, -0.25, 8]], np.float16)),
    "FP64": (TensorProto.DOUBLE, np.array([[1e300, -2, 3]], np.float64)),
    "INT64": (TensorProto.INT64, np.array([[2**40, -1, 3]], np.int64)),
    "INT32": (TensorProto.INT32, np.array([[7, -1, 3]], np.int32)),
    "UINT8": (TensorProto.UINT8, np.array([[255, 0, 1]], np.uint8)),
    "BOOL": (TensorProto.BOOL, np.array([[True, False, True]])),
}
STRING: tuple[int, Array] = (
    TensorProto.STRING,
    np.array([[b"a", "é".encode(), b""]], dtype=np.object_),
)

Serve = Callable[..., LocalServer]


def identity_of(types: Types) -> onnx.GraphProto:
    """One pass-through per datatype: ``in_X`` to ``out_X``, rows of three."""
    ins = [helper.make_tensor_value_info(f"in_{n}", t, ["b", 3]) for n, (t, _) in types.items()]
    outs = [helper.make_tensor_value_info(f"out_{n}", t, ["b", 3]) for n, (t, _) in types.items()]
    nodes = [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in types]
    return helper.make_graph(nodes, "identity", ins, outs)


def picking() -> onnx.GraphProto:
    """y = x at idx, row by row; fails where idx points outside."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "w"])
    idx = helper.make_tensor_value_info("idx", TensorProto.INT64, ["b", 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 1])
    node = helper.make_node("GatherElements", ["x", "idx"], ["y"], axis=1)
    return helper.make_graph([node], "pick", [x, idx], [y])


@pytest.fixture(scope="module")
def serve(
    server_environment: ServerEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Serves a graph under a config.pbtxt; one server at a time, ended with the module."""
    running: list[LocalServer] = []

    def make(
        graph: onnx.GraphProto, config: str, environment: ServerEnvironment = server_environment
    ) -> LocalServer:
        while running:
            running.pop().close()
        folder = tmp_path_factory.mktemp("runner")
        parsed = parse(f'name: "m" backend: "python" {config}', "the test")
        model = served(folder, graph, parsed)
        server = LocalServer(FAST, model, EmbeddedLauncher(lambda: environment), work_dir=folder)
        running.append(server)
        return server

    yield make
    while running:
        running.pop().close()


def served(folder: Path, graph: onnx.GraphProto, config: ModelConfig) -> ServedModel:
    source = folder / "repository" / "m"
    (source / "1").mkdir(parents=True)
    onnx.save(saveable(graph), source / "1" / "model.onnx")
    (source / "1" / "model.py").write_bytes(RUNNER.read_bytes())
    return ServedModel(
        name="m", repository=source.parent, config=config, digest="test", source=source
    )


def infer(server: LocalServer, inputs: dict[str, Any], name: str = "m") -> Callable[[str], Any]:
    """The outputs of a request to the model of that name, by theirs."""
    with closing(tritonclient.http.InferenceServerClient(server.endpoint.http)) as client:
        tensors = []
        for key, array in inputs.items():
            datatype = np_to_triton_dtype(array.dtype)
            tensor = tritonclient.http.InferInput(key, array.shape, datatype)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        as_numpy: Callable[[str], Any] = client.infer(name, tensors).as_numpy
        return as_numpy


def assert_every_type_passes(server: LocalServer, types: Types) -> None:
    feed = {f"in_{name}": np.concatenate([row, row]) for name, (_, row) in types.items()}
    output = infer(server, feed)
    for name in types:
        np.testing.assert_array_equal(output(f"out_{name}"), feed[f"in_{name}"], err_msg=name)


def test_every_datatype_comes_back_as_it_went_and_undeclared_tensors_are_completed(
    serve: Serve,
) -> None:
    types = {**TYPES, "STRING": STRING}
    server = serve(identity_of(types), "max_batch_size: 4")
    server.apply(AS_FOUND)
    assert_every_type_passes(server, types)


def test_a_model_without_batching_takes_whole_shapes(serve: Serve) -> None:
    server = serve(identity_of({"FP32": TYPES["FP32"]}), "max_batch_size: 0")
    server.apply(AS_FOUND)
    assert not server.interface().batched
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(infer(server, {"in_FP32": rows})("out_FP32"), rows)


def test_requests_of_one_batch_get_their_own_rows_and_a_bad_one_fails_alone(serve: Serve) -> None:
    batching = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500000 }"
    server = serve(picking(), batching + declared(width=-1))
    server.apply(AS_FOUND)
    start = server.mark()
    indices = [0, 1, 2, 99, 0, 1, 2, 0]
    with ThreadPoolExecutor(len(indices)) as pool:
        answers = list(pool.map(lambda index: pick(server, index), indices))
    window = server.between(start, server.mark())
    assert [a if isinstance(a, float) else "failed" for a in answers] == [
        "failed" if index == 99 else 10.0 + index for index in indices
    ]
    assert "Out of range" in str(answers[3])
    assert max(window.batches) > 1


def test_requests_of_unlike_shapes_are_answered_each(serve: Serve) -> None:
    server = serve(picking(), "max_batch_size: 8" + declared(width=-1))
    server.apply(AS_FOUND)
    answers = [pick(server, index, width=width) for index, width in [(0, 3), (1, 5), (0, 2)]]
    assert answers == [10.0, 11.0, 10.0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('input {name: "nope" data_type: TYPE_FP32 dims: 3}', "has no input nope; it has x, idx"),
        ('input {name: "x" data_type: TYPE_INT8 dims: 3}', "is TYPE_FP32 in the ONNX model"),
    ],
)
def test_a_configuration_that_is_not_the_models_is_refused(
    serve: Serve, config: str, message: str
) -> None:
    output = 'output {name: "y" data_type: TYPE_FP32 dims: 1}'
    server = serve(picking(), f"max_batch_size: 8 {config} {output}")
    with pytest.raises(CandidateFailed, match=message):
        server.apply(AS_FOUND)


def test_python_3_13_serves_with_numpy_2(serve: Serve, cache_dir: Path) -> None:
    python = find_installed((3, 13))
    if python is None:
        pytest.skip("no Python 3.13 here")
    environment = prepare_on(python, cache_dir)
    server = serve(identity_of(TYPES), "max_batch_size: 4", environment)
    server.apply(AS_FOUND)
    for _ in range(20):
        assert_every_type_passes(server, TYPES)
    assert "PyCapsule" not in server.log_tail(1000)


def test_python_3_13_refuses_strings(serve: Serve, cache_dir: Path) -> None:
    python = find_installed((3, 13))
    if python is None:
        pytest.skip("no Python 3.13 here")
    server = serve(identity_of({"S": STRING}), "max_batch_size: 4", prepare_on(python, cache_dir))
    with pytest.raises(CandidateFailed, match="NumPy 1"):
        server.apply(AS_FOUND)


def declared(*, width: int) -> str:
    return (
        f' input [{{name: "x" data_type: TYPE_FP32 dims: {width}}},'
        ' {name: "idx" data_type: TYPE_INT64 dims: 1}]'
        ' output {name: "y" data_type: TYPE_FP32 dims: 1}'
    )


def pick(server: LocalServer, index: int, *, width: int = 3) -> float | Exception:
    """The row 10, 11, 12, …'s value at an index."""
    row = 10 + np.arange(width, dtype=np.float32)[None]
    try:
        answer = infer(server, {"x": row, "idx": np.array([[index]], np.int64)})("y")
        return float(answer[0][0])
    except InferenceServerException as error:
        refusal: Exception = error
        return refusal
