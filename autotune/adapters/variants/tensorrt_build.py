"""Builds a TensorRT plan from a typed ONNX file, as a process of its own:

    python -m autotune.adapters.variants.tensorrt_build ORDER.json ANSWER.json

The order: ``onnx`` and ``plan`` (paths); all else may be left out: ``tf32`` (whether fp32 may be
computed in TF32), ``batch_sizes``, ``shapes`` (by input, without the batch dimension),
``timing_cache`` (a path), ``bindings`` (the module with TensorRT's API, ``tensorrt``). The answer:
the ``tensorrt`` version and each input's ``profile`` of smallest, best and largest shape; or
``refused``, a reason in words. TensorRT's own messages go to standard error.

Networks are strongly typed, so precision stands in the graph: TensorRT 11 knows nothing else,
TensorRT 10 has a flag for it. Engines are built for this GPU and this TensorRT alone: neither
version nor hardware compatibility, both of which cost speed, is asked for.

The API is that of the bindings' sources (``python/src/infer/pyCore.cpp`` and
``python/src/parsers/pyOnnx.cpp`` of NVIDIA/TensorRT, release 11.1) and of `tensorrt_rtx`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from autotune.adapters.variants.apart import exit_status
from autotune.core.capability import INSTALL_TENSORRT

Shape: TypeAlias = tuple[int, ...]
Extents: TypeAlias = tuple[Shape, Shape, Shape]
"""An input's smallest, best and largest shape."""

_OLDEST, _ONLY_TYPED = 10, 11


class Refused(Exception):
    """Why there is no plan, in words."""


def main(arguments: Sequence[str]) -> int:
    return exit_status(lambda: _answer_to(*map(Path, arguments)))


def _answer_to(order_file: Path, answer_file: Path) -> None:
    order = json.loads(order_file.read_text(encoding="utf-8"))
    try:
        answer = build(order, load_bindings(order.get("bindings", "tensorrt")))
    except Refused as refusal:
        answer = {"refused": str(refusal)}
    answer_file.write_text(json.dumps(answer, indent=1), encoding="utf-8")


def load_bindings(name: str) -> Any:
    """The module with TensorRT's API. Refused where it is not there or cannot be loaded."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise Refused(INSTALL_TENSORRT) from error
        raise Refused(f"{name} lacks a part: {error}") from error
    except (ImportError, OSError) as error:
        raise Refused(f"{name} is installed but cannot be loaded: {error}") from error


def build(order: Mapping[str, Any], trt: Any) -> dict[str, Any]:
    """Build the plan with the bindings ``trt``, write it, and say what it takes."""
    log, errors = _logger(trt)
    builder = _builder(trt, log, errors)
    network = builder.create_network(_typed(trt))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(order["onnx"])):
        raise Refused(f"TensorRT cannot read the graph: {_parser_errors(parser)}")
    config = builder.create_builder_config()
    _allow_tf32(trt, config, allowed=bool(order.get("tf32")))
    profile = _profile(builder, config, network, order)
    cache_file = order.get("timing_cache")
    cache = _timing_cache(config, Path(cache_file)) if cache_file else None
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Refused(f"TensorRT built no engine: {_last(errors)}")
    _replace(Path(order["plan"]), memoryview(plan))
    if cache_file and cache is not None:
        _replace(Path(cache_file), memoryview(cache.serialize()))
    return {"tensorrt": trt.__version__, "profile": profile}


def extents(
    name: str, dims: Shape, batch_sizes: Sequence[int], given: Sequence[Sequence[int]]
) -> Extents:
    """The shapes that an engine is built for, of one input of shape ``dims`` (-1: free).

    A free first dimension that ``given``, the workload's shapes, lacks is the batch: from 1, since
    any batch may be a small one, and best at the largest of the space. Other free dimensions run
    from the smallest to the largest that the workload sends, best at the largest.
    """
    sent = [tuple(shape) for shape in given]
    if -1 not in dims:
        _require_fixed(name, dims, sent)
        return dims, dims, dims
    batched = not sent or len(sent[0]) == len(dims) - 1
    inner = dims[1:] if batched else dims
    if any(len(shape) != len(inner) for shape in sent):
        raise Refused(f"input {name!r} is of shape {_shown(dims)}, but requests send {_many(sent)}")
    if -1 in inner and not sent:
        raise Refused(f"input {name!r} is of shape {_shown(dims)}: no request says how large it is")
    axes = [_axis(name, axis, size, [s[axis] for s in sent]) for axis, size in enumerate(inner)]
    if batched:
        axes.insert(0, (1, max(batch_sizes)) if dims[0] == -1 else (dims[0], dims[0]))
    least, most = (tuple(axis[end] for axis in axes) for end in (0, 1))
    return least, most, most


def _axis(name: str, axis: int, size: int, sent: Sequence[int]) -> tuple[int, int]:
    if size == -1:
        return min(sent), max(sent)
    other = [each for each in sent if each != size]
    if other:
        raise Refused(f"input {name!r} takes {size} in dimension {axis}, requests send {other[0]}")
    return size, size


def _require_fixed(name: str, dims: Shape, sent: Sequence[Shape]) -> None:
    other = [shape for shape in sent if shape not in (dims, dims[1:])]
    if other:
        raise Refused(f"input {name!r} is of shape {_shown(dims)}, but requests send {other[0]}")


def _profile(
    builder: Any, config: Any, network: Any, order: Mapping[str, Any]
) -> dict[str, list[list[int]]]:
    shapes = order.get("shapes", {})
    profile = builder.create_optimization_profile()
    found: dict[str, list[list[int]]] = {}
    dynamic = False
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if tensor.is_shape_tensor:
            raise Refused(f"input {tensor.name!r} holds a shape, not data: that is not built here")
        dims = tuple(tensor.shape)
        three = extents(
            tensor.name, dims, order.get("batch_sizes") or [1], shapes.get(tensor.name, ())
        )
        found[tensor.name] = [list(shape) for shape in three]
        if -1 in dims:
            dynamic = True
            profile.set_shape(tensor.name, *three)
    if dynamic and config.add_optimization_profile(profile) < 0:
        raise Refused(f"TensorRT does not take the optimization profile {found}")
    return found


def _builder(trt: Any, log: Any, errors: Sequence[str]) -> Any:
    version = trt.__version__
    if not _is_rtx(trt) and _major(trt) < _OLDEST:
        raise Refused(f"TensorRT {version} is too old: 10 or newer is needed")
    try:
        return trt.Builder(log)
    except (TypeError, RuntimeError) as error:  # a null builder: no driver, no GPU
        raise Refused(f"TensorRT {version} cannot start here: {_last(errors) or error}") from error


def _typed(trt: Any) -> int:
    """The flags of a strongly typed network; from TensorRT 11 on there is no other kind."""
    if not _is_rtx(trt) and _major(trt) >= _ONLY_TYPED:
        return 0
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def _major(trt: Any) -> int:
    return int(str(trt.__version__).partition(".")[0])


def _is_rtx(trt: Any) -> bool:
    """TensorRT for RTX: the same API under a version of its own."""
    return str(trt.__name__).startswith("tensorrt_rtx")


def _allow_tf32(trt: Any, config: Any, *, allowed: bool) -> None:
    """Said both ways: it is allowed by default."""
    if allowed:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)


def _timing_cache(config: Any, file: Path) -> Any:
    """The cache of earlier builds, which the build adds to; an empty one where there is none, or
    where it is of another GPU or version."""
    known = file.read_bytes() if file.is_file() else b""
    for blob in (known, b""):
        cache = config.create_timing_cache(blob)
        if cache is not None and config.set_timing_cache(cache, False):
            return cache
    return None


def _logger(trt: Any) -> tuple[Any, list[str]]:
    """A logger of TensorRT's that writes to standard error, and the errors that it was told."""
    errors: list[str] = []
    severe = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity == trt.ILogger.Severity.VERBOSE:
                return
            sys.stderr.write(f"{severity.name.lower()}: {message}\n")
            if severity in severe:
                errors.append(message.strip())

    return Log(), errors


def _parser_errors(parser: Any) -> str:
    texts = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        node = f"{error.node_operator()} {error.node_name()}: " if error.node_operator() else ""
        texts.append(node + error.desc())
    return "; ".join(texts) or "it gives no reason"


def _last(errors: Sequence[str]) -> str:
    return "; ".join(errors[-2:])


def _replace(file: Path, content: memoryview) -> None:
    """Whole or not at all."""
    partial = file.with_name(file.name + ".part")
    partial.write_bytes(content)
    partial.replace(file)


def _shown(dims: Shape) -> str:
    return "×".join("?" if size == -1 else str(size) for size in dims)


def _many(shapes: Sequence[Shape]) -> str:
    return ", ".join(_shown(shape) for shape in shapes[:3])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
