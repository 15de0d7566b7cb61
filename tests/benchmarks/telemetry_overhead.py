"""What telemetry adds to a server's p95: the same load with it and without it.

    python -m tests.benchmarks.telemetry_overhead [--pairs 8] [--seconds 8] [--qps 150]

On the embedded Triton with an emulated accelerator, A B B A: no telemetry (A), and as a study has
it (B), by the server's processes and by NVML. NVML's part is the fake library of the tests, so that
what a driver takes to answer is not in it: not yet run on hardware. Prints a Markdown table; never
passes or fails. Emulated: says nothing of a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autotune.adapters.telemetry.foreign_cpu import ForeignCpu
from autotune.adapters.telemetry.nvml import Nvml
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import SampledTelemetry, Source
from autotune.adapters.telemetry.throttling import QuotaThrottling, ThermalThrottling
from autotune.core.comparison import Comparison, compare_latency
from autotune.core.measurement import Ended, LoadResult, RequestSamples, TelemetryWindow
from autotune.core.workload import Arrival, ArrivalKind
from autotune.ports import LoadPlan, OpenLoop, Server
from loadgen.driver import LocustDriver
from tests.benchmarks.emulated import emulated_server
from tests.fake_nvml import build, compiler, loaded

TIMEOUT_S = 5.0


@dataclass
class Watched:
    """Reads telemetry over the window, if there is any, and what the window cost this process."""

    server: Server
    source: Source | None
    seen: TelemetryWindow = field(default_factory=TelemetryWindow)
    cpu_s: float = 0.0

    def __post_init__(self) -> None:
        watches = [ThermalThrottling(), QuotaThrottling(), ForeignCpu()]
        sources = [] if self.source is None else [self.source]
        self.telemetry = SampledTelemetry(sources, watches=watches)

    def opened(self) -> None:
        self.cpu_s = -time.process_time()
        if self.source is not None:
            self.telemetry.start(self.server.pids(), self.server.endpoint)

    def enough(self, so_far: LoadResult) -> Ended | None: ...

    def closed(self) -> None:
        if self.source is not None:
            self.seen = self.telemetry.stop()
        self.cpu_s += time.process_time()


@dataclass(frozen=True)
class Run:
    samples: RequestSamples
    p95_ms: float
    cpu: float
    """Of one core, in this process."""


@dataclass(frozen=True)
class Bench:
    server: Server
    load: LocustDriver
    qps: float
    seconds: float

    def run(self, source: Source | None, seed: int) -> Run:
        plan = LoadPlan(
            mode=OpenLoop(qps=self.qps, arrival=Arrival(kind=ArrivalKind.POISSON), seed=seed),
            warmup_s=1.0,
            measure_s=self.seconds,
            timeout_s=TIMEOUT_S,
            max_in_flight=1024,
        )
        watched = Watched(self.server, source)
        result = self.load.run(self.server.endpoint, plan, watched)
        if source is not None and watched.seen.source != source.name:
            raise RuntimeError(f"{source.name} was not read: {dict(watched.seen.notes)}")
        assert result.samples is not None
        assert result.latency is not None
        return Run(result.samples, result.latency.at(95.0), watched.cpu_s / result.window_s)

    def pairs(self, source: Source, count: int) -> list[tuple[Run, Run]]:
        """Runs without and with it under the same arrivals; every other pair begins with it."""
        found = []
        for seed in range(count):
            order: list[Source | None] = [None, source]
            if seed % 2:
                order.reverse()
            runs = {each is not None: self.run(each, seed) for each in order}
            found.append((runs[False], runs[True]))
        return found


def compared(pairs: list[tuple[Run, Run]]) -> Comparison:
    runs = [(without.samples, with_.samples) for without, with_ in pairs]
    return compare_latency(0, 1, 95.0, runs, timeout_s=TIMEOUT_S, taken_at=0.0)


def row(name: str, pairs: list[tuple[Run, Run]]) -> str:
    found = compared(pairs)
    without, with_ = zip(*pairs, strict=True)
    p95 = [statistics.median(run.p95_ms for run in runs) for runs in (without, with_)]
    cpu = [statistics.median(run.cpu for run in runs) for runs in (without, with_)]
    low, high = 1 + found.interval.low, 1 + found.interval.high
    return (
        f"| {name} | {p95[0]:.2f} | {p95[1]:.2f} | {1 + found.effect:.3f} ({low:.3f}–{high:.3f})"
        f" | {found.relation} | {cpu[0]:.1%} | {cpu[1]:.1%} |\n"
    )


@contextmanager
def fake_gpu(server: Server, folder: Path) -> Iterator[None]:
    """A Hopper on which the server computes."""
    with loaded(build(folder)) as nvml:
        pids = ",".join(map(str, list(server.pids())[:8]))
        nvml.set(f"users={pids}", "busy=60", "metric2=55", "power=400")
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--qps", type=float, default=150.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        emulated_server(Path(name)) as server,
        closing(LocustDriver()) as load,
    ):
        load.prepare(server.interface(), [{"X": np.zeros(128, np.float32)}])
        bench = Bench(server, load, options.qps, options.seconds)
        sys.stdout.write(
            "| telemetry | p95 ms without | with | with / without | it is | controller CPU without"
            " | with |\n|---|---|---|---|---|---|---|\n"
        )
        sys.stdout.write(row("process_cpu", bench.pairs(ProcessCpu(), options.pairs)))
        if compiler() is None:
            sys.stdout.write("\nnvml: left out, no C compiler (cc) to build the fake NVML with\n")
            return
        with fake_gpu(server, Path(name)):
            sys.stdout.write(row("nvml, fake library", bench.pairs(Nvml(), options.pairs)))


if __name__ == "__main__":
    main()
