"""Whether a configuration is still what it was, and what has changed around it since.

The same candidate measured under the same workload at two times, mostly a night apart. A
difference counts when it is beyond what the measurements leave open and beyond what figures of one
configuration differ by from run to run. Latencies of two nights that had the same arrivals, as they
have by the study's seed, are compared in pairs (see `autotune.core.comparison`), so that the luck
of the arrivals takes no part; others, and rates, by their intervals. All have to be off zero by
`SURE`. Likely causes are read from what was recorded of both: nothing is tried apart, so that they
are likely, never proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Any

from autotune.core.comparison import (
    LATENCY_RUN_TO_RUN,
    RATE_RUN_TO_RUN,
    UNKNOWN,
    Relation,
    compare_latency,
    percentiles_in_common,
    relation,
)
from autotune.core.evidence import estimate, evidence
from autotune.core.intervals import LEVEL, Estimate, Interval
from autotune.core.measurement import METRICS, Measurement, Purpose, label
from autotune.core.plain import finite
from autotune.core.sla import Sla
from autotune.core.trial import Trial
from autotune.core.wording import change_span, listed, percent

SURE = 3.0
"""Standard deviations that a difference must be off zero by. It is asked every night, of several
metrics: at 95% there would be a false alarm every few weeks."""
FOREIGN_CPU = 0.02
"""A change of the processor's share that others took, from which on it is told."""
CLOCK = 0.03
"""A relative change of a clock, from which on it is told."""
WARMER_C = 8.0
BUSIER = 1.0
"""A rise of the load average, in processes, from which on it is told."""
MEMORY = 0.02
"""A relative change of the machine's memory, from which on it is told: another kernel keeps some
megabytes more for itself."""
SERVER = "server"
"""The key, beside those of a study's environment, of its definition's section of the server."""
TRAFFIC_FILES = "traffic_files"
"""The key of a study's environment that tells the hashes of what its traffic is read from."""
_HASH = 12
"""Letters of a hash that are told."""


class Likelihood(StrEnum):
    LIKELY = "likely"
    """It is known to change such figures, in this direction."""
    POSSIBLE = "possible"
    """It may change such figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A candidate as it was measured in study ``study_id``, at ``at`` (UTC seconds since the
    epoch), on what ``environment`` describes (see `circumstances`)."""

    study_id: int
    at: float
    measurements: tuple[Measurement, ...]
    environment: Mapping[str, Any]

    @classmethod
    def of(
        cls, trial: Trial | None, study_id: int, environment: Mapping[str, Any]
    ) -> Observation | None:
        """By all that was measured of it at its target rate; None where nothing of that is
        believed. What a search picks is flattered by its luck: the runs taken of it later are
        counted in."""
        if trial is None or not evidence(trial):
            return None
        measured = (*evidence(trial), *trial.of(Purpose.COMPARE))
        return cls(
            study_id=study_id,
            at=measured[0].started_at,
            measurements=measured,
            environment=environment,
        )

    @property
    def first(self) -> Measurement:
        """The search's own: the one with the arrivals that every study of that seed has."""
        return self.measurements[0]

    @property
    def last(self) -> Measurement:
        return self.measurements[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A metric ``before`` and ``after``: its relative change with the 95% ``interval``, and what
    that means in the metric's own direction."""

    metric: str
    before: float
    after: float
    effect: float
    interval: Interval
    relation: Relation

    @property
    def counts(self) -> bool:
        return self.relation is not Relation.TIE

    @property
    def words(self) -> str:
        """``p95 31.2 to 38.0 ms (+21.8%; +12.1% to +32.3%)``."""
        unit = METRICS[self.metric].unit
        shown = f"{self.before:.1f} to {self.after:.1f} {unit}".replace(" 1/s", "/s")
        return (
            f"{label(self.metric)} {shown} ({percent(self.effect)}; {change_span(self.interval)})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that changed between two measurements. ``kind``: edited (by hand), model, triton,
    packages, hardware, gpu, driver, cuda, clocks, neighbours, traffic, kernel, host or autotune."""

    kind: str
    words: str
    likelihood: Likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """``shifts`` are all metrics that could be held against each other; ``causes`` what changed,
    the likeliest first, told only where a shift counts. ``since`` is the study of the earlier
    measurement, taken at ``since_at``."""

    since: int
    since_at: float
    shifts: tuple[Shift, ...]
    causes: tuple[Cause, ...]

    @property
    def found(self) -> tuple[Shift, ...]:
        return tuple(shift for shift in self.shifts if shift.counts)

    @property
    def drifted(self) -> bool:
        return bool(self.found)

    @property
    def worse(self) -> bool:
        return any(shift.relation is Relation.WORSE for shift in self.shifts)

    @property
    def words(self) -> str:
        return listed([shift.words for shift in self.found]) if self.found else "no drift is seen"

    @property
    def gravest(self) -> Shift:
        """The one to be told in a line, of what has drifted: the largest of those to the worse, or
        to the better where there is none."""
        way = Relation.WORSE if self.worse else Relation.BETTER
        return max(
            (shift for shift in self.shifts if shift.relation is way),
            key=lambda shift: abs(math.log1p(shift.effect)),
        )

    @property
    def sure(self) -> str:
        """How sure the causes are."""
        if not self.causes:
            return (
                "nothing that is recorded changed: look at what is not recorded, such as firmware,"
                " heat, or other guests of the same host"
            )
        if len(self.causes) == 1:
            return (
                f"{self.causes[0].likelihood}, since nothing else that is recorded changed;"
                " it was not tried apart"
            )
        return (
            f"{len(self.causes)} things that are recorded changed, the likeliest first; which of"
            " them it was has not been tried apart"
        )

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = finite({
            "drifted": self.drifted,
            "worse": self.worse,
            "since": self.since,
            "since_at": self.since_at,
            "words": self.words,
            "sure": self.sure if self.drifted else "",
            "shifts": [
                {
                    "metric": shift.metric,
                    "before": shift.before,
                    "after": shift.after,
                    "effect": shift.effect,
                    "interval": [shift.interval.low, shift.interval.high],
                    "relation": str(shift.relation),
                }
                for shift in self.shifts
            ],
            "causes": [
                {"kind": each.kind, "words": each.words, "likelihood": str(each.likelihood)}
                for each in self.causes
            ],
        })  # fmt: skip
        return plain


def drift_between(
    before: Observation,
    after: Observation,
    sla: Sla,
    *,
    timeout_s: float,
    also: Sequence[Cause] = (),
) -> Drift:
    """Hold the latencies of the SLA and the saturation throughput against each other. A request
    without a good answer counts with ``timeout_s``. ``also``: causes known beside what is recorded
    of the two."""
    latencies = (
        _paired(percentile, before.first, after.first, timeout_s)
        or _shift(f"p{percentile:g}_ms", before, after)
        for percentile in sorted(sla.latency_ms)
    )
    found = (*latencies, _shift("saturation_qps", before, after))
    shifts = tuple(shift for shift in found if shift is not None)
    worse = any(shift.relation is Relation.WORSE for shift in shifts)
    drifted = any(shift.counts for shift in shifts)
    return Drift(
        since=before.study_id,
        since_at=before.at,
        shifts=shifts,
        causes=(*also, *causes(before, after, worse=worse)) if drifted else (),
    )


# ------------------------------------------------------------------------------------ the figures
def _paired(
    percentile: float, before: Measurement, after: Measurement, timeout_s: float
) -> Shift | None:
    """By the requests that both had; None where they are not known, too few, or not of the same
    arrivals."""
    first, second = before.load.samples, after.load.samples
    if first is None or second is None:
        return None
    if before.traffic is None or before.traffic != after.traffic:
        return None
    values = percentiles_in_common((first, second), percentile, timeout_s=timeout_s)
    if values is None:
        return None
    found = compare_latency(
        0, 1, percentile, [(first, second)], timeout_s=timeout_s, taken_at=after.started_at
    )
    return _told(found.metric, values, found.effect, found.interval)


def _told(metric: str, values: tuple[float, float], effect: float, interval: Interval) -> Shift:
    beyond = _off_by(effect, interval) > SURE
    return Shift(
        metric=metric,
        before=values[0],
        after=values[1],
        effect=effect,
        interval=interval,
        relation=relation(metric, effect, interval) if beyond else Relation.TIE,
    )


def _off_by(effect: float, interval: Interval) -> float:
    """How many standard deviations it is off zero, as the nearer half of its 95% interval has
    them, on a log scale."""
    off = math.log1p(effect)
    near = math.log1p(interval.low if off > 0 else interval.high)
    return _normal() * abs(off) / max(abs(off - near), 1e-12)


def _shift(metric: str, before: Observation, after: Observation) -> Shift | None:
    first, second = (estimate(each.measurements, metric) for each in (before, after))
    if first is None or second is None or first.value <= 0 or second.value <= 0:
        return None
    effect = math.log(second.value / first.value)
    rates = METRICS[metric].maximize
    allowed = _normal() * math.sqrt(2) * (RATE_RUN_TO_RUN if rates else LATENCY_RUN_TO_RUN)
    (down, up), (down_before, up_before) = _reach(second), _reach(first)
    below, above = math.hypot(down, up_before, allowed), math.hypot(up, down_before, allowed)
    interval = Interval(low=math.expm1(effect - below), high=math.expm1(effect + above))
    return _told(metric, (first.value, second.value), math.expm1(effect), interval)


def _reach(known: Estimate) -> tuple[float, float]:
    """From the value down and up to the ends of its interval, in logarithms."""
    ends = known.interval
    if ends is None or ends.low <= 0:
        return math.log1p(UNKNOWN), math.log1p(UNKNOWN)
    return max(math.log(known.value / ends.low), 0.0), max(math.log(ends.high / known.value), 0.0)


def _normal() -> float:
    return NormalDist().inv_cdf((1 + LEVEL) / 2)


# ------------------------------------------------------------------------------------- the causes
def causes(before: Observation, after: Observation, *, worse: bool) -> tuple[Cause, ...]:
    """What is recorded and changed, the likeliest first; what would explain the opposite of what
    is seen is left out."""
    there, here = before.environment, after.environment
    found = [
        *_facts(there, here),
        *_server(there, here),
        *_packages(there, here),
        *_memory(there, here),
        *_traffic_files(there, here),
        *_traffic(before.last, after.last),
        *_neighbours(before, after, worse=worse),
        *_clocks(before.last, after.last, worse=worse),
        *_tools(there, here),
    ]
    return tuple(sorted(found, key=lambda cause: cause.likelihood is not Likelihood.LIKELY))


_FACTS: tuple[tuple[str, str, str, Likelihood], ...] = (
    ("triton", "triton", "Triton", Likelihood.LIKELY),
    ("triton", "launch", "the server's launch", Likelihood.LIKELY),
    ("hardware", "processor", "the processor", Likelihood.LIKELY),
    ("hardware", "cores", "the number of cores", Likelihood.LIKELY),
    ("gpu", "gpus", "the GPUs", Likelihood.LIKELY),
    ("gpu", "gpu_limits", "the GPUs' power and clock limits", Likelihood.LIKELY),
    ("driver", "driver", "the GPU driver", Likelihood.LIKELY),
    ("cuda", "cuda", "the driver's CUDA", Likelihood.LIKELY),
    ("clocks", "cpu_governor", "the processor's frequency governor", Likelihood.LIKELY),
    ("clocks", "cpu_max_mhz", "the processor's highest frequency, in MHz", Likelihood.LIKELY),
    ("gpu", "gpu_uuids", "the GPUs, others of the same kind", Likelihood.POSSIBLE),
    ("kernel", "system", "the operating system", Likelihood.POSSIBLE),
    ("host", "host", "the host", Likelihood.POSSIBLE),
)
"""Kind, key of the environment, its name, and how likely it is what made the difference."""


def _facts(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Cause]:
    """What is recorded of one alone is no change: it may have been so before."""
    if model_changed(there, here):
        words = "the model's files or its configuration changed" + _hashes(there, here)
        yield Cause(kind="model", words=words, likelihood=Likelihood.LIKELY)
    told: set[str] = set()
    for kind, key, name, likelihood in _FACTS:
        if key in there and key in here and there[key] != here[key]:
            if key == "gpu_uuids" and "gpus" in told:
                continue
            told.add(key)
            words = f"{name}: {_shown(there[key])} before, {_shown(here[key])} now"
            yield Cause(kind=kind, words=words, likelihood=likelihood)


def circumstances(
    environment: Mapping[str, Any] | None, definition: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What a study measured on and with: what is recorded of it, and `SERVER`."""
    return {**(environment or {}), SERVER: definition.get("server")}


def model_changed(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether two studies measured other models. Where it was recorded, a configuration that
    differs in nothing but what is tuned is the same: a promotion changes no more than that."""
    key = "model_basis" if "model_basis" in there and "model_basis" in here else "model_digest"
    return key in there and key in here and there[key] != here[key]


def _hashes(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    ends = [str(each.get("model_digest", ""))[:_HASH] for each in (there, here)]
    return f": hash {ends[0]} before, {ends[1]} now" if all(ends) and ends[0] != ends[1] else ""


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _server(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Cause]:
    """What the study file says of the server: its flags, its image."""
    pair = (
        {key: value for key, value in (each.get(SERVER) or {}).items() if key != "launch"}
        for each in (there, here)
    )
    changed = _changed(*pair) if SERVER in there and SERVER in here else ""
    if changed:
        words = f"the study file's section of the server: {changed}"
        yield Cause(kind="triton", words=words, likelihood=Likelihood.LIKELY)


def _memory(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Cause]:
    before, now = there.get("memory_mb"), here.get("memory_mb")
    if before and now and abs(now / before - 1) >= MEMORY:
        words = f"the machine's memory: {before} MB before, {now} now"
        yield Cause(kind="hardware", words=words, likelihood=Likelihood.POSSIBLE)


def _traffic_files(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Cause]:
    before, now = there.get(TRAFFIC_FILES), here.get(TRAFFIC_FILES)
    if before is None or now is None:
        return
    changed = [name for name in sorted({**before, **now}) if before.get(name) != now.get(name)]
    if changed:
        words = f"the traffic: other contents of the file of its {listed(changed)}"
        yield Cause(kind="traffic", words=words, likelihood=Likelihood.LIKELY)


def _packages(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Cause]:
    changed = _changed(there.get("packages"), here.get("packages"))
    if changed:
        words = f"packages of the server's Python: {changed}"
        yield Cause(kind="packages", words=words, likelihood=Likelihood.LIKELY)


def _tools(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Cause]:
    """What measures: it may count or send otherwise than before."""
    before = {**(there.get("versions") or {}), "Python": there.get("python")}
    after = {**(here.get("versions") or {}), "Python": here.get("python")}
    changed = _changed(before, after)
    if changed:
        words = f"what measures: {changed}"
        yield Cause(kind="autotune", words=words, likelihood=Likelihood.POSSIBLE)


def _changed(before: object, after: object) -> str:
    """``numpy 1.26.4 to 2.1.0, onnx gone``; empty where either is unknown."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return ""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(_went(name, before.get(name), after.get(name)) for name in sorted(names))


def _went(name: str, before: object, after: object) -> str:
    if before is None:
        return f"{name} {after} new"
    return f"{name} gone" if after is None else f"{name} {before} to {after}"


def _traffic(before: Measurement, after: Measurement) -> Iterator[Cause]:
    first, second = before.traffic, after.traffic
    if first is not None and second is not None:
        pairs: tuple[tuple[str, Callable[[Any], object]], ...] = (
            ("requests/s", lambda t: round(t.qps, 3)),
            ("arrivals", lambda t: t.arrival),
            ("burstiness", lambda t: t.cv),
        )
        for name, read in pairs:
            if read(first) != read(second):
                words = f"the traffic, {name}: {read(first)} before, {read(second)} now"
                yield Cause(kind="traffic", words=words, likelihood=Likelihood.LIKELY)
                return
    one, other = before.load, after.load
    if not one.scheduled or not other.scheduled or not one.offered_qps:
        return
    chance = 3 * math.sqrt(1 / one.scheduled + 1 / other.scheduled)
    if abs(other.offered_qps / one.offered_qps - 1) > chance:
        words = (
            f"the traffic: {one.offered_qps:.1f} requests/s were offered before,"
            f" {other.offered_qps:.1f} now"
        )
        yield Cause(kind="traffic", words=words, likelihood=Likelihood.LIKELY)


def _neighbours(before: Observation, after: Observation, *, worse: bool) -> Iterator[Cause]:
    first, second = before.last.telemetry, after.last.telemetry
    if first.foreign_cpu is not None and second.foreign_cpu is not None:
        change = second.foreign_cpu - first.foreign_cpu
        if abs(change) >= FOREIGN_CPU and (change > 0) == worse:
            words = (
                f"neighbours took {first.foreign_cpu:.0%} of the processor before,"
                f" {second.foreign_cpu:.0%} now"
            )
            yield Cause(kind="neighbours", words=words, likelihood=Likelihood.LIKELY)
    more = len(second.foreign_gpu) - len(first.foreign_gpu)
    if more and (more > 0) == worse:
        words = (
            f"processes of others on the GPU: {len(first.foreign_gpu)} before,"
            f" {len(second.foreign_gpu)} now"
        )
        yield Cause(kind="neighbours", words=words, likelihood=Likelihood.LIKELY)
    there, here = (each.environment.get("load_average") for each in (before, after))
    if there is not None and here is not None and worse and here - there >= BUSIER:
        words = f"load average when the study began: {there:g} before, {here:g} now"
        yield Cause(kind="neighbours", words=words, likelihood=Likelihood.POSSIBLE)


def _clocks(before: Measurement, after: Measurement, *, worse: bool) -> Iterator[Cause]:
    for name, words in (("sm_clock_mhz", "GPU clock"), ("memory_clock_mhz", "GPU memory clock")):
        values = _gauge(before, name), _gauge(after, name)
        if values[0] is None or values[1] is None or not values[0]:
            continue
        change = values[1] / values[0] - 1
        if abs(change) >= CLOCK and (change < 0) == worse:
            told = f"{words} {values[0]:.0f} MHz before, {values[1]:.0f} now"
            yield Cause(kind="clocks", words=told, likelihood=Likelihood.LIKELY)
    heat = _gauge(before, "temperature_c"), _gauge(after, "temperature_c")
    if heat[0] is not None and heat[1] is not None and worse and heat[1] - heat[0] >= WARMER_C:
        told = f"the GPU had {heat[0]:.0f} °C before, {heat[1]:.0f} now"
        yield Cause(kind="clocks", words=told, likelihood=Likelihood.POSSIBLE)
    held, was_held = (each.telemetry.notes.get("cpu_quota", "") for each in (after, before))
    if bool(held) != bool(was_held) and bool(held) == worse:
        told = held or f"not any more: {was_held}"
        yield Cause(kind="clocks", words=told, likelihood=Likelihood.LIKELY)


def _gauge(measurement: Measurement, name: str) -> float | None:
    found = measurement.telemetry.gauges.get(name)
    return None if found is None else found.value


def same(there: Mapping[str, Any], here: Mapping[str, Any], keys: Sequence[str]) -> bool:
    """Whether two environments say the same of all these, be it that neither knows."""
    return all(there.get(key) == here.get(key) for key in keys)
