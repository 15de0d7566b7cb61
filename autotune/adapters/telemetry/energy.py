"""How much energy a GPU used since it was looked at first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml


class Energy:
    """By the GPU's own counter (millijoules since its driver was loaded; Volta and later), else by
    its power, which each reading takes for what it was since the one before.

    ``source`` says which: ``nvml`` or ``nvml_power``.
    """

    def __init__(self, device: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._clock = clock
        self._joules = 0.0
        self._at = clock()
        try:
            self._first_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
            self.source = "nvml"
        except pynvml.NVMLError:
            self.source = "nvml_power"

    def joules(self) -> float:
        """Since the beginning; NVMLError where it cannot be read."""
        if self.source == "nvml":
            now_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._device)
            return float(now_mj - self._first_mj) / 1000
        watts = pynvml.nvmlDeviceGetPowerUsage(self._device) / 1000
        now = self._clock()
        self._joules += watts * (now - self._at)
        self._at = now
        return self._joules
