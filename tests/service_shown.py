"""A service with realistic contents: nights of a schedule, promotions of every state, a queue,
notices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from autotune.core.jobs import JobKind, JobState
from autotune.core.notices import Event
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.schedules import Outcome, Policy, RunState, Schedule, ScheduleState
from autotune.studyfile import read_definition
from storage.service import ServiceStore
from tests.realistic import a_study_of_trials
from tests.service_app import Service

DIFF = """--- linear/config.pbtxt (in service)
+++ linear/config.pbtxt
@@ -1,8 +1,13 @@
 name: "linear"
 platform: "onnxruntime_onnx"
-max_batch_size: 1
+max_batch_size: 4
+dynamic_batching {
+  max_queue_delay_microseconds: 500
+}
 instance_group [
   {
-    count: 1
+    count: 2
     kind: KIND_CPU
   }
 ]
"""
DAY_S = 86_400.0


def fill(service: Service, *, nights: int = 9) -> None:
    """Study 1 is done, study 2 runs (its job is 1), study 3 was interrupted; schedules ``nightly``
    and ``weekly``; promotion 1 superseded, 2 in service, 3 proposed, 4 rejected."""
    store = service.store
    study_id = service.finished_study("ocr")
    _running_study(service)
    _queue(service)
    _promotions(service, study_id)
    _schedules(service, study_id, nights)
    _notices(store)


def _running_study(service: Service) -> None:
    store = service.store
    study = read_definition(service.definition("ocr-large"))
    study_id = store.trials.create_study("ocr-large", study.definition, study.digest)
    for trial in a_study_of_trials()[:6]:
        store.trials.begin_trial(study_id, trial.number, trial.candidate)
        if trial.number < 5:
            for measurement in trial.measurements:
                store.trials.add_measurement(study_id, trial.number, measurement)
            store.trials.end_trial(study_id, trial.number, trial.state, trial.reason)
    job_id = service.queued_job("ocr-large")
    store.jobs.claim("bench-7/4711", ttl_s=3600, measuring=True)
    store.jobs.set_study(job_id, study_id)
    store.jobs.set_progress(
        job_id,
        {"stage": "search", "text": "measuring", "trial": 6, "of": 24, "seconds_left": 312.0},
    )


def _queue(service: Service) -> None:
    jobs = service.store.jobs
    service.queued_job("detector")
    wrong = jobs.submit(JobKind.PROMOTE, "promote linear to /srv", {"promotion": 1}, by="dana")
    jobs.claim("bench-7/4711", ttl_s=60, measuring=False)
    reason = "the model repository has no model linear: /srv/models\n" + "line of a log\n" * 12
    jobs.end(wrong, "bench-7/4711", JobState.FAILED, reason=reason, exit_code=2)
    good = jobs.submit(JobKind.ROLLBACK, "roll back linear", {"promotion": 2, "why": ""}, by="dana")
    jobs.claim("bench-7/4711", ttl_s=60, measuring=False)
    jobs.end(good, "bench-7/4711", JobState.DONE, exit_code=0)
    jobs.cancel(service.queued_job("mistaken"))


def _promotions(service: Service, study_id: int) -> None:
    store = service.store.promotions
    for candidate, why in (
        ({"max_batch_size": 2, "instances": 2}, "saturation +9.1% (+6.0% to +12.4%; 6 pairs)"),
        ({"max_batch_size": 4, "instances": 2}, "saturation +12.0% (+8.9% to +15.2%; 6 pairs)"),
    ):
        promotion_id = _propose(service, study_id, candidate, why)
        store.advance(
            promotion_id,
            expected=(PromotionState.PROPOSED,),
            state=PromotionState.APPROVED,
            by="dana",
        )
        store.advance(
            promotion_id, expected=(PromotionState.APPROVED,), state=PromotionState.APPLYING
        )
        store.advance(
            promotion_id,
            expected=(PromotionState.APPLYING,),
            state=PromotionState.DONE,
            kept=f".autotune/kept/promotion-{promotion_id}",
            reason="it meets the SLA in service: p95 31.2 ms",
        )
        for action in ("proposed", "approved", "begun", "applied", "verified", "done"):
            store.note("dana", action, f"promotion {promotion_id}", why=why, diff=DIFF)
    rejected = _propose(service, study_id, {"max_batch_size": 16, "instances": 4}, "more of it")
    store.advance(
        rejected,
        expected=(PromotionState.PROPOSED,),
        state=PromotionState.REJECTED,
        by="dana",
        reason="not before Monday",
    )
    _propose(service, study_id, {"max_batch_size": 8, "instances": 2}, "one instance instead of 2")


def _propose(service: Service, study_id: int, candidate: Mapping[str, Any], why: str) -> int:
    return service.store.promotions.propose(
        Promotion(
            id=0,
            model="linear",
            target=Target(repository=service.root / "models"),
            study_id=study_id,
            trial=5,
            candidate=candidate,
            state=PromotionState.PROPOSED,
            why=why,
            diff=DIFF,
            created_by="schedule nightly",
        )
    )


def _schedules(service: Service, study_id: int, nights: int) -> None:
    store = service.store.schedules
    nightly = store.add(
        Schedule(
            id=0,
            name="nightly",
            definition=service.definition("ocr"),
            cron="0 3 * * *",
            timezone="Europe/Berlin",
            window_minutes=180,
            policy=Policy.PROPOSE,
            target=Target(repository=service.root / "models"),
            created_by="dana",
        )
    )
    weekly = store.add(
        Schedule(id=0, name="weekly", definition=service.definition("detector"), cron="0 1 * * 0")
    )
    store.set_state("weekly", ScheduleState.PAUSED)
    assert weekly != nightly
    now = time.time()
    for night in range(nights):
        run = store.due(nightly, now - (nights - night) * DAY_S)
        assert run is not None
        _night(store, run, night, last=night == nights - 1, study_id=study_id)


def _night(store: Any, run: int, night: int, *, last: bool, study_id: int) -> None:
    store.update_run(run, state=RunState.RUNNING)
    if night == 3:
        reason = "23% of this machine's processor was taken by other processes, allowed 10%"
        store.update_run(run, state=RunState.FAILED, reason=reason)
        return
    p95 = 31.0 + 0.4 * night + (7.5 if last else 0.0)
    summary: dict[str, Any] = {
        "champion": _side(0, p95, 140.0 - (9 if last else night)),
        "drift": _drift(p95, drifted=last),
    }
    outcome, reason = Outcome.HOLDS, "the champion still wins: it is what it was"
    if last:
        outcome, reason = (
            Outcome.PROPOSED,
            "linear: a better configuration waits for your approval: saturation +12.0%",
        )
        summary |= {
            "challenger": _side(5, 29.4, 157.0),
            "comparisons": _comparisons(),
            "verdict": {
                "promoted": True,
                "ground": "better",
                "reasons": [
                    "saturation +12.0% (+8.9% to +15.2%; 6 pairs of runs): better by the margin of"
                    " 5% at least",
                    "p95 −4.2%, a tie (−9.0% to +1.2%; 6 pairs of runs)",
                ],
            },
            "searched": {"trials": 16, "why": ""},
        }
    store.update_run(
        run,
        state=RunState.DONE,
        outcome=outcome,
        reason=reason,
        summary=summary,
        study_id=study_id,
        promotion_id=4 if last else None,
    )


def _side(trial: int, p95: float, saturation: float) -> dict[str, Any]:
    return {
        "trial": trial,
        "candidate": {"max_batch_size": 4 if trial else 2, "instances": 2, "queue_delay_us": 500},
        "state": "ok",
        "reason": "",
        "sla": "meets",
        "sla_reasons": [f"p95 {p95:.1f} ms meets 80 ms"],
        "figures": {
            "p95_ms": {"value": p95, "interval": [p95 - 1.9, p95 + 2.2]},
            "saturation_qps": {
                "value": saturation,
                "interval": [saturation * 0.98, saturation * 1.02],
            },
            "instances": {"value": 2.0, "interval": None},
            "memory_mb": {"value": 378.0, "interval": None},
            "utilization": {"value": 0.62, "interval": None},
        },
    }


def _drift(p95: float, *, drifted: bool) -> dict[str, Any]:
    return {
        "drifted": drifted,
        "worse": drifted,
        "since": 1,
        "since_at": time.time() - DAY_S,
        "words": "p95 33.8 to 41.7 ms (+23.4%; +14.1% to +32.3%)"
        if drifted
        else "no drift is seen",
        "sure": "likely, since nothing else that is recorded changed; it was not tried apart",
        "shifts": [
            {
                "metric": "p95_ms",
                "before": 33.8,
                "after": p95,
                "effect": 0.234 if drifted else 0.01,
                "interval": [0.141, 0.323] if drifted else [-0.04, 0.06],
                "relation": "worse" if drifted else "tie",
            },
            {
                "metric": "saturation_qps",
                "before": 138.0,
                "after": 131.0,
                "effect": -0.05,
                "interval": [-0.072, -0.028],
                "relation": "worse" if drifted else "tie",
            },
        ],
        "causes": [
            {
                "kind": "triton",
                "words": "Triton went from 2.50.0 to 2.51.0",
                "likelihood": "likely",
            }
        ]
        if drifted
        else [],
    }


def _comparisons() -> list[dict[str, Any]]:
    return [
        {
            "metric": metric,
            "effect": effect,
            "interval": interval,
            "relation": relation,
            "pairs": 6,
        }
        for metric, effect, interval, relation in (
            ("p95_ms", -0.042, [-0.09, 0.012], "tie"),
            ("saturation_qps", 0.12, [0.089, 0.152], "better"),
        )
    ]


def _notices(store: ServiceStore) -> None:
    title = "linear: the champion is worse than it was: p95 33.8 to 41.7 ms"
    text = "Schedule nightly, study 1.\nBy how much: p95 +23.4%.\nLikely cause: Triton 2.51.0."
    told = store.notices.add(Event.DRIFT, title, text, {}, "webhook")
    store.notices.tried(told, error=None)
    better = "linear: a better configuration waits for your approval: saturation +12.0%"
    waits = store.notices.add(Event.BETTER, better, "Promotion 4 waits.", {}, "email")
    store.notices.tried(waits, error="the mail server does not answer")
