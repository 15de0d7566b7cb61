"""Whether a measurement can be believed: blames the measuring before it blames the candidate."""

from __future__ import annotations

from autotune.core.measurement import LoadResult
from autotune.core.sla import Sla

LAG_SHARE = 0.10
"""The send lag's p99 may be at most this share of the SLA's tightest latency …"""
LAG_FLOOR_MS = 2.0
"""… or this, where the share would be finer than a general-purpose kernel's scheduling."""
GENERATOR_CPU = 0.90
"""Above this share of its core the generator itself may be what is slow."""
SENT_SHARE = 0.99
"""The least share of the schedule that must have been sent."""
SATURATED_SHARE = 0.95
"""A server that answers less than this share of what is offered has been saturated."""
OVERLOAD = frozenset({"timeout", "unsent", "http_429", "http_503"})
"""The errors that a server's falling behind shows itself in (503 is Triton's full queue); any other
is an answer, bad as it is."""


def saturated(load: LoadResult) -> bool:
    """Whether the server fell behind what it was offered, and so has a queue to work off. A server
    that answers errors in time has not."""
    bad = sum(count for kind, count in load.errors.items() if kind not in OVERLOAD)
    answered_qps = load.achieved_qps + bad / load.window_s
    return answered_qps < SATURATED_SHARE * load.offered_qps


def why_invalid(load: LoadResult, sla: Sla) -> tuple[str, ...]:
    """The reasons why a load phase says nothing about its candidate; empty if there is none.

    A full in-flight cap is the candidate's own doing where the server fell behind; it is the
    measuring's where the server kept up.
    """
    if load.scheduled == 0:
        return ("no request was scheduled within the measured window",)
    allowed_ms = max(LAG_FLOOR_MS, LAG_SHARE * sla.tightest_latency_ms)
    lag_ms = load.send_lag.at(99.0) if load.send_lag is not None else 0.0
    checks = (
        (
            lag_ms > allowed_ms,
            f"the load generator fell behind its schedule: send lag p99 {lag_ms:.1f} ms,"
            f" allowed {allowed_ms:.1f} ms",
        ),
        (
            load.generator_cpu > GENERATOR_CPU,
            f"the load generator used {load.generator_cpu:.0%} of its core: it may be the"
            " bottleneck itself",
        ),
        (
            load.in_flight_cap_hit and not saturated(load),
            f"the cap on open requests was hit ({load.max_in_flight}) though the server kept up:"
            " raise workload.max_in_flight",
        ),
        (
            load.sent < SENT_SHARE * load.scheduled and not load.in_flight_cap_hit,
            f"only {load.sent} of {load.scheduled} scheduled requests were sent",
        ),
    )
    return tuple(reason for holds, reason in checks if holds)
