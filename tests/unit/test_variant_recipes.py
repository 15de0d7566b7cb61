from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import load_tensors_data
from onnxruntime.quantization.calibrate import HistogramCollector

from autotune.adapters.variants import gate, graphs, half
from autotune.adapters.variants.builder import VariantBuilder
from autotune.adapters.variants.calibrate import Calibrator
from autotune.adapters.variants.coverage import gaps
from autotune.adapters.variants.entropy import EntropyCollector
from autotune.adapters.variants.gate import Judged, Source
from autotune.adapters.variants.prepare import prepare
from autotune.adapters.variants.quantize import Form, Quantization, quantized
from autotune.adapters.variants.request import BuildRequest, Outputs
from autotune.adapters.variants.running import Runner
from autotune.core.model_interface import Sample
from autotune.core.study import CalibrationMethod
from autotune.core.variants import Engine, Precision, Variant
from tests.variant_models import error_against, network, requests, saved, spec

FP16 = Variant(Engine.ONNXRUNTIME, Precision.FP16)
INT8 = Variant(Engine.ONNXRUNTIME, Precision.INT8)


def request_for(
    source: Path, variant: Variant, samples: Sequence[Sample], **more: Any
) -> BuildRequest:
    return dataclasses.replace(
        BuildRequest(
            source=source,
            variant=variant,
            samples=samples,
            drop=error_against(source, samples),
            limit=0.1,
            calibration=spec(),
            calibration_samples=samples,
        ),
        **more,
    )


def graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, Any],
    *,
    dims: Sequence[int | str] = ("batch", 8),
    out: Sequence[int | str] = ("batch", 8),
    opset: int = 17,
) -> Path:
    made = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(out))],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()],
    )
    return saved(made, path, opset)


def rows(count: int, width: int = 8, seed: int = 3) -> list[Sample]:
    draw = np.random.default_rng(seed)
    return [{"x": draw.normal(0, 1, width).astype(np.float32)} for _ in range(count)]


# ---------------------------------------------------------------- sixteen bits
def test_values_beyond_fp16_are_kept_in_fp32_where_the_whole_graph_overflows(
    tmp_path: Path,
) -> None:
    source = graph(
        tmp_path / "norm.onnx",
        [
            helper.make_node("Mul", ["x", "large"], ["h"]),
            helper.make_node("Pow", ["h", "two"], ["s"]),
            helper.make_node("ReduceMean", ["s"], ["m"], axes=[1]),
            helper.make_node("Sqrt", ["m"], ["r"]),
            helper.make_node("Div", ["h", "r"], ["y"]),
        ],
        {"large": np.float32(1000), "two": np.float32(2)},
    )
    on_gpu = Variant(Engine.ONNXRUNTIME_CUDA, Precision.FP16)
    record = VariantBuilder(tmp_path).build(request_for(source, on_gpu, rows(4)))
    whole, delicate = record.attempts
    assert whole.note == "accuracy drop 100% is above sla.accuracy_drop 10%"
    assert delicate.kept
    assert record.usable


def test_bf16_weights_are_rounded_from_the_source_not_from_fp16(tmp_path: Path) -> None:
    tiny = np.full((8, 8), 1e-12, dtype=np.float32)  # 0 in fp16, no less exact than others in bf16
    source = graph(
        tmp_path / "tiny.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": tiny}
    )
    brain, _ = half.to_bf16(graphs.load(source))
    (weights,) = brain.graph.initializer
    assert weights.data_type == TensorProto.BFLOAT16
    np.testing.assert_allclose(numpy_helper.to_array(weights).astype(np.float32), tiny, rtol=0.01)


def test_nodes_stand_in_the_order_that_onnx_wants(tmp_path: Path) -> None:
    model = half.to_fp16(graphs.load(network(tmp_path / "n.onnx")))
    onnx.checker.check_model(model, full_check=True)  # refuses a node before its inputs


# ---------------------------------------------------------------- preparing graphs
@pytest.mark.parametrize("batch", ["?", "batch"])
@pytest.mark.parametrize("opset", [11, 13])
def test_an_old_opset_is_raised(tmp_path: Path, opset: int, batch: str) -> None:
    source = network(tmp_path / "old.onnx", opset=opset, batch=batch)
    prepared = prepare(source, tmp_path, 17)
    assert graphs.opset(prepared.model) >= 17
    sample = requests(1, seed=1)[0]
    np.testing.assert_allclose(
        Runner(prepared.path)(sample)["y"], Runner(source)(sample)["y"], rtol=1e-4, atol=1e-5
    )


def test_unnamed_dimensions_of_two_inputs_stay_two_dimensions(tmp_path: Path) -> None:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["?", "?"]) for name in ("a", "b")
    ]
    made = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        "two",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", "n"])],
    )
    model = onnx.load(saved(made, tmp_path / "two.onnx"))
    graphs.name_free_dimensions(model)
    names = [d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim]
    assert len(set(names)) == 4


def test_where_weights_cannot_be_quantized_per_channel_they_are_per_tensor_and_it_is_noted(
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(1)
    source = graph(
        tmp_path / "row.onnx",
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm")],
        {
            "w": draw.normal(0, 0.3, (8, 8)).astype(np.float32),
            "b": draw.normal(0, 0.3, (1, 8)).astype(np.float32),  # a row, where a vector is usual
        },
    )
    record = VariantBuilder(tmp_path).build(request_for(source, INT8, rows(8)))
    per_channel, per_tensor, *_ = record.attempts
    assert per_channel.what == "minmax, per channel"
    assert "it cannot be quantized: ValueError" in per_channel.note
    assert per_tensor.what == "minmax, per tensor"
    assert record.usable


# ---------------------------------------------------------------- calibration
def ranges_of(tmp_path: Path, method: CalibrationMethod, samples: Sequence[Sample]) -> Any:
    source = graph(
        tmp_path / "linear.onnx",
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        {"w": np.eye(64, dtype=np.float32)},
        dims=("batch", 64),
        out=("batch", 64),
    )
    prepared = prepare(source, tmp_path, 17)
    feeds = [Runner(prepared.path).feed(sample) for sample in samples]
    calibrator = Calibrator(prepared, Form.CPU, feeds, tmp_path)
    return load_tensors_data(calibrator.ranges(method).file)["x"].range_value


def heavy_tailed() -> list[Sample]:
    """Thousands of values about 1, and one of 100, in the last request."""
    samples = rows(400, width=64)
    samples[-1]["x"][0] = 100.0
    return samples


def test_minmax_takes_the_ends_of_all_requests(tmp_path: Path) -> None:
    low, high = ranges_of(tmp_path, CalibrationMethod.MINMAX, heavy_tailed())
    assert high == pytest.approx(100.0)
    assert low == pytest.approx(min(s["x"].min() for s in heavy_tailed()))


def test_the_entropy_thresholds_are_onnxruntimes_own() -> None:
    for seed in range(6):
        draw = np.random.default_rng(seed)
        values = draw.standard_t(2 + seed, 20_000).astype(np.float32)
        top = np.abs(values).max()
        counts, edges = np.histogram(values, 256, range=(-top, top))
        histogram = (counts, edges.astype(np.float32), values.min(), values.max(), top)
        assert EntropyCollector("entropy", False, 256, 128, 0, "same").get_entropy_threshold(
            histogram, 128
        ) == HistogramCollector("entropy", False, 256, 128, 0, "same").get_entropy_threshold(
            histogram, 128
        )


@pytest.mark.parametrize("method", [CalibrationMethod.ENTROPY, CalibrationMethod.PERCENTILE])
def test_entropy_and_percentile_give_up_rare_values(
    tmp_path: Path, method: CalibrationMethod
) -> None:
    _, high = ranges_of(tmp_path, method, heavy_tailed())
    assert 2.0 < high < 60.0


def test_a_tensor_that_holds_infinities_leaves_its_nodes_as_they_are(tmp_path: Path) -> None:
    source = graph(
        tmp_path / "mask.onnx",
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="matmul"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            helper.make_node("Add", ["r", "mask"], ["a"], name="add"),
            helper.make_node("Softmax", ["a"], ["y"], axis=-1, name="softmax"),
        ],
        {
            "w": np.eye(8, dtype=np.float32),
            "mask": np.array([0] * 4 + [-np.inf] * 4, dtype=np.float32),
        },
    )
    record = VariantBuilder(tmp_path).build(request_for(source, INT8, rows(8)))
    assert record.usable, record.refused
    assert any("infinities" in note for note in record.notes)


def test_a_graph_without_anything_to_quantize_is_no_int8(tmp_path: Path) -> None:
    source = graph(tmp_path / "sine.onnx", [helper.make_node("Sin", ["x"], ["y"])], {})
    record = VariantBuilder(tmp_path).build(request_for(source, INT8, rows(4)))
    assert "nothing in the graph could be quantized" in record.refused
    assert record.file == ""


def test_seven_bit_weights_stay_within_seven_bits(tmp_path: Path) -> None:
    prepared = prepare(network(tmp_path / "n.onnx"), tmp_path, 17)
    feeds = [Runner(prepared.path).feed(sample) for sample in requests(4, seed=1)]
    ranges = Calibrator(prepared, Form.CPU, feeds, tmp_path).ranges(CalibrationMethod.MINMAX)
    how = Quantization(form=Form.CPU, narrow=True)
    model = onnx.load(quantized(prepared, ranges, how, tmp_path / "narrow.onnx"))
    widest = max(
        np.abs(numpy_helper.to_array(t).astype(int)).max()
        for t in model.graph.initializer
        if t.data_type == TensorProto.INT8 and len(t.dims) > 1
    )
    assert 0 < widest <= 64


# ---------------------------------------------------------------- the gate itself
@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., Judged]:
    """Judges one graph as a variant of another."""

    def judge(source: Path, variant: Path, samples: Sequence[Sample], limit: float = 0.1) -> Judged:
        request = request_for(source, FP16, samples, limit=limit)
        return gate.judge(request, variant, Source(source))

    return judge


def scaled(path: Path, op: str, by: float, **names: str) -> Path:
    made = helper.make_graph(
        [helper.make_node(op, ["x", "by"], [names.get("output", "y")])],
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info(names.get("output", "y"), TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(np.float32(by), "by")],
    )
    return saved(made, path)


def test_nan_in_the_answers_is_refused(tmp_path: Path, judged: Callable[..., Judged]) -> None:
    source = scaled(tmp_path / "a.onnx", "Mul", 2.0)
    broken = scaled(tmp_path / "b.onnx", "Pow", 0.5)  # roots of negative numbers
    found = judged(source, broken, rows(2))
    assert "NaN or infinite values, the source's 0" in found.refused
    assert found.drop is None


def test_other_output_names_are_refused(tmp_path: Path, judged: Callable[..., Judged]) -> None:
    source = scaled(tmp_path / "a.onnx", "Mul", 2.0)
    other = scaled(tmp_path / "b.onnx", "Mul", 2.0, output="z")
    assert (
        "its outputs are z tensor(float), the source's y" in judged(source, other, rows(2)).refused
    )


def test_other_shapes_are_refused(tmp_path: Path, judged: Callable[..., Judged]) -> None:
    source = graph(
        tmp_path / "a.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}, out=("b", "n")
    )
    other = graph(
        tmp_path / "b.onnx",
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)],
        {},
        out=("b", "n"),
    )
    assert "has the shape [16], the source's [8]" in judged(source, other, rows(2)).refused


def test_answers_that_graph_optimizations_change_are_refused(tmp_path: Path) -> None:
    source = scaled(tmp_path / "a.onnx", "Mul", 2.0)
    drops = iter([0.0, 0.5])  # with optimizations off, then on
    request = request_for(source, FP16, rows(2), drop=lambda _: next(drops))
    plain = gate.judge(request, source, Source(source))
    found = gate.judge_optimized(request, source, Source(source), plain)
    assert plain.passed
    assert "accuracy drop 0% with them off, 50% with them on" in found.refused


def test_a_changed_answer_below_the_limit_is_only_noted(tmp_path: Path) -> None:
    source = scaled(tmp_path / "a.onnx", "Mul", 2.0)
    drops = iter([0.0, 0.05])
    request = request_for(source, FP16, rows(2), drop=lambda _: next(drops))
    plain = gate.judge(request, source, Source(source))
    found = gate.judge_optimized(request, source, Source(source), plain)
    assert found.passed
    assert "graph optimizations change" in found.notes[0]


def test_requests_are_run_one_at_a_time(tmp_path: Path) -> None:
    fixed = graph(
        tmp_path / "one.onnx",
        [helper.make_node("Relu", ["x"], ["y"])],
        {},
        dims=(1, 8),
        out=(1, 8),
    )
    answers: list[Sequence[Outputs]] = []
    request = request_for(fixed, FP16, rows(3), drop=lambda outputs: answers.append(outputs) or 0.0)
    assert gate.judge(request, fixed, Source(fixed)).passed
    assert [outputs["y"].shape for outputs in answers[0]] == [(8,)] * 3


# ---------------------------------------------------------------- do the samples cover?
def of(values: Any, name: str = "x") -> list[Sample]:
    return [{name: np.asarray(row, dtype=np.float32)} for row in values]


def test_samples_of_one_kind_have_no_gap() -> None:
    assert gaps(requests(16, seed=1), requests(16, seed=2)) == ()


@pytest.mark.parametrize(
    ("calibration", "evaluation", "words"),
    [
        (requests(16, seed=1), requests(16, seed=2, scale=30.0), "calibration saw"),
        (requests(16, seed=1), of(np.full((16, 3, 8, 8), 1.5)), "distributed otherwise"),
        (of(np.ones((16, 8))), of(np.ones((16, 12))), "sizes 12 to 12 in dimension 0"),
        (
            of(np.ones((16, 8))),
            of(np.ones((16, 8)), "z"),
            "no calibration sample has the input 'z'",
        ),
        (requests(2, seed=1), requests(16, seed=2), "only 2 samples"),
    ],
)
def test_what_calibration_samples_lack_is_said(
    calibration: list[Sample], evaluation: list[Sample], words: str
) -> None:
    assert any(words in gap for gap in gaps(calibration, evaluation))
