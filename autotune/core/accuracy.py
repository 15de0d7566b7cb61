"""How much worse answers are than the source model's.

A drop is 0 where nothing was lost and has no upper end. With the right answers at hand it is the
source's score less the variant's, else 1 less the variant's agreement with the source. A variant
that scores better than its source has a drop of 0, not a gain: on some hundred requests that is as
likely luck, and a search would chase it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.errors import InputRefused

Array: TypeAlias = NDArray[Any]
Answer: TypeAlias = Mapping[str, NDArray[np.generic]]
"""One request's outputs by name, without the batch dimension."""
Metric: TypeAlias = Callable[[Array, Array], float]
"""How well one request's output fits another, or the right answer: 1 is as well as can be."""
UserScore: TypeAlias = Callable[[Sequence[Answer], Sequence[Any] | None], float]
"""A score of all requests' outputs, given the right answers if there are any; more is better."""


# ---------------------------------------------------------------------------- built-in metrics
def top1(output: Array, wanted: Array) -> float:
    """Whether the largest values stand at the same places of the last axis: their share. ``wanted``
    is an output of the same shape, or the places themselves, as whole numbers."""
    if wanted.dtype.kind in "iu" and wanted.shape != output.shape:
        return _share(np.argmax(output, axis=-1).reshape(-1), wanted.reshape(-1))
    return _share(np.argmax(output, axis=-1), np.argmax(wanted, axis=-1))


def text_match(output: Array, wanted: Array) -> float:
    """1 where all the texts are equal, else 0."""
    return float([_text(v) for v in output.flat] == [_text(v) for v in wanted.flat])


def cosine(output: Array, wanted: Array) -> float:
    """The cosine of the angle between the two, taken as vectors. Vectors of zeros, which have no
    direction, fit only each other."""
    a, b = _vector(output), _vector(wanted)
    lengths = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if lengths == 0:
        return float(not a.any() and not b.any())
    return float(a @ b) / lengths


def relative_error(output: Array, wanted: Array) -> float:
    """1 less the distance of the two, as a share of the wanted one's length."""
    a, b = _vector(output), _vector(wanted)
    length = float(np.linalg.norm(b))
    distance = float(np.linalg.norm(a - b))
    return 1 - (distance / length if length else distance)


METRICS: Mapping[str, Metric] = {
    "top1": top1,
    "text_match": text_match,
    "cosine": cosine,
    "relative_error": relative_error,
}
"""Every built-in metric by its name in study files."""
ROUNDING = 1e-9
"""A drop below this is the metric's own arithmetic: the source's against itself comes to 1e-16."""
ONE_OUTPUT = frozenset({"top1", "text_match"})
"""Metrics that mean something for one output alone; others take the worst of several."""


# ---------------------------------------------------------------------------------- the drop
@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """``metric`` names one of `METRICS`, or tells a user's ``function``, which then scores in its
    place. ``output`` is the one that is looked at (empty: the only one, or the worst of all where
    the metric makes sense for each). ``expected`` holds the right answer of each request."""

    metric: str
    output: str = ""
    expected: Sequence[Any] | None = None
    function: UserScore | None = None

    def drop(self, answers: Sequence[Answer], source: Sequence[Answer]) -> float:
        """By how much ``answers`` are worse than the ``source`` model's on the same requests, in
        the same order. InputRefused where the two, or the right answers, do not belong together.
        """
        self._require_alike(answers, source)
        if self.function is not None:
            worse = self.function(source, self.expected) - self.function(answers, self.expected)
        else:
            worse = max(self._output_drop(name, answers, source) for name in self._outputs(source))
        return worse if worse > ROUNDING else 0.0

    def _output_drop(self, name: str, answers: Sequence[Answer], source: Sequence[Answer]) -> float:
        given, own = [a[name] for a in answers], [s[name] for s in source]
        if self.expected is None:
            return 1 - self._mean(name, given, own)
        wanted = [np.asarray(each) for each in self.expected]
        return self._mean(name, own, wanted) - self._mean(name, given, wanted)

    def _mean(self, name: str, outputs: Sequence[Array], wanted: Sequence[Array]) -> float:
        metric = METRICS[self.metric]
        try:
            values = [metric(o, w) for o, w in zip(outputs, wanted, strict=True)]
        except (ValueError, TypeError) as error:
            raise InputRefused(
                f"{self.metric} cannot compare output {name!r}: {error}",
                next_step="Name another output (accuracy.output), another metric, or expected"
                " answers of the output's own shape.",
            ) from error
        # A NaN is no answer at all.
        return float(np.mean(np.nan_to_num(values, nan=0.0)))

    def _outputs(self, source: Sequence[Answer]) -> list[str]:
        names = sorted(source[0])
        if self.output:
            if self.output not in names:
                raise InputRefused(
                    "accuracy.output names no output of the model",
                    value=self.output,
                    next_step=f"It has {', '.join(names)}.",
                )
            return [self.output]
        if len(names) > 1 and (self.metric in ONE_OUTPUT or self.expected is not None):
            raise InputRefused(
                f"the model has several outputs, and {self.metric} looks at one",
                value=", ".join(names),
                next_step=f"Say which: accuracy: {{metric: {self.metric}, output: {names[0]}}}.",
            )
        return names

    def _require_alike(self, answers: Sequence[Answer], source: Sequence[Answer]) -> None:
        if not source or len(answers) != len(source):
            raise InputRefused(
                "a variant is held against its source request by request",
                value=f"{len(answers)} answers, {len(source)} of the source",
            )
        if self.expected is not None and len(self.expected) != len(source):
            raise InputRefused(
                "accuracy.expected needs one right answer for each evaluation request",
                value=f"{len(self.expected)} answers for {len(source)} requests",
            )


def _share(one: Array, other: Array) -> float:
    if one.shape != other.shape:
        raise ValueError(f"{one.size} places against {other.size}")
    return float(np.mean(one == other))


def _vector(values: Array) -> Array:
    if values.dtype.kind not in "fiub":
        raise TypeError("it takes numbers, not texts")
    return values.astype(np.float64).reshape(-1)


def _text(value: object) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
