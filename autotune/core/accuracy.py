"""How much worse answers are than the source model's.

A drop is 0 where nothing was lost and has no upper end. With the right answers at hand it is the
source's score less the variant's, else 1 less the variant's agreement with the source. A variant
that scores better than its source has a drop of 0, not a gain: on some hundred requests that is as
likely luck, and a search would chase it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    is an output of the same shape, or the places themselves: whole numbers from 0, be they written
    as integers, floating-point numbers or texts."""
    largest = _largest(output)
    if wanted.shape == output.shape:
        return _share(largest, _largest(wanted))
    return _share(largest.reshape(-1), _places(wanted, output.shape[-1]).reshape(-1))


def text_match(output: Array, wanted: Array) -> float:
    """1 where all the texts are equal, else 0."""
    return float([_text(v) for v in output.flat] == [_text(v) for v in wanted.flat])


def cosine(output: Array, wanted: Array) -> float:
    """The cosine of the angle between the two, taken as vectors. Vectors of zeros, which have no
    direction, fit only each other."""
    a, b = _vectors(output, wanted)
    lengths = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if lengths == 0:
        return float(not a.any() and not b.any())
    return float(a @ b) / lengths


def relative_error(output: Array, wanted: Array) -> float:
    """1 less the distance of the two, as a share of the wanted one's length."""
    a, b = _vectors(output, wanted)
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
_WORST = -1e9
"""Stands for an infinite error, so that a drop is a number."""
_WIDEST = 80
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
        the same order: at least the share of requests with NaN where the source has none.
        InputRefused where the two, or the right answers, do not belong together.
        """
        self._require_alike(answers, source)
        if self.function is not None:
            worse = self.function(source, self.expected) - self.function(answers, self.expected)
        else:
            worse = max(
                self._output_drop(name, answers, source) for name in self.judged_outputs(source[0])
            )
        worse = max(worse, _lost(answers, source))
        return worse if worse > ROUNDING else 0.0

    def judged_outputs(self, outputs: Iterable[str]) -> list[str]:
        """Which of a model's outputs the metric looks at, by name. InputRefused where it has none
        of that name, or several and the metric looks at one."""
        names = sorted(outputs)
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

    def _output_drop(self, name: str, answers: Sequence[Answer], source: Sequence[Answer]) -> float:
        given, own = [a[name] for a in answers], [s[name] for s in source]
        if self.expected is None:
            return 1 - self._mean(name, given, own)
        wanted = [np.asarray(each) for each in self.expected]
        right = self._mean(name, own, wanted)
        if right == 0 and self.metric in ONE_OUTPUT:
            raise InputRefused(
                "accuracy.expected holds no answer that the source model gives: nothing could be"
                " lost of that, and every variant would pass",
                value=f"{self.metric} of output {name!r}: for the first request it wants"
                f" {_short(wanted[0])}, and the output is {_short(own[0])}",
                next_step="Write the answers as the model gives them (top1: places counted from 0,"
                " text_match: the very texts), in the order of the requests.",
            )
        return right - self._mean(name, given, wanted)

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
        # A NaN is no answer at all, though argmax takes it for the largest value.
        real = [
            0.0 if _nan(o) or np.isnan(v) else max(v, _WORST)
            for o, v in zip(outputs, values, strict=True)
        ]
        return float(np.mean(real))

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


# ------------------------------------------------------------------------------------ values
def _lost(answers: Sequence[Answer], source: Sequence[Answer]) -> float:
    """The share of requests that are answered with NaN where the source has none."""
    lost = [
        any(_nan(array) and not _nan(own[name]) for name, array in given.items() if name in own)
        for given, own in zip(answers, source, strict=True)
    ]
    return float(np.mean(lost))


def _nan(values: Array) -> bool:
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def _largest(values: Array) -> Array:
    _require_numbers(values)
    if not values.ndim or values.shape[-1] < 2:
        raise ValueError(f"there is no largest of one value, and its shape is {list(values.shape)}")
    return np.asarray(np.argmax(values, axis=-1))


def _places(wanted: Array, size: int) -> Array:
    try:
        numbers = wanted.astype(np.float64)
    except (ValueError, TypeError):
        numbers = np.asarray(np.nan)
    wrong = ~((numbers >= 0) & (numbers < size) & (numbers == np.floor(numbers)))
    if wrong.any():
        raise ValueError(f"it takes places from 0 to {size - 1}, not {_short(wanted)}")
    return numbers.astype(np.int64)


def _share(one: Array, other: Array) -> float:
    if one.shape != other.shape:
        raise ValueError(f"{one.size} places against {other.size}")
    return float(np.mean(one == other))


def _vectors(output: Array, wanted: Array) -> tuple[Array, Array]:
    if output.size != wanted.size:
        raise ValueError(f"{output.size} values against {wanted.size}")
    return _vector(output), _vector(wanted)


def _vector(values: Array) -> Array:
    _require_numbers(values)
    return values.astype(np.float64).reshape(-1)


def _require_numbers(values: Array) -> None:
    if values.dtype.kind not in "fiub":
        raise TypeError("it takes numbers, not texts")


def _short(values: Array) -> str:
    text = np.array2string(values, threshold=8, separator=", ")
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _text(value: object) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
