"""Part (a): which counters there are, and whether each is moved by a load that should move it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.adapters.telemetry.nvml import Nvml
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import SampledTelemetry
from autotune.core.measurement import TelemetryWindow
from autotune.core.model_interface import Endpoint
from tests.gpu.context import Context
from tests.gpu.host import Apart, python_with_torch
from tests.gpu.report import Skipped

NOWHERE = Endpoint(http="", grpc="")
"""The loads are no server: these sources ask a process and a device alone."""
LEAD_S = 0.3
"""How long a load runs before it is watched, and after."""
REST_S = 1.5
"""For a device to cool off in before its power is read again."""
DOCTOR_S = 30.0
IDLE, BEFORE = "idle", "before"


class Moved(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter, by its name in a telemetry window, and the ``load`` that should change it by at
    least ``least``; below 0, make it fall by that. ``since``: the load that it is compared with."""

    name: str
    load: str
    least: float
    since: str = BEFORE


LOADS = ("matmul", "hold", "copy", "to_device", "to_host")
"""In the order in which they are run; a processor is put under all of them too."""


def counters(context: Context) -> tuple[Counter, ...]:
    """Those that the device may have. The thresholds are far above what a counter of a GPU of any
    size shows by itself."""
    everywhere = (
        Counter(name="utilization", load="matmul", least=0.2),
        Counter(name="memory_mb", load="hold", least=0.8 * context.scale.held_mb),
    )
    if not context.on_gpu:
        return everywhere
    return (
        *everywhere,
        Counter(name="sm_active", load="matmul", least=0.2),
        Counter(name="sm_occupancy", load="matmul", least=0.02),
        Counter(name="tensor_active", load="matmul", least=0.05),
        Counter(name="dram_active", load="copy", least=0.2),
        Counter(name="pcie_rx_mb_s", load="to_device", least=500),
        Counter(name="pcie_tx_mb_s", load="to_host", least=500),
        Counter(name="power_w", load="matmul", least=10),
        Counter(name="power_w", load=IDLE, least=-10, since="matmul"),
        Counter(name="energy_j", load="matmul", least=10),
    )


def moved(counter: Counter, seen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A counter before its load and under it, and whether it moved as it should."""
    before = seen.get(counter.since, {}).get(counter.name)
    after = seen.get(counter.load, {}).get(counter.name)
    verdict = Moved.UNKNOWN
    if before is not None and after is not None:
        by = after - before
        enough = by >= counter.least if counter.least > 0 else by <= counter.least
        verdict = Moved.YES if enough else Moved.NO
    sources = seen.get(counter.load, {}).get("sources", {})
    return {
        "counter": counter.name,
        "load": counter.load,
        "since": counter.since,
        "before": before,
        "after": after,
        "moved": verdict,
        "source": sources.get(counter.name),
    }


def run(context: Context) -> None:
    report = context.report
    report.keep(doctor=doctor())
    found = python_with_torch()
    if isinstance(found, str):
        lacking = "" if context.on_gpu else "no GPU, and "
        raise Skipped(f"{lacking}{found}")
    report.made_with(**found.versions)
    with Apart(found.python, "loads", order(context), sys.stderr) as loads:
        if loads.hear() is None:
            raise RuntimeError(f"PyTorch does not open the device: exit {loads.status}")
        _watch_all(context, Watch(loads, telemetry(context), context.scale.load_s))


def order(context: Context) -> dict[str, Any]:
    scale = context.scale
    sizes = {"matrix": scale.matrix, "copy_mb": scale.copy_mb, "held_mb": scale.held_mb}
    return {"device": context.options.device, **sizes}


def telemetry(context: Context) -> SampledTelemetry:
    """As a study has it; of a processor where the check is of one, GPU or not."""
    source = Nvml() if context.on_gpu else ProcessCpu()
    return SampledTelemetry([source])


def doctor() -> Sequence[Mapping[str, str]] | str:
    """What `autotune doctor` says here, or why it says nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "doctor", "--no-load", "--json"],
            capture_output=True,
            text=True,
            timeout=DOCTOR_S,
            check=False,
        )
        checks = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"autotune doctor gave no answer: {error}"
    return [{key: str(each[key]) for key in ("name", "state", "detail")} for each in checks]


@dataclass(frozen=True, slots=True)
class Watch:
    """Runs one load after another, and watches the counters meanwhile."""

    loads: Apart
    telemetry: SampledTelemetry
    seconds: float
    sleep: Callable[[float], None] = time.sleep

    def under(self, load: str) -> dict[str, Any]:
        """All that is known under a load; `refused` where it could not be run."""
        self.loads.tell(load=load, seconds=self.seconds + 2 * LEAD_S)
        said = self.loads.hear()
        if said is None or said["event"] != "began":
            return {"refused": said["why"] if said else "the process that loads has ended"}
        self.sleep(LEAD_S)
        self.telemetry.start([self.loads.pid], NOWHERE)
        self.sleep(self.seconds)
        window = self.telemetry.stop()
        done = self.loads.hear() or {}
        rate = {key: done[key] for key in ("rate", "unit") if done.get("unit")}
        return {**flat(window), **rate}


def flat(window: TelemetryWindow) -> dict[str, Any]:
    """A window's figures by name, where each is from, and what could not be had."""
    gauges = {name: gauge.value for name, gauge in window.gauges.items()}
    sources = {name: gauge.source for name, gauge in window.gauges.items()}
    return {
        "utilization": window.utilization,
        "memory_mb": window.memory_mb,
        "memory_total_mb": window.memory_total_mb,
        **gauges,
        "sources": {**sources, "utilization": window.source, "memory_mb": window.memory_source},
        "foreign_gpu": len(window.foreign_gpu),
        "throttled": list(window.throttled),
        "unknown": dict(window.notes),
    }


def _watch_all(context: Context, watch: Watch) -> None:
    """At rest, under each load, and at rest again, for as long as there is time."""
    wanted = counters(context)
    one_s, left_s = 0.0, context.deadline.left_s
    seen: dict[str, Mapping[str, Any]] = {}
    for name, load in ((BEFORE, IDLE), *zip(LOADS, LOADS, strict=True)):
        if context.deadline.left_s < 2 * one_s + REST_S:
            context.report.note(f"no time was left for the load {name} and those after it")
            break
        seen[name] = watch.under(load)
        _keep(context, wanted, seen)
        one_s, left_s = max(one_s, left_s - context.deadline.left_s), context.deadline.left_s
    watch.sleep(REST_S)
    seen[IDLE] = watch.under(IDLE)
    _keep(context, wanted, seen)


def _keep(
    context: Context, wanted: Sequence[Counter], seen: Mapping[str, Mapping[str, Any]]
) -> None:
    context.report.keep(
        loads={load: dict(found) for load, found in seen.items()},
        counters=[moved(counter, seen) for counter in wanted if counter.load in seen],
    )
