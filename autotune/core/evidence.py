"""What is known of a trial: the measurements that count, and what they say together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.core.intervals import Estimate, Interval
from autotune.core.measurement import Measurement, Purpose
from autotune.core.trial import Trial

_NORMAL_95 = 1.96
"""Half a 95% interval in standard errors."""


def evidence(trial: Trial) -> tuple[Measurement, ...]:
    """The valid measurements that a trial is judged by: see `evidence_among`."""
    return evidence_among(trial.measurements)


def evidence_among(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """The search's `latest` and all of the finals', of one trial, in that order; to be pooled.

    The search's is the best of many, and so flattered by its luck (the winner's curse). The finals'
    fresh ones thin that out, and where they contradict it the pooled interval grows (see
    `estimate`). It is not thrown away: its window may be three times as long as theirs, and without
    it what the search has settled would be undecided again.
    """
    finals = tuple(m for m in measurements if m.valid and m.purpose is Purpose.FINAL)
    return (*latest(measurements), *finals)


def latest(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """The last valid one of the search, alone; where there is none the last of the canary's, which
    is cut short on purpose; empty where there is neither."""
    valid = [m for m in measurements if m.valid]
    search = [m for m in valid if m.purpose is Purpose.TRIAL]
    return tuple((search or [m for m in valid if m.purpose is Purpose.CANARY])[-1:])


def estimate(measurements: Sequence[Measurement], metric: str) -> Estimate | None:
    """What several measurements say of a metric together; None where none knows it.

    Those with an interval are pooled on a log scale, weighted by the inverse of their variance;
    the others are left aside, and without any interval it is the mean. Measurements under the same
    arrivals share their luck: their errors are added up, only those of different arrivals average
    out. Where they disagree by more than their intervals allow, the error grows by the Birge ratio
    max(1, √(χ²/(k - 1))) (Birge, Phys. Rev. 40, 1932; the Particle Data Group's scale factor).
    An error rate is that of all requests together.
    """
    if metric == "error_rate":
        return _error_rate(measurements)
    known = [(m, value) for m in measurements if (value := _finite(m.metric(metric))) is not None]
    if len(known) == 1:
        ((measurement, value),) = known
        return Estimate(value, measurement.intervals.get(metric))
    parts = [part for m, value in known if (part := _part(m, metric, value)) is not None]
    if parts:
        return _pooled(parts)
    return Estimate(fmean(value for _, value in known)) if known else None


@dataclass(frozen=True, slots=True)
class _Part:
    """One measurement on a log scale: ``below`` and ``above`` reach from ``centre`` to the ends of
    its interval. Parts of the same ``arrivals`` are not independent."""

    centre: float
    below: float
    above: float
    arrivals: object

    @property
    def weight(self) -> float:
        """The inverse of its variance, up to a factor that all parts share."""
        return 4 / max(self.below + self.above, 1e-9) ** 2


def _part(measurement: Measurement, metric: str, value: float) -> _Part | None:
    interval = measurement.intervals.get(metric)
    if interval is None or value <= 0 or not 0 < interval.low <= interval.high < math.inf:
        return None
    traffic = measurement.traffic
    return _Part(
        centre=math.log(value),
        below=math.log(max(value / interval.low, 1)),
        above=math.log(max(interval.high / value, 1)),
        arrivals=id(measurement) if traffic is None else (traffic.seed, traffic.qps),
    )


def _pooled(parts: Sequence[_Part]) -> Estimate:
    total = sum(part.weight for part in parts)
    shares = [part.weight / total for part in parts]
    centre = sum(share * part.centre for share, part in zip(shares, parts, strict=True))
    scale = _birge(parts, centre)
    below = scale * _error([(p.arrivals, s * p.below) for s, p in zip(shares, parts, strict=True)])
    above = scale * _error([(p.arrivals, s * p.above) for s, p in zip(shares, parts, strict=True)])
    interval = Interval(low=math.exp(centre - below), high=math.exp(centre + above))
    return Estimate(math.exp(centre), interval)


def _birge(parts: Sequence[_Part], centre: float) -> float:
    if len(parts) < 2:
        return 1.0
    chi2 = sum(_NORMAL_95**2 * p.weight * (p.centre - centre) ** 2 for p in parts)
    return max(1.0, math.sqrt(chi2 / (len(parts) - 1)))


def _error(reaches: Sequence[tuple[object, float]]) -> float:
    """Straight sums within the same arrivals, the root of the sum of squares across them."""
    sums: defaultdict[object, float] = defaultdict(float)
    for arrivals, reach in reaches:
        sums[arrivals] += reach
    return math.sqrt(sum(reach**2 for reach in sums.values()))


def _error_rate(measurements: Sequence[Measurement]) -> Estimate | None:
    if not measurements:
        return None
    scheduled = sum(m.load.scheduled for m in measurements)
    good = sum(m.load.ok for m in measurements)
    return Estimate(1 - good / scheduled if scheduled else 0.0)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
