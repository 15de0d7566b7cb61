"""Part (c): how long a batch takes, by its size and by how many instances are busy at once.

Triton without a batcher executes each request by itself. So a request that holds n images is an
execution of n, and enough open requests keep every instance busy: a point needs neither the model
loaded anew nor a batcher's luck. Times are from Triton's own statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.errors import ServerFailed
from autotune.core.validity import generator_bound
from tests.gpu.bench import Bench, Loaded, definition, opened
from tests.gpu.context import Context
from tests.gpu.models import Model, model_of
from tests.gpu.precisions import FP32

OPEN_PER_INSTANCE = 3
"""One that runs, one that is ready, one on its way."""
SLACK_S = 0.6
"""What a point takes beside its loads."""
LONGEST_S = 4.0
LEAST_EXECUTIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    precision: str
    instances: int
    batches: Sequence[int]


def planned(context: Context, model: Model) -> Iterator[Curve]:
    """What matters most first: the precision that is expected to be fastest with one instance and
    with more, then fp32 with one."""
    scale = context.scale
    for instances in scale.instances:
        batches = scale.batches if instances == 1 else scale.few_batches
        yield Curve(precision=model.fastest, instances=instances, batches=batches)
    if model.fastest != FP32:
        yield Curve(precision=FP32, instances=1, batches=scale.batches)


def run(context: Context) -> None:
    model = model_of(context)
    context.report.keep(model=str(model.source), precisions=list(model.precisions))
    found: list[dict[str, Any]] = []
    with opened(context, definition(context, model, "curves")) as bench:
        context.report.made_with(triton=str(bench.server.identity()["triton"]))
        for curve in planned(context, model):
            points: list[dict[str, Any]] = []
            found.append(
                {"precision": curve.precision, "instances": curve.instances, "points": points}
            )
            try:
                bench.server.apply(model.served(curve.precision, curve.instances))
                _measure(context, bench, curve, points, found)
            except ServerFailed as error:  # out of memory, say: the other curves go on
                context.report.note(f"{curve.precision}, {curve.instances} instances: {error}")
    context.report.keep(curves=[each for each in found if each["points"]])
    if not any(each["points"] for each in found):
        raise RuntimeError("no point could be measured")


def _measure(
    context: Context,
    bench: Bench,
    curve: Curve,
    points: list[dict[str, Any]],
    found: Sequence[dict[str, Any]],
) -> None:
    """Its points, one after another; ``points`` grows and is kept each time."""
    scale = context.scale
    for size in curve.batches:
        if context.deadline.left_s < scale.settle_s + scale.point_s + SLACK_S:
            context.report.note(
                f"no time was left for {curve.precision}, {curve.instances} instances from batch"
                f" {size} on"
            )
            return
        bench.send_batches_of(size)
        in_flight = OPEN_PER_INSTANCE * curve.instances
        seconds = _long_enough(scale.point_s, points, size)
        loaded = bench.saturate(in_flight=in_flight, warmup_s=scale.settle_s, seconds=seconds)
        points.append(point(size, loaded, bench))
        context.report.keep(curves=[each for each in found if each["points"]])


def _long_enough(seconds: float, points: Sequence[dict[str, Any]], size: int) -> float:
    """For some executions, if they take as long as the last point says."""
    if not points or points[-1]["ms"] is None:
        return seconds
    expected_ms = points[-1]["ms"] * size / points[-1]["batch"]
    return float(min(LONGEST_S, max(seconds, LEAST_EXECUTIONS * expected_ms / 1000)))


def point(size: int, loaded: Loaded, bench: Bench) -> dict[str, Any]:
    """Milliseconds of one execution, images a second of all instances together, and how busy the
    device was. ``at_least``: the load generator could send no more."""
    stat = loaded.statistics.batches.get(size)
    executions = 0 if stat is None else stat.executions
    gauges = {name: gauge.value for name, gauge in loaded.telemetry.gauges.items()}
    return {
        "batch": size,
        "ms": None if stat is None or not executions else stat.compute_ms,
        "images_s": executions * size / loaded.load.window_s,
        "executions": executions,
        "utilization": loaded.telemetry.utilization,
        "sm_active": gauges.get("sm_active"),
        "at_least": generator_bound(loaded.load, bench.study.trust),
    }
