from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from autotune.adapters.variants import calibrated, graphs
from autotune.adapters.variants.builder import VariantBuilder
from autotune.adapters.variants.made import Made, Say
from autotune.adapters.variants.request import BuildRequest, Outputs
from autotune.adapters.variants.running import Runner
from autotune.core.errors import InputRefused
from autotune.core.study import CalibrationMethod
from autotune.core.variants import Attempt, Engine, Precision, Variant, VariantRecord
from tests.variant_models import error_against, network, requests, spec

INT8 = Variant(Engine.ONNXRUNTIME, Precision.INT8)
FP16 = Variant(Engine.ONNXRUNTIME, Precision.FP16)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("source") / "network.onnx")


def request_of(source: Path, variant: Variant = INT8, **changes: Any) -> BuildRequest:
    samples = requests(12, seed=1)
    request = BuildRequest(
        source=source,
        variant=variant,
        samples=samples,
        drop=error_against(source, samples),
        limit=0.1,
        calibration=spec(),
        calibration_samples=requests(16, seed=2),
    )
    return dataclasses.replace(request, **changes)


def kept(record: VariantRecord) -> Attempt:
    (one,) = (attempt for attempt in record.attempts if attempt.kept)
    return one


# ---------------------------------------------------------------- what is built
def test_an_int8_variant_is_built_and_judged(source: Path, tmp_path: Path) -> None:
    record = VariantBuilder(tmp_path).build(request_of(source))
    assert record.usable
    assert not record.cached
    assert record.accuracy_drop is not None
    assert 0 < record.accuracy_drop < 0.1
    assert kept(record).accuracy_drop == record.accuracy_drop
    assert kept(record).what.startswith("minmax, per channel")
    assert record.size_mb == pytest.approx(Path(record.file).stat().st_size / 1e6)
    assert record.tools["onnxruntime"]
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(record.file).graph.node}


def test_the_gate_judges_the_file_that_is_kept(source: Path, tmp_path: Path) -> None:
    request = request_of(source)
    record = VariantBuilder(tmp_path).build(request)
    runner = Runner(Path(record.file))
    assert record.accuracy_drop == request.drop([runner(sample) for sample in request.samples])


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32])
def test_the_source_itself_is_the_fp32_variant(
    source: Path, tmp_path: Path, precision: Precision
) -> None:
    record = VariantBuilder(tmp_path).build(
        request_of(source, Variant(Engine.ONNXRUNTIME_CUDA, precision))
    )
    assert Path(record.file) == source
    assert record.accuracy_drop == 0.0
    assert ("TF32 switched on" in record.notes[0]) == (precision is Precision.TF32)


@pytest.mark.parametrize(
    ("variant", "wanted", "worst"),
    [
        (FP16, {TensorProto.FLOAT16}, 0.01),
        (Variant(Engine.ONNXRUNTIME_TENSORRT, Precision.INT8), {TensorProto.INT8}, 0.1),
        (Variant(Engine.ONNXRUNTIME_TENSORRT, Precision.FP8), {TensorProto.FLOAT8E4M3FN}, 0.1),
        (Variant(Engine.ONNXRUNTIME_TENSORRT, Precision.BF16), {TensorProto.BFLOAT16}, 0.05),
    ],
    ids=str,
)
def test_each_precision_holds_its_weights_in_it_and_answers_nearly_as_the_source(
    source: Path, tmp_path: Path, variant: Variant, wanted: set[int], worst: float
) -> None:
    record = VariantBuilder(tmp_path).build(request_of(source, variant))
    assert record.usable
    assert record.accuracy_drop is not None
    assert 0 < record.accuracy_drop < worst
    model = onnx.load(record.file)
    largest = max(model.graph.initializer, key=lambda tensor: int(np.prod(tensor.dims)))
    assert largest.data_type in wanted
    assert [i.type.tensor_type.elem_type for i in model.graph.input] == [TensorProto.FLOAT]
    assert [o.type.tensor_type.elem_type for o in model.graph.output] == [TensorProto.FLOAT]
    onnx.checker.check_model(model, full_check=True)


def test_tensorrts_int8_is_signed_without_zero_points_and_with_biases_in_fp32(
    source: Path, tmp_path: Path
) -> None:
    record = VariantBuilder(tmp_path).build(
        request_of(source, Variant(Engine.ONNXRUNTIME_TENSORRT, Precision.INT8))
    )
    tensors = {tensor.name: tensor for tensor in onnx.load(record.file).graph.initializer}
    nodes = onnx.load(record.file).graph.node
    zeros = {n.input[2] for n in nodes if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    assert zeros
    assert all(not onnx.numpy_helper.to_array(tensors[name]).any() for name in zeros)
    assert {tensors[name].data_type for name in zeros} == {TensorProto.INT8}
    made_by = {name: node.op_type for node in nodes for name in node.output}
    biases = [node.input[2] for node in nodes if node.op_type == "Conv"]
    assert all(name not in made_by for name in biases)
    behind = [node.input[0] for node in nodes if node.op_type == "QuantizeLinear"]
    assert all(made_by.get(name) not in ("Conv", "Gemm") for name in behind)


def test_bf16_on_the_cpu_is_simulated_and_never_served(source: Path, tmp_path: Path) -> None:
    record = VariantBuilder(tmp_path).build(
        request_of(source, Variant(Engine.ONNXRUNTIME, Precision.BF16))
    )
    assert "simulation" in record.refused
    assert record.accuracy_drop is not None
    assert 0.0005 < record.accuracy_drop < 0.05


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32])
def test_a_source_in_fp16_does_not_become_fp32_by_its_name(
    source: Path, tmp_path: Path, precision: Precision
) -> None:
    half = VariantBuilder(tmp_path).build(request_of(source, FP16))
    request = request_of(Path(half.file), Variant(Engine.ONNXRUNTIME_CUDA, precision))
    record = VariantBuilder(tmp_path).build(request)
    assert record.refused.startswith("the source's weights are fp16")
    assert record.file == ""


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8])
def test_a_source_that_is_quantized_already_is_no_source_of_variants(
    source: Path, tmp_path: Path, precision: Precision
) -> None:
    quantized = VariantBuilder(tmp_path).build(request_of(source))
    request = request_of(Path(quantized.file), Variant(Engine.ONNXRUNTIME_CUDA, precision))
    record = VariantBuilder(tmp_path).build(request)
    assert record.refused.startswith("the source is quantized already (int8)")


def test_calibration_without_data_is_refused_with_what_to_give(
    source: Path, tmp_path: Path
) -> None:
    record = VariantBuilder(tmp_path).build(request_of(source, calibration_samples=()))
    assert "calibration.data" in record.refused
    assert record.file == ""


def test_a_drop_above_the_limit_is_refused_with_both_numbers(source: Path, tmp_path: Path) -> None:
    request = request_of(source, FP16, drop=lambda _: 0.041, limit=0.01)
    record = VariantBuilder(tmp_path).build(request)
    assert "accuracy drop 4.1% is above sla.accuracy_drop 1%" in record.refused
    assert record.accuracy_drop == 0.041


def test_without_a_limit_nothing_is_refused_for_its_drop(source: Path, tmp_path: Path) -> None:
    request = request_of(source, FP16, drop=lambda _: 0.9, limit=None)
    assert VariantBuilder(tmp_path).build(request).usable


def test_a_source_that_cannot_be_read_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    request = BuildRequest(
        source=tmp_path / "broken.onnx", variant=FP16, samples=[], drop=lambda _: 0.0, limit=None
    )
    with pytest.raises(InputRefused, match="not a whole ONNX file"):
        VariantBuilder(tmp_path).build(request)


def test_a_metric_that_fails_refuses_the_variant_and_says_so(source: Path, tmp_path: Path) -> None:
    def fails(_: Sequence[Outputs]) -> float:
        raise ZeroDivisionError("no letters")

    record = VariantBuilder(tmp_path).build(request_of(source, FP16, drop=fails))
    assert (
        "the accuracy metric fails on its answers: ZeroDivisionError: no letters" in record.refused
    )


def test_a_metric_that_cannot_be_used_is_the_users_error(source: Path, tmp_path: Path) -> None:
    def refuses(_: Sequence[Outputs]) -> float:
        raise InputRefused("the function gives no number")

    with pytest.raises(InputRefused, match="no number"):
        VariantBuilder(tmp_path).build(request_of(source, FP16, drop=refuses))
    assert not [entry for entry in (tmp_path / "variants").iterdir() if entry.is_dir()]


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """To a writer, the same as a full disk: an OSError in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("variant", "size"),
    [(FP16, 2_000), (INT8, 2_000), (INT8, 8_000)],
    ids=["converting", "preparing", "calibrating"],
)
def test_a_full_disk_is_not_taken_for_a_model_that_cannot_be_built(
    source: Path, tmp_path: Path, variant: Variant, size: int
) -> None:
    request = request_of(source, variant)
    with no_file_above(size), pytest.raises(OSError, match="File too large"):
        VariantBuilder(tmp_path).build(request)
    assert VariantBuilder(tmp_path).build(request).usable


def test_a_disk_that_is_full_while_quantizing_is_not_taken_for_a_failed_attempt(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(calibrated, "quantized", full)
    with pytest.raises(OSError, match="No space left"):
        VariantBuilder(tmp_path).build(request_of(source))


# ---------------------------------------------------------------- the cache
def test_what_was_built_is_taken_from_the_cache_with_its_whole_record(
    source: Path, tmp_path: Path
) -> None:
    first = VariantBuilder(tmp_path).build(request_of(source))
    told: list[str] = []
    again = VariantBuilder(tmp_path, told.append).build(request_of(source))
    assert again == dataclasses.replace(first, cached=True)
    assert told == []


def test_an_entry_whose_file_was_changed_is_built_again(source: Path, tmp_path: Path) -> None:
    first = VariantBuilder(tmp_path).build(request_of(source, FP16))
    content = Path(first.file).read_bytes()
    Path(first.file).write_bytes(content[:-1] + b"?")
    again = VariantBuilder(tmp_path).build(request_of(source, FP16))
    assert not again.cached
    assert Path(again.file).read_bytes() == content


def test_what_was_refused_for_want_of_time_is_not_kept(tmp_path: Path) -> None:
    delicate = network(tmp_path / "delicate.onnx", delicate=True)
    request = request_of(delicate, limit=0.05)
    hurried = VariantBuilder(tmp_path, search_s=0.0).build(request)
    assert hurried.refused.startswith("accuracy drop")
    assert any("the time was up" in note for note in hurried.notes)
    given_time = VariantBuilder(tmp_path).build(request)
    assert given_time.usable
    assert not given_time.cached
    assert VariantBuilder(tmp_path, search_s=0.0).build(request).cached, "what passed is"


@pytest.mark.parametrize(
    "spoiled", ["", "{}", "[]", '{"record": {}, "files": {}}', '{"record": {}, "files": []}']
)
def test_an_entry_whose_record_cannot_be_read_is_built_again(
    source: Path, tmp_path: Path, spoiled: str
) -> None:
    first = VariantBuilder(tmp_path).build(request_of(source, FP16))
    Path(first.file).with_name("record.json").write_text(spoiled)
    assert not VariantBuilder(tmp_path).build(request_of(source, FP16)).cached
    assert VariantBuilder(tmp_path).build(request_of(source, FP16)).cached


@pytest.mark.parametrize("change", ["variant", "files"])
def test_an_entry_that_names_what_is_not_known_or_not_there_is_built_again(
    source: Path, tmp_path: Path, change: str
) -> None:
    first = VariantBuilder(tmp_path).build(request_of(source, FP16))
    stored = Path(first.file).with_name("record.json")
    entry = json.loads(stored.read_text())
    if change == "variant":
        entry["record"]["variant"] = "a-later-engine-fp4"
    else:
        entry["files"] = {}
        Path(first.file).unlink()
    stored.write_text(json.dumps(entry))
    again = VariantBuilder(tmp_path).build(request_of(source, FP16))
    assert not again.cached
    assert Path(again.file).is_file()


def _build_and_die(source: Path, cache: Path) -> None:
    def dies(_: Sequence[Outputs]) -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    VariantBuilder(cache).build(request_of(source, FP16, drop=dies))


def test_a_build_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    source: Path, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_build_and_die, args=(source, tmp_path))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    left = [entry for entry in (tmp_path / "variants").iterdir() if entry.is_dir()]
    assert len(left) == 1
    record = VariantBuilder(tmp_path).build(request_of(source, FP16))
    assert record.usable
    assert not record.cached
    assert [e for e in (tmp_path / "variants").iterdir() if e.is_dir()] == [
        Path(record.file).parent
    ]


def folders(cache: Path) -> list[Path]:
    return [entry for entry in (cache / "variants").iterdir() if entry.is_dir()]


def test_what_a_killed_build_left_is_deleted_by_the_next_build_of_anything(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    child = multiprocessing.get_context("spawn").Process(
        target=_build_and_die, args=(source, tmp_path)
    )
    child.start()
    child.join(60)
    assert len(folders(tmp_path)) == 1
    assert not list((tmp_path / "tmp").glob("[!.]*")), "scratch stands in the cache"
    record = VariantBuilder(tmp_path).build(request_of(source))
    assert folders(tmp_path) == [Path(record.file).parent]
    assert [entry.name for entry in Path(record.file).parent.iterdir() if entry.is_dir()] == []


def test_a_build_that_goes_on_is_not_swept_away_by_another(source: Path, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    records: list[VariantRecord] = []

    def slow(_: Sequence[Outputs]) -> float:
        begun.set()
        go_on.wait(60)
        return 0.0

    def build() -> None:
        records.append(VariantBuilder(tmp_path).build(request_of(source, FP16, drop=slow)))

    thread = threading.Thread(target=build)
    thread.start()
    assert begun.wait(60)
    assert VariantBuilder(tmp_path).build(request_of(source)).usable
    go_on.set()
    thread.join(60)
    assert records[0].usable
    assert Path(records[0].file).is_file()


def test_a_cache_may_be_named_relative_to_where_one_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert VariantBuilder(Path("cache")).build(request_of(source)).usable


def test_two_that_want_the_same_at_once_build_it_once(source: Path, tmp_path: Path) -> None:
    told: list[str] = []
    records: list[VariantRecord] = []

    def build() -> None:
        records.append(VariantBuilder(tmp_path, told.append).build(request_of(source, FP16)))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(record.cached for record in records) == [False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"calibration_samples": requests(16, seed=9)},
        {"calibration": spec(CalibrationMethod.PERCENTILE)},
        {"samples": requests(12, seed=1)[:6]},
        {"limit": 0.2},
        {"gate": "another metric"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_decides_the_artefact_is_part_of_its_digest(
    source: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    plain = request_of(source, drop=lambda _: 0.0)
    builder = VariantBuilder(tmp_path)
    first = builder.build(plain)
    other = builder.build(dataclasses.replace(plain, **changes))
    assert other.digest != first.digest
    assert not other.cached


def test_another_model_is_another_digest(source: Path, tmp_path: Path) -> None:
    other = network(tmp_path / "network.onnx", seed=5)
    builder = VariantBuilder(tmp_path)
    digests = {builder.build(request_of(one, FP16)).digest for one in (source, other)}
    assert len(digests) == 2


def test_weights_beside_the_file_are_part_of_the_digest(tmp_path: Path) -> None:
    digests = set()
    for seed in (0, 1):
        model = onnx.load(network(tmp_path / f"{seed}.onnx", seed=seed))
        path = tmp_path / "external" / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        (path.parent / "weights").unlink(missing_ok=True)
        onnx.save(
            model, str(path), save_as_external_data=True, location="weights", size_threshold=0
        )
        digests.add(VariantBuilder(tmp_path).build(request_of(path, FP16)).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_a_graph_too_large_for_one_file_keeps_its_weights_beside_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    monkeypatch.setattr(graphs, "_LARGEST_FILE", 1000)
    request = request_of(source, Variant(Engine.ONNXRUNTIME, precision))
    record = VariantBuilder(tmp_path).build(request)
    file = Path(record.file)
    (weights,) = graphs.beside(file)
    assert weights.name == f"{file.name}.data"
    assert record.size_mb == pytest.approx((file.stat().st_size + weights.stat().st_size) / 1e6)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert not VariantBuilder(tmp_path).build(request).cached


# ---------------------------------------------------------------- the attempts
def test_every_method_is_tried_and_the_least_drop_kept(source: Path, tmp_path: Path) -> None:
    record = VariantBuilder(tmp_path).build(
        request_of(source, calibration=spec(*CalibrationMethod))
    )
    swept = record.attempts[:3]  # where sums saturate, narrower weights are tried as well
    assert [attempt.what for attempt in swept] == [f"{m}, per channel" for m in CalibrationMethod]
    narrow = "7-bit" in kept(record).what
    drops = [a.accuracy_drop for a in record.attempts if ("7-bit" in a.what) == narrow]
    assert kept(record).accuracy_drop == min(drop for drop in drops if drop is not None)


def test_a_delicate_layer_is_found_and_left_out_with_its_clip_until_the_gate_passes(
    tmp_path: Path,
) -> None:
    source = network(tmp_path / "delicate.onnx", delicate=True)
    record = VariantBuilder(tmp_path).build(request_of(source, limit=0.05))
    assert record.usable
    first, *_ = record.attempts
    assert first.accuracy_drop is not None
    assert first.accuracy_drop > 0.05
    assert kept(record).what.endswith("1 layer left in the source's precision")
    assert "conv2" in kept(record).note
    taken_in = {
        name: node.name
        for node in onnx.load(record.file).graph.node
        if node.op_type == "QuantizeLinear"
        for name in node.input[:1]
    }
    assert "c2" not in taken_in
    assert "k2" not in taken_in


def test_where_nodes_are_named_no_other_is_sought(tmp_path: Path) -> None:
    source = network(tmp_path / "delicate.onnx", delicate=True)
    request = request_of(source, limit=0.05, calibration=spec(exclude=("conv1", "nowhere")))
    record = VariantBuilder(tmp_path).build(request)
    assert "is above sla.accuracy_drop 5%" in record.refused
    assert all("1 layer left" in attempt.what for attempt in record.attempts)
    assert any("nowhere" in note for note in record.notes)


def test_no_layer_is_left_out_where_the_sweep_passes(source: Path, tmp_path: Path) -> None:
    record = VariantBuilder(tmp_path).build(request_of(source))
    assert not any("left" in attempt.what for attempt in record.attempts)


def test_the_search_for_delicate_layers_ends_with_its_time(tmp_path: Path) -> None:
    source = network(tmp_path / "delicate.onnx", delicate=True)
    builder = VariantBuilder(tmp_path, search_s=0.0)
    record = builder.build(request_of(source, limit=1e-6))
    assert any("the time was up" in note for note in record.notes)
    assert "is above sla.accuracy_drop" in record.refused


# ---------------------------------------------------------------- other engines
class Plans:
    """Stands for TensorRT: writes down which graphs it is given."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def tools(self) -> dict[str, str]:
        return {"tensorrt": "11.0", "gpu": "none such"}

    def build(self, request: BuildRequest, onnx: Path | None, folder: Path, say: Say) -> Made:
        assert onnx is not None
        self.given.append(onnx.read_bytes())
        (folder / "model.plan").write_bytes(b"plan")
        return Made(file=folder / "model.plan", notes=("built",))


PLAN = Variant(Engine.TENSORRT, Precision.INT8)


def test_an_engine_is_built_from_the_gated_graph_and_its_record_tells_both(
    source: Path, tmp_path: Path
) -> None:
    plans = Plans()
    builder = VariantBuilder(tmp_path, engines={Engine.TENSORRT: plans})
    record = builder.build(request_of(source, PLAN))
    graph = builder.build(request_of(source, Variant(Engine.ONNXRUNTIME_TENSORRT, Precision.INT8)))
    assert plans.given == [Path(graph.file).read_bytes()]
    assert graph.cached
    assert Path(record.file).read_bytes() == b"plan"
    assert record.accuracy_drop == graph.accuracy_drop
    assert record.attempts == graph.attempts
    assert "built" in record.notes
    assert builder.build(request_of(source, PLAN)).cached


def test_an_engine_is_not_built_again_for_another_gate_on_the_same_graph(
    source: Path, tmp_path: Path
) -> None:
    plans = Plans()
    builder = VariantBuilder(tmp_path, engines={Engine.TENSORRT: plans})
    builder.build(request_of(source, PLAN))
    record = builder.build(request_of(source, PLAN, limit=0.3))
    assert len(plans.given) == 1
    assert record.cached


def test_a_graph_that_the_gate_refuses_never_reaches_the_engine(
    source: Path, tmp_path: Path
) -> None:
    plans = Plans()
    builder = VariantBuilder(tmp_path, engines={Engine.TENSORRT: plans})
    record = builder.build(request_of(source, PLAN, limit=1e-9))
    assert plans.given == []
    assert "is above sla.accuracy_drop" in record.refused


def test_a_record_says_in_json_what_the_builder_returned(source: Path, tmp_path: Path) -> None:
    record = VariantBuilder(tmp_path).build(request_of(source, FP16))
    stored = json.loads(Path(record.file).with_name("record.json").read_text())["record"]
    assert stored["variant"] == "onnxruntime-fp16"
    assert stored["accuracy_drop"] == record.accuracy_drop
