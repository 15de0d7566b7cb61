"""What load phases a study is made of: how much, for how long, and when it is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from autotune.core.intervals import Interval
from autotune.core.measurement import Traffic
from autotune.core.study import Study
from autotune.core.workload import Arrival, ArrivalKind, Workload
from autotune.ports import LOOK_GROWTH

FIRST_LOOK_REQUESTS = 60
"""Expected before a window is looked at for the first time …"""
FIRST_LOOK_S = 1.0
"""… and not before that."""
MAX_IN_FLIGHT = 65_536

Contender: TypeAlias = Callable[[Mapping[str, Interval], int], bool]
"""Whether a candidate with these intervals, by metric, and that many instances could still be the
pick."""


def always(_: Mapping[str, Interval], __: int) -> bool:
    return True


def never(_: Mapping[str, Interval], __: int) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One load phase at ``traffic``.

    ``looked_at``: it ends when its verdict is decided, at ``nominal_s`` if it clearly meets the SLA
    and is a ``contender``, at ``longest_s`` if it is undecided, unless it is outclassed and
    ``outclassed_ends``; else it takes ``longest_s``.
    ``burst``: a saturation burst follows.
    """

    traffic: Traffic
    arrival: Arrival
    nominal_s: float
    longest_s: float
    max_in_flight: int
    looked_at: bool = True
    burst: bool = True
    contender: Contender = always
    outclassed_ends: bool = False

    @property
    def first_look_s(self) -> float | None:
        """Seconds after the window opened; None where it is not looked at before its end. Each
        look comes at 1.5 times the time of the one before, and one of them at ``nominal_s``."""
        least_s = max(FIRST_LOOK_S, FIRST_LOOK_REQUESTS / self.traffic.qps)
        if not self.looked_at or least_s >= self.longest_s:
            return None
        if least_s >= self.nominal_s:
            return least_s
        return self.nominal_s / LOOK_GROWTH ** math.floor(
            math.log(self.nominal_s / least_s, LOOK_GROWTH)
        )


def at_target(study: Study, contender: Contender = always) -> Phase:
    """The rate that candidates are measured at. One seed for all of them: all face the same
    arrivals, so that a difference between two of them is not a difference of luck."""
    work = study.workload
    phase = _phase(study, work.offered_qps, work.arrival, study.seed, contender)
    return replace(phase, outclassed_ends=True)


def canary(study: Study) -> Phase:
    """What is measured of the configuration found in service, to see whether the machine is the
    same: its burst, above all."""
    phase = at_target(study, never)
    return replace(phase, longest_s=phase.nominal_s, outclassed_ends=False)


def final(study: Study, pair: int) -> Phase:
    """The target rate for a fixed time, with arrivals that this pair of runs alone shares."""
    phase = at_target(study)
    window_s = study.finals.measure_s or study.workload.measure_s
    seed = (study.seed + 1 + pair) % 2**32
    return replace(
        phase,
        traffic=replace(phase.traffic, seed=seed),
        nominal_s=window_s,
        longest_s=window_s,
        looked_at=False,
    )


def rate_probe(study: Study, qps: float) -> Phase:
    """Another rate. Near the highest one that meets the SLA a probe stays undecided however long
    it is, so it is no longer than a clear one."""
    phase = _phase(study, qps, study.workload.arrival, study.seed, never)
    return replace(phase, longest_s=phase.nominal_s, burst=False)


def neighbourhood(study: Study) -> tuple[Phase, ...]:
    """The corners of what the pick must hold the SLA over, the hardest first; none where the study
    asks for none. Between them latency is taken to lie between theirs."""
    robust = study.robust
    if robust is None:
        return ()
    rates = dict.fromkeys(study.workload.offered_qps * (1 + d) for d in (robust.qps, -robust.qps))
    bursts: tuple[float | None, ...] = tuple(sorted(robust.cv, reverse=True)) or (None,)
    return tuple(_neighbour(study, rate, cv) for rate in rates for cv in bursts)


def _neighbour(study: Study, qps: float, cv: float | None) -> Phase:
    arrival = study.workload.arrival
    if cv is not None:
        arrival = Arrival(kind=ArrivalKind.GAMMA, cv=cv)
    return replace(_phase(study, qps, arrival, study.seed, never), burst=False)


def _phase(study: Study, qps: float, arrival: Arrival, seed: int, contender: Contender) -> Phase:
    work = study.workload
    return Phase(
        traffic=Traffic(qps=qps, arrival=str(arrival.kind), cv=burstiness(arrival), seed=seed),
        arrival=arrival,
        nominal_s=work.measure_s,
        longest_s=work.longest_s,
        max_in_flight=_in_flight(work, qps),
        burst=work.saturation_s > 0,
        contender=contender,
    )


def _in_flight(work: Workload, qps: float) -> int:
    """The workload's cap, in proportion to the rate."""
    return min(MAX_IN_FLIGHT, max(1, round(work.max_in_flight * max(1.0, qps / work.offered_qps))))


def burstiness(arrival: Arrival) -> float | None:
    """The coefficient of variation of the gaps between arrivals; None for a trace."""
    return {
        ArrivalKind.CONSTANT: 0.0,
        ArrivalKind.POISSON: 1.0,
        ArrivalKind.GAMMA: arrival.cv,
        ArrivalKind.TRACE: None,
    }[arrival.kind]
