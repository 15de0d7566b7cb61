"""What a parameter can name in Triton, and which values each target takes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from search_spaces.candidate import (
    BACKEND_PREFIX,
    INSTANCES,
    MAX_BATCH_SIZE,
    PREFERRED_BATCH_SIZES,
    QUEUE_DELAY_US,
    SERVER_PREFIX,
    STEP_FIELDS,
    VARIANT,
    WORKERS,
    Value,
    split_target,
)
from search_spaces.refused import SpaceRefused, nearest

Path = tuple[str | int, ...]

LARGEST_BATCH = 65_536
LARGEST_DELAY_US = 10_000_000

_STEP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_FLAG = re.compile(r"[a-z][a-z0-9-]*")
OWN_FLAGS = frozenset({
    "model-repository", "model-store", "model-control-mode", "load-model", "id",
    "http-address", "http-port", "grpc-address", "grpc-port", "metrics-address", "metrics-port",
    "allow-http", "allow-grpc", "allow-metrics", "disable-auto-complete-config",
    "strict-model-config",
})  # fmt: skip
"""Flags that autotune sets itself to reach the server: neither to be swept nor to be given."""

PATTERNS = (
    MAX_BATCH_SIZE,
    QUEUE_DELAY_US,
    PREFERRED_BATCH_SIZES,
    INSTANCES,
    VARIANT,
    f"{BACKEND_PREFIX}<key>",
    f"{SERVER_PREFIX}<flag>",
)
STEP_PATTERNS = (*(f"<step>.{name}" for name in STEP_FIELDS), f"<step>.{BACKEND_PREFIX}<key>")
"""What can be said of a pipeline's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRule:
    """``bounds``: the whole numbers a target takes, None where it takes scalars of any kind.
    ``nullable``: whether null ("leave it unset") is a value. ``lists``: whether values are lists
    of such numbers; ``words``: whether they are strings alone.
    """

    bounds: tuple[int, int] | None = None
    nullable: bool = False
    lists: bool = False
    words: bool = False

    @property
    def integers(self) -> bool:
        return self.bounds is not None and not self.lists


_FIXED = {
    MAX_BATCH_SIZE: TargetRule(bounds=(1, LARGEST_BATCH)),
    QUEUE_DELAY_US: TargetRule(bounds=(0, LARGEST_DELAY_US), nullable=True),
    PREFERRED_BATCH_SIZES: TargetRule(bounds=(1, LARGEST_BATCH), nullable=True, lists=True),
    INSTANCES: TargetRule(bounds=(1, 1024)),
    VARIANT: TargetRule(words=True),
}


def target_rule(target: str, path: Path) -> TargetRule:
    """The rule of a target; SpaceRefused, with the nearest valid name, if there is no such one."""
    if target.startswith(SERVER_PREFIX):
        _check_flag(target.removeprefix(SERVER_PREFIX), path)
        return TargetRule(nullable=True)
    step, name = split_target(target)
    if not step or _STEP.fullmatch(step):
        if name in _FIXED:
            return _FIXED[name]
        if name.startswith(BACKEND_PREFIX) and name != BACKEND_PREFIX:
            return TargetRule(nullable=True)
    raise SpaceRefused(
        f"a parameter is one of {', '.join(PATTERNS)}, or, of a pipeline's step, of"
        f" {', '.join(STEP_PATTERNS)}",
        value=target,
        next_step=_nearest_target(target),
        path=path,
    )


def _nearest_target(target: str) -> str:
    if target == WORKERS:
        return f"of a pipeline's step it is <step>.{WORKERS}, of a model alone {INSTANCES}"
    _, of_a_step, flag = target.partition("." + SERVER_PREFIX)
    if of_a_step:
        return f"flags are the whole server's: {SERVER_PREFIX}{flag}"
    step, _, name = target.rpartition(".")
    if not step or not name:
        return nearest(target, (*_FIXED, "prune", "about"))
    near = difflib.get_close_matches(name, STEP_FIELDS, n=1)
    if near:
        return f"did you mean {step}.{near[0]}?"
    return f"a parameter of the step's backend is {step}.{BACKEND_PREFIX}{name}"


def named_twice(targets: Iterable[str]) -> tuple[str, str] | None:
    """Two targets that set the same thing, ``<step>.workers`` and ``<step>.instances``; None where
    there are none."""
    seen: dict[tuple[str, str], str] = {}
    for target in targets:
        other = seen.setdefault(split_target(target), target)
        if other != target:
            return other, target
    return None


def _check_flag(flag: str, path: Path) -> None:
    if not _FLAG.fullmatch(flag):
        raise SpaceRefused(
            "server.<flag> names a tritonserver flag in lower case, without its dashes",
            value=flag,
            next_step="e.g. server.buffer-manager-thread-count",
            path=path,
        )
    if flag in OWN_FLAGS:
        raise SpaceRefused(
            "this flag is autotune's own to set and cannot be swept", value=flag, path=path
        )


def checked_value(raw: object, target: str, rule: TargetRule, path: Path) -> Value:
    """A value as a plain Python one, or SpaceRefused."""
    if raw is None:
        if rule.nullable:
            return None
        raise SpaceRefused(f"{target} cannot be null", next_step="give it a value", path=path)
    if rule.lists:
        return _checked_list(raw, target, rule, path)
    if rule.bounds is not None:
        return _whole(raw, target, rule.bounds, path)
    if rule.words:
        if not isinstance(raw, str) or not raw:
            raise SpaceRefused(f"{target} takes names", value=raw, path=path)
        return str(raw)
    return _scalar(raw, target, path)


def _checked_list(raw: object, target: str, rule: TargetRule, path: Path) -> tuple[int, ...]:
    if not isinstance(raw, list | tuple) or not raw:
        raise SpaceRefused(
            f"each value of {target} is a list of sizes, or null",
            value=raw,
            next_step="e.g. [null, [4, 8]]",
            path=path,
        )
    assert rule.bounds is not None
    bounds = rule.bounds
    sizes = tuple(_whole(size, target, bounds, (*path, i)) for i, size in enumerate(raw))
    if list(sizes) != sorted(set(sizes)):
        raise SpaceRefused(f"{target} are given ascending, each once", value=raw, path=path)
    return sizes


def _whole(raw: object, target: str, bounds: tuple[int, int], path: Path) -> int:
    low, high = bounds
    if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
        rule = f"{target} is a whole number from {low} to {high}"
        raise SpaceRefused(rule, value=raw, path=path)
    return int(raw)


def _scalar(raw: object, target: str, path: Path) -> int | float | bool | str:
    if isinstance(raw, bool):
        return bool(raw)
    if isinstance(raw, int):
        return int(raw)
    if isinstance(raw, str):
        return str(raw)
    if isinstance(raw, float) and math.isfinite(raw):
        return float(raw)
    raise SpaceRefused(
        f"{target} takes finite numbers, words, true, false or null", value=raw, path=path
    )
