"""Our p95 beside perf_analyzer's at the same achieved rate, on the emulated accelerator.

    PERF_ANALYZER=/path/to/perf_analyzer python -m tests.benchmarks.perf_analyzer

perf_analyzer runs first, at 30, 60 and 80% of saturation (Poisson, --async); ours then runs at the
rate that it achieved. It starts its clock at the actual send, we at the scheduled time, so both of
our figures are shown, and all with the same kind of 95% interval. Prints a Markdown table; never
passes or fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.core.intervals import percentile_interval
from autotune.core.measured_intervals import latencies_ms
from autotune.core.measurement import Ended, LoadResult
from autotune.core.workload import Arrival, InputSpec
from autotune.ports import LoadPlan, OpenLoop, Saturate, Server
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from tests.benchmarks.emulated import MODEL, emulated_server

SECONDS = 24.0
ROUNDS = 2
SHARES = (0.3, 0.6, 0.8)


class NoWindow:
    def opened(self) -> None: ...

    def enough(self, so_far: LoadResult) -> Ended | None: ...

    def closed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Theirs:
    """From the times of every request, as perf_analyzer exports them."""

    achieved_qps: float
    latencies_ms: NDArray[np.float64]


def theirs(binary: str, server: Server, qps: float, folder: Path) -> Theirs:
    export = folder / "perf_analyzer.json"
    export.unlink(missing_ok=True)
    command = [
        *(binary, "-m", MODEL, "-u", server.endpoint.http, "-i", "http", "--async"),
        *("--request-rate-range", f"{qps:.1f}", "--request-distribution", "poisson"),
        # It wants three windows to be stable, and exports the requests of all of them.
        *("--measurement-interval", f"{SECONDS * 1000 / 3:.0f}", "--max-trials", "3"),
        *("--percentile", "95", "--stability-percentage", "999"),
        *("--profile-export-file", str(export)),
    ]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=SECONDS * 5 + 30, cwd=folder
    )
    if not export.exists():
        sys.exit(f"perf_analyzer measured nothing:\n{done.stdout}{done.stderr}")
    requests = json.loads(export.read_text())["experiments"][0]["requests"]
    sent_ns = np.array([request["timestamp"] for request in requests], dtype=np.int64)
    done_ns = np.array([request["response_timestamps"][0] for request in requests], dtype=np.int64)
    order = np.argsort(sent_ns)
    seconds = float(np.ptp(done_ns)) / 1e9
    return Theirs(
        achieved_qps=(len(requests) - 1) / seconds,
        latencies_ms=(done_ns - sent_ns)[order] / 1e6,
    )


def ours(driver: LocustDriver, server: Server, qps: float, seed: int) -> LoadResult:
    mode = OpenLoop(qps=qps, arrival=Arrival(), seed=seed)
    plan = LoadPlan(mode=mode, warmup_s=2.0, measure_s=SECONDS, timeout_s=10.0, max_in_flight=4096)
    return driver.run(server.endpoint, plan, NoWindow())


def main() -> None:
    binary = os.environ.get("PERF_ANALYZER")
    if not binary:
        sys.exit("name the program: PERF_ANALYZER=/path/to/perf_analyzer")
    driver = LocustDriver()
    with tempfile.TemporaryDirectory() as name, emulated_server(Path(name)) as server:
        try:
            compare(binary, driver, server, Path(name))
        finally:
            driver.close()


def compare(binary: str, driver: LocustDriver, server: Server, folder: Path) -> None:
    interface = server.interface()
    driver.prepare(interface, build_samples(interface, InputSpec(count=16), seed=1))
    burst = LoadPlan(
        mode=Saturate(in_flight=64), warmup_s=1.0, measure_s=5.0, timeout_s=10.0, max_in_flight=256
    )
    saturation = driver.run(server.endpoint, burst, NoWindow()).achieved_qps
    sys.stdout.write(
        f"Saturation {saturation:.0f}/s; {SECONDS:g} s windows, {ROUNDS} rounds, Poisson.\n\n"
        "| share | round | achieved/s theirs | ours | p95 ms theirs | ours from send |"
        " ours from schedule | difference (from send) |\n|---|---|---|---|---|---|---|---|\n"
    )
    for share in SHARES:
        for number in range(ROUNDS):
            peer = theirs(binary, server, share * saturation, folder)
            result = ours(driver, server, peer.achieved_qps, seed=number)
            samples = result.samples
            assert samples is not None
            due = latencies_ms(samples, timeout_s=10.0)
            sent = due - (samples.sent_s - samples.scheduled_s) * 1e3
            difference = p95(sent) / p95(peer.latencies_ms) - 1
            sys.stdout.write(
                f"| {share:.0%} | {number + 1} | {peer.achieved_qps:.1f} |"
                f" {result.achieved_qps:.1f} | {shown(peer.latencies_ms)} | {shown(sent)} |"
                f" {shown(due)} | {difference:+.1%} |\n"
            )
            sys.stdout.flush()


def p95(values: NDArray[np.float64]) -> float:
    return float(np.percentile(values, 95, method="inverted_cdf"))


def shown(values: NDArray[np.float64]) -> str:
    interval = percentile_interval(values, 95.0)
    assert interval is not None
    return f"{p95(values):.1f} ({interval.low:.1f}–{interval.high:.1f})"


if __name__ == "__main__":
    main()
