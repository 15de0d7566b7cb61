"""Which sentences a decision gives as its reasons, in their order; `explain` words them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core import explain, explain_steps
from autotune.core.bottleneck import Remedy
from autotune.core.contrast import Contrasts
from autotune.core.judged import Dimension, Judged
from autotune.core.ranking import Choice
from autotune.core.savings import savings
from autotune.core.searched import Searched
from autotune.core.study import PickRule, Robust
from autotune.core.trial import Trial
from autotune.core.workload import Workload

UNTOLD = {"utilization", "sm_active", "tensor_active", "dram_active"}
"""At a rate that all are offered, it is neither for nor against one to use more of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What a decision is taken on. ``metrics`` are those spoken of; ``over`` the dimensions of the
    front, ``unknown`` those left out; ``instead``: all that were wanted are."""

    trials: Sequence[Trial]
    judged: Sequence[Judged]
    over: tuple[Dimension, ...]
    unknown: tuple[str, ...]
    instead: bool
    contrasts: Contrasts
    metrics: tuple[str, ...]
    rule: PickRule
    workload: Workload | None
    robust: Robust | None
    searched: Searched | None = None

    @property
    def baseline(self) -> Judged | None:
        return next((trial for trial in self.judged if trial.number == 0), None)


def reasons(
    field: Field, choice: Choice | None, nearest: Judged | None, helping: Remedy | None = None
) -> list[str]:
    """``nearest`` is the trial that comes nearest to the SLA where there is no ``choice``;
    ``helping`` what would help it, where it is a pipeline."""
    if choice is not None:
        told = _of_the_pick(field, choice)
    elif nearest is not None:
        told = [
            *explain.near_miss(nearest, field.rule),
            *explain.cut_short(field.searched),
            *explain.unmeasured(field.trials),
            *_steps(nearest, helping),
            *explain.capacity(nearest, field.workload),
        ]
    else:
        nothing = "no trial has a measurement that can be believed: nothing can be decided"
        return [
            nothing,
            *explain.cut_short(field.searched),
            *explain.out_of_memory(field.trials),
        ]
    return [
        *told,
        *_incomplete(field),
        *explain.left_out(field.unknown, field.over if field.instead else ()),
        *explain.out_of_memory(field.trials),
        *_saved(field),
    ]


def _of_the_pick(field: Field, choice: Choice) -> list[str]:
    pick = choice.pick
    return [
        explain.picked(pick, field.rule, field.workload),
        *_steps(pick),
        *_tie(field, choice),
        *_gained(field, pick),
        *explain.confirmed(pick),
        *explain.robust(pick, asked=field.robust is not None),
        *explain.capacity(pick, field.workload),
        *_runner_up(field, choice),
        *_temptations(field, pick),
    ]


def _steps(trial: Judged, helping: Remedy | None = None) -> list[str]:
    """Of a pipeline: where the time goes, which step limits, what would help."""
    found = trial.steps
    return [] if found is None else explain_steps.of_steps(trial.number, found, helping)


def _tie(field: Field, choice: Choice) -> list[str]:
    if not choice.ties:
        return []
    others = [trial for trial in choice.ties if trial is not choice.pick]
    other = choice.best if choice.best in others else others[0]
    return [explain.tie(choice, other, field.contrasts.among(choice.pick, other, choice.noisy))]


def _gained(field: Field, pick: Judged) -> list[str]:
    if field.baseline is not None:
        contrasts = field.contrasts.among(field.baseline, pick, field.metrics)
        return [explain.gained(field.baseline, pick, contrasts)]
    return [explain.no_baseline(trial) for trial in field.trials if trial.number == 0]


def _runner_up(field: Field, choice: Choice) -> list[str]:
    """What separates it from the pick, unless that is told of it already: as the configuration in
    service, or, as far as it goes, as a tie."""
    pick, other = choice.pick, choice.runner_up
    if other is None or other.number == 0:
        return []
    metrics = [metric for metric in field.metrics if metric not in UNTOLD]
    if other not in choice.ties:
        return [explain.runner_up(pick, other, field.contrasts.among(other, pick, metrics))]
    told = {*choice.noisy, "instances", "memory_mb"}
    rest = field.contrasts.among(other, pick, [metric for metric in metrics if metric not in told])
    telling = any(contrast.telling for contrast in rest)
    return [explain.runner_up(pick, other, rest)] if telling else []


def _incomplete(field: Field) -> list[str]:
    """The trials that meet the SLA and could not be compared with the others."""
    meeting = [trial for trial in field.judged if trial.meets]
    missing: dict[int, list[str]] = {}
    for dimension in field.over:
        for trial, value in zip(meeting, dimension.column(meeting), strict=True):
            if value is None:
                missing.setdefault(trial.number, []).append(str(dimension))
    return [explain.incomplete(number, names) for number, names in sorted(missing.items())]


def _temptations(field: Field, pick: Judged) -> list[str]:
    """For each metric, the trial that beats the pick by the most and does not meet the SLA; each
    trial is named once, and the configuration in service is told of already."""
    told: dict[int, str] = {}
    others = [trial for trial in field.judged if not trial.meets and trial.number != 0]
    for metric in (metric for metric in field.metrics if metric not in UNTOLD):
        found = ((other, field.contrasts.between(pick, other, metric)) for other in others)
        better = [
            (contrast.advantage, -other.number, other, contrast)
            for other, contrast in found
            if contrast is not None and contrast.clear and contrast.advantage >= explain.TEMPTING
        ]
        if better:
            *_, other, contrast = max(better, key=lambda found: found[:2])
            told.setdefault(other.number, explain.tempts(other, contrast))
    return list(told.values())


def _saved(field: Field) -> list[str]:
    if field.workload is None:
        return []
    return explain.saved(savings(field.trials, field.workload), field.workload)
