"""A candidate: one full assignment of a space's parameters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

Value: TypeAlias = int | float | bool | str | tuple[int, ...] | None
"""What a parameter can be set to; a tuple is a list of batch sizes, None is "not set"."""

MAX_BATCH_SIZE = "max_batch_size"
QUEUE_DELAY_US = "queue_delay_us"
PREFERRED_BATCH_SIZES = "preferred_batch_sizes"
INSTANCES = "instances"
VARIANT = "variant"
WORKERS = "workers"
WORKERS_SUFFIX = "." + WORKERS
BACKEND_PREFIX = "parameters."
SERVER_PREFIX = "server."


STEP_FIELDS = (
    MAX_BATCH_SIZE,
    QUEUE_DELAY_US,
    PREFERRED_BATCH_SIZES,
    INSTANCES,
    VARIANT,
    WORKERS,
)
"""What can be set of one step of a pipeline, as ``<step>.<field>``, beside its backend's own
parameters (``<step>.parameters.<key>``)."""


def split_target(target: str) -> tuple[str, str]:
    """The step that a target names, and what it sets of that step, in the words of a model that
    is tuned alone: ``("recognize", "max_batch_size")``. The step is empty for a target of the
    model itself or of the server. ``<step>.workers`` is the step's ``instances``: one word for CPU
    steps, one for Triton's own.
    """
    if target.startswith((BACKEND_PREFIX, SERVER_PREFIX)):
        return "", target
    step, found, key = target.partition("." + BACKEND_PREFIX)
    if found and step:
        return step, BACKEND_PREFIX + key
    step, _, name = target.rpartition(".")
    if step and name in STEP_FIELDS:
        return step, INSTANCES if name == WORKERS else name
    return "", target


def target_of(step: str, name: str) -> str:
    """What a field of a step, or of the model itself for the empty one, is called in a space; back
    from `split_target`, but for ``workers``."""
    return f"{step}.{name}" if step else name


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An immutable mapping from parameter target to value; equal when the values are.

    ``values`` holds only the parameters that are active: one whose condition does not hold is
    absent, so that two candidates that differ only in an ineffective setting are the same.
    """

    values: Mapping[str, Value]

    def __post_init__(self) -> None:
        frozen = {name: self.values[name] for name in sorted(self.values)}
        object.__setattr__(self, "values", MappingProxyType(frozen))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def get(self, name: str, default: Value = None) -> Value:
        return self.values.get(name, default)

    @property
    def key(self) -> str:
        """Canonical JSON: equal candidates have equal keys, on every machine."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that name the candidate in files and logs."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:12]

    @property
    def server_flags(self) -> dict[str, str]:
        """The part that only a restarted server can take: ``server.<flag>`` without the prefix."""
        return {
            name.removeprefix(SERVER_PREFIX): _flag(value)
            for name, value in self.values.items()
            if name.startswith(SERVER_PREFIX) and value is not None
        }

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of a pipeline that it names, sorted."""
        return tuple(sorted({step for target in self.values if (step := split_target(target)[0])}))

    def of(self, step: str) -> Candidate:
        """What it says of one step of a pipeline, in the words of a model that is tuned alone; of
        the tuned model itself, without the server's flags, for the empty step."""
        parts = ((*split_target(target), value) for target, value in self.values.items())
        return Candidate(
            {
                name: value
                for part, name, value in parts
                if part == step and not name.startswith(SERVER_PREFIX)
            }
        )

    def replacing(self, **changes: Value) -> Candidate:
        return Candidate({**self.values, **changes})

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        return cls({k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})

    def __str__(self) -> str:
        return ", ".join(f"{name}={_shown(value)}" for name, value in self.values.items())


def _flag(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return "unset" if value is None else str(value)
