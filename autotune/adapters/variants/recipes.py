"""From a variant's name to the recipe that makes its ONNX graph."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path

from autotune.adapters.triton.precision import precision_of
from autotune.adapters.variants import calibrated, graphs, half
from autotune.adapters.variants.gate import Judged
from autotune.adapters.variants.made import Made
from autotune.adapters.variants.quantize import Form
from autotune.adapters.variants.quiet import quiet, told
from autotune.adapters.variants.running import Runner
from autotune.adapters.variants.task import Task
from autotune.core.errors import AutotuneError
from autotune.core.variants import Attempt, Engine, Precision, Variant

_FP16_TRIES = 4
SIMULATED = (
    "ONNX Runtime's CPU provider computes nothing in bfloat16: the accuracy is that of a simulation"
    " by casts, which is slower than fp32 and is not served"
)


_WHOLE = (Precision.FP32, Precision.TF32)
_QUANTIZED = (Precision.INT8, Precision.FP8)


class Recipe(StrEnum):
    """How a graph is made from the source; a part of the cache's key."""

    SOURCE = "source"
    """The source itself: fp32, and tf32, which is a flag at run time."""
    FP16 = "fp16"
    BF16 = "bf16"
    BF16_SIMULATED = "bf16-simulated"
    INT8_CPU = "int8-cpu"
    INT8_TENSORRT = "int8-tensorrt"
    FP8 = "fp8"

    @property
    def calibrates(self) -> bool:
        return self in _FORMS


_FORMS = {
    Recipe.INT8_CPU: Form.CPU,
    Recipe.INT8_TENSORRT: Form.TENSORRT,
    Recipe.FP8: Form.FP8,
}


def recipe_of(variant: Variant) -> Recipe:
    """The recipe of the graph that the engine is given."""
    on_cpu = variant.engine is Engine.ONNXRUNTIME
    match variant.precision:
        case Precision.FP32 | Precision.TF32:
            return Recipe.SOURCE
        case Precision.FP16:
            return Recipe.FP16
        case Precision.BF16:
            return Recipe.BF16_SIMULATED if on_cpu else Recipe.BF16
        case Precision.INT8:
            return Recipe.INT8_CPU if on_cpu else Recipe.INT8_TENSORRT
        case Precision.FP8:
            return Recipe.FP8


def make(task: Task, folder: Path) -> Made:
    """The variant's graph in ``folder``, judged. What fails is told in the result; the source must
    be readable."""
    recipe = recipe_of(task.request.variant)
    if lost := lost_in(task.request.source, task.request.variant.precision):
        return Made(refused=lost)
    if recipe is Recipe.SOURCE:
        return _source(task)
    target = folder / f"{recipe}.onnx"
    if recipe in _FORMS:
        return calibrated.make(task, _FORMS[recipe], target)
    return _Half(task, recipe).make(target)


def lost_in(source: Path, precision: Precision) -> str:
    """Why an ONNX file cannot become that precision: its weights hold less already. Empty where it
    can."""
    held = precision_of(source)
    if held in _QUANTIZED:
        return (
            f"the source is quantized already ({held}): give the model that it was made from, in"
            " fp32"
        )
    if precision not in _WHOLE or held is Precision.FP32:
        return ""
    told = f"the source's weights are {held}" if held else "the source has no weights in fp32"
    return f"{told}: as {precision} it would be the same file under another name"


def _source(task: Task) -> Made:
    request = task.request
    judged = task.judge(request.source)
    notes: tuple[str, ...] = ()
    if request.variant.engine is not Engine.ONNXRUNTIME:
        state = "on" if request.variant.precision is Precision.TF32 else "off"
        notes = (f"the source itself, with TF32 switched {state} at run time",)
    return Made(
        file=request.source,
        beside=task.source.beside,
        accuracy_drop=judged.drop,
        refused=judged.refused,
        notes=(*notes, *judged.notes),
    )


class _Half:
    """fp16 and bf16: the whole graph, or all but the operators that lose most."""

    def __init__(self, task: Task, recipe: Recipe) -> None:
        self._task, self._recipe = task, recipe
        self._request = task.request

    def make(self, target: Path) -> Made:
        """The first that passes the gate; else the one with the least drop."""
        best: tuple[Judged, Path, int] | None = None
        attempts: list[Attempt] = []
        notes: list[str] = []
        ways: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("all operators", ()),
            ("softmax, norms, powers and sums in fp32", half.DELICATE),
        )
        for what, ops in ways:
            started = self._task.clock()
            path = self._task.scratch / f"half-{len(attempts)}.onnx"
            try:
                note = self._write(path, ops)
                judged = self._judge(path, ops)
            except (AutotuneError, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - the converters raise bare exceptions
                judged = Judged(refused=f"it cannot be converted: {told(error)}")
                note = ""
            notes += [note] if note else []
            attempts.append(
                Attempt(
                    what=what,
                    accuracy_drop=judged.drop,
                    seconds=self._task.clock() - started,
                    note=judged.refused,
                )
            )
            self._task.say_drop(what, judged)
            if judged.drop is not None and (best is None or _better(judged, best[0])):
                best = (judged, path, len(attempts) - 1)
            if self._task.satisfied(judged):
                break
        return self._made(best, attempts, notes, target)

    def _made(
        self,
        best: tuple[Judged, Path, int] | None,
        attempts: list[Attempt],
        notes: list[str],
        target: Path,
    ) -> Made:
        if best is None:
            why = attempts[-1].note or "no graph could be made"
            return Made(refused=why, attempts=tuple(attempts), notes=tuple(notes))
        judged, path, index = best
        attempts[index] = dataclasses.replace(attempts[index], kept=True)
        refused = judged.refused
        if self._recipe is Recipe.BF16_SIMULATED:
            refused = refused or SIMULATED
        return Made(
            file=target,
            beside=graphs.save(graphs.load(path), target),
            accuracy_drop=judged.drop,
            refused=refused,
            attempts=tuple(attempts),
            notes=tuple(dict.fromkeys((*notes, *judged.notes))),
        )

    def _write(self, path: Path, ops: tuple[str, ...]) -> str:
        if self._recipe is Recipe.FP16:
            return self._write_fp16(path, ops)
        with quiet():
            model = graphs.load(self._request.source)
            if self._recipe is Recipe.BF16_SIMULATED:
                graphs.save(half.in_steps(model, Precision.BF16, spared=ops), path)
                return ""
            brain, note = half.to_bf16(model, ops=ops)
            graphs.save(brain, path)
            return note

    def _write_fp16(self, path: Path, ops: tuple[str, ...]) -> str:
        """A node that ONNX Runtime's type check names stays in fp32, and it is tried again."""
        nodes: list[str] = []
        for last in (*(False,) * (_FP16_TRIES - 1), True):
            model = graphs.load(self._request.source)
            graphs.name_nodes(model)
            graphs.save(half.to_fp16(model, ops=ops, nodes=nodes), path)
            try:
                Runner(path)
                break
            except OSError:
                raise
            except Exception as error:
                blamed = [name for name in half.blamed_nodes(str(error)) if name not in nodes]
                if last or not blamed:
                    raise
                nodes += blamed
        return f"left in fp32, where the conversion fails: {', '.join(nodes)}" if nodes else ""

    def _judge(self, path: Path, ops: tuple[str, ...]) -> Judged:
        """A graph that the CPU provider will serve by itself; else one that rounds each step, as
        the device will."""
        if self._recipe is Recipe.BF16_SIMULATED:
            return self._task.judge(path)
        if self._request.variant.engine is Engine.ONNXRUNTIME:
            return self._task.judge_optimized(path, self._task.judge(path))
        stepwise = self._task.scratch / "steps.onnx"
        model = graphs.load(self._request.source)
        with quiet():
            steps = half.in_steps(model, self._request.variant.precision, spared=ops)
        graphs.save(steps, stepwise)
        return self._task.judge(stepwise)


def _better(one: Judged, other: Judged) -> bool:
    assert one.drop is not None
    assert other.drop is not None
    return (not one.passed, one.drop) < (not other.passed, other.drop)
