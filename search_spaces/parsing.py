"""Reads parameters and prune rules from plain data, and refuses what cannot be searched."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.candidate import STEP_FIELDS, Value
from search_spaces.conditions import TESTS, Condition
from search_spaces.domain import Domain, Range, Values
from search_spaces.parameter import Parameter
from search_spaces.prune import CORES, PruneRule
from search_spaces.refused import SpaceRefused, nearest
from search_spaces.targets import Path, TargetRule, checked_value, named_twice, target_rule

PRUNE = "prune"
ABOUT = "about"
MOST_VALUES = 100_000
"""Of a parameter whose values are walked one by one."""
_PARAMETER_KEYS = ("values", "range", "scale", "step", "type", "when")
_PRUNE_KEYS = ("product", "sum", "above", "below", "when", "because")


# ---------------------------------------------------------------------------------- parameters
def read_parameters(mapping: Mapping[str, Any]) -> tuple[Parameter, ...]:
    specs = {str(key): spec for key, spec in mapping.items() if key not in (PRUNE, ABOUT)}
    if not specs:
        raise SpaceRefused(
            "a space names at least one parameter", next_step="e.g. max_batch_size: [1, 4, 8]"
        )
    for target, spec in specs.items():
        _refuse_nested(target, spec)
    rules = {target: target_rule(target, (target,)) for target in specs}
    domains = {target: _domain(target, specs[target], rules[target]) for target in specs}
    if (twice := named_twice(specs)) is not None:
        raise SpaceRefused(
            f"{twice[0]} and {twice[1]} are the same thing: a step's workers are its instances",
            next_step="keep one of them",
            path=(twice[1],),
        )
    return tuple(
        Parameter(target=target, domain=domains[target], when=_own_when(target, spec, domains))
        for target, spec in specs.items()
    )


def _refuse_nested(target: str, spec: Any) -> None:
    """A step's parameters, written as a mapping below its name."""
    below = spec if isinstance(spec, Mapping) else {}
    field = next((str(key) for key in below if key in STEP_FIELDS), None)
    if field is not None and target not in STEP_FIELDS:
        raise SpaceRefused(
            "a step's parameter is written in one line, <step>.<field>",
            next_step=f"did you mean {target}.{field}?",
            path=(target, field),
        )


def _own_when(target: str, spec: Any, domains: Mapping[str, Domain]) -> tuple[Condition, ...]:
    if not isinstance(spec, Mapping) or "when" not in spec:
        return ()
    return _when(spec["when"], domains, (target, "when"))


def _domain(target: str, spec: Any, rule: TargetRule) -> Domain:
    path: Path = (target,)
    if isinstance(spec, list | tuple):
        return _values(target, spec, rule, path)
    if not isinstance(spec, Mapping):
        raise SpaceRefused(
            "a parameter is a list of values, or a mapping with `values` or `range`",
            value=spec,
            next_step=f"{target}: [{spec}]",
            path=path,
        )
    _known_keys(spec, _PARAMETER_KEYS, path)
    if ("values" in spec) == ("range" in spec):
        rule_text = "a parameter has either `values` or a `range`"
        raise SpaceRefused(rule_text, value=", ".join(map(str, spec)) or "neither", path=path)
    if "range" in spec:
        return _range(target, spec, rule, path)
    extra = next((key for key in ("scale", "step", "type") if key in spec), None)
    if extra is not None:
        raise SpaceRefused(f"`{extra}` goes with a `range`, not with `values`", path=(*path, extra))
    return _values(target, spec["values"], rule, (*path, "values"))


def _values(target: str, raw: Any, rule: TargetRule, path: Path) -> Values:
    if not isinstance(raw, list | tuple) or not raw:
        raise SpaceRefused("`values` is a list with at least one value", value=raw, path=path)
    values = tuple(checked_value(v, target, rule, (*path, i)) for i, v in enumerate(raw))
    seen: set[str] = set()
    for index, value in enumerate(values):
        key = json.dumps(value)
        if key in seen:
            raise SpaceRefused("a value is listed once", value=value, path=(*path, index))
        seen.add(key)
    return Values(values=values)


def _range(target: str, spec: Mapping[str, Any], rule: TargetRule, path: Path) -> Range:
    if rule.lists or rule.words:
        raise SpaceRefused(f"{target} takes `values`, not a range", path=(*path, "range"))
    low, high = _ends(target, spec["range"], rule, (*path, "range"))
    log = _choice(spec, "scale", ("linear", "log"), path) == "log"
    if log and low <= 0:
        raise SpaceRefused(
            "a log range begins above 0", value=low, next_step="or scale: linear", path=path
        )
    step = _step(spec, high - low, path)
    if log and step is not None:
        raise SpaceRefused("a log range has no step", value=step, path=(*path, "step"))
    integer = _integer(spec, rule, (low, high, 1 if step is None else step), path)
    return Range(low=low, high=high, integer=integer, log=log, step=step)


def _ends(target: str, raw: Any, rule: TargetRule, path: Path) -> tuple[float, float]:
    if not isinstance(raw, list | tuple) or len(raw) != 2:
        rule_text = "a range is two numbers, [low, high]"
        raise SpaceRefused(rule_text, value=raw, path=path)
    ends: list[float] = []
    for index, end in enumerate(raw):
        value = checked_value(end, target, rule, (*path, index))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpaceRefused("a range's ends are numbers", value=end, path=(*path, index))
        ends.append(value)
    if ends[0] >= ends[1]:
        raise SpaceRefused(
            "a range's low end is below its high end",
            value=list(raw),
            next_step="a single value is `values: [v]`",
            path=path,
        )
    return ends[0], ends[1]


def _step(spec: Mapping[str, Any], width: float, path: Path) -> float | None:
    step = spec.get("step")
    if step is None:
        return None
    number = isinstance(step, int | float) and not isinstance(step, bool) and math.isfinite(step)
    if not number or not 0 < step <= width:
        raise SpaceRefused(
            "a step is above 0 and not wider than the range", value=step, path=(*path, "step")
        )
    if width / step > MOST_VALUES:
        raise SpaceRefused(
            f"a step makes at most {MOST_VALUES} values", value=step, path=(*path, "step")
        )
    return int(step) if isinstance(step, int) else float(step)


def _integer(
    spec: Mapping[str, Any], rule: TargetRule, numbers: tuple[float, ...], path: Path
) -> bool:
    """Whether a range holds ints: as its ``type`` says, else when everything in it is whole."""
    kind = _choice(spec, "type", ("int", "float"), path)
    whole = all(isinstance(number, int) for number in numbers)
    if kind == "int" or (rule.integers and kind is None):
        if not whole:
            raise SpaceRefused("an int range has whole ends and a whole step", path=path)
        return True
    if rule.integers:
        raise SpaceRefused("this target takes whole numbers", value="float", path=(*path, "type"))
    return whole and kind is None


def _choice(spec: Mapping[str, Any], key: str, choices: tuple[str, ...], path: Path) -> str | None:
    value = spec.get(key)
    if value is not None and value not in choices:
        raise SpaceRefused(
            f"`{key}` is one of {', '.join(choices)}",
            value=value,
            next_step=nearest(str(value), choices),
            path=(*path, key),
        )
    return None if value is None else str(value)


def _known_keys(spec: Mapping[str, Any], known: Sequence[str], path: Path) -> None:
    for key in spec:
        if key not in known:
            raise SpaceRefused(
                f"no such key: {key}", next_step=nearest(str(key), known), path=(*path, str(key))
            )


# ---------------------------------------------------------------------------------- conditions
def _when(raw: Any, domains: Mapping[str, Domain], path: Path) -> tuple[Condition, ...]:
    if not isinstance(raw, Mapping) or not raw:
        raise SpaceRefused(
            "`when` maps parameters to what they must be",
            value=raw,
            next_step="e.g. when: {max_batch_size: {above: 1}}",
            path=path,
        )
    return tuple(
        condition
        for target, tests in raw.items()
        for condition in _conditions(str(target), tests, domains, path)
    )


def _conditions(
    target: str, tests: Any, domains: Mapping[str, Domain], path: Path
) -> list[Condition]:
    here = (*path, target)
    _known_target(target, domains, here)
    if (domains[target].size() or 0) > MOST_VALUES:
        raise SpaceRefused(
            f"a parameter that others ask about has at most {MOST_VALUES} values",
            next_step=f"give the range of {target} a step",
            path=here,
        )
    spec = tests if isinstance(tests, Mapping) else {"is": tests}
    _known_keys(spec, tuple(TESTS), here)
    made = [_condition(target, str(test), operand, here) for test, operand in spec.items()]
    for condition in made:
        if not condition.possible(domains[target]):
            raise SpaceRefused(
                f"no value of {target} is ever `{condition.test}` this",
                value=_plain(condition.operand),
                next_step=f"widen {target}, or mend the condition",
                path=here,
            )
    return made


def _condition(target: str, test: str, raw: Any, path: Path) -> Condition:
    here = (*path, test)
    rule = target_rule(target, path)
    if test in ("above", "below"):
        return Condition(target=target, test=test, operand=_bound_number(raw, here))
    if test == "in":
        if not isinstance(raw, list | tuple) or not raw:
            raise SpaceRefused("`in` takes a list of values", value=raw, path=here)
        choices = tuple(checked_value(v, target, rule, (*here, i)) for i, v in enumerate(raw))
        return Condition(target=target, test=test, operand=choices)
    return Condition(target=target, test=test, operand=checked_value(raw, target, rule, here))


def _known_target(target: str, domains: Mapping[str, Domain], path: Path) -> None:
    if target not in domains:
        raise SpaceRefused(
            f"the space has no parameter {target} to ask about",
            next_step=nearest(target, domains),
            path=path,
        )


def _bound_number(raw: Any, path: Path) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        raise SpaceRefused("this bound is a number", value=raw, path=path)
    return int(raw) if isinstance(raw, int) else float(raw)


def _plain(operand: Value | tuple[Value, ...]) -> object:
    return list(operand) if isinstance(operand, tuple) else operand


# --------------------------------------------------------------------------------- prune rules
def read_prune(raw: Any, parameters: tuple[Parameter, ...]) -> tuple[PruneRule, ...]:
    if not isinstance(raw, list | tuple):
        raise SpaceRefused(
            "`prune` is a list of rules",
            value=raw,
            next_step="e.g. prune: [{product: [instances, parameters.threads], above: cores}]",
            path=(PRUNE,),
        )
    domains = {parameter.target: parameter.domain for parameter in parameters}
    return tuple(_prune(spec, domains, (PRUNE, index)) for index, spec in enumerate(raw))


def _prune(spec: Any, domains: Mapping[str, Domain], path: Path) -> PruneRule:
    if not isinstance(spec, Mapping):
        raise SpaceRefused("a prune rule is a mapping", value=spec, path=path)
    _known_keys(spec, _PRUNE_KEYS, path)
    combines = [key for key in ("product", "sum") if key in spec]
    sides = [key for key in ("above", "below") if key in spec]
    if len(combines) != len(sides) or len(combines) > 1 or not (combines or "when" in spec):
        raise SpaceRefused(
            "a prune rule is one of product or sum with one of above or below, or a `when`",
            value=", ".join(map(str, spec)),
            next_step="e.g. {product: [instances, parameters.threads], above: cores}",
            path=path,
        )
    when = _when(spec["when"], domains, (*path, "when")) if "when" in spec else ()
    because = str(spec.get("because", ""))
    if not combines:
        return PruneRule(when=when, because=because)
    combine, side = combines[0], sides[0]
    return PruneRule(
        combine=combine,
        targets=_combined(spec[combine], domains, (*path, combine)),
        side=side,
        bound=_bound(spec[side], domains, (*path, side)),
        when=when,
        because=because,
    )


def _combined(raw: Any, domains: Mapping[str, Domain], path: Path) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not raw:
        raise SpaceRefused("this is a list of parameters", value=raw, path=path)
    targets = tuple(str(target) for target in raw)
    for index, target in enumerate(targets):
        _known_target(target, domains, (*path, index))
        if not _numeric(domains[target]):
            raise SpaceRefused("only numbers can be combined", value=target, path=(*path, index))
    return targets


def _numeric(domain: Domain) -> bool:
    if isinstance(domain, Range):
        return True
    kinds = [v for v in domain.values if v is not None]
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in kinds)


def _bound(raw: Any, domains: Mapping[str, Domain], path: Path) -> float | str:
    if not isinstance(raw, str):
        return _bound_number(raw, path)
    if raw != CORES and raw not in domains:
        raise SpaceRefused(
            "a bound is a number, the word cores or a parameter of the space",
            value=raw,
            next_step=nearest(raw, (CORES, *domains)),
            path=path,
        )
    return str(raw)
