"""The highest offered rate that meets the SLA: where to look for it, and what the probes say.

Each probe is an open loop at a rate of its own. Latency grows with the rate, so that the answer is
bracketed between rates that meet and rates that miss. By noise a probe may miss below one that
meets: the search follows the isotonic regression of how far the probes are from their limit (Barlow
et al., "Statistical Inference under Order Restrictions", 1972), and what contradicts itself widens
the interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from autotune.core.evidence import evidence_among
from autotune.core.intervals import Estimate, Interval
from autotune.core.measurement import Measurement, Purpose
from autotune.core.sla import Finding, Outcome, Sla, judge_together

RESOLUTION = 0.05
"""A bracket whose ends differ by less than this share is narrow enough."""
_STEP_UP = 1.5
_STEP_DOWN = 0.75
_LEAST_SHARE = 1 / 16
"""The search goes no further below the highest rate probed."""
_CUT = 0.25
"""A probe within a bracket leaves at least this share of it (in logarithms) on either side."""
_FAR = math.log(2.0)
"""Beyond twice its limit a latency says nothing any more of where the limit was crossed: it grows
for as long as it is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What was found at the offered rate ``qps``: ``estimate`` is of the latency that is nearest to
    its ``limit`` (ms), or furthest above; None where no request was answered. ``saturation_qps`` is
    the highest throughput seen."""

    qps: float
    outcome: Outcome
    estimate: Estimate | None
    limit: float
    saturation_qps: float | None = None

    @property
    def excess(self) -> float:
        """How far above the limit, as a logarithm; what misses for another reason than its latency,
        or whose latency is unknown, counts as far above."""
        if self.estimate is None or self.estimate.value <= 0:
            return 2 * _FAR
        excess = math.log(self.estimate.value / self.limit)
        return 2 * _FAR if self.outcome is Outcome.MISSES and excess <= 0 else excess


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate that meets the SLA, in requests per second.

    ``interval`` reaches from the highest rate that clearly meets to the lowest that clearly misses:
    from 0 where none clearly meets, to infinity where none clearly misses. ``at_least``: no probe
    missed, and ``qps`` is the highest one; ``at_most``: none met, and it is the lowest one.
    ``saturation_share`` is ``qps`` as a share of the saturation throughput.
    """

    qps: float
    interval: Interval
    at_least: bool
    at_most: bool
    saturation_share: float | None

    def to_json(self) -> Mapping[str, Any]:
        """Plain data; an open end is None."""
        return {
            "qps": self.qps,
            "low": self.interval.low or None,
            "high": self.interval.high if math.isfinite(self.interval.high) else None,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "saturation_share": self.saturation_share,
        }

    def __str__(self) -> str:
        low, high = self.interval.low, self.interval.high
        if self.at_least:
            return f"at least {low:.1f}/s" if low else f"undecided at {self.qps:.1f}/s"
        if self.at_most:
            known = math.isfinite(high)
            return f"below {high:.1f}/s" if known else f"undecided at {self.qps:.1f}/s"
        if math.isinf(high):
            return f"{self.qps:.1f}/s (at least {low:.1f})" if low else f"{self.qps:.1f}/s"
        if not low:
            return f"{self.qps:.1f}/s (at most {high:.1f})"
        return f"{self.qps:.1f}/s ({low:.1f}–{high:.1f})"


def probes_of(measurements: Sequence[Measurement], sla: Sla) -> tuple[Probe, ...]:
    """By rate, lowest first: a trial's valid probes for its capacity and what it is judged by at
    the rate of its workload (see `autotune.core.evidence`)."""
    probed = (m for m in measurements if m.valid and m.purpose is Purpose.CAPACITY)
    rates: dict[float, list[Measurement]] = {}
    for measured in (*evidence_among(measurements), *probed):
        rates.setdefault(_offered(measured), []).append(measured)
    return tuple(_probe(qps, rates[qps], sla) for qps in sorted(rates))


def next_rate(probes: Sequence[Probe], *, resolution: float = RESOLUTION) -> float | None:
    """The rate to probe next; None where the bracket is narrow enough, no probe was made, or the
    search has gone far below the highest rate. Undecided probes count by their value."""
    if not probes:
        return None
    below, above = _bracket(probes)
    if above is None:
        assert below is not None
        return _upwards(below.qps, _saturation(probes), resolution)
    if below is None:
        least = _LEAST_SHARE * max(probe.qps for probe in probes)
        return above.qps * _STEP_DOWN if above.qps > least else None
    width = math.log(above.qps / below.qps)
    if width <= math.log1p(resolution):
        return None
    share = min(max(_crossing(below, above), _CUT), 1 - _CUT)
    return below.qps * math.exp(share * width)


def capacity(probes: Sequence[Probe]) -> Capacity | None:
    """What the probes say; None without any."""
    if not probes:
        return None
    below, above = _bracket(probes)
    interval = _clear_ends(probes)
    saturation = _saturation(probes)
    if above is None or below is None:
        qps = (above or below or probes[0]).qps
    else:
        qps = below.qps * (above.qps / below.qps) ** _crossing(below, above)
        qps = min(max(qps, interval.low), interval.high)
    return Capacity(
        qps=qps,
        interval=interval,
        at_least=above is None,
        at_most=below is None,
        saturation_share=None if saturation is None else qps / saturation,
    )


def capacity_of(measurements: Sequence[Measurement], sla: Sla) -> Capacity | None:
    """From a trial's stored measurements; None where its capacity was not probed."""
    if not any(m.valid and m.purpose is Purpose.CAPACITY for m in measurements):
        return None
    return capacity(probes_of(measurements, sla))


# ----------------------------------------------------------------------------------------- probes
def _offered(measured: Measurement) -> float:
    """As it was asked for: what a window really offers differs a little from run to run."""
    return measured.load.offered_qps if measured.traffic is None else measured.traffic.qps


def _probe(qps: float, measurements: Sequence[Measurement], sla: Sla) -> Probe:
    verdict = judge_together(measurements, sla)
    nearest = max(_latencies(verdict.findings), key=lambda f: _value(f) / f.limit)
    known = [m.saturation_qps for m in measurements if m.saturation_qps is not None]
    value = nearest.value
    return Probe(
        qps=qps,
        outcome=verdict.outcome,
        estimate=None if value is None else Estimate(value, nearest.interval),
        limit=nearest.limit,
        saturation_qps=max(known, default=None),
    )


def _latencies(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.metric.endswith("_ms")]


def _value(finding: Finding) -> float:
    return math.inf if finding.value is None else finding.value


def _saturation(probes: Sequence[Probe]) -> float | None:
    known = [probe.saturation_qps for probe in probes if probe.saturation_qps is not None]
    return max(known, default=None)


# ---------------------------------------------------------------------------------------- bracket
@dataclass(frozen=True, slots=True)
class _End:
    qps: float
    excess: float


def _bracket(probes: Sequence[Probe]) -> tuple[_End | None, _End | None]:
    """The highest rate that is within the limits, and the next, which is above."""
    ordered = sorted(probes, key=lambda probe: probe.qps)
    fitted = _isotonic([probe.excess for probe in ordered])
    ends = [_End(probe.qps, excess) for probe, excess in zip(ordered, fitted, strict=True)]
    for below, above in pairwise(ends):
        if below.excess <= 0 < above.excess:
            return below, above
    return (ends[-1], None) if ends[-1].excess <= 0 else (None, ends[0])


def _isotonic(values: Sequence[float]) -> list[float]:
    """The nearest sequence (least squares) that never falls, by its min-max formula: at each place
    the largest over all beginnings of the least over all ends of the mean between them."""
    count = len(values)
    return [
        max(
            min(math.fsum(values[i:j]) / (j - i) for j in range(place + 1, count + 1))
            for i in range(place + 1)
        )
        for place in range(count)
    ]


def _crossing(below: _End, above: _End) -> float:
    """Where the limit is crossed, as a share of the bracket, in logarithms of rate and latency."""
    if above.excess > _FAR:
        return 0.5
    return -below.excess / (above.excess - below.excess)


def _upwards(qps: float, saturation: float | None, resolution: float) -> float:
    """Half way to the saturation throughput, in logarithms; a little more where it is reached."""
    if saturation is None:
        return qps * _STEP_UP
    return max(math.sqrt(qps * saturation), qps * (1 + 2 * resolution))


def _clear_ends(probes: Sequence[Probe]) -> Interval:
    met = [probe.qps for probe in probes if probe.outcome is Outcome.MEETS]
    missed = [probe.qps for probe in probes if probe.outcome is Outcome.MISSES]
    lowest_miss, highest_met = min(missed, default=math.inf), max(met, default=0.0)
    return Interval(
        low=max((qps for qps in met if qps < lowest_miss), default=0.0),
        high=min((qps for qps in missed if qps > highest_met), default=math.inf),
    )
