"""Whether a measurement can be believed: blames the measuring before it blames the candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.core.measurement import Ended, LoadResult, TelemetryWindow
from autotune.core.sla import EDGE_REQUESTS, Sla
from autotune.core.study import Trust

LAG_FLOOR_MS = 2.0
"""The send lag's p99 may always be this much: a share of a short latency would be finer than a
general-purpose kernel's scheduling."""
SHARE = 0.99
"""The least share of what is asked that must be offered, of what is offered that must be sent, and
of what is sent that must be answered somehow."""
SATURATED_SHARE = 0.95
"""A server that answers less than this share of what is offered has been saturated."""
OVERLOAD = frozenset({"timeout", "unsent", "http_429", "http_503"})
"""The errors that a server's falling behind shows itself in (503 is Triton's full queue); any other
is an answer, bad as it is."""
UNANSWERED = frozenset({"timeout", "connection"})
"""The errors in which a request that was sent got no answer at all."""
MOST_FOREIGN = "foreign_cpu_most"
"""The note of a `TelemetryWindow` that names who took most of ``foreign_cpu``."""
LOST_GPU = "gpu_lost"
"""The note of a `TelemetryWindow` in which a GPU of the server's went away, with what its driver
said."""


def saturated(load: LoadResult) -> bool:
    """Whether the server fell behind what it was offered, and so has a queue to work off. A server
    that answers errors in time has not."""
    if load.ended is Ended.FELL_BEHIND:
        return True
    bad = sum(count for kind, count in load.errors.items() if kind not in OVERLOAD)
    return _missing(load) - bad > (1 - SATURATED_SHARE) * load.scheduled


def why_burst_invalid(
    burst: LoadResult,
    telemetry: TelemetryWindow,
    trust: Trust = Trust(),  # noqa: B008  -- frozen
) -> tuple[str, ...]:
    """The reasons why a saturation burst says nothing of its candidate; empty if there is none."""
    reasons = list(_disturbed(telemetry, trust))
    lost = sum(count for kind, count in burst.errors.items() if kind in UNANSWERED)
    if lost > (1 - SHARE) * burst.scheduled:
        reasons.append(f"{lost} of {burst.scheduled} requests were not answered")
    return tuple(f"in the saturation burst, {reason}" for reason in reasons)


def generator_bound(burst: LoadResult, trust: Trust) -> bool:
    """Whether a saturation burst shows what the load generator can send, rather than what the
    server can take: that is then only known to be at least as much."""
    return burst.generator_cpu > trust.generator_cpu


def why_invalid(
    load: LoadResult,
    sla: Sla,
    telemetry: TelemetryWindow | None = None,
    trust: Trust = Trust(),  # noqa: B008  -- frozen
    asked_qps: float | None = None,
) -> tuple[str, ...]:
    """The reasons why a load phase says nothing about its candidate; empty if there is none.

    For a phase after which the server still lived: one that died is its candidate's failure.
    ``asked_qps`` is the rate that a constant or Poisson schedule was made for; None for arrivals
    whose count cannot be held to one (bursty ones, a trace).
    """
    if load.scheduled == 0:
        return ("no request was scheduled within the measured window: raise workload.measure_s",)
    reasons = [*_generator(load, sla, trust), *_requests(load)]
    if asked_qps is not None:
        reasons += _offered(load, asked_qps)
    if telemetry is not None:
        reasons += _disturbed(telemetry, trust)
    return tuple(reasons)


def _generator(load: LoadResult, sla: Sla, trust: Trust) -> Iterator[str]:
    allowed_ms = max(LAG_FLOOR_MS, trust.send_lag * sla.tightest_latency_ms)
    lag_ms = load.send_lag.at(99.0) if load.send_lag is not None else 0.0
    if lag_ms > allowed_ms:
        yield (
            f"the load generator fell behind its schedule: send lag p99 {lag_ms:.1f} ms,"
            f" allowed {allowed_ms:.1f} ms: leave it more of the processor, or lower the rate"
        )
    if load.generator_cpu > trust.generator_cpu:
        yield (
            f"the load generator used {load.generator_cpu:.0%} of its core, allowed"
            f" {trust.generator_cpu:.0%}: it may be the bottleneck itself: lower the rate"
        )


def _requests(load: LoadResult) -> Iterator[str]:
    """What became of the requests. A full in-flight cap, and requests without an answer, are the
    candidate's own doing where the server fell behind; they are the measuring's where it kept
    up."""
    kept_up = not saturated(load)
    allowed = (1 - SHARE) * load.scheduled
    if load.in_flight_cap_hit and kept_up:
        yield (
            f"the cap on open requests was hit ({load.max_in_flight}) though the server kept up:"
            " raise workload.max_in_flight"
        )
    if load.scheduled - load.sent - EDGE_REQUESTS > allowed and not load.in_flight_cap_hit:
        yield (
            f"only {load.sent} of {load.scheduled} scheduled requests were sent: leave the load"
            " generator more of the processor, or lower the rate"
        )
    lost = _lost(load)
    if lost > allowed and kept_up:
        kinds = ", ".join(f"{load.errors[k]} {k}" for k in sorted(UNANSWERED & load.errors.keys()))
        yield (
            f"{load.achieved_qps:.1f} of {load.offered_qps:.1f} offered requests/s were answered"
            f" though the server kept up; of {load.scheduled} requests some had no answer at all"
            f" ({kinds}): look at the network and this machine's limits on open files"
        )


def _lost(load: LoadResult) -> float:
    """Requests missing from the answers of the window that neither an error that the server
    answered nor an answer after the window accounts for."""
    return min(_missing(load), sum(load.errors.get(kind, 0) for kind in UNANSWERED))


def _missing(load: LoadResult) -> float:
    """By how many the good answers of the window are fewer than its requests, beyond chance.

    A request that is open as the window closes is missing, one that was open as it opened makes up
    for it, and the two numbers differ by chance: by the root of twice their mean, which is the rate
    times the latency (Little's law; Poisson numbers). Two standard deviations are forgiven, up to a
    quarter of the requests, so that nothing is forgiven a server that answers nothing.
    """
    open_mean = 0.0
    if load.latency is not None:
        open_mean = load.offered_qps * load.latency.at(50.0) / 1000
    chance = min(2 * math.sqrt(2 * open_mean), 0.25 * load.scheduled)
    return load.scheduled - load.achieved_qps * load.window_s - max(EDGE_REQUESTS, chance)


def _offered(load: LoadResult, asked_qps: float) -> Iterator[str]:
    """A whole schedule has its count made right (within a percent, or one request); the part of it
    of a window that ended early has not, so that three standard deviations of a Poisson count are
    allowed as well."""
    asked = asked_qps * load.window_s
    allowed = max(1.0, (1 - SHARE) * asked, 3 * math.sqrt(asked))
    if asked - load.scheduled > allowed:
        yield (
            f"only {load.offered_qps:.1f} of {asked_qps:.1f} requests/s asked for were due in the"
            f" measured window of {load.window_s:.1f} s: raise workload.measure_s"
        )


def _disturbed(telemetry: TelemetryWindow, trust: Trust) -> Iterator[str]:
    taken = telemetry.foreign_cpu
    if taken is not None and taken > trust.foreign_cpu:
        most = telemetry.notes.get(MOST_FOREIGN)
        yield (
            f"others took {taken:.0%} of this machine's processor, allowed {trust.foreign_cpu:.0%}"
            f"{f' ({most})' if most else ''}: stop what runs beside the study, or raise"
            " trust.foreign_cpu"
        )
    if telemetry.foreign_gpu:
        pids = ", ".join(map(str, telemetry.foreign_gpu))
        yield (
            f"other processes had work on the server's GPU ({pids}): stop them, or give the server"
            " a GPU of its own"
        )
    if (said := telemetry.notes.get(LOST_GPU)) is not None:
        yield (
            f"the server's GPU went away ({said}): look for Xid in the kernel's log, then reset the"
            " GPU or restart this machine"
        )
    for clock in telemetry.throttled:
        yield f"clocks were lowered: {clock}: see to cooling and power, then measure again"
