"""Stand-ins for PyTorch and for the Python backend's module, to run the PyTorch runner without
either: tensors are NumPy arrays that know which memory they are in, a GPU is this process, and a
CUDA graph calls again what was called while it was captured.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from autotune.adapters.triton.runners import TORCH_RUNNER

HOST, PINNED, GPU = "host", "pinned", "gpu"
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@dataclass(frozen=True)
class Device:
    type: str
    index: int = 0

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"


class Tensor:
    def __init__(self, torch: FakeTorch, array: Any, memory: str = HOST) -> None:
        self.torch, self.array, self.memory = torch, np.asarray(array), memory

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> str:
        return f"torch.{self.array.dtype}"

    @property
    def is_cuda(self) -> bool:
        return self.memory == GPU

    def is_floating_point(self) -> bool:
        return self.array.dtype.kind == "f"

    def float(self) -> Tensor:
        return Tensor(self.torch, self.array.astype(np.float32), self.memory)

    def contiguous(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self.to(Device("cpu"))

    def to(self, device: Device, *, non_blocking: bool = False) -> Tensor:
        wanted = GPU if device.type == "cuda" else HOST
        if self.is_cuda == (wanted == GPU):
            return self
        return Tensor(self.torch, np.empty_like(self.array), wanted).copy_(self)

    def copy_(self, other: Tensor, *, non_blocking: bool = False) -> Tensor:
        if self.memory != other.memory:
            self.torch.copies.append((other.memory, self.memory, other.shape))
        self.array[...] = other.array
        return self


@dataclass
class Schema:
    """Of forward(): its arguments' names and types, without ``self``, and what it returns."""

    takes: list[tuple[str, str]]
    gives: str

    @property
    def arguments(self) -> list[Any]:
        made = [
            SimpleNamespace(name=name, type=kind, has_default_value=lambda k=kind: "Opt" in k)
            for name, kind in self.takes
        ]
        return [SimpleNamespace(name="self"), *made]

    @property
    def returns(self) -> list[Any]:
        return [SimpleNamespace(type=Kind(self.gives))]


@dataclass(frozen=True)
class Kind:
    text: str

    def __str__(self) -> str:
        return self.text

    def kind(self) -> str:
        return "TupleType" if self.text.startswith("(") else "OtherType"

    def elements(self) -> list[str]:
        return self.text.strip("()").split(", ")


@dataclass
class Program:
    """What a file named after it holds: ``run`` takes and gives arrays."""

    run: Callable[..., Any]
    takes: list[tuple[str, str]]
    gives: str = "Tensor"


class Module:
    def __init__(self, torch: FakeTorch, program: Program, memory: str) -> None:
        self.torch, self.program, self.memory = torch, program, memory
        self.forward = SimpleNamespace(schema=Schema(program.takes, program.gives))

    def eval(self) -> Module:
        return self

    def __call__(self, *tensors: Tensor) -> Any:
        assert all(tensor.is_cuda == (self.memory == GPU) for tensor in tensors)
        self.torch.runs += 1
        results = self.program.run(*(tensor.array for tensor in tensors))
        many = isinstance(results, tuple)
        made = [Tensor(self.torch, r, self.memory) for r in (results if many else (results,))]
        if self.torch.capturing is not None:
            self.torch.capturing.recorded.append((self, tensors, made))
        return tuple(made) if many else made[0]


@dataclass
class Graph:
    torch: Any
    recorded: list[Any] = field(default_factory=list)

    def replay(self) -> None:
        self.torch.replays += 1
        for module, tensors, outputs in self.recorded:
            results = module.program.run(*(tensor.array for tensor in tensors))
            for output, result in zip(
                outputs, results if isinstance(results, tuple) else (results,), strict=True
            ):
                output.array[...] = result


class FakeTorch(ModuleType):
    """``copies`` between memories as (from, to, shape); ``runs`` of models, ``replays`` of graphs;
    ``refuses_capture`` is what a capture fails with."""

    def __init__(self, *, gpus: int = 0) -> None:
        super().__init__("torch")
        self.__version__ = "2.99.0"
        self.Tensor = Tensor
        self.device = Device
        self.programs: dict[str, Program] = {}
        self.copies: list[tuple[str, str, tuple[int, ...]]] = []
        self.runs = self.replays = 0
        self.threads: dict[str, int] = {}
        self.capturing: Graph | None = None
        self.refuses_capture = ""
        self.version = SimpleNamespace(cuda="13.0" if gpus else None)
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)),
            cudnn=SimpleNamespace(allow_tf32=True),
        )
        self.jit = SimpleNamespace(load=self._load, optimized_execution=self._optimized)
        self.optimized: list[bool] = []
        self.cuda = SimpleNamespace(
            is_available=lambda: gpus > 0,
            device_count=lambda: gpus,
            synchronize=lambda device: None,
            Stream=lambda device: SimpleNamespace(synchronize=lambda: None),
            device=nothing,
            stream=nothing,
            graph_pool_handle=lambda: "pool",
            CUDAGraph=lambda: Graph(self),
            graph=self._graph,
        )
        for name in DTYPES:
            setattr(self, name, f"torch.{name}")

    def set_num_threads(self, count: int) -> None:
        self.threads["intra"] = count

    def set_num_interop_threads(self, count: int) -> None:
        self.threads["inter"] = count

    def inference_mode(self) -> Any:
        return nothing()

    def from_dlpack(self, capsule: Any) -> Tensor:
        array, memory = capsule
        return Tensor(self, array, memory)

    def empty(
        self, shape: Sequence[int], *, dtype: str, device: Any = None, pin_memory: bool = False
    ) -> Tensor:
        memory = PINNED if pin_memory else GPU if device is not None else HOST
        return Tensor(self, np.zeros(shape, dtype.removeprefix("torch.")), memory)

    def cat(self, tensors: list[Tensor], out: Tensor | None = None) -> Tensor:
        (memory,) = {tensor.memory for tensor in tensors}
        joined = Tensor(self, np.concatenate([tensor.array for tensor in tensors]), memory)
        if out is None:
            return joined
        out.array[...] = joined.array
        return out

    def split(self, tensor: Tensor, sizes: list[int]) -> list[Tensor]:
        ends = np.cumsum(sizes)[:-1]
        return [Tensor(self, part, tensor.memory) for part in np.split(tensor.array, ends)]

    def equal(self, one: Tensor, other: Tensor) -> bool:
        return np.array_equal(one.array, other.array)

    def allclose(self, one: Tensor, other: Tensor, **tolerance: Any) -> bool:
        return np.allclose(one.array, other.array, **tolerance)

    def _load(self, path: str, map_location: Device) -> Module:
        name = Path(path).read_text()
        if name not in self.programs:
            raise RuntimeError(f"no such archive\nValueError: not TorchScript: {name}")
        return Module(self, self.programs[name], GPU if map_location.type == "cuda" else HOST)

    @contextmanager
    def _optimized(self, should: bool) -> Iterator[None]:
        self.optimized.append(should)
        yield

    @contextmanager
    def _graph(
        self, graph: Graph, *, pool: Any, stream: Any, capture_error_mode: str
    ) -> Iterator[None]:
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        if self.refuses_capture:
            raise RuntimeError(self.refuses_capture)
        self.capturing = graph
        try:
            yield
        finally:
            self.capturing = None


@contextmanager
def nothing(*_: Any) -> Iterator[None]:
    yield


# --------------------------------------------------------------------------- the Python backend
class ModelError(Exception):
    pass


class PbTensor:
    def __init__(self, name: str, array: Any, memory: str = HOST) -> None:
        self.name, self.array, self.memory = name, np.asarray(array), memory

    def to_dlpack(self) -> Any:
        return self.array, self.memory

    @classmethod
    def from_dlpack(cls, name: str, tensor: Tensor) -> PbTensor:
        return cls(name, tensor.array.copy(), tensor.memory)


@dataclass
class Request:
    tensors: list[PbTensor]
    outputs: tuple[str, ...]

    def requested_output_names(self) -> tuple[str, ...]:
        return self.outputs


@dataclass
class Response:
    tensors: list[PbTensor] = field(default_factory=list)
    error: str = ""

    def __getitem__(self, name: str) -> Any:
        assert not self.error, self.error
        return {tensor.name: tensor.array for tensor in self.tensors}[name]


class FakeBackend(ModuleType):
    """`triton_python_backend_utils`; ``logged`` is what went to Triton's log."""

    def __init__(self) -> None:
        super().__init__("triton_python_backend_utils")
        self.TritonModelException = ModelError
        self.TritonError = str
        self.Tensor = PbTensor
        self.logged: list[str] = []
        self.Logger = SimpleNamespace(log_info=self.logged.append, log_warn=self.logged.append)

    def InferenceResponse(self, tensors: Any = (), error: str = "") -> Response:
        return Response(list(tensors), error)

    def get_input_tensor_by_name(self, request: Request, name: str) -> PbTensor | None:
        return next((tensor for tensor in request.tensors if tensor.name == name), None)


# ------------------------------------------------------------------------------------ the runner
class Served:
    """The runner's module in a folder of its own, over the stand-ins."""

    def __init__(self, monkeypatch: Any, folder: Path, torch: FakeTorch) -> None:
        self.torch, self.backend, self.folder = torch, FakeBackend(), folder
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "triton_python_backend_utils", self.backend)
        (folder / "model.py").write_bytes(TORCH_RUNNER.read_bytes())
        spec = importlib.util.spec_from_file_location("a_torch_runner", folder / "model.py")
        assert spec is not None
        assert spec.loader is not None
        self.module: Any = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "a_torch_runner", self.module)
        spec.loader.exec_module(self.module)

    def load(
        self,
        program: Program,
        config: dict[str, Any],
        *,
        kind: str = "CPU",
        device: int = 0,
        **parameters: str,
    ) -> Any:
        self.torch.programs["it"] = program
        (self.folder / "model.pt").write_text("it")
        given = {key: {"string_value": value} for key, value in parameters.items()}
        args = {
            "model_config": json.dumps({**config, "parameters": given}),
            "model_instance_kind": kind,
            "model_instance_device_id": str(device),
        }
        model = self.module.TritonPythonModel()
        model.initialize(args)
        return model
