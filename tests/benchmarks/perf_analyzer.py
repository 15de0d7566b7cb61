"""Our p95 beside perf_analyzer's at the same achieved rate, on the emulated accelerator.

    PERF_ANALYZER=/path/to/perf_analyzer python -m tests.benchmarks.perf_analyzer

perf_analyzer runs first, at 30, 60 and 80% of saturation (Poisson, --async); ours then runs at the
rate that it achieved. It starts its clock at the actual send, we at the scheduled time, so both of
our figures are shown. Prints a Markdown table; never passes or fails.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autotune.core.measurement import Ended, LoadResult
from autotune.core.workload import Arrival, InputSpec
from autotune.ports import LoadPlan, OpenLoop, Saturate, Server
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from tests.benchmarks.emulated import MODEL, emulated_server

SECONDS = 12.0
ROUNDS = 2
SHARES = (0.3, 0.6, 0.8)


class NoWindow:
    def opened(self) -> None: ...

    def enough(self, so_far: LoadResult) -> Ended | None: ...

    def closed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Theirs:
    achieved_qps: float
    p95_ms: float


def theirs(binary: str, server: Server, qps: float, folder: Path) -> Theirs:
    table = folder / "perf_analyzer.csv"
    table.unlink(missing_ok=True)
    command = [
        *(binary, "-m", MODEL, "-u", server.endpoint.http, "-i", "http", "--async"),
        *("--request-rate-range", f"{qps:.1f}", "--request-distribution", "poisson"),
        # It reports the mean of the three windows that it wants to be stable.
        *("--measurement-interval", f"{SECONDS * 1000 / 3:.0f}", "--max-trials", "3"),
        *("--percentile", "95", "--stability-percentage", "999", "-f", str(table)),
    ]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=SECONDS * 5 + 30, cwd=folder
    )
    if not table.exists():
        sys.exit(f"perf_analyzer measured nothing:\n{done.stdout}{done.stderr}")
    with table.open() as stream:
        row = next(csv.DictReader(stream))
    return Theirs(
        achieved_qps=float(row["Inferences/Second"]), p95_ms=float(row["p95 latency"]) / 1e3
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
    out = [
        f"Saturation {saturation:.0f}/s; {SECONDS:g} s windows, {ROUNDS} rounds, Poisson.",
        "",
        "| share | round | achieved/s theirs | ours | p95 ms theirs | ours from send |"
        " ours from schedule | difference (from send) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for share in SHARES:
        for number in range(ROUNDS):
            peer = theirs(binary, server, share * saturation, folder)
            result = ours(driver, server, peer.achieved_qps, seed=number)
            assert result.service_latency is not None
            assert result.latency is not None
            sent, due = result.service_latency.at(95.0), result.latency.at(95.0)
            out.append(
                f"| {share:.0%} | {number + 1} | {peer.achieved_qps:.1f} |"
                f" {result.achieved_qps:.1f} | {peer.p95_ms:.1f} | {sent:.1f} | {due:.1f} |"
                f" {sent / peer.p95_ms - 1:+.1%} |"
            )
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
