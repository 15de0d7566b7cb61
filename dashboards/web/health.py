"""What watches over the service asks: does it live, is it ready, how does it fare.

``/healthz`` and ``/readyz`` are open to anyone (see `dashboards.web.security`), and name no more
than parts of the service. ``/metrics`` tells of schedules and devices: it takes a token where the
service does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from autotune.service_ports import Desks


def registry_of(desks: Desks) -> CollectorRegistry:
    """What ``/metrics`` tells: what is stored, and this process's memory and processor time."""
    registry = CollectorRegistry()
    registry.register(_Stored(desks))
    ProcessCollector(registry=registry)
    return registry


def health_router(desks: Desks, registry: CollectorRegistry) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/healthz")
    async def alive() -> Mapping[str, str]:
        return {"status": "ok"}

    @router.get("/readyz")
    def ready() -> JSONResponse:
        problems = list(desks.problems())
        content = {"status": "not ready" if problems else "ready", "problems": problems}
        return JSONResponse(content, status_code=503 if problems else 200)

    @router.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


class _Stored(Collector):
    """What is counted in the database, read when it is asked for."""

    def __init__(self, desks: Desks) -> None:
        self._desks = desks

    def collect(self) -> Iterator[Metric]:
        figures = self._desks.figures()
        ready = GaugeMetricFamily("autotune_ready", "1 if nothing keeps the service from working.")
        ready.add_metric((), not self._desks.problems())
        yield ready
        yield _gauge("jobs", "Jobs by kind and state.", ("kind", "state"), figures.jobs)
        seconds = CounterMetricFamily(
            "autotune_job_seconds",
            "Seconds that ended jobs took, by kind and how they ended.",
            labels=("kind", "state"),
        )
        for labels, value in figures.job_seconds.items():
            seconds.add_metric([str(each) for each in labels], value)
        yield seconds
        yield _gauge(
            "night_runs",
            "Runs of schedules, by outcome or, without one, by state.",
            ("schedule", "outcome"),
            figures.runs,
        )
        yield _gauge("notices", "Notices by event and state.", ("event", "state"), figures.notices)
        held = {(device,): 1 for device in figures.leases}
        yield _gauge("device_leased", "1 for each device that a job holds.", ("device",), held)
        waiting = GaugeMetricFamily(
            "autotune_queue_age_seconds", "How long the oldest queued job has waited."
        )
        since = figures.oldest_queued_at
        waiting.add_metric((), 0.0 if since is None else max(0.0, time.time() - since))
        yield waiting
        yield _gauge(
            "schedule_last_success_timestamp_seconds",
            "When a schedule's latest successful run ended.",
            ("schedule",),
            {(name,): at for name, at in figures.last_success.items()},
        )


def _gauge(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"autotune_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric([str(each) for each in key], value)
    return family
