"""GPU utilization and memory as the server's own metrics tell them."""

from __future__ import annotations

import http.client
import math
import re
import urllib.request
from collections.abc import Mapping, Sequence

from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.sampling import Reading, Source, Unavailable
from autotune.core.model_interface import Endpoint

_UTILIZATION = "nv_gpu_utilization"
_MEMORY = "nv_gpu_memory_used_bytes"
_MEMORY_TOTAL = "nv_gpu_memory_total_bytes"
_POWER = "nv_gpu_power_usage"
_ENERGY = "nv_energy_consumption"
_TIMEOUT_S = 2.0


class TritonMetrics(Source):
    """Reads ``nv_gpu_utilization`` (0 to 1, mean over GPUs), memory, power and energy (sums) from
    the server's metrics page. Triton refreshes them every ``--metrics-interval-ms``, two seconds
    unless told otherwise."""

    name = "triton_metrics"
    memory_name = "triton_metrics"

    def __init__(self) -> None:
        self._url = self._page = ""

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:  # noqa: ARG002
        self._url, page = first_page(endpoint)
        if not parse_gauges(page, _UTILIZATION):
            raise Unavailable("the server reports no GPU")
        self._began_j = _total(parse_gauges(page, _ENERGY))
        return {}

    def utilization(self) -> float | None:
        self._page = self._read()
        values = parse_gauges(self._page, _UTILIZATION)
        return sum(values) / len(values) if values else None

    def memory_mb(self) -> float | None:
        return _in_mb(_total(parse_gauges(self._read(), _MEMORY)))

    def memory_total_mb(self) -> float | None:
        return _in_mb(_total(parse_gauges(self._read(), _MEMORY_TOTAL)))

    def gauges(self) -> Mapping[str, Reading]:
        """From the page that `utilization` read. A counter that has not risen has not been
        refreshed yet. One that began anew is that of a server that has restarted: its energy is
        unknown then."""
        power, energy = (_total(parse_gauges(self._page, name)) for name in (_POWER, _ENERGY))
        used = None if energy is None or self._began_j is None else energy - self._began_j
        found = {"power_w": power, "energy_j": used}
        return {
            name: Reading(value=value, source=self.name)
            for name, value in found.items()
            if value is not None and value > 0
        }

    def disturbance(self) -> Disturbance:
        return Disturbance()

    def close(self) -> None:
        self._url = ""

    def _read(self) -> str:
        """Empty where the page cannot be had just now."""
        try:
            return read_page(self._url)
        except OSError:
            return ""


def _total(values: Sequence[float]) -> float | None:
    """Over a server's GPUs. Triton tells zero for what it cannot read: no GPU has no memory, or
    draws no power; so with a zero among them the total is unknown."""
    return sum(values) if values and all(values) else None


def _in_mb(size: float | None) -> float | None:
    return None if size is None else size / 1e6


def first_page(endpoint: Endpoint) -> tuple[str, str]:
    """A server's metrics URL and what it says now; Unavailable where it says nothing."""
    url = endpoint.metrics_url
    if url is None:
        raise Unavailable("the server has no metrics URL")
    if not url.startswith(("http://", "https://")):
        raise Unavailable(f"not an HTTP metrics URL: {url}")
    try:
        return url, read_page(url)
    except OSError as exc:
        raise Unavailable(f"the metrics page cannot be read: {exc}") from exc


def read_page(url: str) -> str:
    """OSError where it cannot be had."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310
            body: bytes = response.read()
    except (http.client.HTTPException, ValueError) as exc:  # an answer that broke off; no URL
        raise OSError(repr(exc)) from exc
    return body.decode("utf-8", errors="replace")


def parse_gauges(page: str, name: str) -> list[float]:
    """The values of one metric in Prometheus text format, one per set of labels, without those that
    are no finite number."""
    pattern = rf"^{re.escape(name)}(?:\{{[^\n]*\}})?[ \t]+(\S+)(?:[ \t]+\d+)?[ \t]*$"
    values: list[float] = []
    for match in re.finditer(pattern, page, re.MULTILINE):
        try:
            value = float(match.group(1))
        except ValueError:
            continue
        if math.isfinite(value):
            values.append(value)
    return values
