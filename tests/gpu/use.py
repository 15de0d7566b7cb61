"""Part (f): how busy the device is, as a newcomer configures it and with the pick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.core.errors import LoadFailed, ServerFailed
from autotune.core.measurement import LoadResult
from autotune.core.validity import generator_bound, saturated
from search_spaces.candidate import INSTANCES, MAX_BATCH_SIZE, Candidate
from tests.gpu.bench import Bench, Loaded, opened
from tests.gpu.context import Context
from tests.gpu.models import model_of
from tests.gpu.precisions import FP32
from tests.gpu.report import Skipped
from tests.gpu.study import NAME, Target, question
from tests.gpu.truth import values_of

BEFORE, AFTER = "before", "after"
AT_RATE, SATURATED = "at the study's rate", "at saturation"
SHORTEST_S = 0.5
LONGEST_POINTS = 4
"""Of a point of the curves: the longest window."""
BESIDE_S = 1.5
"""What a configuration takes beside its two loads, before any has shown it."""
GAUGES = ("sm_active", "tensor_active", "dram_active", "power_w")


def run(context: Context) -> None:
    found = context.found_by("study")
    if "target" not in found:
        raise Skipped("there is no rate to load it with: see part (d)")
    model = model_of(context)
    target = Target(
        offered_qps=found["target"]["offered_qps"], p95_ms=found["target"]["p95_ms"], because=""
    )
    study = {**question(context, model, target, minutes=1.0), "study": f"{NAME}-use"}
    configurations = {BEFORE: model.served(FP32)}
    if found.get("chosen") is None:
        context.report.note("there is no pick: see part (d)")
    else:
        configurations[AFTER] = Candidate(values_of(found["chosen"]["candidate"]))
    context.report.keep(offered_qps=target.offered_qps)
    rows: list[dict[str, Any]] = []
    with opened(context, study) as bench:
        for row in _rows(context, bench, configurations, target):
            rows.append(row)
            context.report.keep(rows=rows)
    if not any(row.get("achieved_qps") for row in rows):
        raise RuntimeError("no configuration could be loaded")


def _rows(
    context: Context, bench: Bench, configurations: Mapping[str, Candidate], target: Target
) -> Iterator[dict[str, Any]]:
    settle_s, beside_s = context.scale.settle_s, BESIDE_S
    for place, (name, candidate) in enumerate(configurations.items()):
        left_s = context.deadline.left_s
        # The two windows of this one, and as much for each that is still to come.
        seconds = (left_s / (len(configurations) - place) - beside_s) / 2 - settle_s
        if seconds < SHORTEST_S:
            context.report.note(f"no time was left for the configuration {name}")
            return
        seconds = min(seconds, LONGEST_POINTS * context.scale.point_s)
        told = {"configuration": name, "candidate": candidate.to_json()}
        try:
            bench.server.apply(candidate)
            bench.send_single()
            # The burst first: it leaves no queue behind that the other load would find.
            yield {**told, "load": SATURATED, **_burst(bench, candidate, settle_s, seconds)}
            yield {**told, "load": AT_RATE, **_offer(bench, target, settle_s, seconds)}
        except (ServerFailed, LoadFailed) as error:
            yield {**told, "load": "", "reason": str(error)}
        beside_s = max(beside_s, left_s - context.deadline.left_s - 2 * (settle_s + seconds))


def _burst(bench: Bench, candidate: Candidate, settle_s: float, seconds: float) -> dict[str, Any]:
    batch, instances = candidate.get(MAX_BATCH_SIZE, 1), candidate.get(INSTANCES, 1)
    assert isinstance(batch, int)
    assert isinstance(instances, int)
    in_flight = max(16, 3 * batch * instances)
    loaded = bench.saturate(in_flight=in_flight, warmup_s=settle_s, seconds=seconds)
    return _row(loaded, at_least=generator_bound(loaded.load, bench.study.trust))


def _offer(bench: Bench, target: Target, settle_s: float, seconds: float) -> dict[str, Any]:
    loaded = bench.offer(target.offered_qps, warmup_s=settle_s, seconds=seconds)
    return {**_row(loaded), "fell_behind": saturated(loaded.load), "p95_ms": _p95(loaded.load)}


def _p95(load: LoadResult) -> float | None:
    return None if load.latency is None else load.latency.at(95.0)


def _row(loaded: Loaded, *, at_least: bool = False) -> dict[str, Any]:
    seen = loaded.telemetry
    gauges = {name: seen.gauges[name].value for name in GAUGES if name in seen.gauges}
    return {
        "achieved_qps": loaded.load.achieved_qps,
        "at_least": at_least,
        "mean_batch": loaded.statistics.mean_batch,
        "utilization": seen.utilization,
        "source": seen.source,
        **{name: gauges.get(name) for name in GAUGES},
    }
