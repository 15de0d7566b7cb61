"""Studies of many trials in a real database, made in seconds: a few dozen measurements of the
simulated batcher, each trial a jittered copy of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from autotune.core.decision import decide
from autotune.core.intervals import Interval
from autotune.core.measurement import LatencySummary, Measurement
from autotune.core.records import PLANNED, DecisionRecord, StudyState
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState
from autotune.studyfile import read_definition
from storage import rows
from storage.schema import EnvironmentRow, StudyRow, TrialRow
from storage.service.database import Database
from storage.store import SqlTrialStore
from tests.realistic import STARTED_AT, a_candidate, a_measurement

BATCHES, INSTANCES, DELAYS = (1, 2, 4, 8, 16, 32), (1, 2, 3, 4), (0, 250, 500, 1000, 2000)


def a_definition(name: str, trials: int) -> dict[str, object]:
    return {
        "study": name,
        "model": {"onnx": "/models/ocr.onnx"},
        "workload": {"target_qps": 80.0, "headroom": 1.0},
        "sla": {"p95_ms": 80.0},
        "space": {
            "max_batch_size": list(BATCHES),
            "instances": list(INSTANCES),
            "queue_delay_us": list(DELAYS),
        },
        "budget": {"trials": min(trials, 100_000)},
        "objectives": ["saturation_qps", "p95_ms"],
    }


@cache
def _measured(batch: int, instances: int) -> Measurement:
    return a_measurement(a_candidate(batch, instances), samples=False)


def many_trials(count: int, *, seed: int = 0) -> list[Trial]:
    """Mostly ok; one in forty each is invalid, failed and pruned. Trial 0 is the default."""
    rng = np.random.default_rng(seed)
    return [_trial(number, rng) for number in range(count)]


def _trial(number: int, rng: np.random.Generator) -> Trial:
    batch, instances = int(rng.choice(BATCHES)), int(rng.choice(INSTANCES))
    candidate = a_candidate(batch, instances, int(rng.choice(DELAYS)))
    kind = 0 if number == 0 else int(rng.integers(40))
    times = {"started_at": STARTED_AT + 20 * number, "ended_at": STARTED_AT + 20 * number + 18}
    if kind == 1:
        reason = "ran out of memory: the server cannot load it"
        return Trial(
            number=number, candidate=candidate, state=TrialState.FAILED, reason=reason, **times
        )
    if kind == 2:
        reason = "asks for at least as much memory as trial 4, which ran out of it"
        return Trial(
            number=number, candidate=candidate, state=TrialState.PRUNED, reason=reason, **times
        )
    measured = _jittered(_measured(batch, instances), rng)
    if kind == 3:
        lag = "the generator fell behind: p99 send lag 41.0 ms is above 10 ms"
        invalid = replace(measured, invalid_because=(lag,))
        return Trial(
            number=number,
            candidate=candidate,
            state=TrialState.INVALID,
            measurements=(invalid,),
            reason=f"measured 2 times, never validly: {lag}",
            **times,
        )
    return Trial(
        number=number,
        candidate=candidate,
        state=TrialState.OK,
        measurements=(measured,),
        **times,
    )


def _jittered(measurement: Measurement, rng: np.random.Generator) -> Measurement:
    slower, faster = float(rng.lognormal(0, 0.18)), float(rng.lognormal(0, 0.06))
    latency = measurement.load.latency
    assert latency is not None
    assert measurement.saturation_qps is not None
    load = replace(measurement.load, latency=_scaled(latency, slower))
    return replace(
        measurement,
        load=load,
        saturation_qps=measurement.saturation_qps * faster,
        intervals={
            name: _stretched(interval, slower if name.endswith("_ms") else faster)
            for name, interval in measurement.intervals.items()
        },
    )


def _scaled(latency: LatencySummary, by: float) -> LatencySummary:
    return LatencySummary(
        count=latency.count,
        mean_ms=latency.mean_ms * by,
        max_ms=latency.max_ms * by,
        percentiles_ms={p: ms * by for p, ms in latency.percentiles_ms.items()},
    )


def _stretched(interval: Interval, by: float) -> Interval:
    return Interval(low=interval.low * by, high=interval.high * by)


def store_study(
    where: str,
    name: str,
    trials: Sequence[Trial],
    *,
    state: StudyState = StudyState.DONE,
    planned: int | None = None,
    definition: Mapping[str, object] | None = None,
) -> int:
    """Store a study of these trials in one transaction; decided, where it is done."""
    SqlTrialStore(where).close()
    definition = dict(definition or a_definition(name, len(trials)))
    study = read_definition(definition)
    database = Database(where)
    ended = None if state is StudyState.RUNNING else STARTED_AT + 20.0 * len(trials)
    with database.write() as session:
        row = StudyRow(
            name=name,
            digest=study.digest,
            definition=definition,
            state=str(state),
            reason="",
            created_at=STARTED_AT,
            ended_at=ended,
        )
        session.add(row)
        session.flush()
        study_id = row.id
        session.add(
            EnvironmentRow(
                study_id=study_id,
                recorded_at=STARTED_AT,
                detail={PLANNED: planned or len(trials), "host": "bench-7", "cores": 2},
            )
        )
        session.add_all(_row(study_id, trial) for trial in trials)
    database.close()
    if state is StudyState.DONE:
        _decide(where, study_id, study, trials)
    return study_id


def _row(study_id: int, trial: Trial) -> TrialRow:
    return TrialRow(
        study_id=study_id,
        number=trial.number,
        candidate=trial.candidate.to_json(),
        candidate_digest=trial.candidate.digest,
        state=str(trial.state),
        reason=trial.reason,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
        measurements=[rows.measurement_row(each) for each in trial.measurements],
    )


def _decide(where: str, study_id: int, study: Study, trials: Sequence[Trial]) -> None:
    decision = decide(trials, study.sla, study.objectives, study.pick, workload=study.workload)
    store = SqlTrialStore(where)
    store.add_decision(
        DecisionRecord(
            study_id=study_id,
            taken_at=STARTED_AT + 20.0 * len(trials),
            rule=str(study.pick),
            pick=decision.pick,
            detail=decision.to_json(),
        )
    )
    store.close()
