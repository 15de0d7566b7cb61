"""What each parameter does to a metric: one at a time, over all trials that were judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from autotune.service_ports import TrialLine
from search_spaces.candidate import Value

Told: TypeAlias = str
MOST_VALUES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A parameter's value: how many trials had it, and the metric's quartiles over them."""

    value: Told
    trials: int
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """``share`` of the metric's variance (of its logarithm, where all values are above 0) lies
    between the parameter's values: eta squared (Pearson, 1905). What is common with another
    parameter counts for both."""

    parameter: str
    share: float
    levels: tuple[Level, ...]


def effects(lines: Sequence[TrialLine], metric: str) -> list[Effect]:
    """The strongest first; of parameters that took at least two values."""
    judged = [line for line in lines if line.violation is not None and metric in line.values]
    values = np.array([line.values[metric] for line in judged], dtype=np.float64)
    found = []
    for name in varied(lines):
        groups = _groups(judged, name)
        if len(groups) > 1:
            found.append(_effect(name, groups, values))
    return sorted(found, key=lambda effect: (-effect.share, effect.parameter))


def varied(lines: Sequence[TrialLine]) -> list[str]:
    """Parameters that are not the same in every candidate."""
    seen: dict[str, set[Told]] = {}
    for line in lines:
        for name, value in line.candidate.values.items():
            seen.setdefault(name, set()).add(value_words(value))
    missing = {n for n in seen if any(n not in line.candidate.values for line in lines)}
    return sorted(name for name, told in seen.items() if len(told) > 1 or name in missing)


def value_words(value: Value) -> Told:
    if value is None:
        return "unset"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def in_order(values: Mapping[Told, Value] | Sequence[Value]) -> list[Told]:
    """Numbers by size, then words."""
    plain = list(values.values()) if isinstance(values, Mapping) else list(values)
    ordered = sorted(plain, key=lambda v: (not _is_number(v), v if _is_number(v) else 0, str(v)))
    return list(dict.fromkeys(value_words(value) for value in ordered))


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _groups(judged: Sequence[TrialLine], name: str) -> dict[Told, list[int]]:
    """Places in ``judged`` by the parameter's value, the values in their order."""
    plain: dict[Told, Value] = {}
    places: dict[Told, list[int]] = {}
    for at, line in enumerate(judged):
        if name in line.candidate.values:
            value = line.candidate.values[name]
            told = value_words(value)
            plain[told] = value
            places.setdefault(told, []).append(at)
    return {told: places[told] for told in in_order(plain)}


def _effect(name: str, groups: Mapping[Told, Sequence[int]], values: np.ndarray) -> Effect:
    levels = []
    for told, places in list(groups.items())[:MOST_VALUES]:
        low, median, high = np.percentile(values[list(places)], (25, 50, 75))
        levels.append(
            Level(
                value=told,
                trials=len(places),
                low=float(low),
                median=float(median),
                high=float(high),
            )
        )
    return Effect(parameter=name, share=_share(groups, values), levels=tuple(levels))


def _share(groups: Mapping[Told, Sequence[int]], values: np.ndarray) -> float:
    every = [at for places in groups.values() for at in places]
    scaled = np.log(values) if (values[every] > 0).all() else values
    mean = scaled[every].mean()
    total = float(((scaled[every] - mean) ** 2).sum())
    between = sum(
        len(places) * float(scaled[list(places)].mean() - mean) ** 2 for places in groups.values()
    )
    return between / total if total > 0 else 0.0
