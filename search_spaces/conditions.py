"""Conditions on a parameter's value: what makes another one matter, or a combination futile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from search_spaces.candidate import Value
from search_spaces.domain import Domain, Values, same

Operand = Value | tuple[Value, ...]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _above(value: Value, operand: Operand) -> bool:
    left, right = _number(value), _number(operand)
    return left is not None and right is not None and left > right


def _below(value: Value, operand: Operand) -> bool:
    left, right = _number(value), _number(operand)
    return left is not None and right is not None and left < right


def _among(value: Value, operand: Operand) -> bool:
    return isinstance(operand, tuple) and any(same(value, choice) for choice in operand)


def _other(value: Value, operand: Operand) -> bool:
    return not same(value, operand)


TESTS: dict[str, Callable[[Value, Operand], bool]] = {
    "is": same,
    "not": _other,
    "above": _above,
    "below": _below,
    "in": _among,
}
"""Every test by its name in a space's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """``target``'s value passes ``test`` (a key of `TESTS`) against ``operand``.

    A parameter that is absent, because its own condition does not hold, passes no test.
    """

    target: str
    test: str
    operand: Operand

    def holds(self, values: Mapping[str, Value]) -> bool:
        return self.target in values and self.accepts(values[self.target])

    def accepts(self, value: Value) -> bool:
        return TESTS[self.test](value, self.operand)

    def possible(self, domain: Domain) -> bool:
        """Whether some value of the domain passes."""
        if isinstance(domain, Values):
            return any(self.accepts(value) for value in domain.values)
        if self.test == "in":
            choices = self.operand if isinstance(self.operand, tuple) else ()
            return any(domain.contains(choice) for choice in choices)
        if self.test == "is":
            return domain.contains(self.operand)  # type: ignore[arg-type]
        return self.accepts(domain.low) or self.accepts(domain.high)

    def __str__(self) -> str:
        return f"{self.target} {self.test} {self.operand}"
