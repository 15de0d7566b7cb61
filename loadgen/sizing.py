"""How many processes a rate takes.

One Locust process sends some thousands of small requests a second, and fewer of large ones: it
has one core. What it can send is measured, with the very bodies, on a server that does nothing; of
that, a share is planned with, since at its limit a generator is late.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.core.measurement import Ended, LoadResult
from autotune.core.model_interface import ModelInterface, Sample, TensorSpec
from autotune.core.workload import InputSpec
from autotune.ports import LoadPlan, Saturate
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from loadgen.null_server import null_server

PLANNED = 0.5
"""The share of what a process can send at most that it is asked to."""
ONE_SENDS_QPS = 300.0
ONE_SENDS_BYTES = 20e6
"""Requests and bytes a second that one process of any machine sends: below both, nothing is
measured."""
IN_FLIGHT = 32
_WARMUP_S, _WINDOW_S, _TIMEOUT_S = 0.3, 1.0, 5.0


def cores() -> int:
    return len(os.sched_getaffinity(0))


def processes_for(qps: float, of_one_qps: float, *, most: int) -> int:
    """How many processes send ``qps`` at ease, where one can send ``of_one_qps`` at most."""
    return min(max(1, math.ceil(qps / (PLANNED * of_one_qps))), most)


def highest_rate(
    model: ModelInterface, samples: Sequence[Sample], *, processes: int = 1
) -> LoadResult:
    """What so many processes send of a model's samples, as fast as they can, to a server that does
    nothing and has as many: ``achieved_qps``. Where there are fewer cores than all of these, they
    share them, as they would with any server of this machine."""
    driver = LocustDriver(keep_samples=False, processes=lambda *_: processes)
    plan = LoadPlan(
        mode=Saturate(in_flight=IN_FLIGHT * processes),
        warmup_s=_WARMUP_S,
        measure_s=_WINDOW_S,
        timeout_s=_TIMEOUT_S,
        max_in_flight=IN_FLIGHT * processes,
    )
    with null_server(processes) as endpoint:
        try:
            driver.prepare(model, samples)
            return driver.run(endpoint, plan, _Unwatched())
        finally:
            driver.close()


def highest_of_small(*, processes: int = 1) -> float:
    """The same of requests of a few bytes, in requests per second."""
    tensor = TensorSpec(name="IN", datatype="FP32", shape=(4,))
    model = ModelInterface(name="null", inputs=(tensor,), outputs=(), batched=True)
    samples = build_samples(model, InputSpec(count=1), seed=0)
    return highest_rate(model, samples, processes=processes).achieved_qps


@dataclass(slots=True)
class Sizing:
    """`loadgen.driver.Processes`: one process while that is surely enough; else it is measured,
    once for the same samples. At most one for each core."""

    most: int = field(default_factory=cores)
    _measured: dict[int, float] = field(default_factory=dict, init=False)

    def __call__(self, model: ModelInterface, samples: Sequence[Sample], qps: float) -> int:
        if self.most == 1 or (qps <= ONE_SENDS_QPS and qps * _bytes(samples) <= ONE_SENDS_BYTES):
            return 1
        key = id(samples)
        if key not in self._measured:
            self._measured = {key: highest_rate(model, samples).achieved_qps}
        return processes_for(qps, max(self._measured[key], 1.0), most=self.most)


def _bytes(samples: Sequence[Sample]) -> int:
    """Of the largest request, its inputs alone."""
    return max((sum(_size(array) for array in sample.values()) for sample in samples), default=0)


def _size(array: Any) -> int:
    return int(array.nbytes)


class _Unwatched:
    """Nobody looks at the window."""

    def opened(self) -> None: ...

    def enough(self, so_far: LoadResult) -> Ended | None:  # noqa: ARG002
        return None

    def closed(self) -> None: ...
