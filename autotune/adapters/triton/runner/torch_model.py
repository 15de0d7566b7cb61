"""Serves a PyTorch model from Triton's Python backend.

A self-contained file: it is copied into a model repository, as ``model.py``, beside ``model.pt``
(TorchScript) or ``model.pt2`` (an exported program, as ``torch.export.save`` writes it), and runs
in the server's own interpreter, which must have PyTorch. The requests of one execution are joined
along the batch axis into one run of the model, in groups of equal shape, and taken apart again.
Tensors go by DLPack, never through NumPy.

An instance of KIND_GPU computes on its GPU, on a stream of its own: requests are joined in pinned
memory and copied once, outputs are copied back once. Inputs that are on a GPU already are taken
there, which Triton offers where ``FORCE_CPU_ONLY_INPUT_TENSORS`` is "no". An instance of KIND_CPU
computes on the CPU.

Inputs and outputs are found as Triton's pytorch backend finds them: inputs by the names of
forward()'s arguments; else by the number behind ``__``, as outputs are (``INPUT__0``); else in the
order of the configuration.

Settings, as ``parameters`` of config.pbtxt: ``model_file`` (default: model.pt, else model.pt2),
``intra_op_threads`` (default 1; 0 lets PyTorch take every core), ``inter_op_threads`` (default 1),
``tf32`` (default false), ``cuda_graphs`` (default true; on a GPU alone). Those of Triton's pytorch
backend that count: ``INTRA_OP_THREAD_COUNT`` and ``INTER_OP_THREAD_COUNT``, where ours are not set,
and ``DISABLE_OPTIMIZED_EXECUTION``.
"""

from __future__ import annotations

import inspect
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

FILES = ("model.pt", "model.pt2")
EAGER_RUNS = 3
"""Of an input signature, before its run is captured. TorchScript takes two to specialize itself."""
MOST_GRAPHS = 32
MOST_COUNTED = 4096
"""Signatures whose runs are counted at once: inputs of free length have any number of them."""

Feed = list[Any]
"""One request's tensors, in the order of forward()'s arguments."""

DTYPES = {
    "TYPE_" + triton: getattr(torch, dtype)
    for triton, dtype in (
        ("BOOL", "bool"),
        ("UINT8", "uint8"),
        ("UINT16", "uint16"),
        ("UINT32", "uint32"),
        ("UINT64", "uint64"),
        ("INT8", "int8"),
        ("INT16", "int16"),
        ("INT32", "int32"),
        ("INT64", "int64"),
        ("FP16", "float16"),
        ("BF16", "bfloat16"),
        ("FP32", "float32"),
        ("FP64", "float64"),
    )
    if hasattr(torch, dtype)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TritonPythonModel:
    """One model instance, in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        settings = {key: each["string_value"] for key, each in config.get("parameters", {}).items()}
        device = device_of(args)
        self.batched = config.get("max_batch_size", 0) > 0
        self.optimized = not flag(settings, "DISABLE_OPTIMIZED_EXECUTION", default=False)
        set_switches(settings)
        program = load(model_file(settings, Path(__file__).parent), device)
        self.inputs, places = refuse_mismatch(config, program)
        self.outputs = [each["name"] for each in config["output"]]
        self.types = [DTYPES[each["data_type"]] for each in config["output"]]
        model = selecting(program, places)
        if device.type == "cuda":
            self.run: Any = OnGpu(model, device, graphs=flag(settings, "cuda_graphs", default=True))
        else:
            self.run = OnCpu(model)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order; a request that cannot be run fails by itself."""
        with torch.inference_mode(), torch.jit.optimized_execution(self.optimized):
            return self._answers(requests)

    def finalize(self) -> None:
        self.run = None

    def _answers(self, requests: list[Any]) -> list[Any]:
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

    def _feed(self, request: Any) -> Feed:
        feed = []
        for name in self.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise ValueError("the request has no input " + name)
            feed.append(torch.from_dlpack(tensor.to_dlpack()))
        return feed

    def _signature(self, feed: Feed, index: int) -> object:
        """Requests with the same key can be joined: same dtypes, and same shapes but for the batch
        axis, on which all inputs of a request agree."""
        if not self.batched or len({tensor.shape[0] for tensor in feed}) != 1:
            return index
        return tuple((tensor.dtype, tuple(tensor.shape[1:])) for tensor in feed)

    def _run_group(self, feeds: list[Feed]) -> list[Feed | Exception]:
        """Outputs or the exception of each feed, in order."""
        if len(feeds) == 1:
            return [self._run(feeds)]
        sizes = [feed[0].shape[0] for feed in feeds]
        outputs = self._run(feeds)
        if isinstance(outputs, Exception) or not all(
            tensor.ndim and tensor.shape[0] == sum(sizes) for tensor in outputs
        ):
            return [self._run([feed]) for feed in feeds]
        return [list(each) for each in zip(*(torch.split(t, sizes) for t in outputs), strict=True)]

    def _run(self, feeds: list[Feed]) -> Feed | Exception:
        """The outputs of several feeds joined, or the exception."""
        try:
            return self._of_declared_types(self.run(feeds))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is these requests' own
            return error

    def _of_declared_types(self, outputs: Feed) -> Feed:
        for name, wanted, tensor in zip(self.outputs, self.types, outputs, strict=True):
            if tensor.dtype != wanted:
                raise TypeError(differing("output", name, tensor.dtype, NAMES[wanted]))
        return outputs

    def _response(self, request: Any, result: Feed | Exception) -> Any:
        if isinstance(result, Exception):
            return failed(result)
        try:
            wanted = request.requested_output_names()
            return pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor.from_dlpack(name, tensor.contiguous())
                    for name, tensor in zip(self.outputs, result, strict=True)
                    if name in wanted
                ]
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's own
            return failed(error)


# --------------------------------------------------------------------------------- where it runs
class OnCpu:
    def __init__(self, model: Callable[..., Feed]) -> None:
        self.model = model

    def __call__(self, feeds: list[Feed]) -> Feed:
        inputs = [joined([tensor.cpu() for tensor in each]) for each in zip(*feeds, strict=True)]
        return [tensor.cpu() for tensor in self.model(*inputs)]


class OnGpu:
    """Runs on one GPU, on a stream of its own. What it returns is in pinned host memory."""

    def __init__(self, model: Callable[..., Feed], device: Any, *, graphs: bool) -> None:
        self.model, self.device = model, device
        self.stream = torch.cuda.Stream(device=device)
        self.graphs = Graphs(model, device, self.stream) if graphs else None
        torch.cuda.synchronize(device)  # the weights came by another stream

    def __call__(self, feeds: list[Feed]) -> Feed:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            sources = [self._gathered(each) for each in zip(*feeds, strict=True)]
            graph = self.graphs.of(sources) if self.graphs else None
            if graph is None:
                outputs = self.model(*(each.to(self.device, non_blocking=True) for each in sources))
            else:
                outputs = graph(sources)
            answers = [to_host(tensor) for tensor in outputs]
            self.stream.synchronize()
        return answers

    def _gathered(self, tensors: Sequence[Any]) -> Any:
        """Rows one after the other: in pinned memory, or on the GPU where some of them are."""
        if any(tensor.is_cuda for tensor in tensors):
            return joined([tensor.to(self.device, non_blocking=True) for tensor in tensors])
        first = tensors[0]
        if len(tensors) == 1:
            return pinned(first.shape, first.dtype).copy_(first)
        rows = sum(tensor.shape[0] for tensor in tensors)
        return torch.cat(list(tensors), out=pinned((rows, *first.shape[1:]), first.dtype))


def joined(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def pinned(shape: Sequence[int], dtype: Any) -> Any:
    """Host memory that a GPU copies from and to by itself; PyTorch keeps it for the next time."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def to_host(tensor: Any) -> Any:
    """On its way; it is there when the stream is through."""
    return pinned(tensor.shape, tensor.dtype).copy_(tensor, non_blocking=True)


class Captured:
    """A run of the model as a CUDA graph: it reads fixed tensors and writes fixed tensors.

    ValueError where it answers otherwise than the model, as one would that looked at its inputs to
    choose a way through itself.
    """

    def __init__(
        self, model: Callable[..., Feed], sources: Feed, device: Any, stream: Any, pool: Any
    ) -> None:
        self.inputs = [torch.empty(s.shape, dtype=s.dtype, device=device) for s in sources]
        for fixed, source in zip(self.inputs, sources, strict=True):
            fixed.copy_(source, non_blocking=True)
        expected = model(*self.inputs)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        ):
            self.outputs = model(*self.inputs)
        if not all(tensor.is_cuda for tensor in self.outputs):
            raise ValueError("it answers with tensors that are not on the GPU")
        found = self(sources)
        if not all(alike(one, other) for one, other in zip(found, expected, strict=True)):
            raise ValueError("replayed, it answers otherwise than run")

    def __call__(self, sources: Feed) -> Feed:
        """The outputs, which the next replay of any graph of the pool overwrites."""
        for fixed, source in zip(self.inputs, sources, strict=True):
            fixed.copy_(source, non_blocking=True)
        self.graph.replay()
        return self.outputs


class Graphs:
    """Captures the run of an input signature once that was run a few times: what is sent once is
    not worth a capture. A signature whose capture fails stays uncaptured. All graphs share memory:
    they are replayed one after another, and each one's outputs are copied away before the next."""

    def __init__(self, model: Callable[..., Feed], device: Any, stream: Any) -> None:
        self.model, self.device, self.stream = model, device, stream
        self.pool = torch.cuda.graph_pool_handle()
        self.runs: Counter[object] = Counter()
        self.captured: dict[object, Captured | None] = {}

    def of(self, sources: Feed) -> Captured | None:
        """The graph for such inputs; None while, or where, there is none."""
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in sources)
        if key in self.captured:
            return self.captured[key]
        if len(self.captured) >= MOST_GRAPHS:
            return None
        if len(self.runs) >= MOST_COUNTED:
            self.runs.clear()
        self.runs[key] += 1
        if self.runs[key] <= EAGER_RUNS:
            return None
        self.captured[key] = self._capture(sources)
        return self.captured[key]

    def _capture(self, sources: Feed) -> Captured | None:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in sources)
        try:
            captured = Captured(self.model, sources, self.device, self.stream, self.pool)
        except Exception as error:  # noqa: BLE001 - whatever it is, the model runs without
            pb_utils.Logger.log_warn(
                f"no CUDA graph for inputs of {shapes}, which go on without: {first_line(error)}"
            )
            return None
        pb_utils.Logger.log_info(f"captured a CUDA graph for inputs of {shapes}")
        return captured


def alike(one: Any, other: Any) -> bool:
    """But for rounding: a kernel may add in another order each time."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    return bool(torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-3, equal_nan=True))


# ------------------------------------------------------------------------------------- the model
@dataclass(frozen=True)
class Program:
    """A loaded model. ``arguments`` of forward(), of which the first ``needed`` have no default;
    ``given``: how many outputs it has, None where only a run tells. ``takes`` and ``gives``: their
    dtypes, empty where the file does not hold them."""

    forward: Callable[..., Any]
    arguments: list[str]
    needed: int
    given: int | None
    takes: tuple[Any, ...] = ()
    gives: tuple[Any, ...] = ()


def load(path: Path, device: Any) -> Program:
    """TritonModelException for a file that PyTorch cannot load, or that takes or gives anything
    but tensors."""
    try:
        return exported(path, device) if path.suffix == ".pt2" else scripted(path, device)
    except pb_utils.TritonModelException:
        raise
    except Exception as error:
        raise refused(
            f"PyTorch {torch.__version__} cannot load {path.name}: {first_line(error)}"
        ) from error


def scripted(path: Path, device: Any) -> Program:
    module = torch.jit.load(str(path), map_location=device).eval()
    schema = module.forward.schema
    arguments = schema.arguments[1:]
    strange = [
        f"{each.name}: {each.type}"
        for each in arguments
        if str(each.type) not in ("Tensor", "Optional[Tensor]")
    ]
    if strange:
        raise refused("forward() takes " + ", ".join(strange) + ": only tensors can be fed")
    return Program(
        forward=module,
        arguments=[each.name for each in arguments],
        needed=sum(not each.has_default_value() for each in arguments),
        given=outputs_of(schema.returns[0].type),
    )


def outputs_of(kind: Any) -> int | None:
    """How many tensors are of a TorchScript type; None for a list."""
    if str(kind) == "Tensor":
        return 1
    if str(kind) == "List[Tensor]":
        return None
    elements = kind.elements() if kind.kind() == "TupleType" else []
    if not elements or any(str(each) != "Tensor" for each in elements):
        raise refused(f"forward() returns {kind}: only tensors can be served")
    return len(elements)


def exported(path: Path, device: Any) -> Program:
    refuse_compiled(path)
    program = moved(torch.export.load(str(path)), device)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    takes = dtypes_of(program.graph_signature.user_inputs, values, "takes")
    gives = dtypes_of(program.graph_signature.user_outputs, values, "gives")
    module = program.module()
    arguments = list(inspect.signature(module.forward).parameters)
    if len(arguments) != len(takes):
        raise refused("forward() takes nested arguments: only plain tensors can be fed")
    return Program(
        forward=module,
        arguments=arguments,
        needed=len(arguments),
        given=len(gives),
        takes=takes,
        gives=gives,
    )


def refuse_compiled(path: Path) -> None:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("aotinductor" in name for name in archive.namelist()):
                raise refused(
                    f"{path.name} is compiled already (AOT Inductor): serve the exported program"
                    " that it was made from, as torch.export.save writes it"
                )


def moved(program: Any, device: Any) -> Any:
    try:
        from torch.export.passes import move_to_device_pass  # noqa: PLC0415 - a newer PyTorch's
    except ImportError:
        if device.type == "cpu":
            return program
        raise refused(
            f"PyTorch {torch.__version__} cannot put an exported program on a GPU: take a newer"
            " one, or save the model as TorchScript"
        ) from None
    return move_to_device_pass(program, str(device))


def dtypes_of(names: Sequence[Any], values: dict[str, Any], does: str) -> tuple[Any, ...]:
    """Of an exported program's inputs or outputs, in order."""
    found = tuple(getattr(values.get(name), "dtype", None) for name in names)
    if None in found:
        raise refused(f"forward() {does} something that is no tensor: only tensors can be served")
    return found


def selecting(program: Program, places: list[int]) -> Callable[..., Feed]:
    """The model as a function that returns the outputs at some places."""

    def run(*tensors: Any) -> Feed:
        outputs = flat(program.forward(*tensors))
        if max(places) >= len(outputs):
            raise ValueError(
                f"the model gives {len(outputs)} outputs, and the configuration names one more:"
                f" number {max(places)}, from 0"
            )
        return [outputs[place] for place in places]

    return run


def flat(result: Any) -> list[Any]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, tuple | list):
        return [tensor for each in result for tensor in flat(each)]
    raise TypeError(f"the model returned {type(result).__name__}: only tensors can be served")


# ------------------------------------------------------------------------- what belongs together
def refuse_mismatch(config: dict[str, Any], program: Program) -> tuple[list[str], list[int]]:
    """The inputs' names in the order of forward()'s arguments, and the outputs' places, in the
    order of the configuration. TritonModelException where the model is not what that says."""
    declared = {kind: config.get(kind) or [] for kind in ("input", "output")}
    if not all(declared.values()):
        raise refused(
            "config.pbtxt must name inputs and outputs: a PyTorch file does not tell them"
        )
    for kind, tensors in declared.items():
        for each in tensors:
            if each["data_type"] not in DTYPES:
                raise refused(
                    f"{kind} {each['name']} is {each['data_type']}, which PyTorch"
                    f" {torch.__version__} has no tensors of"
                )
    inputs = input_order([each["name"] for each in declared["input"]], program)
    places = output_places([each["name"] for each in declared["output"]], program)
    by_name = {each["name"]: each for each in declared["input"]}
    refuse_types("input", [by_name[name] for name in inputs], range(len(inputs)), program.takes)
    refuse_types("output", declared["output"], places, program.gives)
    return inputs, places


def input_order(names: list[str], program: Program) -> list[str]:
    arguments = program.arguments
    if set(names) <= set(arguments):
        places = {name: arguments.index(name) for name in names}
    else:
        places = numbered(names) or {name: place for place, name in enumerate(names)}
    ordered = sorted(names, key=lambda name: places[name])
    taken = [places[name] for name in ordered]
    if taken != list(range(len(names))) or not program.needed <= len(names) <= len(arguments):
        raise refused(
            f"forward() takes {', '.join(arguments)}, and the configuration names"
            f" {', '.join(names)}"
        )
    return ordered


def output_places(names: list[str], program: Program) -> list[int]:
    places = numbered(names) or {name: place for place, name in enumerate(names)}
    if program.given is not None and max(places.values()) >= program.given:
        raise refused(
            f"the PyTorch model gives {program.given} outputs, and the configuration names"
            f" {', '.join(names)}"
        )
    return [places[name] for name in names]


def numbered(names: list[str]) -> dict[str, int]:
    """Each name's number behind ``__``; empty where one has none."""
    found = {name: re.search(r"__(\d+)$", name) for name in names}
    if not all(found.values()):
        return {}
    return {name: int(match[1]) for name, match in found.items() if match}


def refuse_types(
    kind: str, tensors: list[dict[str, Any]], places: Sequence[int], dtypes: tuple[Any, ...]
) -> None:
    for each, place in zip(tensors, places, strict=True):
        if dtypes and dtypes[place] != DTYPES[each["data_type"]]:
            raise refused(differing(kind, each["name"], dtypes[place], each["data_type"]))


def differing(kind: str, name: str, dtype: Any, declared: str) -> str:
    return f"{kind} {name} is {NAMES.get(dtype, dtype)} in the PyTorch model, not {declared}"


# ------------------------------------------------------------------------------------- settings
def device_of(args: dict[str, str]) -> Any:
    """Of the instance. TritonModelException where PyTorch does not see it."""
    kind, number = args["model_instance_kind"], int(args["model_instance_device_id"])
    if kind == "CPU":
        return torch.device("cpu")
    if kind != "GPU":
        raise refused(f"instances are of KIND_GPU or KIND_CPU here, not KIND_{kind}")
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= seen:
        raise refused(
            f"the instance is to run on GPU {number}, and PyTorch {torch.__version__} sees"
            f" {seen or 'none'}" + ("" if torch.version.cuda else ": it was built without CUDA")
        )
    return torch.device("cuda", number)


def set_switches(settings: dict[str, str]) -> None:
    """Of the whole process: threads, and TF32, which PyTorch allows convolutions by default."""
    tf32 = flag(settings, "tf32", default=False)
    # Newer switches exist since 2.9; these keep what reads either of them in agreement.
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    for ours, native, take in (
        ("intra_op_threads", "INTRA_OP_THREAD_COUNT", torch.set_num_threads),
        ("inter_op_threads", "INTER_OP_THREAD_COUNT", torch.set_num_interop_threads),
    ):
        count = int(settings.get(ours, settings.get(native, 1)))
        if count > 0:
            take(count)


def flag(settings: dict[str, str], name: str, *, default: bool) -> bool:
    said = settings.get(name, str(default)).lower()
    if said not in ("true", "false"):
        raise refused(f"{name} is true or false, not {said}")
    return said == "true"


def model_file(settings: dict[str, str], folder: Path) -> Path:
    names = [settings["model_file"]] if "model_file" in settings else list(FILES)
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise refused(f"there is no {' or '.join(names)} beside the runner")


def refused(words: str) -> Exception:
    made: Exception = pb_utils.TritonModelException(words)
    return made


def failed(error: Exception) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(first_line(error)))


def first_line(error: BaseException) -> str:
    """An error's telling line: TorchScript puts a trace of its own before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return next((line for line in reversed(lines) if "Error" in line), lines[0])[:500]
