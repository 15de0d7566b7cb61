"""Measurements and trials to rows and back: what comes out equals what went in."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.core.comparison import Comparison, Relation
from autotune.core.intervals import Interval
from autotune.core.measurement import (
    PERCENTILES,
    BatchStat,
    Ended,
    Gauge,
    LatencySummary,
    LoadResult,
    Measurement,
    Purpose,
    RequestSamples,
    ServerWindow,
    TelemetryWindow,
    Traffic,
)
from autotune.core.records import DecisionRecord, StudyRecord, StudyState
from autotune.core.trial import Trial, TrialState
from autotune.core.variants import Attempt, Variant, VariantRecord
from search_spaces.candidate import Candidate
from storage.plain import text
from storage.schema import (
    ComparisonRow,
    DecisionRow,
    MeasurementRow,
    StudyRow,
    TrialRow,
    VariantRow,
)

_LATENCY, _SERVICE, _LAG = "", "service_", "lag_"


# ------------------------------------------------------------------------------------- to rows
def measurement_row(measurement: Measurement) -> MeasurementRow:
    """The row of a measurement, not yet bound to its trial."""
    load = measurement.load
    columns: dict[str, Any] = {
        "purpose": str(measurement.purpose),
        "started_at": measurement.started_at,
        "valid": measurement.valid,
        "invalid_because": list(measurement.invalid_because),
        "instances": int(measurement.instances),
        "reload_s": measurement.reload_s,
        "saturation_qps": measurement.saturation_qps,
        "saturation_s": measurement.saturation_s,
        "accuracy_drop": measurement.accuracy_drop,
        "price_per_hour": measurement.price_per_hour,
        "intervals": {name: [i.low, i.high] for name, i in measurement.intervals.items()},
        **_traffic_columns(measurement.traffic),
        **_load_columns(load),
        **_summary_columns(_LATENCY, load.latency),
        **_summary_columns(_SERVICE, load.service_latency),
        **_summary_columns(_LAG, load.send_lag),
        "other_percentiles": _other_percentiles(load),
        **_server_columns(measurement.server),
        **_telemetry_columns(measurement.telemetry),
    }
    nan = [name for name, value in columns.items() if _is_nan(value)]
    stored = {name: _number(value) for name, value in columns.items()}
    samples = None if load.samples is None else pack_samples(load.samples)
    return MeasurementRow(**stored, nan_columns=nan, samples=samples)


def _traffic_columns(traffic: Traffic | None) -> dict[str, Any]:
    if traffic is None:
        return {}
    return {
        "traffic_qps": traffic.qps,
        "arrival": str(traffic.arrival),
        "arrival_cv": traffic.cv,
        "seed": int(traffic.seed),
    }


def _load_columns(load: LoadResult) -> dict[str, Any]:
    return {
        "offered_qps": load.offered_qps,
        "achieved_qps": load.achieved_qps,
        "window_s": load.window_s,
        "scheduled": int(load.scheduled),
        "sent": int(load.sent),
        "completed": int(load.completed),
        "ok": int(load.ok),
        "error_rate": load.error_rate,
        "errors": {kind: int(count) for kind, count in load.errors.items()},
        "error_texts": {kind: text(said) for kind, said in load.error_texts.items()},
        "generator_cpu": load.generator_cpu,
        "max_in_flight": int(load.max_in_flight),
        "in_flight_cap_hit": bool(load.in_flight_cap_hit),
        "histogram": load.histogram,
        "warmup_s": load.warmup_s,
        "steady": None if load.steady is None else bool(load.steady),
        "ended": str(load.ended),
    }


def _summary_columns(prefix: str, summary: LatencySummary | None) -> dict[str, Any]:
    if summary is None:
        return {}
    return {
        f"{prefix}count": int(summary.count),
        f"{prefix}mean_ms": summary.mean_ms,
        f"{prefix}max_ms": summary.max_ms,
        **{
            f"{prefix}p{percentile:g}_ms": value
            for percentile, value in summary.percentiles_ms.items()
            if percentile in PERCENTILES
        },
    }


def _other_percentiles(load: LoadResult) -> dict[str, Any]:
    summaries = ((_LATENCY, load.latency), (_SERVICE, load.service_latency), (_LAG, load.send_lag))
    others = {
        prefix: [[p, ms] for p, ms in summary.percentiles_ms.items() if p not in PERCENTILES]
        for prefix, summary in summaries
        if summary is not None
    }
    return {prefix: pairs for prefix, pairs in others.items() if pairs}


def _server_columns(server: ServerWindow | None) -> dict[str, Any]:
    if server is None:
        return {"batches": [], "steps": {}}
    return {
        "server_requests": int(server.requests),
        "compute_ms": server.compute_ms,
        "mean_batch": server.mean_batch,
        "server_instances": int(server.instances),
        **_window_columns(server),
        "steps": {name: _step_json(step) for name, step in server.steps.items()},
    }


def _window_columns(server: ServerWindow) -> dict[str, Any]:
    return {
        "executions": int(server.executions),
        "failures": int(server.failures),
        "queue_ms": server.queue_ms,
        "compute_input_ms": server.compute_input_ms,
        "compute_infer_ms": server.compute_infer_ms,
        "compute_output_ms": server.compute_output_ms,
        "batches": [
            [int(size), int(stat.executions), float(stat.compute_ms)]
            for size, stat in server.batches.items()
        ],
    }


def _step_json(step: ServerWindow) -> dict[str, Any]:
    """A composing model that is a pipeline itself has steps of its own."""
    return {
        "requests": int(step.requests),
        "instances": int(step.instances),
        "calls": int(step.calls),
        **_window_columns(step),
        "steps": {name: _step_json(inner) for name, inner in step.steps.items()},
    }


def _telemetry_columns(telemetry: TelemetryWindow) -> dict[str, Any]:
    return {
        "utilization": telemetry.utilization,
        "utilization_source": telemetry.source,
        "memory_mb": telemetry.memory_mb,
        "memory_source": telemetry.memory_source,
        "memory_total_mb": telemetry.memory_total_mb,
        "telemetry_series": [[float(at), float(share)] for at, share in telemetry.series],
        "telemetry_notes": dict(telemetry.notes),
        "foreign_cpu": telemetry.foreign_cpu,
        "foreign_gpu": [int(pid) for pid in telemetry.foreign_gpu],
        "throttled": list(telemetry.throttled),
        "gauges": {
            name: {
                "value": float(gauge.value),
                "source": gauge.source,
                "series": [[float(at), float(value)] for at, value in gauge.series],
            }
            for name, gauge in telemetry.gauges.items()
        },
    }


def _is_nan(value: object) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


def _number(value: Any) -> Any:
    """What the database's driver takes: no NumPy scalars, NaN as NULL, strings clean."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return text(value)
    return None if _is_nan(value) else value


def comparison_row(study_id: int, comparison: Comparison) -> ComparisonRow:
    return ComparisonRow(
        study_id=study_id,
        taken_at=comparison.taken_at,
        first=int(comparison.first),
        second=int(comparison.second),
        metric=text(comparison.metric),
        effect=_number(comparison.effect),
        low=_number(comparison.interval.low),
        high=_number(comparison.interval.high),
        relation=str(comparison.relation),
        pairs=int(comparison.pairs),
    )


def variant_row(study_id: int, record: VariantRecord) -> VariantRow:
    return VariantRow(
        study_id=study_id,
        variant=str(record.variant),
        step=text(record.step),
        digest=text(record.digest),
        file=text(record.file),
        size_mb=_number(record.size_mb),
        seconds=_number(record.seconds),
        cached=bool(record.cached),
        accuracy_drop=_number(record.accuracy_drop),
        served_drop=_number(record.served_drop),
        refused=text(record.refused),
        attempts=[
            {
                "what": attempt.what,
                "accuracy_drop": attempt.accuracy_drop,
                "seconds": attempt.seconds,
                "kept": bool(attempt.kept),
                "note": attempt.note,
            }
            for attempt in record.attempts
        ],
        tools=dict(record.tools),
        notes=list(record.notes),
    )


def pack_samples(samples: RequestSamples) -> bytes:
    """The four arrays as a compressed ``.npz``."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        scheduled_s=np.asarray(samples.scheduled_s, dtype=np.float64),
        sent_s=np.asarray(samples.sent_s, dtype=np.float64),
        done_s=np.asarray(samples.done_s, dtype=np.float64),
        ok=np.asarray(samples.ok, dtype=np.bool_),
    )
    return buffer.getvalue()


def unpack_samples(blob: bytes) -> RequestSamples:
    with np.load(io.BytesIO(blob), allow_pickle=False) as arrays:
        return RequestSamples(
            scheduled_s=arrays["scheduled_s"],
            sent_s=arrays["sent_s"],
            done_s=arrays["done_s"],
            ok=arrays["ok"],
        )


# ----------------------------------------------------------------------------------- from rows
class _Columns:
    """Reads a row's columns, with NaN back where it was."""

    def __init__(self, row: MeasurementRow) -> None:
        self._row = row
        self._nan = set(row.nan_columns)

    def optional(self, name: str) -> float | None:
        value: float | None = math.nan if name in self._nan else getattr(self._row, name)
        return value

    def number(self, name: str) -> float:
        value = self.optional(name)
        assert value is not None, f"measurements.{name} of row {self._row.id} is NULL"
        return value

    def number_or_zero(self, name: str) -> float:
        """Of a column that rows of schema 0001 have no value for."""
        value = self.optional(name)
        return 0.0 if value is None else value


def measurement(row: MeasurementRow, *, samples: bool) -> Measurement:
    columns = _Columns(row)
    return Measurement(
        purpose=Purpose(row.purpose),
        started_at=row.started_at,
        load=_load(row, columns, samples=samples),
        server=_server(row, columns),
        telemetry=TelemetryWindow(
            utilization=columns.optional("utilization"),
            source=row.utilization_source,
            memory_mb=columns.optional("memory_mb"),
            memory_source=row.memory_source,
            memory_total_mb=columns.optional("memory_total_mb"),
            series=tuple((at, share) for at, share in row.telemetry_series),
            foreign_cpu=columns.optional("foreign_cpu"),
            foreign_gpu=tuple(row.foreign_gpu),
            throttled=tuple(row.throttled),
            gauges={name: _gauge(stored) for name, stored in row.gauges.items()},
            notes=row.telemetry_notes,
        ),
        saturation_qps=columns.optional("saturation_qps"),
        instances=row.instances,
        reload_s=columns.number("reload_s"),
        invalid_because=tuple(row.invalid_because),
        intervals={name: Interval(low, high) for name, (low, high) in row.intervals.items()},
        traffic=_traffic(row, columns),
        saturation_s=columns.number_or_zero("saturation_s"),
        accuracy_drop=columns.optional("accuracy_drop"),
        price_per_hour=columns.optional("price_per_hour"),
    )


def _gauge(stored: Mapping[str, Any]) -> Gauge:
    return Gauge(
        value=stored["value"],
        source=stored["source"],
        series=tuple((at, value) for at, value in stored["series"]),
    )


def _traffic(row: MeasurementRow, columns: _Columns) -> Traffic | None:
    if row.arrival is None:
        return None
    assert row.seed is not None
    return Traffic(
        qps=columns.number("traffic_qps"),
        arrival=row.arrival,
        cv=columns.optional("arrival_cv"),
        seed=row.seed,
    )


def _load(row: MeasurementRow, columns: _Columns, *, samples: bool) -> LoadResult:
    blob = row.samples if samples else None
    return LoadResult(
        offered_qps=columns.number("offered_qps"),
        achieved_qps=columns.number("achieved_qps"),
        window_s=columns.number("window_s"),
        scheduled=row.scheduled,
        sent=row.sent,
        completed=row.completed,
        ok=row.ok,
        errors=row.errors,
        error_texts=row.error_texts,
        latency=_summary(row, columns, _LATENCY),
        service_latency=_summary(row, columns, _SERVICE),
        send_lag=_summary(row, columns, _LAG),
        generator_cpu=columns.number("generator_cpu"),
        max_in_flight=row.max_in_flight,
        in_flight_cap_hit=row.in_flight_cap_hit,
        histogram=row.histogram,
        samples=None if blob is None else unpack_samples(blob),
        warmup_s=columns.number_or_zero("warmup_s"),
        steady=row.steady,
        ended=Ended.MAXIMUM if row.ended is None else Ended(row.ended),
    )


def _summary(row: MeasurementRow, columns: _Columns, prefix: str) -> LatencySummary | None:
    count: int | None = getattr(row, f"{prefix}count")
    if count is None:
        return None
    named = {p: columns.optional(f"{prefix}p{p:g}_ms") for p in PERCENTILES}
    known = {p: value for p, value in named.items() if value is not None}
    others: Mapping[float, float] = dict(row.other_percentiles.get(prefix, ()))
    return LatencySummary(
        count=count,
        mean_ms=columns.number(f"{prefix}mean_ms"),
        max_ms=columns.number(f"{prefix}max_ms"),
        percentiles_ms={**known, **others},
    )


def _server(row: MeasurementRow, columns: _Columns) -> ServerWindow | None:
    if row.server_requests is None:
        return None
    assert row.executions is not None
    assert row.failures is not None
    return ServerWindow(
        requests=row.server_requests,
        executions=row.executions,
        failures=row.failures,
        queue_ms=columns.number("queue_ms"),
        compute_input_ms=columns.number("compute_input_ms"),
        compute_infer_ms=columns.number("compute_infer_ms"),
        compute_output_ms=columns.number("compute_output_ms"),
        batches=_batches(row.batches),
        instances=row.server_instances or 0,
        steps={name: _step(step) for name, step in row.steps.items()},
    )


def _step(stored: Mapping[str, Any]) -> ServerWindow:
    return ServerWindow(
        requests=stored["requests"],
        executions=stored["executions"],
        failures=stored["failures"],
        queue_ms=stored["queue_ms"],
        compute_input_ms=stored["compute_input_ms"],
        compute_infer_ms=stored["compute_infer_ms"],
        compute_output_ms=stored["compute_output_ms"],
        batches=_batches(stored["batches"]),
        instances=stored["instances"],
        calls=stored.get("calls", 1),  # before it was recorded
        steps={name: _step(inner) for name, inner in stored["steps"].items()},
    )


def _batches(triples: list[Any]) -> dict[int, BatchStat]:
    return {
        size: BatchStat(executions=executions, compute_ms=compute_ms)
        for size, executions, compute_ms in triples
    }


def trial(row: TrialRow, *, samples: bool) -> Trial:
    return Trial(
        number=row.number,
        candidate=Candidate.from_json(row.candidate),
        state=TrialState(row.state),
        measurements=tuple(measurement(one, samples=samples) for one in row.measurements),
        reason=row.reason,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def study(row: StudyRow, environment: Mapping[str, Any] | None, trials: int) -> StudyRecord:
    return StudyRecord(
        id=row.id,
        name=row.name,
        state=StudyState(row.state),
        definition=row.definition,
        digest=row.digest,
        created_at=row.created_at,
        ended_at=row.ended_at,
        reason=row.reason,
        environment=environment,
        trials=trials,
    )


def comparison(row: ComparisonRow) -> Comparison:
    return Comparison(
        first=row.first,
        second=row.second,
        metric=row.metric,
        effect=_nan_for_null(row.effect),
        interval=Interval(_nan_for_null(row.low), _nan_for_null(row.high)),
        relation=Relation(row.relation),
        pairs=row.pairs,
        taken_at=row.taken_at,
    )


def _nan_for_null(value: float | None) -> float:
    return math.nan if value is None else value


def variant(row: VariantRow) -> VariantRecord:
    return VariantRecord(
        variant=Variant.parse(row.variant),
        step=row.step,
        digest=row.digest,
        file=row.file,
        size_mb=row.size_mb,
        seconds=row.seconds,
        cached=row.cached,
        accuracy_drop=row.accuracy_drop,
        served_drop=row.served_drop,
        refused=row.refused,
        attempts=tuple(Attempt(**attempt) for attempt in row.attempts),
        tools=row.tools,
        notes=tuple(row.notes),
    )


def decision(row: DecisionRow) -> DecisionRecord:
    return DecisionRecord(
        study_id=row.study_id,
        taken_at=row.taken_at,
        rule=row.rule,
        pick=row.pick,
        detail=row.detail,
        exported_to=row.exported_to,
    )
