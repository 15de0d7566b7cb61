"""The shadow check: what is in service is measured beside its own traffic, and held to the SLA.

The server's statistics say how much comes in by itself; requests of our own make that up to the
rate that the study measured at, and are what is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.core.measured_intervals import intervals_of
from autotune.core.measurement import (
    PERCENTILES,
    Ended,
    LoadResult,
    Measurement,
    Purpose,
    TelemetryWindow,
)
from autotune.core.model_interface import Endpoint, ModelInterface, Sample
from autotune.core.sla import Finding, Outcome, Sla, Verdict, judge
from autotune.core.stopping import StopRule
from autotune.core.study import Study
from autotune.core.validity import why_invalid
from autotune.core.wording import rate_words
from autotune.ports import Clock, LoadDriver, LoadPlan, OpenLoop
from autotune.retune.promote import Checked

LISTEN_S = 3.0
"""How long the live traffic is watched before the probes."""
LEAST_QPS = 1.0
WARMUP_S = 5.0
ATTEMPTS = 2
"""How often probes are sent that cannot be believed."""
LATENCIES = {f"p{percentile:g}_ms": percentile for percentile in PERCENTILES}
"""The metrics that are latencies, each with its percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The service that is looked at. ``answered`` reads how many requests it has answered so far;
    ``interface`` and ``samples`` say what it takes. All raise ServerFailed if it is gone."""

    endpoint: Endpoint
    answered: Callable[[], int]
    interface: Callable[[], ModelInterface]
    samples: Callable[[ModelInterface], Sequence[Sample]]


class _Window:
    """Ends the probes as soon as they are clear."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule

    def opened(self) -> None: ...

    def enough(self, so_far: LoadResult) -> Ended | None:
        return self._rule(so_far)

    def closed(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbingCheck:
    """Sends probes for ``shadow_s`` seconds; implements `retune.promote.ShadowCheck`."""

    study: Study
    probes: Probes
    load: LoadDriver
    clock: Clock
    shadow_s: float

    def check(self) -> Checked:
        live_qps = self._live_qps()
        qps = max(LEAST_QPS, self.study.workload.offered_qps - live_qps)
        interface = self.probes.interface()
        self.load.prepare(interface, self.probes.samples(interface))
        for _ in range(ATTEMPTS):
            measured = self._measure(qps)
            verdict = judge(measured, self._sla)
            believed = measured.valid or _answers_badly(verdict)
            if believed:
                break
        self.probes.answered()  # a server that died meanwhile has failed; it is not undecided
        believed = believed or self._late_however_sent(measured, verdict)
        return _checked(verdict, measured, live_qps, qps, believed=believed)

    def _late_however_sent(self, measured: Measurement, verdict: Verdict) -> bool:
        """Where nothing but the send lag speaks against the probes."""
        patient = replace(self.study.trust, send_lag=math.inf)
        if why_invalid(measured.load, self._sla, trust=patient):
            return False
        return any(_late_from_the_send(measured.load, each) for each in verdict.findings)

    def _live_qps(self) -> float:
        before = self.probes.answered()
        self.clock.sleep(LISTEN_S)
        return max(0.0, (self.probes.answered() - before) / LISTEN_S)

    @property
    def _sla(self) -> Sla:
        """What is answered was held against the source model when the variant was made."""
        return replace(self.study.sla, accuracy_drop=None)

    def _measure(self, qps: float) -> Measurement:
        work, sla = self.study.workload, self._sla
        rule = StopRule(
            sla=sla,
            nominal_s=self.shadow_s,
            contender=lambda _: True,
            timeout_s=work.timeout_s,
        )
        first_look_s = max(1.0, 60 / qps)
        plan = LoadPlan(
            mode=OpenLoop(qps=qps, arrival=work.arrival, seed=self.study.seed),
            warmup_s=min(work.warmup_s, WARMUP_S),
            measure_s=self.shadow_s,
            timeout_s=work.timeout_s,
            max_in_flight=work.max_in_flight,
            until_steady=True,
            first_look_s=first_look_s if first_look_s < self.shadow_s else None,
        )
        began = self.clock.now()
        result = self.load.run(self.probes.endpoint, plan, _Window(rule))
        return Measurement(
            purpose=Purpose.CONFIRM,
            started_at=began,
            load=result,
            server=None,
            telemetry=TelemetryWindow(),
            saturation_qps=None,
            instances=0,
            invalid_because=why_invalid(result, sla, trust=self.study.trust),
            intervals=intervals_of(result, timeout_s=work.timeout_s),
        )


def _answers_badly(verdict: Verdict) -> bool:
    """Errors are the server's, however well the probes were sent."""
    return any(
        finding.metric == "error_rate"
        for finding in verdict.findings
        if finding.outcome is Outcome.MISSES
    )


def _late_from_the_send(load: LoadResult, finding: Finding) -> bool:
    """Whether a latency is beyond its limit counted from the send, too, and by more than the
    probes were late: whoever sends late reads late."""
    percentile, service = LATENCIES.get(finding.metric), load.service_latency
    if finding.outcome is not Outcome.MISSES or percentile is None or service is None:
        return False
    late_ms = 0.0 if load.send_lag is None else load.send_lag.at(99.0)
    return service.at(percentile) - late_ms > finding.limit


def _checked(
    verdict: Verdict, measured: Measurement, live_qps: float, qps: float, *, believed: bool
) -> Checked:
    outcome = verdict.outcome if believed else Outcome.UNDECIDED
    reasons = verdict.reasons if believed else measured.invalid_because
    beside = f"{rate_words(qps)} probes beside {rate_words(live_qps)} of live traffic"
    told = [
        finding.reason.split(": raise ")[0]
        for finding in verdict.findings
        if finding.outcome is outcome
    ]
    words = "; ".join(told if believed else reasons)
    return Checked(
        outcome=outcome,
        words=f"{outcome} with {beside}: {words}",
        detail={
            "outcome": str(outcome),
            "live_qps": live_qps,
            "probe_qps": qps,
            "window_s": measured.load.window_s,
            "requests": measured.load.scheduled,
            "reasons": list(reasons),
        },
    )
