"""The accuracy gate: a variant that answers too much worse than its source is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.adapters.variants.quiet import told
from autotune.adapters.variants.request import BuildRequest, Outputs
from autotune.adapters.variants.running import Runner
from autotune.core.errors import AutotuneError
from autotune.core.model_interface import Sample

_NOTABLE = 0.01
"""A difference of the drop with graph optimizations on and off that is said where nothing limits
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """``drop``: None where it could not be measured; ``optimized_drop`` the same with graph
    optimizations on, and ``changed`` whether they make a difference that matters. ``refused`` says
    why the variant may not be served; empty where it may."""

    drop: float | None = None
    optimized_drop: float | None = None
    changed: bool = False
    refused: str = ""
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.refused


class Source:
    """The source model as a gate looks at it: what goes in and comes out, asked when needed.
    ``beside`` are the files of weights that belong to it."""

    def __init__(self, path: Path, beside: tuple[Path, ...] = ()) -> None:
        self._runner = Runner(path)
        self._answers: dict[int, Outputs] = {}
        self.signature, self.beside = self._runner.signature, beside

    def answer(self, index: int, sample: Sample) -> Outputs:
        """To the sample of that index; each is run once."""
        if index not in self._answers:
            self._answers[index] = self._runner(sample)
        return self._answers[index]


def judge(request: BuildRequest, path: Path, source: Source) -> Judged:
    """Run a variant on the evaluation requests, graph optimizations off, and judge its answers."""
    answered = _answers(request, path, source, optimized=False)
    return answered if isinstance(answered, Judged) else judge_outputs(request, answered)


def judge_optimized(request: BuildRequest, path: Path, source: Source, plain: Judged) -> Judged:
    """``plain``, unless graph optimizations change the answers: a server runs with them on."""
    answered = _answers(request, path, source, optimized=True)
    on = answered if isinstance(answered, Judged) else judge_outputs(request, answered)
    if on.drop is None:
        words = f"with ONNX Runtime's graph optimizations on: {on.refused}"
        return dataclasses.replace(plain, changed=True, refused=plain.refused or words)
    off = plain.drop or 0.0
    notable = _NOTABLE if request.limit is None else min(_NOTABLE, request.limit)
    changed = abs(on.drop - off) > notable or (bool(on.refused) and plain.passed)
    judged = dataclasses.replace(plain, optimized_drop=on.drop, changed=changed)
    if not changed:
        return judged
    words = (
        f"ONNX Runtime's graph optimizations change its answers: accuracy drop {share(off)} with"
        f" them off, {share(on.drop)} with them on"
    )
    if on.refused and plain.passed:
        return dataclasses.replace(judged, refused=words + _above(request.limit))
    return dataclasses.replace(judged, notes=(*plain.notes, words))


def judge_outputs(request: BuildRequest, outputs: Sequence[Outputs]) -> Judged:
    """The drop of answers that are already there, against the limit.

    An `AutotuneError` of ``request.drop`` (the user's metric cannot be used) is raised on.
    """
    try:
        drop = float(request.drop(outputs))
    except AutotuneError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        return Judged(refused=f"the accuracy metric fails on its answers: {told(error)}")
    if math.isnan(drop):
        return Judged(refused="the accuracy metric gives NaN on its answers")
    if request.limit is not None and drop > request.limit:
        return Judged(drop=drop, refused=f"accuracy drop {share(drop)}" + _above(request.limit))
    return Judged(drop=drop)


def share(value: float) -> str:
    """0.041 → ``4.1%``."""
    return f"{value * 100:.3g}%"


def _above(limit: float | None) -> str:
    return "" if limit is None else f" is above sla.accuracy_drop {share(limit)}"


# ---------------------------------------------------------------------------------------- running
def _answers(
    request: BuildRequest, path: Path, source: Source, *, optimized: bool
) -> list[Outputs] | Judged:
    """The answers to all samples, or why there are none."""
    try:
        runner = Runner(path, optimized=optimized)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no base of their own
        return Judged(refused=f"ONNX Runtime cannot load it: {told(error)}")
    if changed := _changed(source, runner):
        return Judged(refused=changed)
    answers: list[Outputs] = []
    shapes: set[object] = set()
    for index, sample in enumerate(request.samples):
        try:
            outputs = runner(sample)
        except Exception as error:  # noqa: BLE001 - as above
            return Judged(refused=f"it fails on sample {index}: {told(error)}")
        form = tuple((name, array.shape) for name, array in sorted(sample.items()))
        if wrong := _wrong(outputs, source, index, sample, first=form not in shapes):
            return Judged(refused=f"sample {index}: {wrong}")
        shapes.add(form)
        answers.append(outputs)
    return answers


def _changed(source: Source, runner: Runner) -> str:
    for what, own, other in (
        ("inputs", runner.signature.inputs, source.signature.inputs),
        ("outputs", runner.signature.outputs, source.signature.outputs),
    ):
        if _listed(own) != _listed(other):
            return f"its {what} are {_listed(own)}, the source's {_listed(other)}"
    return ""


def _listed(tensors: Mapping[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name} {kind}" for name, (kind, _) in sorted(tensors.items()))


def _wrong(outputs: Outputs, source: Source, index: int, sample: Sample, *, first: bool) -> str:
    """What no metric should have to find: other shapes than the source's, NaN and infinities."""
    bad = [name for name, array in outputs.items() if _unreal(array)]
    if not first and not bad:
        return ""
    own = source.answer(index, sample)
    for name, array in outputs.items():
        if array.shape != own[name].shape:
            return (
                f"output {name!r} has the shape {list(array.shape)}, the source's"
                f" {list(own[name].shape)}"
            )
        if _unreal(array) > _unreal(own[name]):
            return (
                f"output {name!r} holds {_unreal(array)} NaN or infinite values, the source's"
                f" {_unreal(own[name])}"
            )
    return ""


def _unreal(array: NDArray[np.generic]) -> int:
    return int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0
