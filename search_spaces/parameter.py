"""One axis of a space, and the order in which axes are decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.candidate import BACKEND_PREFIX, SERVER_PREFIX, VARIANT, Value, split_target
from search_spaces.conditions import Condition
from search_spaces.domain import Domain, Range
from search_spaces.refused import SpaceRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """``target`` takes a value of ``domain`` while every condition of ``when`` holds, and is
    absent from the candidate otherwise.
    """

    target: str
    domain: Domain
    when: tuple[Condition, ...] = ()

    def active(self, values: Mapping[str, Value]) -> bool:
        return all(condition.holds(values) for condition in self.when)

    def found(self, value: Value) -> Value:
        """The domain's own value for one found in service: a configuration file holds backend
        parameters and server flags as text ("4", "true"). Unchanged where there is none.
        """
        textual = split_target(self.target)[1].startswith((BACKEND_PREFIX, SERVER_PREFIX))
        if not (textual and isinstance(value, str)) or self.domain.contains(value):
            return value
        known = [_number(value)] if isinstance(self.domain, Range) else self.domain.values
        return next((v for v in known if _text(v) == value and self.domain.contains(v)), value)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def ordered(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Stable topological order by conditions; the costliest ready parameter comes first.

    SpaceRefused where conditions wait for one another in a circle.
    """
    waiting = sorted(parameters, key=_cost)
    placed: list[Parameter] = []
    names: set[str] = set()
    while waiting:
        ready = (p for p in waiting if all(c.target in names for c in p.when))
        parameter = next(ready, None)
        if parameter is None:
            circle = ", ".join(p.target for p in waiting)
            raise SpaceRefused(
                f"the conditions of {circle} wait for one another",
                next_step="let a condition name only parameters that can be decided before it",
                path=(waiting[0].target, "when"),
            )
        waiting.remove(parameter)
        placed.append(parameter)
        names.add(parameter.target)
    return tuple(placed)


def _cost(parameter: Parameter) -> int:
    """0 for what a restart pays for, 1 for another model file, 2 for a reload."""
    if parameter.target.startswith(SERVER_PREFIX):
        return 0
    return 1 if split_target(parameter.target)[1] == VARIANT else 2
