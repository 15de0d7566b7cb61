"""How well the load generator keeps its schedule, and what it costs.

    python -m tests.benchmarks.load_generator [--rates 100,500,1000,2000,4000] [--seconds 5]
    python -m tests.benchmarks.load_generator --http 127.0.0.1:8000 --model NAME --rates 50

Without ``--http`` the load goes to the null server, a single-threaded Python process that needs
about as much processor time per request as the generator. ``--first-look SECONDS`` has the window
looked at and the warm-up watched, as in a study. Prints a Markdown table and the
conditions; never passes or fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path

import psutil

from autotune.core.measurement import Ended, LoadResult
from autotune.core.model_interface import Endpoint, ModelInterface
from autotune.core.workload import Arrival, ArrivalKind, InputSpec
from autotune.ports import LoadPlan, OpenLoop
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from loadgen.null_server import null_server
from tests.null_process import MODEL

HEADER = (
    "| scheduled/s | offered | sent | answered | lost | lag p50 ms | lag p99 ms | lag max ms"
    " | latency p50 ms | latency p99 ms | generator CPU | other CPU |"
)


class Cpu:
    """What else ran on the machine during the window, in cores: all busy time."""

    def opened(self) -> None:
        self.before = psutil.cpu_times()

    def enough(self, so_far: LoadResult) -> Ended | None:
        return None

    def closed(self) -> None:
        after = psutil.cpu_times()
        self.busy_s = sum(
            getattr(after, name) - getattr(self.before, name)
            for name in ("user", "nice", "system", "softirq", "irq")
        )


def row(rate: float, result: LoadResult, cpu: Cpu) -> str:
    lag, latency = result.send_lag, result.latency
    assert lag is not None
    assert latency is not None
    other = cpu.busy_s / result.window_s - result.generator_cpu
    cells = [
        f"{rate:g}",
        f"{result.scheduled}",
        f"{result.sent}",
        f"{result.ok}",
        f"{result.scheduled - result.ok}",
        f"{lag.at(50.0):.2f}",
        f"{lag.at(99.0):.2f}",
        f"{lag.max_ms:.1f}",
        f"{latency.at(50.0):.2f}",
        f"{latency.at(99.0):.2f}",
        f"{result.generator_cpu:.0%}",
        f"{other:.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def conditions(target: str, options: argparse.Namespace) -> str:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    libraries = ", ".join(f"{name} {version(name)}" for name in ("locust", "gevent", "numpy"))
    first = options.first_look
    looks = "" if first is None else f" at most, looked at from {first:g} s on"
    return (
        f"Against {target}, {options.processes} load processes, Poisson,"
        f" {options.seconds:g} s windows after 1 s{looks};"
        f" {os.cpu_count()} cores ({cpu}), load average before {os.getloadavg()[0]:.2f},"
        f" Linux {platform.release()}, Python {platform.python_version()}, {libraries}."
        " CPU in shares of one core."
    )


@contextmanager
def target(options: argparse.Namespace) -> Iterator[tuple[Endpoint, ModelInterface, str]]:
    if options.http:
        from loadgen.locustfile import read_interface  # noqa: PLC0415  -- it patches the process

        model = read_interface(options.http, options.model)
        with nullcontext():
            yield Endpoint(http=options.http, grpc=""), model, f"{options.model} on Triton"
        return
    with null_server(options.processes) as endpoint:
        yield endpoint, MODEL, "a null HTTP server in Python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="100,500,1000,2000,4000")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--first-look", type=float, default=None)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--http", default="")
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    driver = LocustDriver(processes=lambda *_: options.processes)
    try:
        with target(options) as (endpoint, model, name):
            driver.prepare(model, build_samples(model, InputSpec(count=16), seed=1))
            lines = [conditions(name, options), "", HEADER]
            lines.append("|" + "---|" * HEADER.count("|", 1))
            for rate in map(float, options.rates.split(",")):
                plan = LoadPlan(
                    mode=OpenLoop(qps=rate, arrival=Arrival(kind=ArrivalKind.POISSON), seed=1),
                    warmup_s=1.0,
                    measure_s=options.seconds,
                    timeout_s=5.0,
                    max_in_flight=4096,
                    until_steady=options.first_look is not None,
                    first_look_s=options.first_look,
                )
                cpu = Cpu()
                lines.append(row(rate, driver.run(endpoint, plan, cpu), cpu))
    finally:
        driver.close()
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
