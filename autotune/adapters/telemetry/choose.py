"""Which telemetry a study gets."""

from __future__ import annotations

from autotune.adapters.telemetry.nvml import Nvml
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import SampledTelemetry
from autotune.adapters.telemetry.triton_metrics import TritonMetrics
from autotune.ports import Telemetry


def choose(*, remote: bool, interval_s: float = 0.2) -> Telemetry:
    """Telemetry that degrades openly, at each start anew.

    A server on this machine: NVML if it runs on a GPU, else its processes' CPU share. A remote one:
    the GPU metrics that it reports itself. Else unknown, with the reasons in the notes.
    """
    if remote:
        return SampledTelemetry([TritonMetrics()], interval_s=interval_s)
    return SampledTelemetry([Nvml(), ProcessCpu()], interval_s=interval_s)
