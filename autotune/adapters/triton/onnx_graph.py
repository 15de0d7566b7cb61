"""What an ONNX file takes and gives, and whether Triton can serve it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from autotune.core.errors import InputRefused

_TRITON_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """``dtype`` in Triton's words; ``shape`` with the batch dimension, None where dynamic."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def batched(self) -> bool:
        """Whether the first dimension is free, as a batch dimension has to be."""
        return bool(self.shape) and self.shape[0] is None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """``external``: the files of weights beside the ONNX file, relative to its directory."""

    path: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    external: tuple[PurePosixPath, ...]

    @property
    def batched(self) -> bool:
        return all(tensor.batched for tensor in (*self.inputs, *self.outputs))


def read_graph(path: Path) -> OnnxGraph:
    """Open an ONNX file as ONNX Runtime would serve it.

    InputRefused if it is missing, truncated, lacks files of external weights, cannot be run by
    ONNX Runtime, or has inputs or outputs that are not tensors of a type that Triton knows.
    """
    external = external_files(path)
    session = open_session(path)
    if not session.get_inputs():
        raise InputRefused(f"{path}: the model has no input, so it cannot be sent requests")
    return OnnxGraph(
        path=path,
        inputs=tuple(_tensor(path, node) for node in session.get_inputs()),
        outputs=tuple(_tensor(path, node) for node in session.get_outputs()),
        external=external,
    )


def external_files(path: Path) -> tuple[PurePosixPath, ...]:
    """The files of weights beside an ONNX file, relative to its directory. InputRefused as
    `read_graph` says, but for what ONNX Runtime would find."""
    return _external_files(path, _decode(path))


def open_session(path: Path, *, threads: int = 1) -> onnxruntime.InferenceSession:
    """A CPU session that prints nothing. InputRefused if ONNX Runtime cannot load the file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        raise InputRefused(
            f"ONNX Runtime cannot load {path}: {error}",
            next_step="Check it with `python -c 'import onnx; onnx.checker.check_model(PATH)'`; it"
            " may be truncated, need a custom operator, or be newer than this ONNX Runtime.",
        ) from error


def require_batch_dimension(graph: OnnxGraph) -> None:
    """InputRefused unless the first dimension of every input and output is dynamic."""
    fixed = [tensor for tensor in (*graph.inputs, *graph.outputs) if not tensor.batched]
    if not fixed:
        return
    first = fixed[0]
    raise InputRefused(
        f"{graph.path}: the batch dimension of {first.name!r} is fixed, so requests cannot be"
        " joined into batches",
        value=str(_shown(first.shape)),
        next_step=(
            "Export it with a dynamic first dimension for every input and output (in PyTorch:"
            f" dynamic_axes={{{first.name!r}: {{0: 'batch'}}, ...}}), or change the file with"
            " onnx.tools.update_model_dims. A model that truly takes no batches can be tuned from"
            " a model repository whose config.pbtxt says max_batch_size: 0."
        ),
    )


def declare_tensors(config: ModelConfig, graph: OnnxGraph, *, batched: bool) -> None:
    """Write the graph's inputs and outputs into a configuration, where it declares none.

    ``batched``: the first dimension is the batch and is left out of the declared dimensions. A
    tensor that then has no dimension left is declared as [1] reshaped to [], as Triton wants it.
    """
    for declared, tensors in ((config.input, graph.inputs), (config.output, graph.outputs)):
        if declared:
            continue
        for tensor in tensors:
            entry = declared.add(name=tensor.name, data_type=DataType.Value(tensor.dtype))
            shape = tensor.shape[1:] if batched else tensor.shape
            entry.dims.extend(-1 if size is None else size for size in shape)
            if not shape:
                entry.dims.append(1)
                entry.reshape.SetInParent()


def _decode(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        rule = "is a directory, not an ONNX file" if path.is_dir() else "does not exist"
        raise InputRefused(f"the ONNX file {rule}", value=str(path))
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (OSError, DecodeError, ValueError) as error:
        raise _truncated(path, str(error)) from error
    if not model.graph.output or not model.opset_import:
        raise _truncated(path, "it holds no whole graph")
    return model


def _truncated(path: Path, reason: str) -> InputRefused:
    size = path.stat().st_size
    return InputRefused(
        f"{path} is not a whole ONNX file ({size} bytes): {reason}",
        next_step="Is the download complete, and is it no Git LFS pointer? Fetch it again.",
    )


def _external_files(path: Path, model: onnx.ModelProto) -> tuple[PurePosixPath, ...]:
    found: set[PurePosixPath] = set()
    for tensor in _tensors(model.graph):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location != onnx.TensorProto.EXTERNAL or "location" not in entries:
            continue
        location = PurePosixPath(entries["location"])
        if location.is_absolute() or ".." in location.parts:
            raise InputRefused(
                f"{path} keeps weights outside its own directory",
                value=str(location),
                next_step="Save the model again with its weights beside it.",
            )
        _require_bytes(path, location, entries)
        found.add(location)
    return tuple(sorted(found))


def _require_bytes(path: Path, location: PurePosixPath, entries: dict[str, str]) -> None:
    file = path.parent / location
    if not file.is_file():
        raise InputRefused(
            f"{path} keeps weights in a file that is missing",
            value=str(file),
            next_step="Put it beside the ONNX file: the two belong together.",
        )
    needed = int(entries.get("offset") or 0) + int(entries.get("length") or 0)
    if file.stat().st_size < needed:
        raise InputRefused(
            f"{file} is truncated: {path.name} needs {needed} bytes of it",
            value=file.stat().st_size,
            next_step="Fetch or export the file again.",
        )


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for child in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(child)


def _tensor(path: Path, node: Any) -> Tensor:
    if node.type not in _TRITON_TYPES:
        raise InputRefused(
            f"{path}: {node.name!r} is of a type that cannot be served",
            value=node.type,
            next_step=(
                "Export the model so that it takes and gives plain tensors: zipmap=False in"
                " skl2onnx, float32 at the edges of a bfloat16 or float8 model."
            ),
        )
    shape = tuple(size if isinstance(size, int) and size >= 0 else None for size in node.shape)
    return Tensor(name=node.name, dtype=_TRITON_TYPES[node.type], shape=shape)


def _shown(shape: tuple[int | None, ...]) -> list[int | str]:
    return ["?" if size is None else size for size in shape]
