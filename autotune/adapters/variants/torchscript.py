"""TorchScript variants of a PyTorch model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.adapters.variants.apart import build_apart
from autotune.adapters.variants.gate import judge_outputs
from autotune.adapters.variants.made import Made, Say
from autotune.adapters.variants.request import BuildRequest, Outputs
from autotune.core.capability import Hardware, impossible
from autotune.core.model_interface import Sample
from autotune.core.variants import Precision

MODEL = "model.pt"
SOURCES = (".pt", ".pt2")
_SAMPLES, _ANSWERS = "samples.npz", "answers.npz"
_MODULE = "autotune.adapters.variants.torch_build"
_DEADLINE_S = 1800.0


class TorchBuilder:
    """Builds a study's pytorch variants (`made.EngineBuilder`): fp32, tf32 (the same file, run with
    that allowed), fp16 and bf16.

    ``here`` is what it builds for, and ``variables`` of the environment say so to CUDA.
    """

    def __init__(self, *, here: Hardware, variables: Mapping[str, str] | None = None) -> None:
        self._here = here
        self._variables = variables or {}

    def tools(self) -> Mapping[str, str]:
        """The accuracy is found on the GPU where there is one."""
        return {"torch": ".".join(map(str, self._here.torch or ())), "gpu": self._here.gpu}

    def build(
        self,
        request: BuildRequest,
        onnx: Path | None,  # noqa: ARG002 - PyTorch has its own source
        folder: Path,
        say: Say,
    ) -> Made:
        """``model.pt`` in ``folder``, from TorchScript or an exported program, and its accuracy by
        running it on the evaluation requests."""
        reason = impossible(request.variant, self._here)
        if reason is None and request.source.suffix not in SOURCES:
            reason = (
                f"the pytorch engine serves TorchScript (model.pt) or an exported program"
                f" (model.pt2), and the source is {request.source.name}"
            )
        if reason is not None:
            return Made(refused=reason)
        say(f"building {request.variant} (a process of its own)")
        outputs = answers(request, folder, self._variables)
        if isinstance(outputs, str):
            return Made(refused=outputs)
        judged = judge_outputs(request, outputs)
        return Made(
            file=folder / MODEL,
            accuracy_drop=judged.drop,
            refused=judged.refused,
            notes=judged.notes,
        )


def answers(
    request: BuildRequest, folder: Path, variables: Mapping[str, str]
) -> list[Outputs] | str:
    """``model.pt`` in ``folder``, and its outputs on the samples; or why there is none."""
    samples = request.samples
    if not samples:
        return "the pytorch engine tries a model on requests, and there is none"
    if any(array.dtype == object for array in samples[0].values()):
        return "the pytorch engine takes tensors of numbers, and an input is text"
    tf32 = request.variant.precision is Precision.TF32
    order = {
        "source": str(request.source.absolute()),
        "artefact": str((folder / MODEL).absolute()),
        "precision": str(Precision.FP32 if tf32 else request.variant.precision),
        "tf32": tf32,
        "samples": str(folder / _SAMPLES),
        "inputs": list(samples[0]),
        "answers": str(folder / _ANSWERS),
    }
    try:
        _write(samples, folder / _SAMPLES)
        answer = build_apart(_MODULE, order, folder, deadline_s=_DEADLINE_S, variables=variables)
        if "refused" in answer:
            return str(answer["refused"])
        return _named(_read(folder / _ANSWERS), request.outputs)
    finally:
        for name in (_SAMPLES, _ANSWERS):
            (folder / name).unlink(missing_ok=True)


def _named(found: list[Outputs], names: Sequence[str]) -> list[Outputs] | str:
    """Outputs by the configuration's names: of the number behind ``__``, else in its order, as
    Triton's pytorch backend finds them. Where there are no names, ``OUTPUT__0`` and so on."""
    if not names:
        return found
    count = len(found[0])
    numbers = [re.search(r"__(\d+)$", name) for name in names]
    places = {
        name: int(number[1]) if number and all(numbers) else place
        for place, (name, number) in enumerate(zip(names, numbers, strict=True))
    }
    if max(places.values()) >= count:
        return f"the model gives {count} outputs, and its configuration names {', '.join(names)}"
    return [{name: each[f"OUTPUT__{at}"] for name, at in places.items()} for each in found]


def _write(samples: Sequence[Sample], file: Path) -> None:
    named = {
        f"{index}/{name}": array
        for index, sample in enumerate(samples)
        for name, array in sample.items()
    }
    np.savez(file, **named)  # type: ignore[arg-type]


def _read(file: Path) -> list[Outputs]:
    found: dict[int, dict[str, NDArray[np.generic]]] = {}
    with np.load(file) as arrays:
        for key in arrays.files:
            index, _, name = key.partition("/")
            found.setdefault(int(index), {})[name] = arrays[key]
    return [found[index] for index in sorted(found)]
