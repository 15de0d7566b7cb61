"""Serves an ONNX model from Triton's Python backend with ONNX Runtime.

A self-contained file: it is copied into a model repository beside its ``model.onnx`` and runs in
the server's own interpreter. The requests of one execution are joined along the batch axis into
one run of the model, in groups of equal shape, and taken apart again.

An instance of KIND_GPU computes on its GPU, by ONNX Runtime's CUDA provider (the server's Python
must have onnxruntime-gpu): inputs are copied there once, outputs back once. An instance of KIND_CPU
computes on the CPU.

Settings, as ``parameters`` of config.pbtxt: ``model_file`` (default ``model.onnx``, beside this
file), ``intra_op_threads`` (default 1; 0 lets ONNX Runtime take every core), ``inter_op_threads``
(default 1), ``execution_provider`` (default ``CUDAExecutionProvider`` of an instance of KIND_GPU,
else ``CPUExecutionProvider``), ``use_tf32`` (of the CUDA provider, default 0). Where they are not
set, the names of Triton's ONNX Runtime backend count: ``intra_op_thread_count``,
``inter_op_thread_count``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
NUMPY_1 = int(np.__version__.split(".", 1)[0]) < 2
Feed = dict[str, Any]
ONNX_TYPES = {
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


class TritonPythonModel:
    """One model instance: an ONNX Runtime session in a process of its own."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in the inputs and outputs from the ONNX file where the configuration has none."""
        config = auto_complete_model_config.as_dict()
        if config.get("input") and config.get("output"):
            return auto_complete_model_config
        session = open_session(settings_of(config), Path(__file__).parent, [CPU])
        batched = config.get("max_batch_size", 0) > 0
        for node in session.get_inputs():
            auto_complete_model_config.add_input(tensor_config(node, batched))
        for node in session.get_outputs():
            auto_complete_model_config.add_output(tensor_config(node, batched))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.batched = config.get("max_batch_size", 0) > 0
        settings = settings_of(config)
        providers = providers_of(settings, args)
        self.session = open_session(settings, Path(__file__).parent, providers)
        self.run = plain_run
        if len(providers) > 1:
            refuse_without_gpu(self.session)
            self.run = bound_run
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.strings = {t["name"] for t in config["input"] if t["data_type"] == "TYPE_STRING"}
        refuse_mismatch(config, self.session)
        if not NUMPY_1:
            silence_capsule_destructor()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order; a request that cannot be run fails by itself."""
        responses: list[Any] = [None] * len(requests)
        groups: dict[object, list[tuple[int, Feed]]] = {}
        for index, request in enumerate(requests):
            try:
                feed = self._feed(request)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's own
                responses[index] = failed(error)
                continue
            groups.setdefault(self._signature(feed, index), []).append((index, feed))
        for members in groups.values():
            results = self._run_group([feed for _, feed in members])
            for (index, _), result in zip(members, results, strict=True):
                responses[index] = self._response(requests[index], result)
        return responses

    def finalize(self) -> None:
        self.session = None

    def _feed(self, request: Any) -> Feed:
        feed = {}
        for name in self.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                feed[name] = decoded(tensor) if name in self.strings else to_array(tensor)
        return feed

    def _signature(self, feed: Feed, index: int) -> object:
        """Requests with the same key can be joined: same inputs, dtypes and shapes but for the
        batch axis, on which all inputs of a request agree."""
        if not self.batched or len({array.shape[0] for array in feed.values()}) != 1:
            return index
        return tuple((name, a.dtype.str, a.shape[1:]) for name, a in sorted(feed.items()))

    def _run_group(self, feeds: list[Feed]) -> list[Feed | Exception]:
        """Outputs (a dict) or the exception of each feed, in order."""
        if len(feeds) == 1:
            return [self._run_alone(feeds[0])]
        sizes = [next(iter(feed.values())).shape[0] for feed in feeds]
        joined = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
        outputs = self._run_alone(joined)
        if isinstance(outputs, Exception) or not all(
            array.ndim and array.shape[0] == sum(sizes) for array in outputs.values()
        ):
            return [self._run_alone(feed) for feed in feeds]
        ends = np.cumsum(sizes)[:-1]
        parts = {name: np.split(array, ends) for name, array in outputs.items()}
        return [{name: parts[name][i] for name in parts} for i in range(len(feeds))]

    def _run_alone(self, feed: Feed) -> Feed | Exception:
        try:
            return dict(zip(self.outputs, self.run(self.session, self.outputs, feed), strict=True))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's own
            return error

    def _response(self, request: Any, result: Feed | Exception) -> Any:
        if isinstance(result, Exception):
            return failed(result)
        try:
            wanted = request.requested_output_names()
            return pb_utils.InferenceResponse(
                [to_tensor(name, array) for name, array in result.items() if name in wanted]
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's own
            return failed(error)


def plain_run(session: Any, outputs: list[str], feed: Feed) -> list[Any]:
    results: list[Any] = session.run(outputs, feed)
    return results


def bound_run(session: Any, outputs: list[str], feed: Feed) -> list[Any]:
    """By I/O binding: each input is copied to where the model wants it, each output back, once.
    Strings cannot be bound, and are of no use to a GPU."""
    if any(array.dtype == object for array in feed.values()):
        return plain_run(session, outputs, feed)
    binding = session.io_binding()
    held = {name: np.asarray(array, order="C") for name, array in feed.items()}
    for name, array in held.items():
        binding.bind_cpu_input(name, array)
    for name in outputs:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    results: list[Any] = binding.copy_outputs_to_cpu()
    return results


def settings_of(config: dict[str, Any]) -> dict[str, str]:
    return {key: value["string_value"] for key, value in config.get("parameters", {}).items()}


def providers_of(settings: dict[str, str], args: dict[str, str]) -> list[Any]:
    """Of the instance: of one on a GPU the CUDA provider with its options, and the CPU's for what
    that has no kernel for. TritonModelException where they cannot be had."""
    on_gpu = args["model_instance_kind"] == "GPU"
    provider = settings.get("execution_provider", CUDA if on_gpu else CPU)
    available = ort.get_available_providers()
    if provider not in available:
        install = ": install onnxruntime-gpu for the server's Python" if provider == CUDA else ""
        raise pb_utils.TritonModelException(
            "execution_provider is one of " + ", ".join(available) + ", not " + provider + install
        )
    if provider != CUDA:
        return [provider]
    if not on_gpu:
        raise pb_utils.TritonModelException(
            CUDA + " needs an instance of KIND_GPU, not KIND_" + args["model_instance_kind"]
        )
    # TF32 is on in ONNX Runtime unless it is told otherwise.
    options = {
        "device_id": args["model_instance_device_id"],
        "use_tf32": settings.get("use_tf32", "0"),
    }
    return [(CUDA, options), CPU]


def refuse_without_gpu(session: Any) -> None:
    """A session whose CUDA provider does not start goes on without it, and says so in its log."""
    if CUDA not in session.get_providers():
        raise pb_utils.TritonModelException(
            "ONNX Runtime " + ort.__version__ + " cannot start its " + CUDA + " here: the server's"
            " log says what it lacks (CUDA's libraries and cuDNN, of the versions that this"
            " onnxruntime-gpu was built with)"
        )


def open_session(settings: dict[str, str], folder: Path, providers: list[Any]) -> Any:
    def threads(kind: str) -> int:
        name = kind + "_op_thread"
        return int(settings.get(name + "s", settings.get(name + "_count", 1)))

    if len(providers) > 1 and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # of CUDA and cuDNN, where they came as Python packages
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads("intra")
    options.inter_op_num_threads = threads("inter")
    # A thread that spins while it waits takes a core from the other instances.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    path = folder / settings.get("model_file", "model.onnx")
    return ort.InferenceSession(str(path), options, providers=providers)


def tensor_config(node: Any, batched: bool) -> dict[str, Any]:
    shape = node.shape[1:] if batched else node.shape
    dims = [size if isinstance(size, int) and size > 0 else -1 for size in shape]
    return {"name": node.name, "data_type": ONNX_TYPES[node.type], "dims": dims}


def refuse_mismatch(config: dict[str, Any], session: Any) -> None:
    """TritonModelException where the configuration and the ONNX file name other tensors."""
    for kind, nodes in (("input", session.get_inputs()), ("output", session.get_outputs())):
        types = {node.name: ONNX_TYPES.get(node.type, node.type) for node in nodes}
        for tensor in config[kind]:
            name, wanted = tensor["name"], tensor["data_type"]
            if name not in types:
                raise pb_utils.TritonModelException(
                    "the ONNX model has no " + kind + " " + name + "; it has " + ", ".join(types)
                )
            if types[name] != wanted:
                raise pb_utils.TritonModelException(
                    kind + " " + name + " is " + types[name] + " in the ONNX model, not " + wanted
                )
            if wanted == "TYPE_STRING" and not NUMPY_1:
                raise pb_utils.TritonModelException(
                    kind + " " + name + " is a string, which this server's Python backend can"
                    " only read with NumPy 1: serve it with Python 3.11 or 3.12"
                )


def to_array(tensor: Any) -> Any:
    """A request's tensor as an array. `as_numpy` is corrupt with NumPy 2 (python_backend PR 384),
    and DLPack kills the stub with NumPy 1."""
    return tensor.as_numpy() if NUMPY_1 else np.from_dlpack(tensor)


def decoded(tensor: Any) -> Any:
    """Strings as ONNX Runtime takes them; bytes that are not UTF-8 survive the round trip."""
    values = tensor.as_numpy()
    texts = [value.decode("utf-8", "surrogateescape") for value in values.ravel()]
    return np.array(texts, dtype=object).reshape(values.shape)


def to_tensor(name: str, array: Any) -> Any:
    if array.dtype == object:
        values = [value.encode("utf-8", "surrogateescape") for value in array.ravel()]
        return pb_utils.Tensor(name, np.array(values, dtype=object).reshape(array.shape))
    array = np.ascontiguousarray(array)
    return pb_utils.Tensor(name, array) if NUMPY_1 else pb_utils.Tensor.from_dlpack(name, array)


def failed(error: Exception) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))


def silence_capsule_destructor() -> None:
    """The stub's DLPack capsules, once used, complain in their destructor on every tensor."""

    def quiet(inner: Callable[..., object]) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            value = args[1] if len(args) > 1 else args[0].exc_value
            if "PyCapsule_GetPointer called with incorrect name" not in str(value):
                inner(*args)

        return hook

    sys.excepthook = quiet(sys.excepthook)
    sys.unraisablehook = quiet(sys.unraisablehook)
