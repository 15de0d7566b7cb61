"""Stored things as plain data for programs: what ``--json`` and the API tell alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune.core.bottleneck import breakdown
from autotune.core.capacity import capacity_of
from autotune.core.comparison import Comparison
from autotune.core.intervals import Interval
from autotune.core.measurement import METRICS, Measurement, Traffic
from autotune.core.plain import finite
from autotune.core.records import StudyRecord
from autotune.core.savings import savings
from autotune.core.sla import Sla, judge
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from autotune.core.wording import saturation_bound


def capacity_json(trials: Sequence[Trial], sla: Sla) -> list[dict[str, Any]]:
    """Of every trial whose capacity was probed, in requests per second."""
    found = ((trial.number, capacity_of(trial.measurements, sla)) for trial in trials)
    return [
        finite({"trial": number, **capacity.to_json()})
        for number, capacity in found
        if capacity is not None
    ]


def savings_json(study: Study, trials: Sequence[Trial]) -> dict[str, Any]:
    """What the search's windows took, what as many of the nominal length would have, in seconds,
    and how many ended for which reason."""
    saved = savings(trials, study.workload)
    return {
        "window_s": saved.window_s,
        "fixed_s": saved.fixed_s,
        "ended": {str(ended): count for ended, count in saved.ended.items()},
    }


def variants_json(variants: Sequence[VariantRecord]) -> list[dict[str, Any]]:
    """What came of each variant that the study asked for, with all that was tried."""
    return [
        finite(
            {
                **asdict(record),
                "variant": str(record.variant),
                "engine": str(record.variant.engine),
                "precision": str(record.variant.precision),
                "usable": record.usable,
                "tools": dict(record.tools),
            }
        )
        for record in variants
    ]


def study_json(record: StudyRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state,
        "reason": record.reason,
        "trials": record.trials,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "environment": finite(dict(record.environment or {})),
        "definition": finite(dict(record.definition)),
    }


def trial_json(trial: Trial, sla: Sla) -> dict[str, Any]:
    return {
        "number": trial.number,
        "candidate": trial.candidate.to_json(),
        "state": trial.state,
        "reason": trial.reason,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "measurements": [_measurement_json(m, trial, sla) for m in trial.measurements],
    }


def _measurement_json(measurement: Measurement, trial: Trial, sla: Sla) -> dict[str, Any]:
    verdict = judge(measurement, sla) if measurement.valid else None
    steps = breakdown(measurement, trial.candidate)
    load, telemetry = measurement.load, measurement.telemetry
    return {
        "purpose": measurement.purpose,
        "started_at": measurement.started_at,
        "valid": measurement.valid,
        "invalid_because": list(measurement.invalid_because),
        "verdict": None if verdict is None else verdict.outcome,
        "reasons": [] if verdict is None else list(verdict.reasons),
        "traffic": _traffic_json(measurement.traffic),
        "offered_qps": load.offered_qps,
        "requests": load.scheduled,
        "errors": dict(load.errors),
        "error_texts": dict(load.error_texts),
        "warmup_s": load.warmup_s,
        "steady": load.steady,
        "window_s": load.window_s,
        "ended": load.ended,
        "saturation_s": measurement.saturation_s,
        "saturation_bound": saturation_bound([measurement]) or None,
        "utilization_source": telemetry.source,
        "memory_source": telemetry.memory_source,
        "memory_total_mb": telemetry.memory_total_mb,
        "price_per_hour": measurement.price_per_hour,
        "foreign_cpu": telemetry.foreign_cpu,
        "foreign_gpu": list(telemetry.foreign_gpu),
        "throttled": list(telemetry.throttled),
        "gauges": {
            name: {"value": finite(gauge.value), "source": gauge.source}
            for name, gauge in telemetry.gauges.items()
        },
        "telemetry_notes": dict(telemetry.notes),
        "metrics": finite({name: measurement.metric(name) for name in METRICS}),
        "intervals": {name: _ends(i) for name, i in measurement.intervals.items()},
        "steps": None if steps is None else steps.to_json(),
    }


def _traffic_json(traffic: Traffic | None) -> dict[str, Any] | None:
    if traffic is None:
        return None
    return {
        "qps": traffic.qps,
        "arrival": traffic.arrival,
        "cv": traffic.cv,
        "seed": traffic.seed,
    }


def _ends(interval: Interval) -> list[float | None]:
    ends: list[float | None] = finite([interval.low, interval.high])
    return ends


def comparisons_json(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "first": one.first,
            "second": one.second,
            "metric": one.metric,
            "effect": finite(one.effect),
            "interval": _ends(one.interval),
            "relation": one.relation,
            "pairs": one.pairs,
            "taken_at": one.taken_at,
        }
        for one in comparisons
    ]
