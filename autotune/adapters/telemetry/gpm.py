"""NVML's GPU performance monitoring (GPM): counters of the multiprocessors, Hopper and later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pynvml

from autotune.adapters.telemetry.parts import Part

SHORTEST_S = 0.1
"""Samples that are less far apart give values that mean nothing (NVML's documentation)."""
MIB = 1.048576
"""Megabytes (10^6 bytes) of the mebibytes that the PCIe counters count in."""

BUSY = "busy"
"""The share of time in which any kernel ran: what ``utilization.gpu`` says, of a slice too."""

_METRICS: Mapping[str, tuple[int, float]] = {
    BUSY: (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 0.01),
    "sm_active": (pynvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
    "sm_occupancy": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 0.01),
    "tensor_active": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "dram_active": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "pcie_rx_mb_s": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, MIB),
    "pcie_tx_mb_s": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, MIB),
}
"""Each gauge's metric of GPM, and what its values are multiplied by."""


class Gpm:
    """The counters of one GPU or slice, each over the time between two readings.

    NVMLError where the device, its driver or this process's rights do not allow them.
    """

    def __init__(self, part: Part, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._part = part
        self._clock = clock
        self._samples: list[Any] = []
        # A GPU in slices need not say of itself what its slices can do: their first sample says it.
        if not part.sliced and not _supported(part):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        try:
            for _ in range(2):
                self._samples.append(pynvml.nvmlGpmSampleAlloc())
            self._take(self._samples[0])
        except pynvml.NVMLError:
            self.close()
            raise

    def read(self) -> Mapping[str, float]:
        """The gauges since the last reading; one that this device does not count is missing. Empty
        where the last reading is too short ago; then the next one covers both. NVMLError where
        they cannot be read."""
        if self._clock() - self._at < SHORTEST_S:
            return {}
        before, after = self._samples
        self._take(after)
        self._samples = [after, before]
        return _between(before, after)

    def close(self) -> None:
        """Free the samples. Safe to call twice."""
        while self._samples:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(self._samples.pop())

    def _take(self, sample: Any) -> None:
        if self._part.sliced:
            pynvml.nvmlGpmMigSampleGet(self._part.device, self._part.instance, sample)
        else:
            pynvml.nvmlGpmSampleGet(self._part.device, sample)
        self._at = self._clock()


def _supported(part: Part) -> bool:
    return bool(pynvml.nvmlGpmQueryDeviceSupport(part.device).isSupportedDevice)


def _between(before: Any, after: Any) -> dict[str, float]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(_METRICS)
    asked.sample1, asked.sample2 = before, after
    for place, (metric, _) in enumerate(_METRICS.values()):
        asked.metrics[place].metricId = metric
    pynvml.nvmlGpmMetricsGet(asked)
    return {
        name: asked.metrics[place].value * factor
        for place, (name, (_, factor)) in enumerate(_METRICS.items())
        if asked.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS
        and math.isfinite(asked.metrics[place].value)
    }
