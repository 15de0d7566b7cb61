"""Processor time and memory of the server's processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import psutil

from autotune.adapters.telemetry.cores import available_cores
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.room import available_memory_mb
from autotune.adapters.telemetry.sampling import Source, Unavailable
from autotune.core.model_interface import Endpoint


class ProcessCpu(Source):
    """Utilization: processor time of the process trees per wall time and available core.

    Children that appear later are counted from their birth, and looked for every ``rescan_s``: that
    reads all of ``/proc``, which is most of the cost of a reading. What a process used between the
    last reading and its death is lost. Memory: the sum of proportional set sizes (shared pages
    counted once) where they can be read, else of resident set sizes.
    """

    name = "process_cpu"
    memory_name = "process_pss"

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, rescan_s: float = 1.0
    ) -> None:
        self._clock = clock
        self._rescan_s = rescan_s
        self.memory_name = "process_pss"

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:  # noqa: ARG002
        if not pids:
            raise Unavailable("the server's processes are not on this machine")
        self._pids = tuple(pids)
        self._members: set[psutil.Process] = set()
        self._scanned = -math.inf
        self._used: dict[psutil.Process, float] = {}
        self._used = {process: self._cpu_s(process) for process in self._tree()}
        if not self._used:
            raise Unavailable("the server's processes are gone")
        self._cores = available_cores(self._pids[0])
        self._at = self._clock()
        self.memory_name = "process_pss"
        return {"cores": f"{self._cores:g}"}

    def utilization(self) -> float | None:
        now = self._clock()
        spent = 0.0
        for process in self._tree():
            used = self._cpu_s(process)
            spent += max(0.0, used - self._used.get(process, 0.0))
            self._used[process] = used
        elapsed, self._at = now - self._at, now
        return min(1.0, spent / (elapsed * self._cores)) if elapsed > 0 else None

    def memory_mb(self) -> float | None:
        sizes = [self._memory(process) for process in self._tree()]
        known = [size for size in sizes if size is not None]
        return sum(known) / 1e6 if known else None

    def memory_total_mb(self) -> float | None:
        return available_memory_mb(self._pids[0])

    def disturbance(self) -> Disturbance:
        return Disturbance()

    def close(self) -> None:
        self._used = {}
        self._members = set()

    def _tree(self) -> set[psutil.Process]:
        """The processes and all their children, each once, as they were at the last look."""
        now = self._clock()
        if now - self._scanned >= self._rescan_s:
            self._members, self._scanned = self._living(), now
        return self._members

    def _living(self) -> set[psutil.Process]:
        found: set[psutil.Process] = set()
        for pid in self._pids:
            try:
                root = psutil.Process(pid)
                if root not in found:  # each search for children reads all of /proc
                    found |= {root, *root.children(recursive=True)}
            except psutil.Error:
                continue
        return found

    def _cpu_s(self, process: psutil.Process) -> float:
        try:
            times = process.cpu_times()
        except psutil.Error:
            return self._used.get(process, 0.0)
        return times.user + times.system

    def _memory(self, process: psutil.Process) -> int | None:
        try:
            if self.memory_name == "process_pss":
                try:
                    return int(process.memory_full_info().pss)
                except (psutil.AccessDenied, AttributeError):
                    self.memory_name = "process_rss"
            return int(process.memory_info().rss)
        except psutil.Error:
            return None
