"""The output check, against servers that answer wrongly in the ways that have been seen."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.reference import BasicOutputCheck, HttpInfer, OnnxOutputCheck
from autotune.core.errors import CandidateFailed, InputRefused, OutputsDiffer, ServerFailed
from autotune.core.model_interface import Endpoint, ModelInterface, Sample, TensorSpec
from autotune.core.study import Tolerance
from tests import onnx_models
from tests.null_process import MODEL, null_server

ENDPOINT = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")
Outputs = dict[str, Any]
Answer = Callable[[list[Outputs]], list[Outputs]]


def interface(datatype: str = "FP32", outputs: tuple[int, ...] = (3,)) -> ModelInterface:
    return ModelInterface(
        name="m",
        inputs=(TensorSpec(name="x", datatype=datatype, shape=(4,)),),
        outputs=(TensorSpec(name="y", datatype=datatype, shape=outputs),),
        batched=True,
    )


def samples(count: int = 5, dtype: str = "float32") -> list[Sample]:
    rng = np.random.default_rng(7)
    return [{"x": rng.normal(size=4).astype(dtype)} for _ in range(count)]


class FakeServer:
    """Runs the ONNX file on what ``read`` makes of the inputs, and answers what ``answer`` makes
    of the outputs."""

    def __init__(
        self,
        onnx: Path,
        *,
        read: Callable[[Any], Any] = lambda array: array,
        answer: Answer = lambda outputs: outputs,
        answer_at_once: Answer | None = None,
    ) -> None:
        self.session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
        self.read = read
        self.answer = answer
        self.answer_at_once = answer_at_once or answer
        self.sent: list[int] = []

    def __call__(self, endpoint: Endpoint, model: ModelInterface) -> FakeServer.Infer:
        return FakeServer.Infer(self)

    class Infer:
        def __init__(self, server: FakeServer) -> None:
            self.server = server

        def __call__(self, samples: Sequence[Sample], *, at_once: int) -> list[Outputs]:
            self.server.sent.append(at_once)
            outputs = [
                {"y": self.server.session.run(["y"], {"x": self.server.read(s["x"][None])})[0]}
                for s in samples
            ]
            answer = self.server.answer if at_once == 1 else self.server.answer_at_once
            return answer(outputs)


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return onnx_models.linear(tmp_path / "linear.onnx")


def each(change: Callable[[Any], Any]) -> Answer:
    return lambda outputs: [{"y": change(output["y"].copy())} for output in outputs]


def repeated_constant(array: Any) -> Any:
    return np.full_like(array, array.flat[0])


def spoilt(array: Any) -> Any:
    array[0, 2] += 1
    return array


def check(linear: Path, server: FakeServer, tolerance: Tolerance | None = None) -> str:
    return OnnxOutputCheck(linear, tolerance, connect=server).check(
        ENDPOINT, interface(), samples()
    )


def test_right_answers_pass_one_by_one_and_at_once(linear: Path):
    server = FakeServer(linear)
    line = check(linear, server)
    assert server.sent == [1, 5]
    assert "10 answers" in line
    assert "linear.onnx run directly" in line


def test_inputs_read_as_one_repeated_constant_are_caught_and_the_cause_is_named(linear: Path):
    with pytest.raises(OutputsDiffer, match="'y'") as caught:
        check(linear, FakeServer(linear, read=repeated_constant))
    assert "numpy<2" in caught.value.next_step


def test_a_wrong_value_is_told_with_both_values_and_its_place(linear: Path):
    with pytest.raises(
        OutputsDiffer, match=r"at index \[0, 2\] of shape \[1, 3\]; 1 of 3"
    ) as caught:
        check(linear, FakeServer(linear, answer=each(spoilt)))
    direct = FakeServer(linear)(ENDPOINT, interface())(samples()[:1], at_once=1)[0]["y"][0, 2]
    words = f"answers {direct + 1!s} where the model run directly gives {direct!s}"
    assert words in str(caught.value)


def test_answers_mixed_up_between_requests_that_arrive_at_once_are_caught(linear: Path):
    server = FakeServer(linear, answer_at_once=lambda outputs: outputs[::-1])
    with pytest.raises(OutputsDiffer, match="5 at once"):
        check(linear, server)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: y[:, :0], r"shape is \(1, 0\), the model's \(1, 3\)"),
        (lambda y: y[0], "shape"),
        (lambda y: y.astype("float64"), "datatype is float64, the model's float32"),
        (lambda y: y * np.float32("nan"), "answers nan"),
        (lambda y: y * np.float32("inf"), "answers -?inf"),
        (np.zeros_like, r"answers 0\.0"),
    ],
)
def test_other_shapes_datatypes_and_values_are_caught(
    linear: Path, change: Callable[[Any], Any], words: str
):
    with pytest.raises(OutputsDiffer, match=words):
        check(linear, FakeServer(linear, answer=each(change)))


def test_rounding_passes_and_the_study_s_own_tolerance_decides(linear: Path):
    server = FakeServer(linear, answer=each(lambda y: y * np.float32(1.0005)))
    assert "largest difference" in check(linear, server)
    with pytest.raises(OutputsDiffer):
        check(linear, server, Tolerance(rtol=1e-5, atol=0.0))


def test_nan_and_infinity_that_the_model_itself_gives_pass(tmp_path: Path):
    file = onnx_models.single(tmp_path / "log.onnx", "Log", TensorProto.FLOAT)
    values = np.array([-1.0, 0.0, 1.0, np.inf], dtype=np.float32)
    one = OnnxOutputCheck(file, connect=FakeServer(file))
    assert one.check(ENDPOINT, interface(outputs=(4,)), [{"x": values}, {"x": values}])


def test_fp16_is_given_its_own_rounding(tmp_path: Path):
    file = onnx_models.linear(tmp_path / "half.onnx", dtype=TensorProto.FLOAT16)
    rounding = each(lambda y: np.nextafter(np.nextafter(y, np.float16(9)), np.float16(9)))
    one = OnnxOutputCheck(file, connect=FakeServer(file, answer=rounding))
    assert one.check(ENDPOINT, interface("FP16"), samples(dtype="float16"))


def test_integers_must_be_equal(tmp_path: Path):
    file = onnx_models.single(tmp_path / "neg.onnx", "Neg", TensorProto.INT64)
    inputs = [{"x": np.array([10**15, 2, 3, n])} for n in range(3)]
    model = interface("INT64", outputs=(4,))
    assert OnnxOutputCheck(file, connect=FakeServer(file)).check(ENDPOINT, model, inputs)
    off_by_one = FakeServer(file, answer=each(lambda y: y + 1))
    with pytest.raises(OutputsDiffer, match="answers -999999999999999 where"):
        OnnxOutputCheck(file, connect=off_by_one).check(ENDPOINT, model, inputs)


def test_strings_must_be_equal_in_whichever_form_they_come(tmp_path: Path):
    file = onnx_models.single(tmp_path / "same.onnx", "Identity", TensorProto.STRING)
    model = interface("BYTES", outputs=(4,))
    inputs = [{"x": np.array([b"a", "\u00e9".encode(), b"", b"b"], dtype=object)}]

    def texts(array: Any) -> Any:
        return np.array([v.decode() for v in array.flat], dtype=object).reshape(array.shape)

    def encoded(array: Any) -> Any:
        return np.array([v.encode() for v in array.flat], dtype=object).reshape(array.shape)

    right = FakeServer(file, read=texts, answer=each(encoded))
    assert OnnxOutputCheck(file, connect=right).check(ENDPOINT, model, inputs)
    wrong = FakeServer(file, read=texts, answer=each(lambda y: encoded(y)[:, ::-1]))
    with pytest.raises(OutputsDiffer, match="answers b'b' where the model run directly gives a"):
        OnnxOutputCheck(file, connect=wrong).check(ENDPOINT, model, inputs)


def test_an_output_without_dimensions_comes_reshaped_from_triton(tmp_path: Path):
    file = onnx_models.row_sum(tmp_path / "sum.onnx")
    server = FakeServer(file, answer=each(lambda y: y[:, None]))
    model = interface(outputs=(1,))
    assert OnnxOutputCheck(file, connect=server).check(ENDPOINT, model, samples())


def test_samples_that_the_model_does_not_take_are_refused(linear: Path):
    wrong = [{"x": np.zeros(9, dtype=np.float32)}]
    with pytest.raises(InputRefused, match="does not take sample 0"):
        OnnxOutputCheck(linear, connect=FakeServer(linear)).check(ENDPOINT, interface(), wrong)
    with pytest.raises(InputRefused, match="at least one sample"):
        OnnxOutputCheck(linear, connect=FakeServer(linear)).check(ENDPOINT, interface(), [])


def test_another_model_s_outputs_are_told_apart_by_name(linear: Path):
    model = interface()
    other = ModelInterface(
        name="m",
        inputs=model.inputs,
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(3,)),),
        batched=True,
    )
    with pytest.raises(OutputsDiffer, match=r"does not have.*logits"):
        OnnxOutputCheck(linear, connect=FakeServer(linear)).check(ENDPOINT, other, samples())


def test_a_server_that_is_not_there_is_the_server_s_failure():
    with pytest.raises(ServerFailed, match="does not answer"):
        HttpInfer(ENDPOINT, interface())(samples(1), at_once=1)


def test_a_server_that_hangs_is_the_server_s_failure(capfd: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        endpoint = Endpoint(http=f"{host}:{port}", grpc="")
        with pytest.raises(ServerFailed, match=r"does not answer"):
            HttpInfer(endpoint, interface(), timeout_s=0.3)(samples(3), at_once=3)
    assert "Traceback" not in capfd.readouterr().err


def test_an_error_answered_to_a_valid_request_is_the_candidate_s_failure():
    sample: Sample = {"IN": np.zeros(4, np.float32)}
    with null_server("--mode", "503") as server, pytest.raises(CandidateFailed, match="an error"):
        HttpInfer(server.endpoint, MODEL)([sample], at_once=1)


# -------------------------------------------------------------------------- without a reference
def basic(server: FakeServer, inputs: list[Sample] | None = None) -> str:
    return BasicOutputCheck(connect=server).check(ENDPOINT, interface(), inputs or samples())


def test_without_a_reference_the_check_says_so(linear: Path):
    line = basic(FakeServer(linear))
    assert line.startswith("no reference to compare with")
    assert "the same for 5 requests at once" in line


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"read": np.ones_like}, "all give the same answer"),
        ({"answer": each(lambda y: y[:, :0])}, "declared FP32 of shape"),
        ({"answer": each(lambda y: y.astype("float64"))}, "declared FP32 of shape"),
        ({"answer": each(lambda y: y * np.float32("nan"))}, "holds 3 NaN"),
        ({"answer_at_once": lambda outputs: outputs[::-1]}, "at once, against the same sent"),
    ],
)
def test_without_a_reference_what_can_be_seen_is_caught(
    linear: Path, server: dict[str, Any], words: str
):
    with pytest.raises(OutputsDiffer, match=words):
        basic(FakeServer(linear, **server))


def test_without_a_reference_a_model_that_draws_lots_is_not_blamed(linear: Path):
    rng = np.random.default_rng(0)
    server = FakeServer(linear, answer=each(lambda y: rng.normal(size=y.shape).astype(y.dtype)))
    assert "answers differently each time" in basic(server)


def test_equal_inputs_may_give_equal_answers(linear: Path):
    assert basic(FakeServer(linear), [{"x": np.zeros(4, dtype=np.float32)}] * 3)


def mean_free(path: Path) -> Path:
    """y = x − mean over the batch: what a sample gets depends on what it is batched with."""
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        onnx.helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    x = onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    return onnx_models.save(onnx.helper.make_graph(nodes, "mean_free", [x], [y]), path, "")


def test_a_model_whose_answer_depends_on_its_batch_mates_is_refused_where_requests_join(
    tmp_path: Path,
) -> None:
    path = mean_free(tmp_path / "mean.onnx")
    check = OnnxOutputCheck(path, connect=FakeServer(path))
    with pytest.raises(OutputsDiffer, match="in a batch of 5 than for the same alone") as refused:
        check.check(ENDPOINT, interface(outputs=(4,)), samples())
    assert "leave max_batch_size at 1" in str(refused.value)


def test_a_model_whose_answer_depends_on_its_batch_mates_passes_where_none_join(
    tmp_path: Path,
) -> None:
    path = mean_free(tmp_path / "mean.onnx")
    check = OnnxOutputCheck(path, joins=False, connect=FakeServer(path))
    assert "match" in check.check(ENDPOINT, interface(outputs=(4,)), samples())


def test_a_model_that_answers_differently_each_time_is_told_from_a_bad_server(
    tmp_path: Path,
) -> None:
    node = onnx.helper.make_node("RandomNormalLike", ["x"], ["y"])
    x = onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = onnx.helper.make_graph([node], "random", [x], [y])
    path = onnx_models.save(graph, tmp_path / "random.onnx", "")
    with pytest.raises(OutputsDiffer, match="differently each time"):
        OnnxOutputCheck(path, connect=FakeServer(path)).check(
            ENDPOINT, interface(outputs=(4,)), samples()
        )


def test_a_tensor_that_the_configuration_reshapes_is_compared_as_it_is_served(linear: Path):
    """Requests bring and get [2, 2] and [1, 3]; the file takes [4] and gives [3]."""
    config = ModelConfig()
    config.input.add(name="x", dims=[2, -1]).reshape.shape.extend([4])
    config.output.add(name="y", dims=[1, 3]).reshape.shape.extend([3])

    def connect(endpoint: Endpoint, model: ModelInterface) -> Any:
        def infer(sent: Sequence[Sample], *, at_once: int) -> list[Outputs]:
            session = onnxruntime.InferenceSession(linear, providers=["CPUExecutionProvider"])
            flat = [sample["x"].reshape(1, 4) for sample in sent]
            return [{"y": session.run(None, {"x": x})[0].reshape(1, 1, 3)} for x in flat]

        return infer

    inputs = [{"x": sample["x"].reshape(2, 2)} for sample in samples()]
    one = OnnxOutputCheck(linear, connect=connect, config=config)
    assert "match" in one.check(ENDPOINT, interface(outputs=(1, 3)), inputs)
