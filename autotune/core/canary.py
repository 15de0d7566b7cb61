"""Whether the machine is what it was: one configuration measured at two times."""

from __future__ import annotations

from autotune.core.measurement import METRICS, Measurement, label

CANARY_SHARE = 0.05
"""A change is one whose interval lies wholly beyond this share, up or down."""
_METRICS = ("saturation_qps", "p50_ms")
"""Of these the first one that both measurements have an interval of: throughput under saturation
depends on the machine alone, where a latency near saturation multiplies every small change."""


def changed(before: Measurement, after: Measurement) -> str | None:
    """By how much ``after`` differs from ``before``, in words; None where it does not, or where
    nothing of it can be told."""
    for metric in _METRICS:
        first, second = before.intervals.get(metric), after.intervals.get(metric)
        if first is None or second is None or first.low <= 0:
            continue
        least, most = second.low / first.high - 1, second.high / first.low - 1
        if least <= CANARY_SHARE and most >= -CANARY_SHARE:
            return None
        values = before.metric(metric), after.metric(metric)
        if values[0] is None or values[1] is None:
            return None
        unit = METRICS[metric].unit
        shown = f"{values[0]:.1f} to {values[1]:.1f} {unit}".replace(" 1/s", "/s")
        return f"{label(metric)} {shown} ({values[1] / values[0] - 1:+.0%})"
    return None
