"""Variants in a model repository: configurations, files, exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from autotune.adapters.triton.artefacts import Artefact, variant_in_service, with_variant
from autotune.adapters.triton.config import ModelConfig, parse, read, render
from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.native import has_onnxruntime, native_form
from autotune.adapters.triton.pipeline import configs
from autotune.adapters.triton.placing import place
from autotune.adapters.triton.precision import precision_of
from autotune.adapters.triton.repository import (
    ServedModel,
    adapt_for_embedded,
    from_onnx,
    from_repository,
)
from autotune.bootstrap.models import exported_natively
from autotune.core.capability import Hardware, impossible
from autotune.core.errors import CandidateFailed, InputRefused
from autotune.core.variants import Engine, Precision, Variant
from search_spaces.candidate import Candidate
from tests import onnx_models

IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


def native(tmp_path: Path, text: str, *, name: str = "m", **model: Any) -> ServedModel:
    """A model of a repository, with the ONNX Runtime backend unless ``text`` says otherwise."""
    version = tmp_path / "models" / name / "1"
    version.mkdir(parents=True)
    onnx_models.linear(version / "model.onnx", **model)
    (version / "model.plan").write_text("a plan")
    (version.parent / "config.pbtxt").write_text(text + IO)
    return from_repository(tmp_path / "models", name, tmp_path / "work")


def runner(tmp_path: Path) -> ServedModel:
    return from_onnx(onnx_models.linear(tmp_path / "linear.onnx"), "m", tmp_path / "models")


def artefact(tmp_path: Path, name: str, *, external: str = "") -> Artefact:
    """A built one, told from others by its first weight."""
    variant = Variant.parse(name)
    folder = tmp_path / "cache" / name
    folder.mkdir(parents=True)
    if variant.engine in (Engine.TENSORRT, Engine.PYTORCH):
        path = folder / ("model.plan" if variant.engine is Engine.TENSORRT else "model.pt")
        path.write_text(name)
        return Artefact(variant=variant, path=path)
    path = onnx_models.linear(folder / "model.onnx", external=external)
    beside = (folder / external,) if external else ()
    return Artefact(variant=variant, path=path, beside=beside)


def placed(model: ServedModel, tmp_path: Path, *names: str, external: str = "") -> ServedModel:
    own = variant_in_service(model)
    assert own is not None
    assert model.onnx is not None
    mine = Artefact(variant=Variant.parse(own), path=model.onnx, own=True)
    others = [artefact(tmp_path, name, external=external) for name in names]
    return place(model, {"": [mine, *others]}, tmp_path / "placed")


def served(config: str, variant: str) -> ModelConfig:
    """A configuration with a variant of that name built, as an export serves it."""
    one = Artefact(variant=Variant.parse(variant), path=Path("model.onnx"), exported=True)
    parsed = parse(config, "test")
    model = ServedModel(
        name="m",
        repository=Path(),
        config=parsed,
        digest="",
        source=Path(),
        artefacts={variant: one},
    )
    return with_variant(model, variant, parsed)


# ---------------------------------------------------------------------------- configurations
ON_GPU = "backend: 'onnxruntime' instance_group { count: 2 kind: KIND_GPU } "
ACCELERATED = "optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ {} }} }} }}"


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("onnxruntime-fp16", "backend: 'onnxruntime' instance_group { count: 2 kind: KIND_CPU }"),
        (
            "onnxruntime-cuda-fp32",
            ON_GPU + ACCELERATED.format("name: 'cuda' parameters { key: 'use_tf32' value: '0' }"),
        ),
        (
            "onnxruntime-cuda-tf32",
            ON_GPU + ACCELERATED.format("name: 'cuda' parameters { key: 'use_tf32' value: '1' }"),
        ),
        ("onnxruntime-cuda-fp16", ON_GPU),
        (
            "onnxruntime-tensorrt-int8",
            ON_GPU
            + ACCELERATED.format(
                "name: 'tensorrt' parameters { key: 'precision_mode' value: 'INT8' }"
            ),
        ),
        ("onnxruntime-tensorrt-fp8", ON_GPU + ACCELERATED.format("name: 'tensorrt'")),
        (
            "tensorrt-fp16",
            "platform: 'tensorrt_plan' backend: 'tensorrt'"
            " instance_group { count: 2 kind: KIND_GPU }",
        ),
        (
            "pytorch-fp16",
            "platform: 'pytorch_libtorch' backend: 'pytorch' instance_group { count: 2 }",
        ),
    ],
)
def test_each_engine_has_its_words_in_a_configuration(variant: str, expected: str) -> None:
    found = (
        "platform: 'onnxruntime_onnx' default_model_filename: 'm.onnx' instance_group { count: 2 }"
    )
    assert served(found, variant) == parse(expected, "expected")


def test_what_the_user_said_of_an_accelerator_stays_beside_the_variant_s_own() -> None:
    said = "name: 'tensorrt' parameters { key: 'trt_engine_cache_enable' value: '1' }"
    config = served(ON_GPU + ACCELERATED.format(said), "onnxruntime-tensorrt-fp16")
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(accelerator.parameters) == {
        "trt_engine_cache_enable": "1",
        "precision_mode": "FP16",
    }


def test_the_runner_is_told_its_file_and_serves_nothing_but_onnx_runtime(tmp_path: Path) -> None:
    model = placed(runner(tmp_path), tmp_path, "onnxruntime-int8", "tensorrt-fp16")
    said = configs(model, Candidate({"variant": "onnxruntime-int8", "max_batch_size": 4}))["m"]
    assert said.parameters["model_file"].string_value == "onnxruntime-int8.onnx"
    assert (model.source / "1" / "onnxruntime-int8.onnx").is_file()
    own = configs(model, Candidate({"variant": "onnxruntime-fp32"}))["m"]
    assert "model_file" not in own.parameters
    with pytest.raises(CandidateFailed, match="cannot serve tensorrt-fp16"):
        configs(model, Candidate({"variant": "tensorrt-fp16"}))
    with pytest.raises(CandidateFailed, match="no such variant") as refused:
        configs(model, Candidate({"variant": "onnxruntime-bf16"}))
    assert "onnxruntime-int8" in refused.value.next_step


# ------------------------------------------------------------------------------- in service
@pytest.mark.parametrize(
    ("config", "gpus", "variant"),
    [
        ("backend: 'onnxruntime'", 0, "onnxruntime-fp32"),
        ("backend: 'onnxruntime'", 1, "onnxruntime-cuda-tf32"),
        ("backend: 'onnxruntime' instance_group { kind: KIND_CPU }", 1, "onnxruntime-fp32"),
        (
            ON_GPU + ACCELERATED.format("name: 'cuda' parameters { key: 'use_tf32' value: '0' }"),
            1,
            "onnxruntime-cuda-fp32",
        ),
        (ON_GPU + ACCELERATED.format("name: 'tensorrt'"), 1, "onnxruntime-tensorrt-tf32"),
        *(
            (
                ON_GPU
                + ACCELERATED.format(
                    f"name: 'tensorrt' parameters {{ key: 'precision_mode' value: '{mode}' }}"
                ),
                1,
                f"onnxruntime-tensorrt-{precision}",
            )
            for mode, precision in (("FP16", "fp16"), ("INT8", "int8"), ("FP32", "tf32"))
        ),
        ("backend: 'tensorrt'", 1, None),
    ],
)
def test_the_variant_in_service_is_told_by_weights_and_configuration(
    tmp_path: Path, config: str, gpus: int, variant: str | None
) -> None:
    assert variant_in_service(native(tmp_path, config), gpus=gpus) == variant


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        (ON_GPU, "onnxruntime-cuda"),
        (ON_GPU + ACCELERATED.format("name: 'tensorrt'"), "onnxruntime-tensorrt"),
    ],
)
def test_fp32_on_a_gpu_is_tf32_only_where_the_gpu_has_it(
    tmp_path: Path, config: str, engine: str
) -> None:
    model = native(tmp_path, config)
    for gpu, precision in (((7, 5), "fp32"), ((8, 0), "tf32")):
        hardware = Hardware(compute_capability=gpu)
        found = variant_in_service(model, gpus=1, hardware=hardware)
        assert found == f"{engine}-{precision}"
        assert impossible(Variant.parse(str(found)), hardware) is None


def test_through_the_runner_the_same_model_is_the_same_variant(tmp_path: Path) -> None:
    model = native(tmp_path, "backend: 'onnxruntime'", dtype=TensorProto.FLOAT)
    assert variant_in_service(adapt_for_embedded(model, tmp_path)) == "onnxruntime-fp32"


def test_a_precision_is_that_of_most_weights(tmp_path: Path) -> None:
    half = onnx_models.linear(tmp_path / "half.onnx", dtype=TensorProto.FLOAT16)
    assert precision_of(half) is Precision.FP16
    bare = onnx_models.single(tmp_path / "bare.onnx", "Relu", TensorProto.FLOAT)
    assert precision_of(bare) is Precision.FP32, "without weights, by its inputs"
    whole = onnx_models.single(tmp_path / "whole.onnx", "Abs", TensorProto.INT64)
    assert precision_of(whole) is None


@pytest.mark.parametrize(
    ("zero", "precision"),
    [(np.int8(0), Precision.INT8), (TensorProto.FLOAT8E4M3FN, Precision.FP8)],
)
def test_a_graph_that_quantizes_is_of_what_it_quantizes_to(
    tmp_path: Path, zero: Any, precision: Precision
) -> None:
    model = onnx.load(onnx_models.linear(tmp_path / "m.onnx"))
    if isinstance(zero, int) and not isinstance(zero, np.integer):
        point = onnx.helper.make_tensor("zero", zero, [], [0.0])
    else:
        point = numpy_helper.from_array(np.asarray(zero), "zero")
    scale = numpy_helper.from_array(np.float32(1).reshape(()), "scale")
    model.graph.initializer.extend([scale, point])
    for op, tensors in (("QuantizeLinear", ["x", "q"]), ("DequantizeLinear", ["q", "d"])):
        node = onnx.helper.make_node(op, [tensors[0], "scale", "zero"], [tensors[1]])
        model.graph.node.append(node)
    onnx.save(model, tmp_path / "quantized.onnx")
    assert precision_of(tmp_path / "quantized.onnx") is precision


# ------------------------------------------------------------------------------------ placing
def test_artefacts_stand_beside_the_source_and_the_user_s_repository_is_not_touched(
    tmp_path: Path,
) -> None:
    model = native(tmp_path, "backend: 'onnxruntime'")
    before = sorted(p.relative_to(model.source) for p in model.source.rglob("*"))
    at = placed(model, tmp_path, "onnxruntime-int8", "tensorrt-fp16")
    assert sorted(p.relative_to(model.source) for p in model.source.rglob("*")) == before
    assert sorted(p.name for p in (at.source / "1").iterdir()) == [
        "model.onnx",
        "model.plan",
        "onnxruntime-int8.onnx",
        "tensorrt-fp16.plan",
    ]
    assert at.digest == model.digest, "the source is what it was"
    said = configs(at, Candidate({"variant": "tensorrt-fp16"}))["m"]
    assert said.default_model_filename == "tensorrt-fp16.plan"
    assert variant_in_service(at) == "onnxruntime-fp32"


def test_artefacts_whose_weights_have_the_same_name_stand_in_folders_of_their_own(
    tmp_path: Path,
) -> None:
    model = runner(tmp_path)
    names = ("onnxruntime-fp16", "onnxruntime-int8")
    at = placed(model, tmp_path, *names, external="model.onnx.data")
    for name in names:
        said = configs(at, Candidate({"variant": name}))["m"]
        file = at.source / "1" / said.parameters["model_file"].string_value
        assert file == at.source / "1" / name / "model.onnx"
        assert (file.parent / "model.onnx.data").is_file()


def test_a_model_of_several_versions_is_refused(tmp_path: Path) -> None:
    model = native(tmp_path, "backend: 'onnxruntime' version_policy { all { } }")
    (model.source / "2").mkdir()
    onnx_models.linear(model.source / "2" / "model.onnx")
    with pytest.raises(InputRefused, match="several versions at once") as refused:
        place(model, {"": []}, tmp_path / "placed")
    assert refused.value.value == "1, 2"


# ------------------------------------------------------------------------------------ exports
def export(model: ServedModel, tmp_path: Path, **values: Any) -> Path:
    def factory(repository: Path, name: str) -> Any:
        return repository

    exporter = RepositoryExporter(model, factory, workdir=tmp_path / "strict")
    out = tmp_path / "out"
    exporter.write(Candidate(values), out, "s", [])
    assert json.loads((out / "provenance.json").read_text()) == {"study": "s"}
    return out / "m"


def files(model: Path) -> list[str]:
    return sorted(p.relative_to(model).as_posix() for p in model.rglob("*") if p.is_file())


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def test_an_export_holds_the_chosen_artefact_alone_under_the_backend_s_own_name(
    tmp_path: Path,
) -> None:
    model = native(tmp_path, "backend: 'onnxruntime' max_batch_size: 4")
    (model.source / "1" / "model.plan").unlink()
    at = placed(model, tmp_path, "onnxruntime-int8", "tensorrt-fp16")
    out = export(at, tmp_path, variant="tensorrt-fp16", max_batch_size=8)
    assert files(out) == ["1/model.plan", "config.pbtxt"]
    assert (out / "1/model.plan").read_text() == "tensorrt-fp16"
    config = read(out / "config.pbtxt")
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 8)
    assert not config.default_model_filename


def test_the_model_s_own_variant_is_exported_as_it_is(tmp_path: Path) -> None:
    model = native(tmp_path, "backend: 'onnxruntime' max_batch_size: 4")
    at = placed(model, tmp_path, "onnxruntime-int8")
    out = export(at, tmp_path, variant="onnxruntime-fp32", max_batch_size=4)
    assert files(out) == ["1/model.onnx", "1/model.plan", "config.pbtxt"]
    assert same(out / "1/model.onnx", model.source / "1/model.onnx")


def test_the_weights_of_an_artefact_go_with_it_and_the_source_s_do_not(tmp_path: Path) -> None:
    model = native(tmp_path, "backend: 'onnxruntime'", external="own.data")
    at = placed(model, tmp_path, "onnxruntime-fp16", external="fp16.data")
    out = export(at, tmp_path, variant="onnxruntime-fp16")
    assert files(out) == ["1/fp16.data", "1/model.onnx", "1/model.plan", "config.pbtxt"]


@pytest.mark.parametrize("name", ["own.onnx", "model.onnx"])
def test_a_variant_takes_the_place_of_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    text = f"backend: 'onnxruntime' default_model_filename: '{name}'"
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    onnx_models.linear(version / name)
    (version.parent / "config.pbtxt").write_text(text + IO)
    model = from_repository(tmp_path / "models", "m", tmp_path / "work")
    at = placed(model, tmp_path, "onnxruntime-int8")
    out = export(at, tmp_path, variant="onnxruntime-int8")
    assert files(out) == ["1/model.onnx", "config.pbtxt"]
    assert not read(out / "config.pbtxt").default_model_filename


def test_a_variant_that_the_runner_stood_in_for_is_exported_for_the_native_backend(
    tmp_path: Path,
) -> None:
    model = adapt_for_embedded(native(tmp_path, "backend: 'onnxruntime'"), tmp_path / "work")
    at = placed(model, tmp_path, "onnxruntime-int8")
    out = export(at, tmp_path, **{"variant": "onnxruntime-int8", "parameters.intra_op_threads": 2})
    assert files(out) == ["1/model.onnx", "1/model.plan", "config.pbtxt"]
    assert same(out / "1/model.onnx", at.artefacts["onnxruntime-int8"].path)
    config = read(out / "config.pbtxt")
    assert config.backend == "onnxruntime"
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    assert "model_file" not in config.parameters


def test_a_generated_repository_holds_the_variant_where_the_runner_looks_for_it(
    tmp_path: Path,
) -> None:
    at = placed(runner(tmp_path), tmp_path, "onnxruntime-int8")
    out = export(at, tmp_path, variant="onnxruntime-int8")
    assert files(out) == ["1/model.onnx", "1/model.py", "config.pbtxt"]
    assert same(out / "1/model.onnx", at.artefacts["onnxruntime-int8"].path)
    assert "model_file" not in read(out / "config.pbtxt").parameters


# ------------------------------------------------------------------------------- native form
def test_a_generated_repository_can_be_exported_for_the_onnx_runtime_backend(
    tmp_path: Path,
) -> None:
    at = placed(runner(tmp_path), tmp_path, "onnxruntime-int8")
    model = exported_natively(at, tmp_path / "native")
    values = {"variant": "onnxruntime-int8", "max_batch_size": 8, "parameters.intra_op_threads": 2}
    out = export(model, tmp_path, **values)
    assert files(out) == ["1/model.onnx", "config.pbtxt"]
    assert same(out / "1/model.onnx", at.artefacts["onnxruntime-int8"].path)
    config = read(out / "config.pbtxt")
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 8)
    said = {key: value.string_value for key, value in config.parameters.items()}
    assert said == {"intra_op_thread_count": "2", "inter_op_thread_count": "1"}


def test_the_native_form_says_what_the_runner_does_where_its_configuration_is_silent(
    tmp_path: Path,
) -> None:
    model = native_form(runner(tmp_path), tmp_path / "native", on_gpu=True)
    assert model.config.parameters["inter_op_thread_count"].string_value == "1"
    assert "KIND_GPU" in render(model.config)
    assert from_repository(model.repository, "m", tmp_path / "again").config == model.config


def test_a_model_that_has_its_own_form_is_left_alone(tmp_path: Path) -> None:
    model = native(tmp_path, "backend: 'onnxruntime'")
    assert exported_natively(model, tmp_path / "native") == model


def test_an_installed_triton_is_known_by_its_backends(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.touch()
    assert not has_onnxruntime(binary, None)
    (tmp_path / "backends" / "onnxruntime").mkdir(parents=True)
    assert has_onnxruntime(binary, None)
    assert not has_onnxruntime(binary, str(tmp_path / "elsewhere"))


# --------------------------------------------------------------------- a GPU through the runner
def test_the_onnx_runner_is_told_its_provider_and_tf32(tmp_path: Path) -> None:
    names = ("onnxruntime-cuda-fp32", "onnxruntime-cuda-tf32", "onnxruntime-int8")
    model = placed(runner(tmp_path), tmp_path, *names)

    def said(variant: str) -> tuple[str, dict[str, str]]:
        config = configs(model, Candidate({"variant": variant}))["m"]
        kinds = type(config.instance_group[0]).Kind
        told = {key: each.string_value for key, each in config.parameters.items()}
        return kinds.Name(config.instance_group[0].kind), told

    threads = {"intra_op_threads": "1"}
    cuda = {**threads, "execution_provider": "CUDAExecutionProvider"}
    for name, tf32 in (("onnxruntime-cuda-fp32", "0"), ("onnxruntime-cuda-tf32", "1")):
        file = {"model_file": f"{name}.onnx", "use_tf32": tf32}
        assert said(name) == ("KIND_GPU", {**cuda, **file})
    assert said("onnxruntime-int8") == (
        "KIND_CPU",
        {**threads, "model_file": "onnxruntime-int8.onnx"},
    )


@pytest.mark.parametrize(
    ("group", "parameters", "variant"),
    [
        ("kind: KIND_GPU", {"use_tf32": "1"}, "onnxruntime-cuda-tf32"),
        ("kind: KIND_GPU", {}, "onnxruntime-cuda-fp32"),
        (
            "kind: KIND_GPU",
            {"execution_provider": "CPUExecutionProvider"},
            "onnxruntime-fp32",
        ),
        ("kind: KIND_CPU", {"use_tf32": "1"}, "onnxruntime-fp32"),
    ],
)
def test_the_variant_that_a_runner_has_in_service_is_told_by_kind_and_parameters(
    tmp_path: Path, group: str, parameters: dict[str, str], variant: str
) -> None:
    model = runner(tmp_path)
    model.config.ClearField("instance_group")
    model.config.MergeFrom(parse(f"instance_group {{ {group} }}", "test"))
    for key, value in parameters.items():
        model.config.parameters[key].string_value = value
    assert variant_in_service(model, hardware=Hardware(compute_capability=(9, 0))) == variant


def test_the_native_form_of_a_runner_on_a_gpu_says_tf32_where_its_backend_reads_it(
    tmp_path: Path,
) -> None:
    model = runner(tmp_path)
    model.config.parameters["execution_provider"].string_value = "CUDAExecutionProvider"
    model.config.parameters["use_tf32"].string_value = "0"
    config = native_form(model, tmp_path / "native", on_gpu=True).config
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, dict(accelerator.parameters)) == ("cuda", {"use_tf32": "0"})
    assert not {"execution_provider", "use_tf32"} & set(config.parameters)
