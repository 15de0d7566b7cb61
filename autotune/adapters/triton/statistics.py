"""Triton's cumulative statistics of one model, and what happened between two readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.core.errors import ServerFailed
from autotune.core.measurement import BatchStat, ServerWindow

_DURATIONS = ("queue", "compute_input", "compute_infer", "compute_output")
_COMPUTE = _DURATIONS[1:]


@dataclass(frozen=True, slots=True)
class Mark:
    """A reading: cumulative counters by name, summed over the model's versions; times in ns.

    Names are ``success``, ``fail``, ``executions``, ``<duration>`` and ``<duration>.count``, and
    for each batch size ``(size, "count")`` and ``(size, "ns")``.
    """

    counters: dict[str | tuple[int, str], int]


def read(response: Any) -> Mark:
    """From a ``ModelStatisticsResponse`` (protocol: grpc_service.proto of triton-inference-server).

    ``success`` counts requests; each duration has its own count, which is smaller where requests
    were answered from the cache.
    """
    counters: dict[str | tuple[int, str], int] = {}

    def add(key: str | tuple[int, str], amount: int) -> None:
        counters[key] = counters.get(key, 0) + amount

    for version in response.model_stats:
        add("success", version.inference_stats.success.count)
        add("fail", version.inference_stats.fail.count)
        add("executions", version.execution_count)
        for name in _DURATIONS:
            duration = getattr(version.inference_stats, name)
            add(name, duration.ns)
            add(f"{name}.count", duration.count)
        for batch in version.batch_stats:
            add((batch.batch_size, "count"), batch.compute_infer.count)
            add((batch.batch_size, "ns"), sum(getattr(batch, name).ns for name in _COMPUTE))
    return Mark(counters)


def between(start: Mark, end: Mark) -> ServerWindow:
    """The difference of two readings, times as means in ms per request (per execution for
    batches). ServerFailed if the counters went back: the model was loaded anew in between."""

    def delta(key: str | tuple[int, str]) -> int:
        return end.counters.get(key, 0) - start.counters.get(key, 0)

    if any(delta(key) < 0 for key in (*start.counters, *end.counters)):
        raise ServerFailed(
            "the model's statistics began anew within the window",
            next_step="something else reloaded the model; tune a server that nothing else controls",
        )

    def mean_ms(name: str) -> float:
        count = delta(f"{name}.count")
        return delta(name) / count / 1e6 if count else 0.0

    return ServerWindow(
        requests=delta("success"),
        executions=delta("executions"),
        failures=delta("fail"),
        queue_ms=mean_ms("queue"),
        compute_input_ms=mean_ms("compute_input"),
        compute_infer_ms=mean_ms("compute_infer"),
        compute_output_ms=mean_ms("compute_output"),
        batches={
            size: BatchStat(executions=count, compute_ms=delta((size, "ns")) / count / 1e6)
            for size in sorted({key[0] for key in end.counters if isinstance(key, tuple)})
            if (count := delta((size, "count")))
        },
    )
