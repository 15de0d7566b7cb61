"""Makes and runs a variant of a PyTorch model, as a process of its own:

    python -m autotune.adapters.variants.torch_build ORDER.json ANSWER.json

The order: ``source`` (TorchScript ``.pt``, or an exported program ``.pt2`` of `torch.export.save`),
``artefact`` (a path), ``precision`` (fp32, fp16 or bf16), ``tf32`` (whether a GPU may compute in
it), and the requests to answer: ``samples`` (an .npz with ``<index>/<input>`` arrays without a
batch dimension), ``inputs`` (their names, in order) and ``answers`` (the .npz to write,
``<index>/OUTPUT__<n>``). The answer: the ``torch`` version and the ``device`` that it ran on; or
``refused``, a reason in words.

The artefact is TorchScript: it is what Triton's pytorch backend batches (its README: a ``.pt2`` of
AOT Inductor takes no batches above 1). In fp16 and bf16 the weights are of that type while inputs
and outputs stay float32, so that requests do not change; names of arguments stay.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.adapters.variants.apart import exit_status
from autotune.core.capability import INSTALL_TORCH

Request: TypeAlias = dict[str, NDArray[Any]]

_LOW = {"fp16": "float16", "bf16": "bfloat16"}
_ROWS_DIFFER = 0.05
"""Relative to the largest value: more than rounding makes of computing two requests at once."""


class Refused(Exception):
    """Why there is no artefact, in words."""


def main(arguments: Sequence[str]) -> int:
    return exit_status(lambda: _answer_to(*map(Path, arguments)))


def _answer_to(order_file: Path, answer_file: Path) -> None:
    order = json.loads(order_file.read_text(encoding="utf-8"))
    try:
        answer = build(order, _torch())
    except Refused as refusal:
        answer = {"refused": str(refusal)}
    answer_file.write_text(json.dumps(answer, indent=1), encoding="utf-8")


def build(order: Mapping[str, Any], torch: Any) -> dict[str, Any]:
    """Write the artefact and its answers; say with what."""
    requests = _requests(Path(order["samples"]), order["inputs"])
    if not requests:
        raise Refused("there is no request to try the model on")
    source, artefact = Path(order["source"]), Path(order["artefact"])
    precision = order["precision"]
    module, names = _loaded(torch, source, precision, requests[0])
    if source.suffix == ".pt" and precision == "fp32":
        shutil.copyfile(source, artefact)
    else:
        torch.jit.save(_edged(torch, module, names, precision), str(artefact))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = order["tf32"]
    answers = _run(torch, artefact, requests, device)
    np.savez(order["answers"], **dict(_flat(answers)))
    return {"torch": torch.__version__, "device": device}


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise Refused(INSTALL_TORCH) from error
        raise
    except (ImportError, OSError) as error:
        raise Refused(f"PyTorch is installed but cannot be loaded: {error}") from error


# ------------------------------------------------------------------------------------- the artefact
def _loaded(torch: Any, source: Path, precision: str, request: Request) -> tuple[Any, list[str]]:
    """The source as TorchScript with weights of the precision, and its arguments' names."""
    dtype = getattr(torch, _LOW.get(precision, "float32"))
    if source.suffix != ".pt2":
        try:
            module = torch.jit.load(str(source), map_location="cpu").eval()
        except RuntimeError as error:
            raise Refused(f"PyTorch cannot load {source.name}: {_first(error)}") from error
        graph = module.inlined_graph
        _require_held(_weights(module), graph, precision, _constants(graph))
        return module.to(dtype), _arguments(module)
    return _traced(torch, source, precision, request)


def _traced(torch: Any, source: Path, precision: str, request: Request) -> tuple[Any, list[str]]:
    """An exported program as TorchScript: its graph, followed on a batch of two requests."""
    dtype = getattr(torch, _LOW.get(precision, "float32"))
    module = _exported(torch, source)
    _require_held(_weights(module), module.graph, precision)
    names = list(inspect.signature(module.forward).parameters)
    ordered = _ordered(request, names)
    example = [_cast(tensor, dtype) for tensor in _tensors(torch, [ordered, ordered])]
    _follow_sizes(torch, module)

    class Alone(torch.nn.Module):  # type: ignore[misc]
        """Without the program's hooks: they check the exported types, and cannot be traced."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module.to(dtype)

        def forward(self, *tensors: Any) -> Any:
            return self.inner.forward(*tensors)

    try:
        return torch.jit.trace(Alone(), tuple(example), check_trace=False), names
    except Exception as error:  # the model's own operators raise anything
        raise Refused(
            f"{source.name} does not become TorchScript ({_first(error)}): save the model as"
            " TorchScript, model.pt, instead"
        ) from error


def _require_held(
    weights: Sequence[Any], graph: Any, precision: str, constants: Sequence[Any] = ()
) -> None:
    """Refused where the result would not be of the precision that it is called: the ``graph`` is
    quantized, or most of the source's ``weights`` and ``constants`` are of another type than fp32,
    or are constants, whose type cannot be changed."""
    if "quantized::" in str(graph) or "quantized_decomposed" in str(graph):
        raise Refused("the source is quantized already: give the model that it was made from")
    held = _values_by_type((*weights, *constants))
    most = max(held, key=lambda name: held[name], default="float32")
    if precision == "fp32" and most != "float32":
        raise Refused(
            f"the source's weights are {most}: as fp32 it would be the same under another name"
        )
    fixed = _values_by_type(constants).total()
    if precision != "fp32" and 2 * fixed > held.total():
        raise Refused(
            "the source is frozen, and its weights cannot be converted: save it without"
            " torch.jit.freeze"
        )


def _values_by_type(tensors: Iterable[Any]) -> Counter[str]:
    """How many floating-point values each type holds."""
    held: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.is_floating_point():
            held[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return held


def _weights(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def _constants(graph: Any) -> list[Any]:
    """Tensors that stand in a TorchScript graph itself, as a frozen module's weights do."""
    nodes = graph.findAllNodes("prim::Constant")
    values = [node for node in nodes if node.hasAttribute("value")]
    return [node.t("value") for node in values if node.kindOf("value") == "t"]


def _follow_sizes(torch: Any, module: Any) -> None:
    """Let a trace follow the sizes of inputs, which it would take for constants, and leave out
    assertions, which hold for the exported types alone.

    A trace follows a size through `torch.Tensor.view`, not through ``torch.ops.aten.view``.
    """
    sized: set[Any] = set()
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if "assert" in str(node.target) and not node.users:
            module.graph.erase_node(node)
        elif node.target is torch.ops.aten.sym_size.int:
            node.target = _size
            sized.add(node)
        elif sized & set(node.all_input_nodes):
            node.target = _followed(torch, node.target)
            if getattr(node.target, "__module__", "") in ("_operator", "math"):
                sized.add(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _followed(torch: Any, target: Any) -> Any:
    """PyTorch's own function of an operator, if there is one."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return target
    name = schema.name.removeprefix("aten::").removeprefix("_unsafe_")
    return getattr(torch.Tensor, name, None) or getattr(torch, name, target)


def _size(tensor: Any, dimension: int) -> Any:
    return tensor.size(dimension)


def _exported(torch: Any, source: Path) -> Any:
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            if any("aotinductor" in name for name in archive.namelist()):
                raise Refused(
                    f"{source.name} is compiled already (AOT Inductor): give the exported program"
                    " that it was made from, as torch.export.save writes it"
                )
    try:
        program = torch.export.load(str(source))
    except Exception as error:  # it raises whatever its format raises
        raise Refused(f"PyTorch cannot load {source.name}: {_first(error)}") from error
    return program.module(check_guards=False)


def _edged(torch: Any, module: Any, names: Sequence[str], precision: str) -> Any:
    """A script module that casts floating inputs to the precision and outputs to float32."""
    schema = module.forward.schema
    other = [f"{each.name}: {each.type}" for each in schema.arguments[1:] if not _tensor(each)]
    if other:
        raise Refused(f"only tensors can be fed, and the model takes {', '.join(other)}")
    edged = _edged_module(torch, module)
    edged.define(_forward(names, _outputs(str(schema.returns[0].type)), _LOW.get(precision, "")))
    return edged.eval()


def _arguments(module: Any) -> list[str]:
    return [each.name for each in module.forward.schema.arguments[1:]]


def _tensor(argument: Any) -> bool:
    return str(argument.type) == "Tensor"


def _edged_module(torch: Any, inner: Any) -> Any:
    class Edged(torch.jit.ScriptModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

    return Edged()


def _outputs(kind: str) -> int:
    """How many tensors a model returns, of the type in TorchScript's words; 0: one, alone."""
    if kind == "Tensor":
        return 0
    found = re.fullmatch(r"\(?(?:Tuple\[)?((?:Tensor(?:, )?)+)[\])]", kind)
    if found is None:
        raise Refused(f"only tensors can be served, and the model returns {kind}")
    return found[1].count("Tensor")


def _forward(names: Sequence[str], outputs: int, low: str) -> str:
    """The source of the script module's forward: TorchScript has no functions of ``*args``."""
    results = [f"result_{index}_" for index in range(max(outputs, 1))]
    taken = [f"results_[{index}]" for index in range(outputs)] or ["results_"]
    lines = [
        f"def forward(self, {', '.join(f'{name}: Tensor' for name in names)}):",
        *(f"    {name} = {_to(name, low)}" for name in names),
        f"    results_ = self.inner({', '.join(names)})",
        *(f"    {name} = {one}" for name, one in zip(results, taken, strict=True)),
        *(f"    {name} = {_to(name, 'float32' if low else '')}" for name in results),
        f"    return {', '.join(results)}" + ("," if outputs == 1 else ""),
    ]
    return "\n".join(lines) + "\n"


def _to(name: str, dtype: str) -> str:
    return f"{name}.to(torch.{dtype}) if {name}.is_floating_point() else {name}" if dtype else name


# -------------------------------------------------------------------------------------- running it
def _run(torch: Any, artefact: Path, requests: Sequence[Request], device: str) -> list[Any]:
    """Each request's outputs by the artefact as a server would load it, one request at a time;
    Refused if two requests at once are not answered as each alone."""
    module = torch.jit.load(str(artefact), map_location=device).eval()
    ordered = [_ordered(request, _arguments(module)) for request in requests]
    try:
        with torch.inference_mode():
            alone = [_answer(torch, module, [request], device) for request in ordered]
            pair = _same_shapes(ordered)
            if pair:
                both = _answer(torch, module, [ordered[index] for index in pair], device)
                _require_same_rows([alone[index] for index in pair], both)
    except RuntimeError as error:
        raise Refused(f"it does not run on the samples: {_first(error)}") from error
    return [[output[0] for output in outputs] for outputs in alone]


def _answer(torch: Any, module: Any, requests: Sequence[Request], device: str) -> list[Any]:
    results = module(*(tensor.to(device) for tensor in _tensors(torch, requests)))
    tensors = results if isinstance(results, tuple | list) else (results,)
    return [tensor.cpu().numpy() for tensor in tensors]


def _require_same_rows(alone: Sequence[Sequence[Any]], both: Sequence[Any]) -> None:
    """A trace may hold the sizes of its example: then other batches fail, or are wrong."""
    for row, outputs in enumerate(alone):
        for own, joined in zip(outputs, both, strict=True):
            if joined.shape[:1] != (len(alone),) or joined.shape[1:] != own.shape[1:]:
                raise Refused(
                    f"a batch of {len(alone)} is answered with shape {joined.shape}: the model was"
                    " exported for one batch size"
                )
            apart = np.abs(joined[row].astype("f8") - own[0].astype("f8")).max(initial=0.0)
            if apart > _ROWS_DIFFER * max(1e-6, float(np.abs(own).max(initial=0.0))):
                raise Refused("requests in one batch are answered otherwise than each alone")


def _same_shapes(requests: Sequence[Request]) -> tuple[int, int] | None:
    """Two requests that can be one batch: different ones, if there are."""
    first = {name: array.shape for name, array in requests[0].items()}
    for index, request in enumerate(requests[1:], start=1):
        if {name: array.shape for name, array in request.items()} == first:
            return 0, index
    return 0, 0


# --------------------------------------------------------------------------------------- requests
def _requests(file: Path, inputs: Sequence[str]) -> list[Request]:
    with np.load(file) as arrays:
        found: dict[int, Request] = {}
        for key in arrays.files:
            index, _, name = key.partition("/")
            found.setdefault(int(index), {})[name] = arrays[key]
    return [{name: found[index][name] for name in inputs} for index in sorted(found)]


def _ordered(request: Request, arguments: Sequence[str]) -> Request:
    """In the order of the model's arguments, as Triton's pytorch backend finds them: by the
    number behind ``__``, else by the argument's name, else as the configuration lists them."""
    numbers = {name: re.search(r"__(\d+)$", name) for name in request}
    if all(numbers.values()):
        return dict(sorted(request.items(), key=lambda item: int(numbers[item[0]][1])))  # type: ignore[index]
    if set(request) == set(arguments):
        return {name: request[name] for name in arguments}
    return request


def _tensors(torch: Any, requests: Sequence[Request]) -> list[Any]:
    """A batch of requests of equal shapes."""
    return [
        torch.from_numpy(np.stack([request[name] for request in requests])) for name in requests[0]
    ]


def _cast(tensor: Any, dtype: Any) -> Any:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _flat(answers: Sequence[Sequence[Any]]) -> list[tuple[str, Any]]:
    return [
        (f"{index}/OUTPUT__{number}", output)
        for index, outputs in enumerate(answers)
        for number, output in enumerate(outputs)
    ]


def _first(error: BaseException) -> str:
    """An error's telling line: TorchScript puts a trace of its own before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return next((line for line in reversed(lines) if "Error" in line), lines[0])[:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
