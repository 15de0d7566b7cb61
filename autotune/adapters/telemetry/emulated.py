"""How busy an emulated accelerator was, as its model tells it on the server's metrics page."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.sampling import Source, Unavailable
from autotune.adapters.telemetry.triton_metrics import first_page, read_page
from autotune.core.measurement import EMULATED
from autotune.core.model_interface import Endpoint

BUSY = "emulated_device_busy_seconds"
"""A counter of ``examples/emulated``, of each model instance that has an emulated device."""
_COUNTER = re.compile(rf'^{BUSY}\{{(?:.*,)?device="([^"]*)".*\}}\s+(\S+)', re.MULTILINE)


class Emulated(Source):
    """Utilization: seconds for which emulated devices were held per second, mean over devices.

    Available where the server's metrics page carries the counter: its models say themselves that
    their device is emulated, so no real device or processor is asked how busy it was. Memory is
    that of ``memory``, a source that is opened too; unknown, with a note, where it cannot be.
    """

    name = EMULATED

    def __init__(
        self, memory: Source | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._memory = memory
        self._memory_open = False
        self._clock = clock

    @property
    def memory_name(self) -> str:
        return self._memory.memory_name if self._memory is not None else "none"

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:
        self._url, page = first_page(endpoint)
        devices, self._busy_s = told(page)
        if not devices:
            raise Unavailable("the server reports no emulated device")
        self._at, self._ahead_s = self._clock(), 0.0
        names = ", ".join(sorted(devices))
        return {"emulated_devices": names, **self._open_memory(pids, endpoint)}

    def utilization(self) -> float | None:
        """None after a reading that failed, and where the counters began anew in between."""
        try:
            devices, busy_s = told(read_page(self._url))
        except OSError:
            return None
        now = self._clock()
        elapsed_s, self._at = now - self._at, now
        held_s, self._busy_s = busy_s - self._busy_s, busy_s
        if held_s < 0 or elapsed_s <= 0 or not devices:
            return None
        # A part that is held is told when it begins: what is more than there was time for is of
        # the time to come.
        held_s += self._ahead_s
        most_s = elapsed_s * len(devices)
        self._ahead_s = max(0.0, held_s - most_s)
        return min(held_s, most_s) / most_s

    def memory_mb(self) -> float | None:
        return self._memory.memory_mb() if self._memory and self._memory_open else None

    def memory_total_mb(self) -> float | None:
        return self._memory.memory_total_mb() if self._memory and self._memory_open else None

    def disturbance(self) -> Disturbance:
        return Disturbance()

    def close(self) -> None:
        if self._memory and self._memory_open:
            self._memory.close()
        self._memory_open = False

    def _open_memory(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:
        if self._memory is None:
            return {}
        try:
            notes = self._memory.open(pids, endpoint)
        except Unavailable as exc:
            return {self._memory.name: str(exc)}
        self._memory_open = True
        return notes


def told(page: str) -> tuple[set[str], float]:
    """The devices that a metrics page names, and the seconds for which they were held, in all."""
    counters = _COUNTER.findall(page)
    return {device for device, _ in counters}, sum(float(seconds) for _, seconds in counters)
