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
WORKERS_SUFFIX = ".workers"
BACKEND_PREFIX = "parameters."
SERVER_PREFIX = "server."


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
