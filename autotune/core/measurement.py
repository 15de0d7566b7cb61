"""A measurement: what one load phase of a candidate gave, and whether it can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.intervals import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
"""The percentiles that every summary holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """Percentiles of a set of durations, in milliseconds, keyed by percentile (95.0 → p95)."""

    count: int
    mean_ms: float
    max_ms: float
    percentiles_ms: Mapping[float, float]

    def at(self, percentile: float) -> float:
        return self.percentiles_ms[percentile]

    @classmethod
    def of(cls, durations_ms: NDArray[np.float64]) -> LatencySummary | None:
        """Summarise one duration per request; None when there is none.

        A percentile is the smallest observed value that at least that share of requests did not
        exceed (``inverted_cdf``), so it is always a latency that some request really had.
        """
        if len(durations_ms) == 0:
            return None
        values = np.percentile(durations_ms, PERCENTILES, method="inverted_cdf")
        return cls(
            count=len(durations_ms),
            mean_ms=float(np.mean(durations_ms)),
            max_ms=float(np.max(durations_ms)),
            percentiles_ms=dict(zip(PERCENTILES, map(float, values), strict=True)),
        )


class RequestStatus(StrEnum):
    """How a request ended, as stored with every raw sample."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    BAD_ANSWER = "bad_answer"
    UNSENT = "unsent"


class Ended(StrEnum):
    """Why a load phase ended when it did."""

    MAXIMUM = "maximum"
    """It was as long as it may be."""
    DECIDED = "decided"
    """Its interval was clear of every limit, and nothing more was wanted of it."""
    HOPELESS = "hopeless"
    """It broke a limit beyond doubt."""
    OUTCLASSED = "outclassed"
    """Whatever its verdict, another is better: it need not be known."""
    FELL_BEHIND = "fell_behind"
    """The requests in flight grew all the time: more arrived than the server can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSamples:
    """Raw times of the requests **scheduled within the measured window**, in schedule order.

    ``scheduled_s``, ``sent_s``, ``done_s``: float64 arrays of shape (n,), seconds since the window
    opened. ``ok``: bool array of shape (n,). A request that was never sent or never answered has
    NaN for what did not happen. Of a saturation burst they also hold what was under way when the
    window opened and was answered within it (``scheduled_s`` below 0).
    """

    scheduled_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    ok: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What the load generator saw, over exactly the measured window.

    ``latency`` counts from the **scheduled** time, ``service_latency`` from the send; a request
    that failed counts with its time-out in ``latency`` (errors and time-outs are misses) and not
    at all in ``service_latency``. ``achieved_qps`` counts good answers per second of the window.
    ``errors`` maps a kind (see `RequestStatus`; HTTP errors as ``http_503``) to a count;
    ``error_texts`` the first words of each kind, the warm-up's included, shortened.
    ``histogram`` is the latency distribution as an encoded HDR histogram (microseconds).
    ``generator_cpu`` is the generator's share of one core (1.0 = a whole core). The window opened
    after ``warmup_s`` of load, ``steady`` says whether a steady state had been seen by then (None:
    not looked for), and ``ended`` why it closed.
    """

    offered_qps: float
    achieved_qps: float
    window_s: float
    scheduled: int
    sent: int
    completed: int
    ok: int
    errors: Mapping[str, int]
    latency: LatencySummary | None
    service_latency: LatencySummary | None
    send_lag: LatencySummary | None
    generator_cpu: float
    max_in_flight: int
    in_flight_cap_hit: bool
    histogram: str = ""
    samples: RequestSamples | None = None
    warmup_s: float = 0.0
    steady: bool | None = None
    ended: Ended = Ended.MAXIMUM
    error_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def error_rate(self) -> float:
        """Share of the scheduled requests that got no good answer, 0 to 1."""
        return 1 - self.ok / self.scheduled if self.scheduled else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStat:
    """Executions of one batch size: how many, and the mean compute time of one execution."""

    executions: int
    compute_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """Triton's own statistics, differenced over the measured window; times are means in ms per
    request.

    Of a pipeline (an ensemble): the times are sums over its steps, ``steps`` holds each composing
    model's own window by its name, and ``batches`` is empty, since each step has its own.
    ``instances`` is how many instances served it (0: unknown, or an ensemble, which has none).
    ``calls``: of a step, how often one request of the pipeline is executed by it; ``requests`` and
    the times are those of single executions.
    """

    requests: int
    executions: int
    failures: int
    queue_ms: float
    compute_input_ms: float
    compute_infer_ms: float
    compute_output_ms: float
    batches: Mapping[int, BatchStat] = field(default_factory=dict)
    instances: int = 0
    calls: int = 1
    steps: Mapping[str, ServerWindow] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """Seconds that its instances, all together, spent on executing batches."""
        return sum(s.executions * s.compute_ms for s in self.batches.values()) / 1000

    @property
    def compute_ms(self) -> float:
        return self.compute_input_ms + self.compute_infer_ms + self.compute_output_ms

    @property
    def mean_batch(self) -> float | None:
        """Requests (times their own batch) per execution; None before any execution."""
        done = sum(stat.executions for stat in self.batches.values())
        total = sum(size * stat.executions for size, stat in self.batches.items())
        return total / done if done else None


EMULATED = "emulated"
"""The source of a utilization that is of no hardware: it is called so wherever it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One quantity of `GAUGES` over the measured window: its mean (of ``energy_j`` the sum), over
    the devices that the server uses the mean too (of ``power_w``, ``energy_j`` and the PCIe rates
    the sum). ``source`` names where it is read: ``gpm`` (NVML's GPU performance monitoring,
    Hopper and later), ``nvml``, ``nvml_power`` (power integrated over time, where the device has
    no energy counter), either of these with ``_whole_gpu`` where the server has a slice of it, or
    ``triton_metrics`` (the server's own page). ``series`` holds (seconds since the window opened,
    value) pairs.
    """

    value: float
    source: str
    series: tuple[tuple[float, float], ...] = ()


GAUGES = {
    "sm_active": "share of time in which a streaming multiprocessor had work, mean over all",
    "sm_occupancy": "share of the warps that the multiprocessors could hold",
    "tensor_active": "share of time in which tensor cores computed",
    "dram_active": "share of the memory's bandwidth in use",
    "pcie_rx_mb_s": "megabytes (10^6 bytes) a second from the host to the GPU",
    "pcie_tx_mb_s": "megabytes (10^6 bytes) a second from the GPU to the host",
    "power_w": "watts drawn",
    "energy_j": "joules used over the window",
    "sm_clock_mhz": "clock of the multiprocessors",
    "memory_clock_mhz": "clock of the memory",
    "temperature_c": "degrees Celsius of the GPU",
}
"""What telemetry may tell of GPUs beside utilization and memory, by name; shares are 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryWindow:
    """How busy the hardware was over the measured window. Unknown is None, never 0.

    ``utilization`` is a share, 0 to 1, of what ``source`` names: ``process_cpu`` (the server's
    processes, of all cores it may use), ``nvml`` (time in which a kernel ran), ``triton_metrics``
    (the server's own ``nv_gpu_utilization``), ``emulated`` (the busy share of an emulated
    accelerator). ``series`` holds (seconds since the window opened, utilization) pairs.
    ``memory_mb`` is the most that was in use, ``memory_total_mb`` what there is, of all the
    server's devices together. ``gauges``: what else is known, by the names of `GAUGES`; an unknown
    one is missing, and the notes say why.

    What disturbed the measuring: ``foreign_cpu`` is the share, 0 to 1, of this machine's processor
    that neither the server nor the load generator nor the controller used, the hypervisor's part
    (steal) included; ``foreign_gpu`` the ids of other processes that had work on the server's GPUs;
    ``throttled`` says, in words, which clocks were lowered.
    """

    utilization: float | None = None
    source: str | None = None
    memory_mb: float | None = None
    memory_source: str | None = None
    memory_total_mb: float | None = None
    series: tuple[tuple[float, float], ...] = ()
    foreign_cpu: float | None = None
    foreign_gpu: tuple[int, ...] = ()
    throttled: tuple[str, ...] = ()
    gauges: Mapping[str, Gauge] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


class Purpose(StrEnum):
    TRIAL = "trial"
    """The search's own."""
    CANARY = "canary"
    """The configuration found in service once more, after the search: has the machine changed?"""
    FINAL = "final"
    """A finalist, interleaved with another under the same arrivals."""
    COMPARE = "compare"
    """Two trials held against each other anew, after the study's decision, which it leaves."""
    CAPACITY = "capacity"
    """A probe at another rate, for the highest one that meets the SLA."""
    ROBUST = "robust"
    """A probe in the neighbourhood of the workload: other rates, other burstiness."""
    CONFIRM = "confirm"
    """The exported files, served strictly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a load phase was asked to offer: requests per second, the arrival process (see
    `autotune.core.workload.ArrivalKind`) with its coefficient of variation (None: a trace's own),
    and its seed."""

    qps: float
    arrival: str
    cv: float | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One load phase of one candidate, with everything that a decision needs.

    ``invalid_because`` lists why the *measuring* failed; empty means that it can be believed.
    ``instances`` is the number of model instances that served it. ``started_at`` is UTC seconds
    since the epoch. ``intervals`` are 95% confidence intervals by the names of `METRICS`: of every
    latency percentile, of ``achieved_qps``, of ``saturation_qps`` and of the cost that follows from
    it, where there was enough to take them from. ``traffic`` is what was offered (None: before it
    was recorded).
    ``saturation_s`` is how long the saturation burst took. ``accuracy_drop`` is by how much what
    was served answers worse than the source model, on the study's evaluation data (None: not asked
    for). ``price_per_hour`` is what an hour of the serving hardware costs (None: not given), in the
    user's currency.
    """

    purpose: Purpose
    started_at: float
    load: LoadResult
    server: ServerWindow | None
    telemetry: TelemetryWindow
    saturation_qps: float | None
    instances: int
    reload_s: float = 0.0
    invalid_because: tuple[str, ...] = ()
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    traffic: Traffic | None = None
    saturation_s: float = 0.0
    accuracy_drop: float | None = None
    price_per_hour: float | None = None

    @property
    def energy_j_per_1000(self) -> float | None:
        """Joules over the window for every 1,000 good answers that came within it; None where the
        energy is unknown. (Of a server that falls behind many come later.)"""
        energy = self.telemetry.gauges.get("energy_j")
        answers = self.load.achieved_qps * self.load.window_s
        return None if energy is None or not answers else energy.value / answers * 1000

    @property
    def cost_per_1000(self) -> float | None:
        """What 1,000 answers cost at least: on hardware that is kept busy, at the saturation
        throughput. None without a price or a burst."""
        if self.price_per_hour is None or not self.saturation_qps:
            return None
        return self.price_per_hour / 3600 / self.saturation_qps * 1000

    @property
    def valid(self) -> bool:
        return not self.invalid_because

    def metric(self, name: str) -> float | None:
        """The value of a metric of `METRICS`, or None where it is unknown."""
        return METRICS[name].read(self)


@dataclass(frozen=True, slots=True)
class _Metric:
    unit: str
    maximize: bool
    path: str

    def read(self, measurement: Measurement) -> float | None:
        value: object = measurement
        for part in self.path.split("."):
            value = getattr(value, part)
            if value is None:
                return None
        return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _PercentileMetric:
    percentile: float
    unit: str = "ms"
    maximize: bool = False

    def read(self, measurement: Measurement) -> float | None:
        latency = measurement.load.latency
        return None if latency is None else latency.at(self.percentile)


@dataclass(frozen=True, slots=True)
class _GaugeMetric:
    unit: str
    maximize: bool
    gauge: str

    def read(self, measurement: Measurement) -> float | None:
        gauge = measurement.telemetry.gauges.get(self.gauge)
        return None if gauge is None else gauge.value


METRICS: dict[str, _Metric | _PercentileMetric | _GaugeMetric] = {
    **{f"p{percentile:g}_ms": _PercentileMetric(percentile) for percentile in PERCENTILES},
    "mean_ms": _Metric("ms", False, "load.latency.mean_ms"),
    "max_ms": _Metric("ms", False, "load.latency.max_ms"),
    "achieved_qps": _Metric("1/s", True, "load.achieved_qps"),
    "saturation_qps": _Metric("1/s", True, "saturation_qps"),
    "queue_ms": _Metric("ms", False, "server.queue_ms"),
    "compute_ms": _Metric("ms", False, "server.compute_ms"),
    "mean_batch": _Metric("", True, "server.mean_batch"),
    "utilization": _Metric("", True, "telemetry.utilization"),
    "memory_mb": _Metric("MB", False, "telemetry.memory_mb"),
    "error_rate": _Metric("", False, "load.error_rate"),
    "instances": _Metric("", False, "instances"),
    "accuracy_drop": _Metric("", False, "accuracy_drop"),
    "sm_active": _GaugeMetric("", True, "sm_active"),
    "tensor_active": _GaugeMetric("", True, "tensor_active"),
    "dram_active": _GaugeMetric("", True, "dram_active"),
    "power_w": _GaugeMetric("W", False, "power_w"),
    "energy_j_per_1000": _Metric("J", False, "energy_j_per_1000"),
    "cost_per_1000": _Metric("", False, "cost_per_1000"),
}
"""Every metric by its name in study files, with its unit and its better direction."""


_NAMES = {
    "energy_j_per_1000": "energy per 1,000 answers",
    "cost_per_1000": "cost per 1,000 answers",
    "power_w": "power",
    "sm_active": "SM active",
    "dram_active": "DRAM active",
}


def label(metric: str) -> str:
    """A metric's name for sentences, in which the unit stands with the number: p95_ms → p95."""
    plain = metric.removesuffix("_ms").removesuffix("_qps").removesuffix("_mb").replace("_", " ")
    return _NAMES.get(metric, plain)
