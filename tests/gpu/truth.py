"""Part (e): every candidate of a small sub-space around the pick, measured, and what the pick lost
by not being the best of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.adapters.machine import SystemClock
from autotune.core.errors import LoadFailed, ServerFailed
from autotune.core.measurement import Measurement, Purpose
from autotune.core.sla import judge
from autotune.tuner.measure import Measurer
from autotune.tuner.phases import at_target
from search_spaces.candidate import INSTANCES, MAX_BATCH_SIZE, QUEUE_DELAY_US, Candidate
from tests.gpu.bench import Bench, opened
from tests.gpu.context import Context
from tests.gpu.models import model_of
from tests.gpu.plan import Scale
from tests.gpu.report import Skipped
from tests.gpu.study import NAME, Target, question

MISSES = "misses"
SATURATION = "saturation_qps"
START_S = 3.0
"""What a candidate takes beside its load, before any has shown it."""


def run(context: Context) -> None:
    found = context.found_by("study")
    chosen = found.get("chosen")
    if chosen is None:
        raise Skipped("there is no pick to hold against the truth: see part (d)")
    target = Target(
        offered_qps=found["target"]["offered_qps"], p95_ms=found["target"]["p95_ms"], because=""
    )
    pick = Candidate(values_of(chosen["candidate"]))
    candidates = sub_space(pick, context.scale)
    study = {**question(context, model_of(context), target, minutes=1.0), "study": f"{NAME}-truth"}
    context.report.keep(candidates_planned=len(candidates), picked=found["pick"] is not None)
    rows: list[dict[str, Any]] = []
    with opened(context, study) as bench:
        for row in measured(context, bench, candidates):
            rows.append(row)
            context.report.keep(candidates=rows, **regret(rows, pick))
    if len(rows) < len(candidates):
        context.report.note(
            f"no time was left for {len(candidates) - len(rows)} of {len(candidates)} candidates"
        )
    if not rows:
        raise RuntimeError("no candidate could be measured")


def values_of(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in candidate.items()
    }


def sub_space(pick: Candidate, scale: Scale) -> list[Candidate]:
    """The pick first; then, at its delay and precision, every batch size with its own number of
    instances and with the next one: whichever the time ends with, the largest steps are known."""
    found = [pick]
    for instances in _two_of(scale.instances, pick.get(INSTANCES, 1)):
        for size in scale.space_batches:
            values = {**pick.values, INSTANCES: instances, MAX_BATCH_SIZE: size}
            if size == 1:
                values.pop(QUEUE_DELAY_US, None)
            else:
                values.setdefault(QUEUE_DELAY_US, 0)
            found.append(Candidate(values))
    return list(dict.fromkeys(found))


def _two_of(numbers: Sequence[int], mine: object) -> list[int]:
    """Mine, and its neighbour: the next higher one, or the one below the highest."""
    own = mine if isinstance(mine, int) else numbers[0]
    others = sorted((n for n in numbers if n != own), key=lambda n: (n < own, abs(n - own)))
    return [own, *others[:1]]


def measured(
    context: Context, bench: Bench, candidates: Sequence[Candidate]
) -> Iterator[dict[str, Any]]:
    """Each in turn under the same arrivals, as a study measures it, while there is time."""
    measurer = Measurer(
        study=bench.study, load=bench.load, telemetry=bench.telemetry, clock=SystemClock()
    )
    work = bench.study.workload
    one_s = START_S + work.measure_s + work.saturation_s
    prepared = False
    for candidate in candidates:
        left_s = context.deadline.left_s
        if left_s < one_s:
            return
        try:
            applied = bench.server.apply(candidate)
            if not prepared:
                bench.send_single()
                prepared = True
            found = measurer.measure(
                bench.server, candidate, applied, Purpose.TRIAL, at_target(bench.study)
            )
        except (ServerFailed, LoadFailed) as error:
            yield {"candidate": candidate.to_json(), "outcome": None, "reason": str(error)}
        else:
            yield {"candidate": candidate.to_json(), **_row(found, bench)}
        one_s = max(one_s, left_s - context.deadline.left_s)


def _row(found: Measurement, bench: Bench) -> dict[str, Any]:
    verdict = judge(found, bench.study.sla) if found.valid else None
    ends = {name: [each.low, each.high] for name, each in found.intervals.items()}
    return {
        "outcome": None if verdict is None else str(verdict.outcome),
        "reason": "; ".join(found.invalid_because if verdict is None else verdict.reasons),
        "p95_ms": found.metric("p95_ms"),
        "p95_interval": ends.get("p95_ms"),
        SATURATION: found.saturation_qps,
        "saturation_interval": ends.get(SATURATION),
        "utilization": found.telemetry.utilization,
    }


def regret(rows: Sequence[Mapping[str, Any]], pick: Candidate) -> dict[str, Any]:
    """What the pick lost, as a share of the best: the throughput at saturation of what does not
    clearly miss the SLA here is what the study's rule (max_throughput) is about. ``within_noise``:
    the intervals of the two overlap. Unknown (None) where the pick, or everything, misses it."""
    known = [row for row in rows if row["outcome"] not in (None, MISSES) and row.get(SATURATION)]
    own = next((row for row in rows if row["candidate"] == pick.to_json()), None)
    best = max(known, key=lambda row: float(row[SATURATION]), default=None)
    if best is None or own is None or own not in known:
        return {"best": best and best["candidate"], "regret": None, "within_noise": None}
    return {
        "best": best["candidate"],
        "regret": 1 - own[SATURATION] / best[SATURATION],
        "within_noise": own is best or _overlap(own, best),
    }


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    mine, others = one["saturation_interval"], other["saturation_interval"]
    if not mine or not others or None in (*mine, *others):
        return False
    return bool(mine[0] <= others[1] and others[0] <= mine[1])
