"""The models that the check serves: a network of PyTorch, or without that a small ONNX file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc.model_config_pb2 import DataType, ModelInstanceGroup

from autotune.adapters.triton.config import ModelConfig, render
from autotune.adapters.triton.runners import ANY_HOST, TORCH_RUNNER, torch_config
from search_spaces.candidate import INSTANCES, Candidate, Value
from tests.gpu.context import Context
from tests.gpu.plan import Scale
from tests.gpu.precisions import FILES, FP32, MODEL_FILE, TF32, TF32_ALLOWED

NAME = "vision"
_CHANNELS = (32, 64, 64)
"""Of the ONNX file's convolutions: a millisecond or two for one image on one core."""
TOLERANCE = 0.15
"""Of the largest answer: as far as bf16 may be from fp32, and a small part of what the answers to
two images are apart. The study's output check is told so; part (b) looks more closely."""


class Source(StrEnum):
    PYTORCH = "pytorch"
    ONNX = "onnx"


TAKEN_AND_GIVEN = {
    Source.PYTORCH: ("INPUT__0", "OUTPUT__0"),
    Source.ONNX: ("image", "scores"),
}
"""What the model's input and output are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """In a repository, as a newcomer would have it: one instance, no batcher, requests one by one;
    a request may itself hold as many images as ``largest_batch``. ``precisions`` are those that it
    can be served in, fp32 first; ``tolerance`` is how far an answer may be from another way of
    computing it (None: as the study file's defaults are)."""

    repository: Path
    source: Source
    largest_batch: int
    on_gpu: bool = False
    precisions: tuple[str, ...] = (FP32,)
    tolerance: float | None = None
    name: str = NAME

    @property
    def takes(self) -> str:
        """Its input's name."""
        return TAKEN_AND_GIVEN[self.source][0]

    @property
    def fastest(self) -> str:
        """The precision that is expected to be, of those that there are; a processor has no
        arithmetic of its own for most of them."""
        order = ("fp16", "bf16", TF32, FP32) if self.on_gpu else (FP32,)
        return next(each for each in order if each in self.precisions)

    def served(self, precision: str, instances: int = 1) -> Candidate:
        """Without a batcher: each request is one execution."""
        return Candidate({INSTANCES: instances, **self.setting(precision)})

    def setting(self, precision: str) -> Mapping[str, Value]:
        """What of a candidate says that precision; nothing of a model that has one alone."""
        if len(self.precisions) < 2:
            return {}
        allowed = {TF32_ALLOWED: "true"} if precision == TF32 else {}
        return {MODEL_FILE: FILES[precision], **allowed}

    def space(self) -> dict[str, Any]:
        """Its precisions as parameters of a study's space."""
        if len(self.precisions) < 2:
            return {}
        found: dict[str, Any] = {MODEL_FILE: [FILES[each] for each in self.precisions]}
        if TF32 in self.precisions:
            found[TF32_ALLOWED] = {"values": ["true"], "when": {MODEL_FILE: FILES[TF32]}}
        return found


def model_of(context: Context) -> Model:
    """The one that part (b) served, in the precisions that it found right; the ONNX file where it
    served none."""
    found = context.found_by("outputs")
    if not found.get("served_right"):
        return onnx_model(context)
    return torch_model(context, tuple(found["served_right"]), largest=found["largest_answer"])


def torch_model(context: Context, precisions: tuple[str, ...], largest: float) -> Model:
    """Served by autotune's PyTorch runner, with the files of every precision beside it, which
    `tests.gpu.apart.direct` writes: a candidate says which."""
    config = torch_config(_torch_config(context), ANY_HOST)
    config.parameters["model_file"].string_value = FILES[FP32]
    repository = _put(config, context.out / "models")
    shutil.copyfile(TORCH_RUNNER, version_folder(context) / "model.py")
    return Model(
        repository=repository,
        source=Source.PYTORCH,
        largest_batch=context.scale.largest_batch,
        on_gpu=context.on_gpu,
        precisions=precisions,
        tolerance=TOLERANCE * largest,
    )


def native_model(context: Context, largest: float) -> Model:
    """The same in fp32, as a user's own repository has it: for Triton's pytorch backend, in whose
    place the embedded server puts autotune's runner."""
    repository = _put(_torch_config(context), context.out / "native")
    file = repository / NAME / "1" / FILES[FP32]
    if not file.exists():
        os.link(version_folder(context) / FILES[FP32], file)
    return Model(
        repository=repository,
        source=Source.PYTORCH,
        largest_batch=context.scale.largest_batch,
        on_gpu=context.on_gpu,
        tolerance=TOLERANCE * largest,
    )


def _torch_config(context: Context) -> ModelConfig:
    scale = context.scale
    config = ModelConfig(name=NAME, platform="pytorch_libtorch", max_batch_size=scale.largest_batch)
    _declare(config, Source.PYTORCH, scale, on_gpu=context.on_gpu)
    config.parameters["INTRA_OP_THREAD_COUNT"].string_value = "1"
    return config


def onnx_model(context: Context) -> Model:
    """On the processor, GPU or not: what is served by the ONNX runner everywhere."""
    scale = context.scale
    config = ModelConfig(name=NAME, backend="onnxruntime", max_batch_size=scale.largest_batch)
    _declare(config, Source.ONNX, scale, on_gpu=False)
    config.parameters["intra_op_thread_count"].string_value = "1"
    repository = _put(config, context.out / "onnx")
    file = repository / NAME / "1" / "model.onnx"
    if not file.exists():
        save_onnx(file, scale)
    return Model(repository=repository, source=Source.ONNX, largest_batch=scale.largest_batch)


def version_folder(context: Context) -> Path:
    """Where the files of the network stand, in every precision."""
    return context.out / "models" / NAME / "1"


def _declare(config: ModelConfig, source: Source, scale: Scale, *, on_gpu: bool) -> None:
    taken, given = TAKEN_AND_GIVEN[source]
    size = scale.shape.size
    config.input.add(name=taken, data_type=DataType.TYPE_UINT8, dims=[3, size, size])
    config.output.add(name=given, data_type=DataType.TYPE_FP32, dims=[scale.shape.classes])
    kind = ModelInstanceGroup.KIND_GPU if on_gpu else ModelInstanceGroup.KIND_CPU
    config.instance_group.add(count=1, kind=kind)


def _put(config: ModelConfig, repository: Path) -> Path:
    (repository / NAME / "1").mkdir(parents=True, exist_ok=True)
    (repository / NAME / "config.pbtxt").write_text(render(config), encoding="utf-8")
    return repository


def save_onnx(path: Path, scale: Scale) -> None:
    """Convolutions and a head, of random weights, for images of bytes."""
    nodes, weights = _convolutions()
    draw = np.random.default_rng(1)
    weights["head"] = draw.normal(0, 0.1, (_CHANNELS[-1], scale.shape.classes))
    nodes += [
        helper.make_node("GlobalAveragePool", [f"x{len(_CHANNELS)}"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["scores"]),
    ]
    size, classes = scale.shape.size, scale.shape.classes
    graph = helper.make_graph(
        nodes,
        NAME,
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, path)


def _convolutions() -> tuple[list[onnx.NodeProto], dict[str, NDArray[np.float64]]]:
    """From ``image`` to ``x<number of them>``, each with a rectifier behind it; their weights."""
    draw = np.random.default_rng(0)
    weights: dict[str, NDArray[np.float64]] = {}
    nodes = [helper.make_node("Cast", ["image"], ["x0"], to=TensorProto.FLOAT)]
    taken = 3
    for place, given in enumerate(_CHANNELS):
        weights[f"w{place}"] = draw.normal(0, 0.02, (given, taken, 3, 3))
        taken_and_weights = [f"x{place}", f"w{place}"]
        strides = [2, 2] if place == 0 else [1, 1]
        nodes += [
            helper.make_node(
                "Conv", taken_and_weights, [f"c{place}"], pads=[1] * 4, strides=strides
            ),
            helper.make_node("Relu", [f"c{place}"], [f"x{place + 1}"]),
        ]
        taken = given
    return nodes, weights
