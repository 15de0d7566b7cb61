"""What may have disturbed a measurement, and how it is watched for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.core.model_interface import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """The fields of `autotune.core.measurement.TelemetryWindow` of the same names."""

    foreign_cpu: float | None = None
    foreign_gpu: tuple[int, ...] = ()
    throttled: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


class Watch(Protocol):
    """Compares the machine at the beginning of a window with the machine at its end."""

    def begin(self, pids: Sequence[int], endpoint: Endpoint) -> None:
        """``pids``: the server's processes; empty where they are not on this machine."""

    def end(self) -> Disturbance: ...


def combined(parts: Sequence[Disturbance]) -> Disturbance:
    """All of them in one; of several known ``foreign_cpu`` the largest."""
    known = [part.foreign_cpu for part in parts if part.foreign_cpu is not None]
    return Disturbance(
        foreign_cpu=max(known, default=None),
        foreign_gpu=tuple(sorted({pid for part in parts for pid in part.foreign_gpu})),
        throttled=tuple(clock for part in parts for clock in part.throttled),
        notes={name: text for part in parts for name, text in part.notes.items()},
    )
