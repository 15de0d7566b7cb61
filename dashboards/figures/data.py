"""The numbers of each figure, computed from trials; nothing here knows how they are drawn."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from hdrh.codec import HdrCookieException, HdrHistogramSettingsException, HdrLengthException
from hdrh.histogram import HdrHistogram

from autotune.core.bottleneck import Breakdown, breakdown
from autotune.core.intervals import Estimate, Interval
from autotune.core.judged import Judged, judge_trial
from autotune.core.measurement import EMULATED, METRICS, Measurement
from autotune.core.pareto import pareto_front
from autotune.core.sla import Sla
from autotune.core.standing import Standing
from autotune.core.study import Objective
from autotune.core.trial import Trial
from autotune.core.wording import saturation_bound, unjudged
from search_spaces.candidate import Candidate

LABELS: dict[str, str] = {
    "p50_ms": "p50 latency",
    "p90_ms": "p90 latency",
    "p95_ms": "p95 latency",
    "p99_ms": "p99 latency",
    "mean_ms": "mean latency",
    "max_ms": "max latency",
    "achieved_qps": "achieved rate",
    "saturation_qps": "saturation rate",
    "queue_ms": "time in queue",
    "compute_ms": "compute time",
    "mean_batch": "mean batch",
    "utilization": "utilization",
    "memory_mb": "memory",
    "error_rate": "error rate",
    "instances": "instances",
    "accuracy_drop": "accuracy drop",
    "energy_j_per_1000": "energy per 1,000 answers",
    "cost_per_1000": "cost per 1,000 answers",
    "power_w": "power",
    "sm_active": "SM active",
    "tensor_active": "tensor cores active",
    "dram_active": "DRAM active",
}
"""Metrics in words; one that is missing here goes by its name."""


WIDE = 12.0
"""From this ratio of the greatest to the least value on, an axis is logarithmic."""


STEPS = ((1, 2, 5), (1,), (1, 1.5, 2, 3, 4, 5, 7))
"""Where a logarithmic axis is labelled within each power of ten, best first."""
ENOUGH_TICKS = range(3, 13)


def label(metric: str) -> str:
    return LABELS.get(metric, metric)


# ---------------------------------------------------------------------------------- the trials
class Shown(Protocol):
    """What figures and tables say of a trial: an `Entry`, or a line of a list of many."""

    @property
    def number(self) -> int: ...

    @property
    def candidate(self) -> Candidate: ...

    @property
    def standing(self) -> Standing: ...

    @property
    def emulated(self) -> bool: ...

    @property
    def saturation_bound(self) -> str: ...

    def metric(self, name: str) -> float | None: ...

    def interval(self, name: str) -> Interval | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A trial as it is shown. ``judged`` has its numbers; where it was not judged they are those
    of ``measurement``, the last one taken, if any."""

    trial: Trial
    standing: Standing
    why: str
    measurement: Measurement | None
    judged: Judged | None = None

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def candidate(self) -> Candidate:
        return self.trial.candidate

    @property
    def violation(self) -> float | None:
        """Its worst relative violation of the SLA; None where it was not judged."""
        return None if self.judged is None else self.judged.violation

    @property
    def saturation_bound(self) -> str:
        """Why its saturation is only a lower bound; empty where it is not."""
        if self.judged is not None:
            return self.judged.saturation_bound
        return "" if self.measurement is None else saturation_bound([self.measurement])

    @property
    def steps(self) -> Breakdown | None:
        """Where the time of its measurement went; None where it is not of a pipeline."""
        if self.measurement is None:
            return None
        return breakdown(self.measurement, self.trial.candidate)

    @property
    def emulated(self) -> bool:
        """Whether its utilization is of an emulated accelerator."""
        return self.measurement is not None and self.measurement.telemetry.source == EMULATED

    def metric(self, name: str) -> float | None:
        """Finite, or None."""
        known = self.estimate(name)
        return None if known is None else known.value

    def estimate(self, name: str) -> Estimate | None:
        """A finite value with its 95% interval, where it has one; or None."""
        if self.judged is not None:
            known = self.judged.estimate(name)
        else:
            value = None if self.measurement is None else self.measurement.metric(name)
            known = None if value is None else Estimate(value)
        return known if known is not None and math.isfinite(known.value) else None

    def interval(self, name: str) -> Interval | None:
        known = self.estimate(name)
        return None if known is None else known.interval


def entries(trials: Sequence[Trial], sla: Sla) -> list[Entry]:
    return [_entry(trial, sla) for trial in sorted(trials, key=lambda trial: trial.number)]


def _entry(trial: Trial, sla: Sla) -> Entry:
    judged = judge_trial(trial, sla)
    if judged is None:
        last = trial.measurements[-1] if trial.measurements else None
        state, reason = unjudged(trial)
        return Entry(trial=trial, standing=Standing(state), why=reason, measurement=last)
    return Entry(
        trial=trial,
        standing=Standing(str(judged.outcome)),
        why="; ".join(dict.fromkeys(_telling(judged))),
        measurement=judged.measurement,
        judged=judged,
    )


def _telling(judged: Judged) -> list[str]:
    """Reasons: of the latency limits that are kept, else of what makes the verdict what it is."""
    if judged.meets:
        return [f.reason for f in judged.verdict.findings if f.metric.endswith("_ms")]
    findings = (finding for verdict in judged.verdicts for finding in verdict.findings)
    return [finding.reason for finding in findings if finding.outcome is judged.outcome]


def of_number(found: Sequence[Entry], number: int | None) -> Entry | None:
    return next((entry for entry in found if entry.number == number), None)


def nearest_miss(found: Sequence[Entry]) -> Entry | None:
    """Where none meets the SLA, the judged trial that breaks it by the least: one that is undecided
    before any that misses."""
    judged = [entry for entry in found if entry.violation is not None]
    if any(entry.standing is Standing.MEETS for entry in judged):
        return None
    return min(
        judged,
        key=lambda entry: (entry.standing is Standing.MISSES, entry.violation, entry.number),
        default=None,
    )


def called(nearest: Entry) -> str:
    """What `nearest_miss` found: it is not known to miss where it is undecided."""
    return "nearest trial" if nearest.standing is Standing.UNDECIDED else "nearest miss"


# --------------------------------------------------------------------------------- the scatter
@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """``fronts`` maps "x|y" to the trial numbers of the front over these two metrics, in the
    order of x. It is taken over the trials that meet the SLA, or where there is none
    (``front_meets`` False) over all that were judged. ``limits`` are the SLA's, by metric."""

    metrics: tuple[str, ...]
    x: str
    y: str
    entries: tuple[Entry, ...]
    fronts: Mapping[str, tuple[int, ...]]
    front_meets: bool
    limits: Mapping[str, float]
    pick: int | None
    nearest_miss: int | None
    default: int | None


def scatter(
    found: Sequence[Entry], sla: Sla, objectives: Sequence[Objective], pick: int | None
) -> Scatter:
    metrics = tuple(m for m in METRICS if any(e.metric(m) is not None for e in found))
    x, y = first_axes(metrics, sla, objectives)
    miss = nearest_miss(found) if pick is None else None
    judged = [entry for entry in found if entry.violation is not None]
    meeting = [entry for entry in judged if entry.standing is Standing.MEETS]
    better = {name: metric.maximize for name, metric in METRICS.items()}
    better |= {objective.metric: objective.maximize for objective in objectives}
    return Scatter(
        metrics=metrics,
        x=x,
        y=y,
        entries=tuple(found),
        fronts=_fronts(meeting or judged, metrics, better),
        front_meets=bool(meeting),
        limits={limit.metric: limit.limit for limit in sla.limits},
        pick=pick,
        nearest_miss=None if miss is None else miss.number,
        default=0 if of_number(found, 0) else None,
    )


def first_axes(
    metrics: Sequence[str], sla: Sla, objectives: Sequence[Objective]
) -> tuple[str, str]:
    """The tightest latency of the SLA upwards, the first other objective along."""
    tightest = min(sla.latency_ms, key=lambda percentile: sla.latency_ms[percentile])
    y = f"p{tightest:g}_ms"
    wanted = [objective.metric for objective in objectives] + ["saturation_qps", "achieved_qps"]
    x = next((metric for metric in wanted if metric != y and metric in metrics), "achieved_qps")
    return x, y


def _fronts(
    judged: Sequence[Entry], metrics: Sequence[str], better: Mapping[str, bool]
) -> dict[str, tuple[int, ...]]:
    columns = {metric: [entry.metric(metric) for entry in judged] for metric in metrics}
    fronts: dict[str, tuple[int, ...]] = {}
    for one, other in itertools.combinations(metrics, 2):
        points = list(zip(columns[one], columns[other], strict=True))
        front = pareto_front(points, [better[one], better[other]])
        for x, y in ((one, other), (other, one)):
            ordered = sorted(front, key=lambda i: (columns[x][i], columns[y][i]))
            fronts[f"{x}|{y}"] = tuple(judged[i].number for i in ordered)
    return fronts


def wide(values: Iterable[float | None]) -> bool:
    """Whether values spread so far that only a logarithmic axis shows them all."""
    known = [value for value in values if value is not None]
    return bool(known) and min(known) > 0 and max(known) / min(known) > WIDE


def ticks(values: Iterable[float | None]) -> list[float]:
    """Round numbers to label a logarithmic axis at, some of them beyond the values; empty where
    none of `STEPS` would label it with few enough and yet enough of them."""
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return []
    least, most = min(known), max(known)
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    for steps in STEPS:
        at = [float(f"{step}e{power}") for power in powers for step in steps]
        if sum(least <= value <= most for value in at) in ENOUGH_TICKS:
            return at
    return []


# ---------------------------------------------------------------------- the latency distribution
@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """``latency_ms[i]`` is not exceeded by a share ``shares[i]`` of the requests; both ascend.
    ``exact`` is False where there was no histogram and only the summary's percentiles are known.
    ``count`` is the number of requests.
    """

    name: str
    count: int
    shares: tuple[float, ...]
    latency_ms: tuple[float, ...]
    exact: bool


def distribution(name: str, measurement: Measurement | None) -> Distribution | None:
    """From the HDR histogram (in microseconds), else from the summary; None without either."""
    if measurement is None or measurement.load.latency is None:
        return None
    summary, recorded = measurement.load.latency, _recorded(measurement.load.histogram)
    n = summary.count
    if recorded is not None:
        shares, values = recorded
        return Distribution(name=name, count=n, shares=shares, latency_ms=values, exact=True)
    known = sorted((p / 100, ms) for p, ms in summary.percentiles_ms.items() if ms > 0)
    if not known:
        return None
    shares, values = zip(*known, strict=True)
    return Distribution(name=name, count=n, shares=shares, latency_ms=values, exact=False)


def _recorded(encoded: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Cumulative shares and milliseconds; None where there is no readable histogram."""
    if not encoded:
        return None
    try:
        histogram = HdrHistogram.decode(encoded)
    except (
        HdrCookieException,
        HdrHistogramSettingsException,
        HdrLengthException,
        RuntimeError,
        ValueError,
        TypeError,
        zlib.error,
    ):
        return None
    recorded = histogram.get_recorded_iterator()
    steps = [(step.value_iterated_to, step.total_count_to_this_value) for step in recorded]
    if not steps or histogram.get_total_count() <= 0:
        return None
    us, cumulated = np.array(steps, dtype=np.float64).T
    keep = _thinned(cumulated / cumulated[-1])
    return tuple(cumulated[keep] / cumulated[-1]), tuple(np.maximum(us[keep], 1.0) / 1000)


def _thinned(shares: np.ndarray, most: int = 200) -> list[int]:
    """Indices that keep the shape of the tail: evenly spaced in -log(1 - share)."""
    if len(shares) <= most:
        return list(range(len(shares)))
    left = 1 - shares
    depth = -np.log(np.maximum(left, left[left > 0].min() / 2))
    wanted = np.linspace(depth[0], depth[-1], most)
    return sorted({*np.searchsorted(depth, wanted, side="left").clip(0, len(shares) - 1)})


# --------------------------------------------------------------------------- where the time goes
@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Means in ms of one request's time. ``outside_ms`` is what the server did not account for:
    the network, the client, the wait to be sent; None where the mean latency is unknown."""

    name: str
    queue_ms: float
    compute_input_ms: float
    compute_infer_ms: float
    compute_output_ms: float
    outside_ms: float | None


def split(name: str, measurement: Measurement | None) -> Split | None:
    if measurement is None or measurement.server is None:
        return None
    server, latency = measurement.server, measurement.load.latency
    rest = None if latency is None else latency.mean_ms - server.queue_ms - server.compute_ms
    return Split(
        name=name,
        queue_ms=server.queue_ms,
        compute_input_ms=server.compute_input_ms,
        compute_infer_ms=server.compute_infer_ms,
        compute_output_ms=server.compute_output_ms,
        outside_ms=None if rest is None else max(rest, 0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """Means in ms of one request in one step; ``batch`` is the mean batch (None: unknown)."""

    step: str
    queue_ms: float
    compute_ms: float
    batch: float | None
    limits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """A trial of a pipeline by its steps, in their order."""

    name: str
    parts: tuple[StepPart, ...]
    outside_ms: float

    @property
    def total_ms(self) -> float:
        return self.outside_ms + sum(part.queue_ms + part.compute_ms for part in self.parts)


def step_split(name: str, found: Breakdown) -> StepSplit:
    return StepSplit(
        name=name,
        parts=tuple(
            StepPart(
                step=step.name,
                queue_ms=step.queue_ms,
                compute_ms=step.compute_ms,
                batch=step.mean_batch,
                limits=found.limits(step.name),
            )
            for step in found.steps
        ),
        outside_ms=found.outside_ms or 0.0,
    )


FAR = 4.0
"""A bar that is so many times as long as the shortest would flatten it."""


def cut_ms(splits: Sequence[StepSplit]) -> float | None:
    """Where bars that would flatten the others are cut off; None where there are none."""
    lengths = [split.total_ms for split in splits]
    near = max((length for length in lengths if length <= FAR * min(lengths)), default=0.0)
    return 1.2 * near if near and max(lengths) > 2 * near else None


# ------------------------------------------------------------------------------------- batches
@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Per batch size, ascending: executions, and the mean compute time of one in ms."""

    sizes: tuple[int, ...]
    executions: tuple[int, ...]
    compute_ms: tuple[float, ...]


def batches(measurement: Measurement | None) -> Batches | None:
    if measurement is None or measurement.server is None or not measurement.server.batches:
        return None
    found = sorted(measurement.server.batches.items())
    return Batches(
        sizes=tuple(size for size, _ in found),
        executions=tuple(stat.executions for _, stat in found),
        compute_ms=tuple(stat.compute_ms for _, stat in found),
    )


# ------------------------------------------------------------------------------------ timeline
@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Over the seconds of the measured window: utilization (0 to 1) as it was sampled; latency
    as median and maximum of the requests scheduled within each of some sixty slices."""

    utilization_s: tuple[float, ...]
    utilization: tuple[float, ...]
    source: str | None
    slices_s: tuple[float, ...]
    median_ms: tuple[float, ...]
    max_ms: tuple[float, ...]


def timeline(measurement: Measurement | None) -> Timeline | None:
    """None where neither utilization nor samples were recorded."""
    if measurement is None:
        return None
    series = [(at, share) for at, share in measurement.telemetry.series if math.isfinite(share)]
    slices = _slices(measurement)
    if not series and not slices:
        return None
    return Timeline(
        utilization_s=tuple(at for at, _ in series),
        utilization=tuple(share for _, share in series),
        source=measurement.telemetry.source,
        slices_s=tuple(at for at, _, _ in slices),
        median_ms=tuple(median for _, median, _ in slices),
        max_ms=tuple(most for _, _, most in slices),
    )


def _slices(measurement: Measurement, count: int = 60) -> list[tuple[float, float, float]]:
    samples = measurement.load.samples
    if samples is None:
        return []
    latency_ms = (samples.done_s - samples.scheduled_s) * 1000
    known = np.isfinite(latency_ms)
    width = measurement.load.window_s / count
    if not known.any() or not width > 0:
        return []
    index = (samples.scheduled_s[known] / width).astype(int)
    values = latency_ms[known]
    return [
        (
            float((i + 0.5) * width),
            float(np.median(values[index == i])),
            float(values[index == i].max()),
        )
        for i in np.unique(index)
    ]
