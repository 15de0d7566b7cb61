"""Which layers lose the most when they are quantized: each is quantized alone, and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.adapters.variants import graphs
from autotune.adapters.variants.attempts import Group
from autotune.adapters.variants.prepare import Prepared
from autotune.adapters.variants.quantize import Quantization, Ranges, quantized
from autotune.adapters.variants.request import Outputs
from autotune.adapters.variants.running import Runner
from autotune.adapters.variants.task import Task
from autotune.core.model_interface import Sample

SAMPLES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The search in one prepared graph, quantized in one way but for what is left out."""

    task: Task
    prepared: Prepared
    ranges: Ranges
    how: Quantization

    def ranked(self, until: float) -> tuple[list[Group], str]:
        """The heavy nodes that lose most first, each with what is left out along with it, and a
        note.

        The loss is the relative error of the outputs on a few samples with that group alone
        quantized. Groups are looked at from both ends of the graph inwards, where the delicate ones
        mostly are, as long as the clock is below ``until``; those not reached are not in the list.
        """
        samples = self.task.request.samples[:SAMPLES]
        expected = [self.task.source.answer(index, one) for index, one in enumerate(samples)]
        groups = _ends_first(graphs.heavy_groups(self.prepared.model))
        losses: dict[Group, float] = {}
        say = self.task.paced()
        for group in groups:
            if losses and self.task.clock() > until:
                break
            losses[group] = self._loss(group, samples, expected)
            say(f"{len(losses)} of {len(groups)} layers quantized alone")
        note = ""
        if len(losses) < len(groups):
            missed = len(groups) - len(losses)
            note = f"{missed} of {len(groups)} layers were not tried alone: the time was up"
        return sorted(losses, key=lambda group: losses[group], reverse=True), note

    def _loss(self, group: Group, samples: Sequence[Sample], expected: Sequence[Outputs]) -> float:
        """Infinite where it cannot be quantized, or run: then it is the first to be left out."""
        alone = dataclasses.replace(self.how, left_out=(), only=group)
        try:
            path = quantized(self.prepared, self.ranges, alone, self.task.scratch / "alone.onnx")
            runner = Runner(path)
            error = relative_error([runner(sample) for sample in samples], expected)
        except OSError:  # a full disk says nothing of the model
            raise
        except Exception:  # noqa: BLE001 - it raises whatever ONNX Runtime raises
            return float("inf")
        return error if np.isfinite(error) else float("inf")


def relative_error(answers: Sequence[Outputs], expected: Sequence[Outputs]) -> float:
    """Of all floating-point outputs together: the norm of the difference over the norm."""
    apart = norm = 0.0
    for own, other in zip(answers, expected, strict=True):
        for name, array in other.items():
            if array.dtype.kind != "f":
                continue
            a, b = own[name].astype(np.float64), array.astype(np.float64)
            known = np.isfinite(b)
            apart += float(np.sum(np.square(a - b, where=known, out=np.zeros_like(b))))
            norm += float(np.sum(np.square(b, where=known, out=np.zeros_like(b))))
    return float(np.sqrt(apart / norm)) if norm else float(np.sqrt(apart))


def _ends_first(groups: list[Group]) -> list[Group]:
    ordered = []
    left = list(groups)
    while left:
        ordered.append(left.pop(0))
        if left:
            ordered.append(left.pop())
    return ordered
