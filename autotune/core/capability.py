"""Which precision runs on which engine and hardware: what cannot run never enters a space.

Sources, in NVIDIA's and Microsoft's documentation:

- CUDA C++ Programming Guide, "Compute Capabilities", throughput of arithmetic: fp16 from compute
  capability 5.3, int8 dot products from 6.1, bf16 and TF32 from 8.0, fp8 from 8.9.
- TensorRT support matrix, "GPU Architecture and Precision Support" (10.0 to 11.4), which agrees
  with these for what TensorRT runs on: compute capability 7.0 up to TensorRT 10.4, and 7.5 from
  10.5 on (release notes of 10.5.0: Volta removed).
- TensorRT 10.x to 11.x migration: networks are strongly typed only. Strong typing may be asked for
  in TensorRT 10; weak typing is deprecated from 10.12 on.
- ONNX Runtime, "Quantize ONNX models": on GPUs it quantizes by its TensorRT provider. Its CPU
  provider has no bf16 arithmetic (issue 28768) and no fp8 one (issue 22269); its CUDA provider has
  fp8 only in operators of its own (pull request 16051), and a switch for TF32 (19357). Its TensorRT
  provider has none (issue 26029), takes TensorRT 11 from ONNX Runtime 1.27 on and then reads types
  from the graph; before, it has switches for fp16, bf16 and int8.
- Triton's backends, READMEs: onnxruntime's ``execution_accelerators`` reach those switches
  (``precision_mode``, ``use_tf32``); pytorch's parameters have none for TF32. autotune's own
  runners, which stand in for both on the embedded server, have one each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autotune.core.variants import ALL, Engine, Precision, Variant

INSTALL_TENSORRT = (
    "TensorRT is not installed: the Python that runs autotune on the GPU host needs its package"
    " tensorrt"
)
INSTALL_TORCH = "PyTorch is not installed: the Python that runs autotune needs its package torch"

MIN_COMPUTE_CAPABILITY: dict[Precision, tuple[int, int]] = {
    Precision.FP16: (5, 3),
    Precision.INT8: (6, 1),
    Precision.TF32: (8, 0),
    Precision.BF16: (8, 0),
    Precision.FP8: (8, 9),
}
"""Of a GPU that computes in it; fp32 is not in it: every GPU does."""

OLDEST_TENSORRT = (10, 0)
WITHOUT_VOLTA = (10, 5)
ONLY_TYPED = (11, 0)

_GPU_ENGINES = {Engine.ONNXRUNTIME_CUDA, Engine.ONNXRUNTIME_TENSORRT, Engine.TENSORRT}
_TENSORRT_ENGINES = {Engine.ONNXRUNTIME_TENSORRT, Engine.TENSORRT}

BACKENDS: dict[Engine, frozenset[str]] = {
    Engine.ONNXRUNTIME: frozenset({"onnxruntime", "python"}),
    Engine.ONNXRUNTIME_CUDA: frozenset({"onnxruntime", "python"}),
    Engine.ONNXRUNTIME_TENSORRT: frozenset({"onnxruntime"}),
    Engine.TENSORRT: frozenset({"tensorrt"}),
    Engine.PYTORCH: frozenset({"pytorch", "python"}),
}
"""Triton's backends that can serve an engine: any one of them. ``python``: autotune's runners."""

PROVIDERS: dict[Engine, str] = {
    Engine.ONNXRUNTIME_CUDA: "CUDAExecutionProvider",
    Engine.ONNXRUNTIME_TENSORRT: "TensorrtExecutionProvider",
}

_OF_A_GPU = "TF32 is a mode of a GPU's Tensor Cores"
_NEVER: dict[Variant, str] = {
    Variant(Engine.ONNXRUNTIME, Precision.TF32): _OF_A_GPU,
    Variant(Engine.ONNXRUNTIME, Precision.BF16): (
        "ONNX Runtime has no bf16 arithmetic on a CPU: its accuracy can be simulated, not served"
    ),
    Variant(Engine.ONNXRUNTIME, Precision.FP8): (
        "ONNX Runtime has no fp8 arithmetic on a CPU: its accuracy can be simulated, not served"
    ),
    Variant(Engine.ONNXRUNTIME_CUDA, Precision.INT8): (
        "ONNX Runtime quantizes on GPUs by TensorRT: take onnxruntime-tensorrt or tensorrt"
    ),
    Variant(Engine.ONNXRUNTIME_CUDA, Precision.FP8): (
        "ONNX Runtime's CUDA provider does not compute a quantized graph in fp8: take tensorrt"
    ),
    Variant(Engine.PYTORCH, Precision.INT8): (
        "PyTorch quantizes a model from its Python source, which a served file no longer holds:"
        " export it to ONNX"
    ),
    Variant(Engine.PYTORCH, Precision.FP8): (
        "PyTorch quantizes a model from its Python source, which a served file no longer holds:"
        " export it to ONNX"
    ),
}
"""What runs on no hardware, and why."""

PYTORCH_TF32 = Variant(Engine.PYTORCH, Precision.TF32)
NO_TORCH_TF32 = (
    "Triton's pytorch backend has no switch for TF32: tune it on the embedded server, whose runner"
    " has; or pytorch-fp32, on a server that was started with TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 in"
    " its environment"
)
_TORCH_FP32 = Variant(Engine.PYTORCH, Precision.FP32)
_TORCH_CONVOLUTIONS = (
    "Triton's pytorch backend computes convolutions in TF32 unless NVIDIA_TF32_OVERRIDE=0 is in its"
    " environment; the embedded server's runner does not"
)
_NOTES: dict[Variant, str] = {
    Variant(Engine.ONNXRUNTIME, Precision.FP16): (
        "half the file, no speed: ONNX Runtime computes it in fp32 on a CPU"
    ),
    PYTORCH_TF32: "by the embedded server alone: Triton's pytorch backend has no switch for it",
    Variant(Engine.ONNXRUNTIME_CUDA, Precision.BF16): (
        "not every operator has a bf16 kernel; a model with one that has none does not load"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Where variants are built and served.

    ``compute_capability`` is the GPU's, the lowest where there are several; None: no GPU, so the
    CPU. ``tensorrt`` and ``torch`` are the versions installed where variants are built, None where
    there is none. ``backends`` are the serving Triton's, ``providers`` its ONNX Runtime's; None:
    not known, so nothing is ruled out for them.
    """

    compute_capability: tuple[int, int] | None = None
    gpu: str = ""
    driver: str = ""
    tensorrt: tuple[int, ...] | None = None
    torch: tuple[int, ...] | None = None
    backends: frozenset[str] | None = None
    providers: frozenset[str] | None = None


class Answer(StrEnum):
    YES = "yes"
    """It has been built, served and measured by this project on such hardware."""
    UNTRIED = "not yet run on hardware"
    """The vendors' documentation says that it runs; this project has not tried it there."""
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Whether a variant runs, and ``note``: why it does not, or what to know of it (may be
    empty)."""

    variant: Variant
    answer: Answer
    note: str = ""


def impossible(variant: Variant, hardware: Hardware) -> str | None:
    """Why the variant cannot be built or served there; None if it can."""
    for rule in _RULES:
        if reason := rule(variant, hardware):
            return reason
    return None


def capability(variant: Variant, hardware: Hardware) -> Capability:
    reason = impossible(variant, hardware)
    if reason is not None:
        return Capability(variant=variant, answer=Answer.NO, note=reason)
    answer = Answer.YES if _on_cpu(variant, hardware) else Answer.UNTRIED
    return Capability(variant=variant, answer=answer, note=_note(variant, hardware))


def table(hardware: Hardware) -> tuple[Capability, ...]:
    """Of every engine and precision, in their order."""
    return tuple(capability(variant, hardware) for variant in ALL)


def _note(variant: Variant, hardware: Hardware) -> str:
    if variant == _TORCH_FP32 and hardware.compute_capability is not None:
        return _TORCH_CONVOLUTIONS if _has(Precision.TF32, hardware) else ""
    return _NOTES.get(variant, "")


def _no_gpu(variant: Variant, hardware: Hardware) -> str:
    if variant.engine in _GPU_ENGINES and hardware.compute_capability is None:
        return "it needs an NVIDIA GPU, and none is seen"
    return ""


def _no_backend(variant: Variant, hardware: Hardware) -> str:
    serving = BACKENDS[variant.engine]
    if hardware.backends is None or serving & hardware.backends:
        return ""
    return (
        f"the server has no {' or '.join(sorted(serving))} backend: take launch docker or binary,"
        " with a Triton that has it"
    )


def _no_provider(variant: Variant, hardware: Hardware) -> str:
    needed = PROVIDERS.get(variant.engine)
    if needed is None or hardware.providers is None or needed in hardware.providers:
        return ""
    return f"the server's ONNX Runtime has no {needed}"


def _torch_tf32(variant: Variant, hardware: Hardware) -> str:
    if variant != PYTORCH_TF32:
        return ""
    if hardware.compute_capability is None:
        return _OF_A_GPU
    by_runner = hardware.backends is None or "python" in hardware.backends
    return "" if by_runner else NO_TORCH_TF32


def _no_torch(variant: Variant, hardware: Hardware) -> str:
    return INSTALL_TORCH if variant.engine is Engine.PYTORCH and hardware.torch is None else ""


def _no_tensorrt(variant: Variant, hardware: Hardware) -> str:
    """The provider has TensorRT in the server; a plan is built here."""
    if variant.engine is not Engine.TENSORRT:
        return ""
    if hardware.tensorrt is None:
        return INSTALL_TENSORRT
    if hardware.tensorrt < OLDEST_TENSORRT:
        return f"TensorRT {_dotted(hardware.tensorrt)} is too old: 10 or newer is needed"
    return ""


def _old_gpu_for_tensorrt(variant: Variant, hardware: Hardware) -> str:
    if variant.engine not in _TENSORRT_ENGINES or hardware.compute_capability is None:
        return ""
    volta = hardware.tensorrt is not None and hardware.tensorrt < WITHOUT_VOLTA
    least = (7, 0) if volta else (7, 5)
    if hardware.compute_capability >= least:
        return ""
    known = f"TensorRT {_dotted(hardware.tensorrt)}" if hardware.tensorrt else "TensorRT"
    return f"{known} needs compute capability {_dotted(least)}, {_this_gpu(hardware)}"


def _never(variant: Variant, _hardware: Hardware) -> str:
    return _NEVER.get(variant, "")


def _no_switch_of_the_provider(variant: Variant, hardware: Hardware) -> str:
    """What ONNX Runtime's TensorRT provider does not let a configuration choose."""
    if variant.engine is not Engine.ONNXRUNTIME_TENSORRT:
        return ""
    if variant.precision is Precision.FP32 and _has(Precision.TF32, hardware):
        return (
            "ONNX Runtime's TensorRT provider computes fp32 in TF32 on such a GPU and has no switch"
            " for it: take onnxruntime-tensorrt-tf32, or tensorrt-fp32"
        )
    old = hardware.tensorrt is not None and hardware.tensorrt < ONLY_TYPED
    if variant.precision is Precision.FP8 and old:
        return "ONNX Runtime's TensorRT provider takes fp8 only with TensorRT 11: take tensorrt-fp8"
    return ""


def _old_gpu_for_precision(variant: Variant, hardware: Hardware) -> str:
    if _on_cpu(variant, hardware) or _has(variant.precision, hardware):
        return ""
    least = MIN_COMPUTE_CAPABILITY[variant.precision]
    return (
        f"{variant.precision} needs a GPU of compute capability {_dotted(least)},"
        f" {_this_gpu(hardware)}"
    )


def _on_cpu(variant: Variant, hardware: Hardware) -> bool:
    """Whether it computes there, where all that can has been tried."""
    return variant.engine is Engine.ONNXRUNTIME or hardware.compute_capability is None


def _has(precision: Precision, hardware: Hardware) -> bool:
    """Whether the GPU computes in it."""
    assert hardware.compute_capability is not None
    return hardware.compute_capability >= MIN_COMPUTE_CAPABILITY.get(precision, (0, 0))


_RULES: tuple[Callable[[Variant, Hardware], str], ...] = (
    _no_gpu,
    _no_backend,
    _no_provider,
    _never,
    _torch_tf32,
    _no_torch,
    _no_tensorrt,
    _old_gpu_for_tensorrt,
    _old_gpu_for_precision,
    _no_switch_of_the_provider,
)


def _this_gpu(hardware: Hardware) -> str:
    assert hardware.compute_capability is not None
    return f"and {hardware.gpu or 'this GPU'} has {_dotted(hardware.compute_capability)}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version[:3]))
