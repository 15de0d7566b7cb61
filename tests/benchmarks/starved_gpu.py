"""What examples/starved-gpu should come to: a simulation of it, with closed forms where they exist.

    python -m tests.benchmarks.starved_gpu [--requests 40000]

A request is received (50 ms), preprocessed by one of some workers (370 ms; improved: 185 ms), waits
for the one device, which takes a batch at a time (72, 150, 260, 430 ms for 1, 4, 8, 16), is
postprocessed by one of some workers (95 ms) and sent back (30 ms). Prints a Markdown table. A
simulation: says nothing of a GPU, and its steps cost nothing but their times.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

DEVICE_MS = ((1, 72.0), (4, 150.0), (8, 260.0), (16, 430.0))
QPS = 18.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The steps' times, and the configuration of those that have one. ``jitter``: by which share,
    at most, the times of the workers and the device differ from these."""

    receive_ms: float = 50.0
    preprocess_ms: float = 370.0
    postprocess_ms: float = 95.0
    respond_ms: float = 30.0
    workers: int = 1
    postprocess_workers: int = 4
    max_batch: int = 1
    delay_ms: float = 0.0
    jitter: float = 0.02

    @property
    def alone_ms(self) -> float:
        """The latency of a request that finds everything idle."""
        steps = self.receive_ms + self.preprocess_ms + self.postprocess_ms + self.respond_ms
        return steps + device_ms(1)

    @property
    def most_qps(self) -> dict[str, float]:
        """Requests per second that each step can do at most."""
        return {
            "preprocess": 1e3 * self.workers / self.preprocess_ms,
            "device": max(1e3 * n / device_ms(n) for n in range(1, self.max_batch + 1)),
            "postprocess": 1e3 * self.postprocess_workers / self.postprocess_ms,
        }


IMPROVED = Pipeline(preprocess_ms=185.0)


def device_ms(batch: int) -> float:
    """Linear between the entries of the table."""
    sizes, times = zip(*DEVICE_MS, strict=True)
    return float(np.interp(batch, sizes, times))


def synchronous(pipeline: Pipeline) -> tuple[float, float]:
    """What one worker that takes a request through everything before the next can do: requests
    per second, and the share of time in which the device is busy."""
    qps = 1e3 / pipeline.alone_ms
    return qps, qps * device_ms(1) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``scheduled_s``, ``done_s``: shape (n,), without the first tenth of the requests, in which
    the queues fill. ``utilization``: the device's busy share over the same time."""

    scheduled_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    utilization: float
    mean_batch: float

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        return (self.done_s - self.scheduled_s) * 1e3

    @property
    def p95_ms(self) -> float:
        return float(np.percentile(self.latency_ms, 95))

    @property
    def achieved_qps(self) -> float:
        done = np.sort(self.done_s)
        return (len(done) - 1) / float(done[-1] - done[0])


def open_loop(
    pipeline: Pipeline, *, qps: float = QPS, requests: int = 20_000, seed: int = 1
) -> Outcome:
    """Poisson arrivals that wait for nobody."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / qps, requests))
    run = _Run(pipeline, rng)
    for index, at in enumerate(arrivals.tolist()):
        run.clock.at(at, _call(run.arrive, index))
    return run.outcome(requests)


def closed_loop(
    pipeline: Pipeline, *, in_flight: int, requests: int = 5_000, seed: int = 1
) -> Outcome:
    """So many clients, each of which sends again when it is answered."""
    run = _Run(pipeline, np.random.default_rng(seed), follow=in_flight)
    for index in range(in_flight):
        run.clock.at(0.0, _call(run.arrive, index))
    return run.outcome(requests)


# ----------------------------------------------------------------------------------- the events
Event = Callable[[], None]
Taker = Callable[[int], None]


def _call(taker: Taker, index: int) -> Event:
    return lambda: taker(index)


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._count = 0

    def at(self, when: float, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, event))

    def step(self) -> None:
        self.now, _, event = heapq.heappop(self._events)
        event()


class _Workers:
    """A step of some workers, first come, first served."""

    def __init__(self, clock: _Clock, workers: float, takes_s: Callable[[], float]) -> None:
        self._clock = clock
        self._idle = workers
        self._takes_s = takes_s
        self._waiting: deque[int] = deque()
        self.then: Taker = lambda _: None

    def take(self, index: int) -> None:
        if self._idle:
            self._idle -= 1
            self._begin(index)
        else:
            self._waiting.append(index)

    def _begin(self, index: int) -> None:
        self._clock.at(self._clock.now + self._takes_s(), lambda: self._end(index))

    def _end(self, index: int) -> None:
        if self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._idle += 1
        self.then(index)


class _Device:
    """Triton's dynamic batcher before one instance: a batch goes when it is full or its oldest has
    waited for the delay; while the instance is busy it grows."""

    def __init__(self, clock: _Clock, pipeline: Pipeline, varied: Callable[[], float]) -> None:
        self._clock = clock
        self._most = pipeline.max_batch
        self._delay_s = pipeline.delay_ms / 1e3
        self._varied = varied
        self._waiting: deque[tuple[float, int]] = deque()
        self._busy = False
        self.batches: list[tuple[float, float, int]] = []
        """When each began, how long it took, and how large it was."""
        self.then: Taker = lambda _: None

    def take(self, index: int) -> None:
        self._waiting.append((self._clock.now, index))
        if len(self._waiting) < self._most:
            self._clock.at(self._clock.now + self._delay_s, self._look)
        self._look()

    def _look(self) -> None:
        if self._busy or not self._waiting:
            return
        due = self._waiting[0][0] + self._delay_s <= self._clock.now
        if due or len(self._waiting) >= self._most:
            size = min(self._most, len(self._waiting))
            batch = [self._waiting.popleft()[1] for _ in range(size)]
            takes_s = device_ms(size) / 1e3 * self._varied()
            self.batches.append((self._clock.now, takes_s, size))
            self._busy = True
            self._clock.at(self._clock.now + takes_s, lambda: self._end(batch))

    def _end(self, batch: list[int]) -> None:
        self._busy = False
        self._look()
        for index in batch:
            self.then(index)


class _Run:
    """One pipeline, wired. ``follow``: a closed loop of so many, in which request i + follow comes
    when request i is answered."""

    def __init__(self, pipeline: Pipeline, rng: np.random.Generator, follow: int = 0) -> None:
        self.clock = clock = _Clock()
        self._follow = follow
        self._scheduled: dict[int, float] = {}
        self._done: dict[int, float] = {}

        def varied() -> float:
            return 1 + pipeline.jitter * float(rng.uniform(-1, 1))

        def step(workers: float, ms: float) -> _Workers:
            return _Workers(clock, workers, lambda: ms / 1e3 * varied())

        receive = step(math.inf, pipeline.receive_ms)
        preprocess = step(pipeline.workers, pipeline.preprocess_ms)
        self._device = device = _Device(clock, pipeline, varied)
        postprocess = step(pipeline.postprocess_workers, pipeline.postprocess_ms)
        respond = step(math.inf, pipeline.respond_ms)
        self._first = receive.take
        receive.then, preprocess.then = preprocess.take, device.take
        device.then, postprocess.then = postprocess.take, respond.take
        respond.then = self._answered

    def arrive(self, index: int) -> None:
        self._scheduled[index] = self.clock.now
        self._first(index)

    def _answered(self, index: int) -> None:
        self._done[index] = self.clock.now
        if self._follow:
            self.arrive(index + self._follow)

    def outcome(self, requests: int) -> Outcome:
        while len(self._done) < requests:
            self.clock.step()
        kept = sorted(self._done)[requests // 10 :]
        scheduled = np.array([self._scheduled[index] for index in kept])
        done = np.array([self._done[index] for index in kept])
        from_s, to_s = float(scheduled[0]), float(np.max(scheduled))
        inside = [b for b in self._device.batches if from_s <= b[0] < to_s]
        return Outcome(
            scheduled_s=scheduled - from_s,
            done_s=done - from_s,
            utilization=sum(takes for _, takes, _ in inside) / (to_s - from_s),
            mean_batch=sum(size for _, _, size in inside) / len(inside),
        )


# ------------------------------------------------------------------------------------- the table
OPEN = (
    ("one worker, batch 1", Pipeline(workers=1), QPS),
    ("4 workers, batch 8, 12 ms", Pipeline(workers=4, max_batch=8, delay_ms=12), QPS),
    ("8 workers, batch 8", Pipeline(workers=8, max_batch=8), QPS),
    ("12 workers, batch 1", Pipeline(workers=12), QPS),
    ("12 workers, batch 8", Pipeline(workers=12, max_batch=8), QPS),
    ("16 workers, batch 8", Pipeline(workers=16, max_batch=8), QPS),
    ("12 workers, batch 16, 100 ms", Pipeline(workers=12, max_batch=16, delay_ms=100), QPS),
    ("improved, 4 workers, batch 8", replace(IMPROVED, workers=4, max_batch=8), QPS),
    ("improved, 6 workers, batch 8", replace(IMPROVED, workers=6, max_batch=8), QPS),
    ("improved, 8 workers, batch 8", replace(IMPROVED, workers=8, max_batch=8), QPS),
    ("improved, 8 workers, batch 1", replace(IMPROVED, workers=8), QPS),
    ("improved, 8 workers, batch 2", replace(IMPROVED, workers=8, max_batch=2), QPS),
    (
        "improved, 8 workers, batch 16, 200 ms",
        replace(IMPROVED, workers=8, max_batch=16, delay_ms=200),
        QPS,
    ),
    *(
        (f"improved, 8 workers, batch {most}", replace(IMPROVED, workers=8, max_batch=most), qps)
        for qps in (22.0, 26.0, 30.0)
        for most in (8, 16)
    ),
)
TUNED = replace(IMPROVED, workers=8, max_batch=8, delay_ms=12)
CLOSED = (
    ("improved, 8 workers, batch 8, 12 ms", TUNED, 9),
    ("improved, 8 workers, batch 16, 12 ms", replace(TUNED, max_batch=16), 48),
)


def rows(requests: int) -> Iterator[str]:
    qps, busy = synchronous(Pipeline())
    p95 = f"{1e3 * 32 / qps:.0f}"  # 32 in flight, by Little's law
    yield f"one worker for everything | 32 in flight | {qps:.2f} | {p95} | {busy:.0%} | 1.0"
    for name, pipeline, offered in OPEN:
        outcome = open_loop(pipeline, qps=offered, requests=requests)
        step, most = min(pipeline.most_qps.items(), key=lambda item: item[1])
        p95 = f"grows: {step} does {most:.1f}/s" if most < offered else f"{outcome.p95_ms:.0f}"
        yield row(name, f"{offered:g}/s", outcome, p95)
    for name, pipeline, clients in CLOSED:
        outcome = closed_loop(pipeline, in_flight=clients, requests=requests // 10)
        yield row(name, f"{clients} in flight", outcome, f"{outcome.p95_ms:.0f}")


def row(name: str, load: str, outcome: Outcome, p95: str) -> str:
    done, busy = f"{outcome.achieved_qps:.2f}", f"{outcome.utilization:.0%}"
    return f"{name} | {load} | {done} | {p95} | {busy} | {outcome.mean_batch:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=40_000)
    sys.stdout.write("| configuration | load | done per s | p95 ms | device busy | mean batch |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    for text in rows(parser.parse_args().requests):
        sys.stdout.write(f"| {text} |\n")


if __name__ == "__main__":
    main()
