"""PyTorch models in a repository: adapted for the embedded server, varied, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton.artefacts import Artefact, engines_of_runner, variant_in_service
from autotune.adapters.triton.config import ModelConfig, parameter, read
from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.pipeline import configs
from autotune.adapters.triton.placing import place
from autotune.adapters.triton.repository import (
    ServedModel,
    adapt_for_embedded,
    from_onnx,
    from_repository,
)
from autotune.adapters.triton.runners import TORCH_RUNNER, EmbeddedHost
from autotune.core.errors import CandidateFailed
from autotune.core.variants import Engine, Variant
from search_spaces.candidate import Candidate
from tests import onnx_models
from tests.pipelines import put_ensemble, put_step

IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
NATIVE = "platform: 'pytorch_libtorch' max_batch_size: 4" + IO


def put_torch(repository: Path, text: str = NATIVE, *, file: str = "model.pt") -> Path:
    source = repository / "m"
    (source / "1").mkdir(parents=True)
    (source / "1" / file).write_text("TorchScript")
    (source / "config.pbtxt").write_text(text)
    return source


def native(tmp_path: Path, text: str = NATIVE, *, file: str = "model.pt") -> ServedModel:
    put_torch(tmp_path / "models", text, file=file)
    return from_repository(tmp_path / "models", "m", tmp_path / "work")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ------------------------------------------------------------------------------------- adapting
def test_a_pytorch_model_is_served_through_its_runner_and_stays_the_user_s(tmp_path: Path) -> None:
    model = native(tmp_path)
    assert (model.torch, model.runner) == (model.source / "1" / "model.pt", False)
    adapted = adapt_for_embedded(model, tmp_path / "work")
    assert (adapted.native, adapted.runner, adapted.onnx) == (model, True, None)
    assert (adapted.config.backend, adapted.config.platform) == ("python", "")
    assert names(adapted.source / "1") == ["model.pt", "model.py"]
    assert (adapted.source / "1" / "model.py").read_bytes() == TORCH_RUNNER.read_bytes()
    assert adapted.torch == adapted.source / "1" / "model.pt"
    assert names(model.source / "1") == ["model.pt"]


@pytest.mark.parametrize(("file", "served"), [("net.pt2", "model.pt2"), ("net.pt", "model.pt")])
def test_a_file_of_another_name_stands_under_the_one_that_the_runner_looks_for(
    tmp_path: Path, file: str, served: str
) -> None:
    text = f"backend: 'pytorch' default_model_filename: '{file}' max_batch_size: 4" + IO
    adapted = adapt_for_embedded(native(tmp_path, text, file=file), tmp_path / "work")
    assert names(adapted.source / "1") == sorted([served, "model.py"])
    assert adapted.config.default_model_filename == ""
    assert adapted.torch == adapted.source / "1" / served


def test_the_digest_is_the_same_on_every_host(tmp_path: Path) -> None:
    model = native(tmp_path)
    digests = {
        adapt_for_embedded(model, tmp_path / "work", host=EmbeddedHost(gpus=gpus)).digest
        for gpus in (0, 2)
    }
    assert len(digests) == 1


def test_an_earlier_copy_of_the_runner_is_known_again(tmp_path: Path) -> None:
    adapted = adapt_for_embedded(native(tmp_path), tmp_path / "work")
    again = from_repository(adapted.repository, "m", tmp_path / "again")
    assert (again.runner, again.torch, again.onnx) == (True, adapted.torch, None)
    (adapted.source / "1" / "half.pt").write_text("another")
    told = "parameters { key: 'model_file' value: { string_value: 'half.pt' } }"
    with (adapted.source / "config.pbtxt").open("a") as stream:
        stream.write(told)
    other = from_repository(adapted.repository, "m", tmp_path / "other")
    assert other.torch == adapted.source / "1" / "half.pt"


def test_a_pytorch_step_of_a_pipeline_is_served_through_the_runner(tmp_path: Path) -> None:
    put_torch(tmp_path / "models")
    put_step(tmp_path / "models", "first", "+ 1")
    put_ensemble(tmp_path / "models", "pipe", ["first", "m"], size=4)
    given = from_repository(tmp_path / "models", "pipe", tmp_path / "work")
    model = adapt_for_embedded(given, tmp_path / "work")
    step = model.composing["m"]
    assert (model.native, step.native) == (given, given.composing["m"])
    assert (step.runner, step.config.backend) == (True, "python")
    assert step.torch == model.repository / "m" / "1" / "model.pt"


# ------------------------------------------------------------------------------------- variants
def artefacts(tmp_path: Path, *variants: str) -> list[Artefact]:
    (tmp_path / "cache").mkdir(exist_ok=True)
    made = []
    for name in variants:
        path = tmp_path / "cache" / f"{name}.pt"
        path.write_text(name)
        made.append(Artefact(variant=Variant.parse(name), path=path))
    return made


def varied(tmp_path: Path, *variants: str) -> ServedModel:
    adapted = adapt_for_embedded(native(tmp_path), tmp_path / "work")
    return place(adapted, {"": artefacts(tmp_path, *variants)}, tmp_path / "placed")


def said(config: ModelConfig, key: str) -> str | None:
    return parameter(config, key)


def test_a_variant_is_a_file_beside_the_model_and_tf32_a_switch(tmp_path: Path) -> None:
    model = varied(tmp_path, "pytorch-fp16", "pytorch-tf32")
    half = configs(model, Candidate({"variant": "pytorch-fp16"}))["m"]
    assert (said(half, "model_file"), said(half, "tf32")) == ("pytorch-fp16.pt", None)
    assert (model.source / "1" / "pytorch-fp16.pt").read_text() == "pytorch-fp16"
    tf32 = configs(model, Candidate({"variant": "pytorch-tf32"}))["m"]
    assert (said(tf32, "model_file"), said(tf32, "tf32")) == ("pytorch-tf32.pt", "true")
    assert model.torch == model.source / "1" / "model.pt"
    assert variant_in_service(model) is None, "its file does not say without PyTorch"


def test_a_runner_serves_its_own_engines_alone(tmp_path: Path) -> None:
    assert engines_of_runner(varied(tmp_path, "pytorch-fp32")) == (Engine.PYTORCH,)
    file = onnx_models.linear(tmp_path / "linear.onnx")
    onnx = from_onnx(file, "m", tmp_path / "onnx")
    assert engines_of_runner(onnx) == (Engine.ONNXRUNTIME, Engine.ONNXRUNTIME_CUDA)
    one = place(onnx, {"": artefacts(tmp_path, "pytorch-fp32")}, tmp_path / "other")
    with pytest.raises(CandidateFailed, match="cannot serve pytorch-fp32"):
        configs(one, Candidate({"variant": "pytorch-fp32"}))


# -------------------------------------------------------------------------------------- exports
def exported(model: ServedModel, tmp_path: Path, served: list[Any], **values: Any) -> Path:
    exporter = RepositoryExporter(
        model, lambda *where: served.append(where), workdir=tmp_path / "strict"
    )
    exporter.write(Candidate(values), tmp_path / "out", "s", [])
    exporter.strict_server(tmp_path / "out")
    return tmp_path / "out" / "m"


def test_an_export_is_for_tritons_own_backend_in_its_words(tmp_path: Path) -> None:
    served: list[Any] = []
    model = adapt_for_embedded(native(tmp_path), tmp_path / "work")
    out = exported(
        model, tmp_path, served, **{"max_batch_size": 8, "parameters.intra_op_threads": 2}
    )
    assert names(out / "1") == ["model.pt"]
    config = read(out / "config.pbtxt")
    assert (config.platform, config.max_batch_size) == ("pytorch_libtorch", 8)
    assert dict.fromkeys(config.parameters) == {"INTRA_OP_THREAD_COUNT": None}
    assert said(config, "INTRA_OP_THREAD_COUNT") == "2"

    ((repository, name),) = served
    through_runner = read(repository / name / "config.pbtxt")
    assert (through_runner.backend, through_runner.max_batch_size) == ("python", 8)
    assert said(through_runner, "INTRA_OP_THREAD_COUNT") == "2"
    assert names(repository / name / "1") == ["model.pt", "model.py"]


def test_an_exported_variant_takes_the_model_s_place_and_is_confirmed_as_it_was_measured(
    tmp_path: Path,
) -> None:
    served: list[Any] = []
    model = varied(tmp_path, "pytorch-tf32")
    out = exported(model, tmp_path, served, variant="pytorch-tf32")
    assert names(out / "1") == ["model.pt"]
    assert (out / "1" / "model.pt").read_text() == "pytorch-tf32"
    config = read(out / "config.pbtxt")
    assert (said(config, "tf32"), said(config, "model_file")) == ("true", None)
    ((repository, name),) = served
    assert said(read(repository / name / "config.pbtxt"), "tf32") == "true"
