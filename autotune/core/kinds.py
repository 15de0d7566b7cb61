"""What a device is, as far as measurements taken on two of them can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.canary import changed
from autotune.core.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Kind:
    """``gpus``: the names of the GPUs or MIG slices that it serves on, none for processor cores
    alone; ``cores``: how many of the ``processor`` it has to itself. Two devices are of one kind
    where all of it is equal."""

    processor: str
    cores: int
    gpus: tuple[str, ...] = ()
    driver: str = ""

    def __str__(self) -> str:
        cores = f"{counted(self.cores, 'core')} of {self.processor}"
        if not self.gpus:
            return cores
        return f"{', '.join(self.gpus)} (driver {self.driver or 'unknown'}) with {cores}"

    @property
    def recorded(self) -> dict[str, Any]:
        """As a study's environment has it."""
        told = {"processor": self.processor, "cores": self.cores, "gpus": list(self.gpus)}
        return {**told, "driver": self.driver} if self.driver else told

    def is_recorded(self, environment: Mapping[str, Any]) -> bool:
        """Whether an environment that was recorded is of this kind, as far as it tells. It may tell
        the driver of a GPU that stood beside the cores which were measured on."""
        mine = self.recorded
        if self.gpus:
            mine["driver"] = self.driver
        return all(environment[key] == mine[key] for key in mine if key in environment)


def chosen(devices: Sequence[Kind], before: Mapping[str, Any] | None = None) -> Kind | None:
    """The kind that a study uses: the one that it was begun on, else the most numerous (of equally
    many the first by name). None where there is none."""
    if before is not None:
        devices = [kind for kind in devices if kind.is_recorded(before)]
    counted = Counter(devices)
    return min(counted, key=lambda kind: (-counted[kind], str(kind)), default=None)


def typical(canaries: Sequence[Measurement]) -> Measurement | None:
    """Of one configuration, measured once on each device: that which most of the others do not
    differ from by the canary's rule (see `autotune.core.canary.changed`), of equally many the
    first. None where there is none."""

    def like(one: Measurement) -> int:
        return sum(changed(one, each) is None for each in canaries)

    return max(canaries, key=like, default=None)


def counted(many: int, noun: str) -> str:
    """In words: ``1 node``, ``2 nodes``."""
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"
