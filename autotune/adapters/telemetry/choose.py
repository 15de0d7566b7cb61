"""Which telemetry a study gets."""

from __future__ import annotations

from autotune.adapters.telemetry.disturbance import Watch
from autotune.adapters.telemetry.emulated import Emulated
from autotune.adapters.telemetry.foreign_cpu import ForeignCpu
from autotune.adapters.telemetry.nvml import Nvml
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import SampledTelemetry, Source
from autotune.adapters.telemetry.throttling import QuotaThrottling, ThermalThrottling
from autotune.adapters.telemetry.triton_metrics import TritonMetrics
from autotune.ports import Telemetry


def choose(*, remote: bool, models_apart: bool = False, interval_s: float = 0.2) -> Telemetry:
    """Telemetry that degrades openly, at each start anew. ``models_apart``: see `Nvml`.

    An emulated accelerator, where the server says that it has one. Else, of a server on this
    machine: NVML if it runs on a GPU, or its processes' CPU share; of a remote one: the GPU metrics
    that it reports itself. Else unknown, with the reasons in the notes. What others took of this
    machine's processor is watched in either case.
    """
    sources: list[Source] = (
        [Emulated(), TritonMetrics()]
        if remote
        else [Emulated(ProcessCpu()), Nvml(models_apart=models_apart), ProcessCpu()]
    )
    watches: list[Watch] = [ThermalThrottling(), QuotaThrottling(), ForeignCpu()]
    return SampledTelemetry(sources, watches=watches, interval_s=interval_s)
