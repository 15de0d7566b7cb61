"""Rules between a study's variants and the sections that say how they are built and judged."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.core.errors import InputRefused
from autotune.core.variants import Precision, Variant
from autotune.studyfile.schema import StudySection
from autotune.studyfile.source import Place, Problem
from search_spaces.candidate import VARIANT, split_target
from search_spaces.domain import Values
from search_spaces.space import Space

CALIBRATED = frozenset({Precision.INT8, Precision.FP8})
"""Precisions whose ranges of activations are found by calibration."""


def variant_problems(study: StudySection, space: Space) -> Iterator[Problem]:
    """Names that are no variant's, and sections that its variants lack or have no use for."""
    placed: list[tuple[Place, Variant]] = []
    wrong: list[Problem] = []
    for place, name in _named(study, space):
        try:
            placed.append((place, Variant.parse(name)))
        except InputRefused as exc:
            wrong.append(Problem(place=place, rule=exc.rule, value=name, next_step=exc.next_step))
    if wrong:
        yield from wrong
    else:
        yield from _calibration(study, placed)
        yield from _accuracy(study, placed)


def _named(study: StudySection, space: Space) -> Iterator[tuple[Place, str]]:
    """Every variant that the space names, and where it stands in the file."""
    for parameter in space.parameters:
        if split_target(parameter.target)[1] != VARIANT or not isinstance(parameter.domain, Values):
            continue
        for index, value in enumerate(parameter.domain.values):
            yield _place(study, parameter.target, index), str(value)


def _place(study: StudySection, target: str, index: int) -> Place:
    if isinstance(study.space, str):
        return ("space",)
    listed = isinstance(study.space[target], list)
    return ("space", target, index) if listed else ("space", target, "values", index)


def _calibration(study: StudySection, placed: list[tuple[Place, Variant]]) -> Iterator[Problem]:
    needing = [(place, each) for place, each in placed if each.precision in CALIBRATED]
    if study.calibration is None:
        for place, each in needing[:1]:
            yield Problem(
                place=place,
                rule=f"{each.precision} is calibrated on samples like those in service, and the"
                " study names none",
                value=str(each),
                next_step="calibration: {data: samples.npz}, a folder, or FILE.py:FUNCTION",
            )
    elif not needing:
        yield Problem(
            place=("calibration",),
            rule="has no effect: the space has no int8 or fp8 variant",
            next_step="add one to it, such as onnxruntime-int8, or remove the section",
        )


def _accuracy(study: StudySection, placed: list[tuple[Place, Variant]]) -> Iterator[Problem]:
    if placed:
        return
    if study.sla.accuracy_drop is not None:
        yield Problem(
            place=("sla", "accuracy_drop"),
            rule="has no effect: the space has no variant, so every candidate answers as the"
            " model does",
            value=f"{study.sla.accuracy_drop * 100:g}%",
            next_step="add variants to it, such as onnxruntime-fp32 and onnxruntime-fp16, or remove"
            " this",
        )
    if study.accuracy is not None:
        yield Problem(
            place=("accuracy",),
            rule="has no effect: the space has no variant to hold against the model",
            next_step="add variants to it, such as onnxruntime-fp32 and onnxruntime-fp16, or remove"
            " this",
        )
