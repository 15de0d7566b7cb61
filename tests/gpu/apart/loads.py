"""Loads a device on demand, each kind for what it should move:

    python -m tests.gpu.apart.loads ORDER

ORDER, JSON: ``device``, ``matrix`` (rows of a square one), ``copy_mb`` and ``held_mb``. Commands
are lines of JSON on standard input: ``load`` (a name of `LOADS`) and ``seconds``. Answers:
``ready`` once the device is open; to a command ``began``, when its load runs, then ``done`` with
what it did, or ``refused`` with why it could not.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MEGABYTE = 10**6


@dataclass(frozen=True, slots=True)
class Bench:
    """``torch``, a device of it, and how large the loads are."""

    torch: Any
    device: Any
    order: Mapping[str, Any]

    def bytes_on(self, device: Any, megabytes: int) -> Any:
        """Of ones: a system hands zeros out without giving memory for them."""
        return self.torch.ones(megabytes * MEGABYTE, dtype=self.torch.uint8, device=device)

    def wait(self) -> None:
        """Until all that was asked of the device is done."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a load: what to do, how much that is, and in what unit a second of it is told."""

    do: Callable[[], object]
    amount: float
    unit: str


def idle(bench: Bench) -> Step:
    return Step(lambda: time.sleep(0.05), 0, "")


def matmul(bench: Bench) -> Step:
    """In fp16 where Tensor Cores take it, in fp32 on a processor."""
    torch, rows = bench.torch, bench.order["matrix"]
    dtype = torch.float16 if bench.device.type == "cuda" else torch.float32
    a, b = (torch.ones(rows, rows, dtype=dtype, device=bench.device) for _ in range(2))
    return Step(lambda: torch.mm(a, b), 2 * rows**3 / 1e12, "TFLOP/s")


def copy(bench: Bench) -> Step:
    """Within the device's memory: what is read and written counts."""
    megabytes = bench.order["copy_mb"]
    source, target = (bench.bytes_on(bench.device, megabytes) for _ in range(2))
    return Step(lambda: target.copy_(source), 2 * megabytes / 1000, "GB/s")


def to_device(bench: Bench) -> Step:
    here, there, amount = _both(bench)
    return Step(lambda: there.copy_(here, non_blocking=True), amount, "GB/s")


def to_host(bench: Bench) -> Step:
    here, there, amount = _both(bench)
    return Step(lambda: here.copy_(there, non_blocking=True), amount, "GB/s")


def hold(bench: Bench) -> Step:
    """Keep memory, and do nothing."""
    held = bench.bytes_on(bench.device, bench.order["held_mb"])

    def rest() -> Any:
        time.sleep(0.05)
        return held

    return Step(rest, 0, "")


def _both(bench: Bench) -> tuple[Any, Any, float]:
    """Bytes on the host, pinned where there is a GPU, and on the device; how many, in GB."""
    megabytes = bench.order["copy_mb"] // 4
    here = bench.bytes_on("cpu", megabytes)
    if bench.device.type == "cuda":
        here = here.pin_memory()
    return here, bench.bytes_on(bench.device, megabytes), megabytes / 1000


LOADS: dict[str, Callable[[Bench], Step]] = {
    "idle": idle,
    "matmul": matmul,
    "copy": copy,
    "to_device": to_device,
    "to_host": to_host,
    "hold": hold,
}


def run(bench: Bench, name: str, seconds: float) -> dict[str, Any]:
    """The rate that it reached. Three steps are asked for at a time, so that the device does not
    run dry between them."""
    step = LOADS[name](bench)
    step.do()
    bench.wait()
    say("began")
    began, steps = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for _ in range(3):
            step.do()
        steps += 3
        bench.wait()
    rate = steps * step.amount / (time.monotonic() - began)
    return {"rate": rate, "unit": step.unit}


def say(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    order = json.loads(arguments[0])
    torch = importlib.import_module("torch")
    bench = Bench(torch, torch.device(order["device"]), order)
    torch.ones(1, device=bench.device).sum().item()
    say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        try:
            say("done", **run(bench, command["load"], command["seconds"]))
        except Exception as error:  # noqa: BLE001 - out of memory, say: the other loads go on
            say("refused", why=f"{type(error).__name__}: {error}".splitlines()[0])
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
