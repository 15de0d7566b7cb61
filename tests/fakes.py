"""Fakes that implement the ports, for testing the order of steps without processes.

The fake server is one queue with ``instances`` servers of a fixed service time; the fake load
driver computes what an open loop would have seen of it. Time is a counter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.errors import (
    CandidateFailed,
    InputRefused,
    OutputsDiffer,
    ServerCrashed,
    ServerFailed,
)
from autotune.core.measurement import (
    BatchStat,
    LatencySummary,
    LoadResult,
    RequestSamples,
    ServerWindow,
    TelemetryWindow,
)
from autotune.core.model_interface import Endpoint, ModelInterface, Sample, TensorSpec
from autotune.ports import (
    Applied,
    ExportFile,
    LoadPlan,
    OpenLoop,
    Saturate,
    Server,
    StatisticsMark,
    TrialOutcome,
    WindowObserver,
)
from search_spaces.candidate import INSTANCES, Candidate

INTERFACE = ModelInterface(
    name="m",
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(4,)),),
    batched=True,
)


@dataclass(slots=True)
class FakeClock:
    seconds: float = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> float:
        return 1_700_000_000 + self.seconds

    def sleep(self, seconds: float) -> None:
        self.pass_(seconds)

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass(slots=True)
class FakeServer:
    """``service_ms`` of one request; ``refuses`` and ``dies_under`` name candidates by key, and
    ``crashes`` how often it does so while it loads one (under the empty key: at its start);
    ``gone``: it cannot be started again."""

    clock: FakeClock
    service_ms: float = 20.0
    refuses: set[str] = field(default_factory=set)
    dies_under: set[str] = field(default_factory=set)
    crashes: Counter[str] = field(default_factory=Counter)
    asked: list[Candidate] = field(default_factory=list)
    applied: list[Candidate] = field(default_factory=list)
    running: bool = False
    gone: bool = False
    starts: int = 0
    served: int = 0

    def start(self) -> None:
        if self.gone:
            raise ServerFailed("no live server answers")
        self.starts += 1
        self._crash_perhaps("")
        self.running = True

    def apply(self, candidate: Candidate) -> Applied:
        if not self.running:
            self.start()
        self.clock.pass_(1.0)
        self.asked.append(candidate)
        self._crash_perhaps(candidate.key)
        if candidate.key in self.refuses:
            raise CandidateFailed("the model does not load")
        self.applied.append(candidate)
        return Applied(seconds=1.0, restarted=False, instances=self.instances)

    def _crash_perhaps(self, under: str) -> None:
        if self.crashes[under] > 0:
            self.crashes[under] -= 1
            self.running = False
            raise ServerCrashed("the server was ended by SIGABRT")

    @property
    def instances(self) -> int:
        value = self.applied[-1].get(INSTANCES, 1) if self.applied else 1
        return value if isinstance(value, int) else 1

    @property
    def capacity_qps(self) -> float:
        return self.instances * 1000 / self.service_ms

    def alive(self) -> bool:
        return self.running

    def interface(self) -> ModelInterface:
        return INTERFACE

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")

    def pids(self) -> Sequence[int]:
        return ()

    def mark(self) -> StatisticsMark:
        if not self.running:
            raise ServerFailed("the server is gone")
        return self.served

    def between(self, start: StatisticsMark, end: StatisticsMark) -> ServerWindow:
        assert isinstance(start, int)
        assert isinstance(end, int)
        return ServerWindow(
            requests=end - start,
            executions=end - start,
            failures=0,
            queue_ms=1.0,
            compute_input_ms=0.1,
            compute_infer_ms=self.service_ms,
            compute_output_ms=0.1,
            batches={2: BatchStat(executions=50, compute_ms=self.service_ms)},
        )

    def identity(self) -> Mapping[str, Any]:
        return {"triton": "fake", "model_digest": "0"}

    def log_tail(self, lines: int = 20) -> str:
        return ""

    def close(self) -> None:
        self.running = False


def load_result(
    latency_ms: float,
    *,
    offered_qps: float,
    window_s: float,
    kept: float = 1.0,
    lag_ms: float = 0.5,
) -> LoadResult:
    """A load phase whose latencies spread evenly up to ``latency_ms`` at the top."""
    count = max(1, round(offered_qps * window_s))
    latencies = np.random.default_rng(0).permutation(np.linspace(latency_ms / 3, latency_ms, count))
    ok = round(count * kept)
    scheduled = np.arange(count) / offered_qps
    return LoadResult(
        offered_qps=offered_qps,
        achieved_qps=ok / window_s,
        window_s=window_s,
        scheduled=count,
        sent=count,
        completed=ok,
        ok=ok,
        errors={} if ok == count else {"timeout": count - ok},
        latency=LatencySummary.of(latencies),
        service_latency=LatencySummary.of(np.maximum(0.0, latencies - lag_ms)),
        send_lag=LatencySummary.of(np.full(count, lag_ms)),
        generator_cpu=0.2,
        max_in_flight=8,
        in_flight_cap_hit=False,
        samples=RequestSamples(
            scheduled_s=scheduled,
            sent_s=scheduled + lag_ms / 1000,
            done_s=scheduled + latencies / 1000,
            ok=np.arange(count) < ok,
        ),
        warmup_s=1.0,
        steady=True,
    )


@dataclass(slots=True)
class FakeLoad:
    """``lags_ms`` gives the send lag of the open-loop phases one after another, then 0.5;
    ``before`` is called at the start of every phase."""

    server: FakeServer
    lags_ms: list[float] = field(default_factory=list)
    before: Callable[[FakeServer], None] = lambda _: None
    plans: list[LoadPlan] = field(default_factory=list)
    closed: bool = False

    def prepare(self, model: ModelInterface, samples: Sequence[Sample]) -> None:
        assert samples

    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        self.plans.append(plan)
        self.before(self.server)
        window.opened()
        result = self._looked_at(plan, window)
        self.server.clock.pass_(result.warmup_s + result.window_s)
        self.server.served += 100
        if self.server.applied[-1].key in self.server.dies_under:
            self.server.running = False
        window.closed()
        return result

    def _looked_at(self, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        """The result at the first look at which the observer has enough, else of it all."""
        lag = 0.5
        if isinstance(plan.mode, OpenLoop) and self.lags_ms:
            lag = self.lags_ms.pop(0)
        look_s = plan.first_look_s or plan.measure_s
        while look_s < plan.measure_s:
            so_far = self._seen(plan, look_s, lag)
            ended = window.enough(so_far)
            if ended is not None:
                return replace(so_far, ended=ended)
            look_s *= 1.5
        return self._seen(plan, plan.measure_s, lag)

    def _seen(self, plan: LoadPlan, window_s: float, lag_ms: float) -> LoadResult:
        capacity = self.server.capacity_qps
        if isinstance(plan.mode, Saturate):
            return load_result(100, offered_qps=capacity, window_s=window_s)
        load = plan.mode.qps / capacity
        p_top = self.server.service_ms / max(1 - load, 0.01) if load < 1 else 5000.0
        return load_result(
            p_top,
            offered_qps=plan.mode.qps,
            window_s=window_s,
            kept=min(1.0, 1 / load),
            lag_ms=lag_ms,
        )

    def close(self) -> None:
        self.closed = True


class FakeTelemetry:
    def start(self, pids: Sequence[int], endpoint: Endpoint) -> None:
        pass

    def stop(self) -> TelemetryWindow:
        return TelemetryWindow(
            utilization=0.5, source="process_cpu", memory_mb=100.0, memory_source="pss"
        )


@dataclass(slots=True)
class FakeCheck:
    """``errors_under`` names candidates, by key, whose answers are errors, ``differs_under`` those
    whose answers are wrong."""

    server: FakeServer
    differs: bool = False
    errors_under: set[str] = field(default_factory=set)
    differs_under: set[str] = field(default_factory=set)
    compared: int = 0

    def check(
        self,
        endpoint: Endpoint,
        model: ModelInterface,
        samples: Sequence[Sample],
        candidate: Candidate,
    ) -> str:
        if self.server.applied[-1].key in self.errors_under:
            raise CandidateFailed("the server answers an error")
        if self.differs or candidate.key in self.differs_under:
            raise OutputsDiffer("served outputs differ", value="1.0 against 2.0")
        self.compared += len(samples)
        return f"{len(samples)} outputs agree"


@dataclass(slots=True)
class FakeGate:
    """Drops by candidate, by key; the others lose nothing. Counts how often it is asked."""

    server: FakeServer
    drops: dict[str, float] = field(default_factory=dict)
    asked: int = 0

    def drop(self, endpoint: Endpoint, model: ModelInterface) -> float:
        self.asked += 1
        return self.drops.get(self.server.applied[-1].key, 0.0)


@dataclass(slots=True)
class FakeExporter:
    """Remembers what was written where; ``strict`` makes the strict server."""

    strict: Callable[[], Server]
    written: dict[Path, Candidate] = field(default_factory=dict)
    files: dict[Path, list[str]] = field(default_factory=dict)

    def preflight(self, out: Path, study: str) -> None:
        if out.is_file():
            raise InputRefused("is a file")

    def write(
        self, candidate: Candidate, out: Path, study: str, files: Sequence[ExportFile]
    ) -> Path:
        self.written[out] = candidate
        self.files[out] = [file.name for file in files]
        return out / "m" / "config.pbtxt"

    def strict_server(self, out: Path) -> Server:
        assert out in self.written
        return self.strict()


@dataclass(slots=True)
class ListSearch:
    """Suggests the given candidates in order, skipping those it has been told."""

    candidates: Sequence[Candidate]
    told: dict[str, TrialOutcome] = field(default_factory=dict)
    recalled: list[tuple[Candidate, TrialOutcome]] = field(default_factory=list)

    def ask(self, pending: Sequence[Candidate] = ()) -> Candidate | None:
        taken = {*self.told, *(each.key for each in pending)}
        return next((c for c in self.candidates if c.key not in taken), None)

    def recall(
        self, known: Sequence[tuple[Candidate, TrialOutcome]], first: Sequence[Candidate]
    ) -> None:
        """What is to come first does, after the first of its own."""
        self.recalled += known
        head, *rest = self.candidates
        self.candidates = list(dict.fromkeys([head, *first, *rest]))

    def tell(self, candidate: Candidate, outcome: TrialOutcome) -> None:
        assert all(value is None or math.isfinite(value) for value in outcome.values)
        self.told[candidate.key] = outcome
