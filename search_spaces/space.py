"""A search space: parameters, the conditions between them, and combinations that cannot pay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from search_spaces.candidate import Candidate, Value
from search_spaces.parameter import Parameter, ordered
from search_spaces.parsing import ABOUT, PRUNE, read_parameters, read_prune
from search_spaces.prune import PruneRule, contradiction
from search_spaces.refused import SpaceRefused, nearest

__all__ = ["Parameter", "Space", "SpaceRefused", "parse_space"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Parameters in an order in which each stands after those that its conditions ask about, and
    costly ones (server flags, then variants) as early as that allows: a grid varies them slowest.

    Made by `parse_space`, which checks everything.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    prune: tuple[PruneRule, ...] = ()
    about: str = ""
    _by_target: Mapping[str, Parameter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parameters = ordered(self.parameters)
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "_by_target", {p.target: p for p in parameters})

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self._by_target)

    def parameter(self, target: str) -> Parameter:
        return self._by_target[target]

    def active(self, values: Mapping[str, Value]) -> Candidate:
        """The candidate of a full assignment: parameters whose condition fails are dropped.

        SpaceRefused for a target that the space does not name, or an active one that is missing.
        """
        for target in values:
            if target not in self._by_target:
                rule = f"space {self.name} has no parameter {target}"
                raise SpaceRefused(rule, next_step=nearest(target, self.targets), path=(target,))
        kept = self._kept(values)
        if kept is None:
            missing = [p.target for p in self.parameters if p.target not in values]
            raise SpaceRefused(f"a candidate of space {self.name} sets {', '.join(missing)} too")
        return Candidate(kept)

    def contains(self, candidate: Candidate) -> bool:
        """Whether it sets exactly the active parameters, each to a value of its domain."""
        return self.project(candidate) == candidate

    def project(self, candidate: Candidate) -> Candidate | None:
        """The candidate of this space that a configuration found elsewhere amounts to, if any.

        Settings that the space does not name, or that its conditions call ineffective, are left
        out: they are the same for every candidate, or without effect. None where an active
        parameter is unset or outside its domain.
        """
        kept = self._kept(candidate.values)
        if kept is None or not all(
            self._by_target[target].domain.contains(value) for target, value in kept.items()
        ):
            return None
        return Candidate(kept)

    def candidates(self) -> Iterator[Candidate]:
        """Every distinct candidate of the grid, ruled-out ones included, the last parameter
        varying fastest. Ranges are walked in the points of `Range.grid`.
        """
        yield from map(Candidate, self._walk(0, {}))

    def size(self) -> int | None:
        """How many distinct candidates there are in all, before pruning; None if not countable."""
        if any(parameter.domain.size() is None for parameter in self.parameters):
            return None
        return self._count(0, {})

    def sample(self, rng: np.random.Generator) -> Candidate:
        """A random candidate, each active parameter drawn evenly on its own scale; ruled-out
        combinations included.
        """
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.active(values):
                values[parameter.target] = parameter.domain.sample(rng)
        return Candidate(values)

    def pruned(self, candidate: Candidate, cores: int) -> str | None:
        """Why the candidate cannot pay on that many CPU cores; None if it may."""
        reasons = (rule.reason(candidate, cores) for rule in self.prune)
        return contradiction(candidate) or next((text for text in reasons if text), None)

    def _kept(self, values: Mapping[str, Value]) -> dict[str, Value] | None:
        kept: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.active(kept):
                if parameter.target not in values:
                    return None
                kept[parameter.target] = parameter.found(values[parameter.target])
        return kept

    def _walk(self, index: int, values: dict[str, Value]) -> Iterator[dict[str, Value]]:
        if index == len(self.parameters):
            yield values
            return
        parameter = self.parameters[index]
        if not parameter.active(values):
            yield from self._walk(index + 1, values)
            return
        for value in parameter.domain.grid():
            yield from self._walk(index + 1, {**values, parameter.target: value})

    def _count(self, index: int, values: dict[str, Value]) -> int:
        if index == len(self.parameters):
            return 1
        parameter = self.parameters[index]
        if not parameter.active(values):
            return self._count(index + 1, values)
        return sum(
            times * self._count(index + 1, {**values, parameter.target: value})
            for value, times in self._classes(parameter)
        )

    def _classes(self, parameter: Parameter) -> Iterator[tuple[Value, int]]:
        """One value for each way in which the other parameters' conditions can tell this one's
        values apart, with how many there are of it: so a count need not walk every value.
        """
        asked = [
            condition
            for other in self.parameters
            for condition in other.when
            if condition.target == parameter.target
        ]
        if not asked:
            yield parameter.domain.grid()[0], parameter.domain.size() or 0
            return
        example: dict[tuple[bool, ...], Value] = {}
        times: Counter[tuple[bool, ...]] = Counter()
        for value in parameter.domain.whole():
            answers = tuple(condition.accepts(value) for condition in asked)
            example.setdefault(answers, value)
            times[answers] += 1
        for answers, count in times.items():
            yield example[answers], count


def parse_space(mapping: Mapping[str, Any], name: str) -> Space:
    """Read a space from plain data, as a study file or a ready-made space holds it::

        about: one sentence for people                          # optional
        max_batch_size: [1, 4, 8]                               # short for {values: [1, 4, 8]}
        queue_delay_us: {range: [100, 10000], scale: log, when: {max_batch_size: {above: 1}}}
        parameters.intra_op_threads: {values: [null, 1, 2]}     # null: leave it unset
        prune:
          - {product: [instances, parameters.intra_op_threads], above: cores, because: why}
          - {when: {max_batch_size: 1, instances: {above: 4}}, because: why}

    Every other key is a parameter's target. A `when` asks another parameter for equality, or with
    `is`, `not`, `above`, `below`, `in`. SpaceRefused names the place and the nearest valid key.
    """
    if not isinstance(mapping, Mapping):
        raise SpaceRefused("a space is a mapping from parameters to their values", value=mapping)
    parameters = read_parameters(mapping)
    return Space(
        name=name,
        parameters=parameters,
        prune=read_prune(mapping.get(PRUNE) or (), parameters),
        about=str(mapping.get(ABOUT, "")),
    )
