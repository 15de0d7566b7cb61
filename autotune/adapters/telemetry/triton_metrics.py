"""GPU utilization and memory as the server's own metrics tell them."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from urllib.parse import urlsplit

from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.sampling import Unavailable
from autotune.core.model_interface import Endpoint

_UTILIZATION = "nv_gpu_utilization"
_MEMORY = "nv_gpu_memory_used_bytes"
_TIMEOUT_S = 2.0


class TritonMetrics:
    """Reads ``nv_gpu_utilization`` (0 to 1, mean over GPUs) and ``nv_gpu_memory_used_bytes`` (sum)
    from the server's metrics page. Triton refreshes them every ``--metrics-interval-ms``, two
    seconds unless told otherwise."""

    name = "triton_metrics"
    memory_name = "triton_metrics"

    def __init__(self) -> None:
        self._url = ""

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:  # noqa: ARG002
        self._url, page = first_page(endpoint)
        if not parse_gauges(page, _UTILIZATION):
            raise Unavailable("the server reports no GPU")
        return {}

    def utilization(self) -> float | None:
        values = self._gauges(_UTILIZATION)
        return sum(values) / len(values) if values else None

    def memory_mb(self) -> float | None:
        values = self._gauges(_MEMORY)
        return sum(values) / 1e6 if values else None

    def disturbance(self) -> Disturbance:
        return Disturbance()

    def close(self) -> None:
        self._url = ""

    def _gauges(self, name: str) -> list[float]:
        try:
            return parse_gauges(read_page(self._url), name)
        except OSError:
            return []


def first_page(endpoint: Endpoint) -> tuple[str, str]:
    """A server's metrics URL and what it says now; Unavailable where it says nothing."""
    url = endpoint.metrics_url
    if url is None:
        raise Unavailable("the server has no metrics URL")
    if urlsplit(url).scheme not in {"http", "https"}:
        raise Unavailable(f"not an HTTP metrics URL: {url}")
    try:
        return url, read_page(url)
    except OSError as exc:
        raise Unavailable(f"the metrics page cannot be read: {exc}") from exc


def read_page(url: str) -> str:
    """OSError where it cannot be had."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310
        body: bytes = response.read()
    return body.decode("utf-8", errors="replace")


def parse_gauges(page: str, name: str) -> list[float]:
    """The values of one metric in Prometheus text format, one per set of labels, NaN left out."""
    pattern = rf"^{re.escape(name)}(?:\{{[^\n]*\}})?[ \t]+(\S+)(?:[ \t]+\d+)?[ \t]*$"
    values: list[float] = []
    for match in re.finditer(pattern, page, re.MULTILINE):
        try:
            value = float(match.group(1))
        except ValueError:
            continue
        if value == value:  # noqa: PLR0124  -- NaN is not equal to itself
            values.append(value)
    return values
