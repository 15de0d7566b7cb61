"""How a space's parameters look to Optuna: to its samplers, and in its dashboard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from optuna import Trial
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.candidate import Candidate, Value
from search_spaces.domain import Domain, Range, same
from search_spaces.parameter import Parameter
from search_spaces.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A parameter as a sampler sees it: a range as it is; listed numbers by their rank, so that
    the sampler knows that 4 lies between 2 and 8; other values by their place in the list."""

    target: str
    values: tuple[Value, ...]
    distribution: BaseDistribution

    @classmethod
    def of(cls, parameter: Parameter) -> Axis:
        domain = parameter.domain
        if isinstance(domain, Range):
            return cls(target=parameter.target, values=(), distribution=_range(domain))
        last = len(domain.values) - 1
        if last > 1 and all(_is_number(value) for value in domain.values):
            ranked = tuple(sorted(domain.values, key=float))  # type: ignore[arg-type]
            return cls(
                target=parameter.target, values=ranked, distribution=IntDistribution(0, last)
            )
        places = CategoricalDistribution(tuple(range(last + 1)))
        return cls(target=parameter.target, values=domain.values, distribution=places)

    def suggest(self, trial: Trial) -> Value:
        name, dist = self.target, self.distribution
        if isinstance(dist, CategoricalDistribution):
            return self.values[int(str(trial.suggest_categorical(name, dist.choices)))]
        if isinstance(dist, IntDistribution):
            point = trial.suggest_int(name, dist.low, dist.high, step=dist.step, log=dist.log)
            return self.values[point] if self.values else point
        assert isinstance(dist, FloatDistribution)
        return trial.suggest_float(name, dist.low, dist.high, step=dist.step, log=dist.log)

    def encode(self, value: Value) -> int | float:
        """The sampler's number for a value of the domain."""
        if not self.values:
            assert isinstance(value, int | float)
            return value
        return next(place for place, known in enumerate(self.values) if same(known, value))


def sampled(space: Space, trial: Trial, axes: Mapping[str, Axis]) -> Candidate:
    """The candidate that a trial's sampler suggests; inactive parameters are not asked for."""
    values: dict[str, Value] = {}
    for parameter in space.parameters:
        if parameter.active(values):
            values[parameter.target] = axes[parameter.target].suggest(trial)
    return Candidate(values)


def within(space: Space, candidate: Candidate) -> dict[str, Value]:
    """The settings of a candidate that Optuna can be told: of the candidate of the space to which
    it amounts; where there is none, those that lie within their own domains."""
    projected = space.project(candidate)
    if projected is not None:
        return dict(projected.values)
    found = {
        parameter.target: parameter.found(candidate[parameter.target])
        for parameter in space.parameters
        if parameter.target in candidate
    }
    return {t: v for t, v in found.items() if space.parameter(t).domain.contains(v)}


def readable(domain: Domain) -> BaseDistribution:
    """The distribution whose values people read in the dashboard."""
    if isinstance(domain, Range):
        return _range(domain)
    return CategoricalDistribution(tuple(label(value) for value in domain.values))


def label(value: Value) -> int | float | bool | str | None:
    return json.dumps(list(value)) if isinstance(value, tuple) else value


def _range(domain: Range) -> IntDistribution | FloatDistribution:
    high = domain.high
    if domain.steps is not None and domain.step is not None:
        high = domain.low + domain.steps * domain.step
    if domain.integer:
        step = int(domain.step or 1)
        return IntDistribution(int(domain.low), int(high), log=domain.log, step=step)
    return FloatDistribution(domain.low, high, log=domain.log, step=domain.step)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
