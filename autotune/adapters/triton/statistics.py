"""Triton's cumulative statistics of a model or pipeline, and what happened between two readings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.errors import ServerFailed
from autotune.core.measurement import BatchStat, ServerWindow

_DURATIONS = ("queue", "compute_input", "compute_infer", "compute_output")
_COMPUTE = _DURATIONS[1:]

Key = str | tuple[int, str]


@dataclass(frozen=True, slots=True)
class Mark:
    """A reading: cumulative counters by name, summed over the model's versions; times in ns.

    Names are ``success``, ``fail``, ``executions``, ``<duration>`` and ``<duration>.count``, and
    for each batch size ``(size, "count")`` and ``(size, "ns")``. ``steps``: of a pipeline, the
    readings of its steps at the same moment.
    """

    counters: dict[Key, int]
    steps: Mapping[str, Mark] = field(default_factory=dict)


def read(response: Any) -> Mark:
    """From a ``ModelStatisticsResponse`` (protocol: grpc_service.proto of triton-inference-server)
    about one model.

    ``success`` counts requests; each duration has its own count, which is smaller where requests
    were answered from the cache.
    """
    return _summed(response.model_stats)


def read_pipeline(response: Any, ensemble: str, steps: Collection[str]) -> Mark:
    """The same from a response about all models of a server."""
    by_model: dict[str, list[Any]] = {name: [] for name in (ensemble, *steps)}
    for version in response.model_stats:
        by_model.get(version.name, []).append(version)
    marks = {name: _summed(versions) for name, versions in by_model.items()}
    return Mark(marks.pop(ensemble).counters, marks)


def _summed(versions: Any) -> Mark:
    counters: dict[Key, int] = {}

    def add(key: Key, amount: int) -> None:
        counters[key] = counters.get(key, 0) + amount

    for version in versions:
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


def between(
    start: Mark,
    end: Mark,
    *,
    instances: Mapping[str, int] | None = None,
    calls: Mapping[str, int] | None = None,
) -> ServerWindow:
    """The difference of two readings, times as means in ms per request (per execution for
    batches). ``instances``: how many served it, by step, or under the empty name. ``calls``: how
    often a request of a pipeline passes each step, once where it is not said.

    Of a pipeline the times are those of a request on its whole way: each step's mean times its
    calls, summed. (A step's total divided by the requests that came out at the end would count
    those that still wait further down.) ServerFailed if the counters went back: a model was loaded
    anew in between.
    """
    counts, passes = instances or {}, calls or {}
    if not end.steps:
        return _window(start, end, counts.get("", 0))
    nothing = Mark({})
    steps = {
        name: _window(
            start.steps.get(name, nothing), mark, counts.get(name, 0), passes.get(name, 1)
        )
        for name, mark in end.steps.items()
    }

    def on_the_way(name: str) -> float:
        return sum(step.calls * float(getattr(step, name)) for step in steps.values())

    whole = _window(start, end, 0)
    return ServerWindow(
        requests=whole.requests,
        executions=sum(step.executions for step in steps.values()),
        failures=whole.failures,
        queue_ms=on_the_way("queue_ms"),
        compute_input_ms=on_the_way("compute_input_ms"),
        compute_infer_ms=on_the_way("compute_infer_ms"),
        compute_output_ms=on_the_way("compute_output_ms"),
        steps=steps,
    )


def began_anew(start: Mark, end: Mark) -> set[str]:
    """The steps of a pipeline that were loaded anew between two readings, as far as their counters
    tell: one that had served nothing before tells nothing."""
    return {name for name, mark in end.steps.items() if _back(start.steps[name], mark)}


def _back(start: Mark, end: Mark) -> bool:
    counters = {*start.counters, *end.counters}
    return any(end.counters.get(key, 0) < start.counters.get(key, 0) for key in counters)


def _window(start: Mark, end: Mark, instances: int, calls: int = 1) -> ServerWindow:
    def delta(key: Key) -> int:
        return end.counters.get(key, 0) - start.counters.get(key, 0)

    if _back(start, end):
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
        instances=instances,
        calls=calls,
    )
