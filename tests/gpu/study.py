"""Part (d): a study of the product itself, at a rate and a limit that the curves make demanding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.core.errors import Interrupted
from autotune.core.sla import enough_samples
from tests.gpu.bench import definition, write_study
from tests.gpu.context import Context
from tests.gpu.models import Model, model_of
from tests.gpu.plan import Scale
from tests.gpu.report import Skipped, read_json, write_json

NAME = "check"
LOAD_SHARE = 0.65
"""Of the most images a second that any point of the curves reached: what a batching server can
carry with a latency that is bounded, and one that executes images alone cannot."""
GOOD_SHARE = 0.8
"""A batch is large enough where it reaches this share of its curve's highest throughput."""
LIMIT_IN_BATCHES = 3.0
"""The p95 limit, in executions of such a batch: one that runs, one's own, and some of the queue."""
NETWORK_MS = 5.0
HEADROOM = 1.2
START_S = 10.0
"""What `autotune tune` takes before its budget's clock runs, and after it."""
LEAST_BUDGET_S = 10.0
LATE_S = 2.0
STOP_S = 4.0
SHOW_S = 20.0
MEETS, NO_CANDIDATE = 0, 3
_METRICS = (
    "p95_ms",
    "achieved_qps",
    "saturation_qps",
    "utilization",
    "sm_active",
    "tensor_active",
    "power_w",
    "energy_j_per_1000",
    "memory_mb",
    "mean_batch",
)


# ------------------------------------------------------------------------------------ the question
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``offered_qps`` is what candidates are measured at; ``because``: how it was come by."""

    offered_qps: float
    p95_ms: float
    because: str

    @property
    def qps(self) -> float:
        return self.offered_qps / HEADROOM


def target_of(curves: Sequence[Mapping[str, Any]], scale: Scale) -> Target:
    """Demanding, but feasible, by what was measured. Skipped without a point."""
    every = [(curve, point) for curve in curves for point in curve["points"] if point["ms"]]
    if not every:
        raise Skipped("there is no service time to choose a rate by: see part (c)")
    best, most = max(every, key=lambda each: float(each[1]["images_s"]))
    alone = [
        point
        for curve, point in every
        if curve["precision"] == best["precision"] and curve["instances"] == 1
    ]
    good = good_batch(alone or [point for _, point in every])
    offered = min(LOAD_SHARE * most["images_s"], scale.most_qps)
    limit = max(scale.least_p95_ms, LIMIT_IN_BATCHES * good["ms"] + NETWORK_MS)
    return Target(
        offered_qps=_rounded(offered),
        p95_ms=_rounded(limit),
        because=(
            f"{LOAD_SHARE:.0%} of the most that part (c) saw, {most['images_s']:.0f} images/s, and"
            f" at most {scale.most_qps:.0f}; {LIMIT_IN_BATCHES:g} × {good['ms']:.1f} ms, a batch of"
            f" {good['batch']}, + {NETWORK_MS:g} ms, and at least {scale.least_p95_ms:g}"
        ),
    )


def good_batch(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The smallest batch with nearly the highest throughput."""
    enough = GOOD_SHARE * max(float(point["images_s"]) for point in points)
    good = [point for point in points if point["images_s"] >= enough]
    return min(good, key=lambda point: int(point["batch"]))


def _rounded(value: float) -> float:
    """To three significant digits: it is read by people."""
    return float(f"{value:.3g}")


def question(context: Context, model: Model, target: Target, minutes: float) -> dict[str, Any]:
    """The study file."""
    scale = context.scale
    base = definition(context, model, NAME)
    return {
        **base,
        "workload": {
            **base["workload"],
            "target_qps": target.qps,
            "headroom": HEADROOM,
            **windows(scale, target),
        },
        "sla": {"p95_ms": target.p95_ms},
        "space": {
            "max_batch_size": list(scale.space_batches),
            "queue_delay_us": {
                "values": list(scale.delays_us),
                "when": {"max_batch_size": {"above": 1}},
            },
            "instances": list(scale.instances),
            **model.space(),
        },
        "pick": "max_throughput",
        "budget": {"trials": 60, "minutes": minutes},
    }


def windows(scale: Scale, target: Target) -> dict[str, float]:
    """Long enough for the queue to settle, and where a verdict is undecided for a p95 with ten
    requests beyond it."""
    enough_s = 1.2 * enough_samples(95.0) / target.offered_qps
    return {
        "warmup_s": max(scale.warmup_s, 2 * target.p95_ms / 1000),
        "measure_s": scale.measure_s,
        "measure_max_s": round(max(3 * scale.measure_s, enough_s), 2),
        "timeout_s": max(5.0, 10 * target.p95_ms / 1000),
    }


# --------------------------------------------------------------------------------------- the answer
def run(context: Context) -> None:
    model = model_of(context)
    target = target_of(context.found_by("curves").get("curves", []), context.scale)
    budget_s = context.deadline.left_s - START_S
    if budget_s < LEAST_BUDGET_S:
        raise Skipped(f"a study needs {START_S + LEAST_BUDGET_S:.0f} s, and there are less")
    study = question(context, model, target, minutes=round(budget_s / 60, 3))
    file = write_study(context, study)
    context.report.keep(
        model=str(model.source),
        target={
            "offered_qps": target.offered_qps,
            "target_qps": target.qps,
            "p95_ms": target.p95_ms,
            "because": target.because,
        },
        space=study["space"],
        budget_s=round(budget_s),
    )
    code = tune(context, file)
    answer = read_json(answer_file(context))
    if code not in (MEETS, NO_CANDIDATE):
        if answer.get("trials"):
            context.report.keep(**told(answer))
        raise RuntimeError(f"autotune tune ended with exit status {code}: {_last_words(context)}")
    context.report.keep(**told(answer))


def tune(context: Context, file: Path) -> int:
    """Run the study, its answer into `answer_file`; what it had stored if it has to be stopped."""
    out = context.out
    with answer_file(context).open("w") as answer, _log(context).open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "autotune", "tune", str(file), "--json"),
                *("--out", str(out / "pick")),
            ],
            stdout=answer,
            stderr=log,
            cwd=out,
        )
        try:
            return process.wait(context.deadline.left_s + LATE_S)
        except (subprocess.TimeoutExpired, Interrupted) as stop:
            _stop(process)
            _keep_what_is_stored(context)
            if isinstance(stop, Interrupted):
                raise
            raise RuntimeError("the study did not keep to its budget, and was stopped") from stop


def _stop(process: subprocess.Popen[bytes]) -> None:
    """It stores what it has and ends its server; at the latest the kernel does."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _keep_what_is_stored(context: Context) -> None:
    """Of a study that was stopped: its trials, and the decision on them."""
    shown = subprocess.run(
        [sys.executable, "-m", "autotune", "show", NAME, "--json"],
        capture_output=True,
        text=True,
        timeout=SHOW_S,
        check=False,
        cwd=context.out,
    )
    if shown.returncode == 0:
        stored = json.loads(shown.stdout)
        write_json(answer_file(context), stored)
        context.report.keep(**told(stored))


def answer_file(context: Context) -> Path:
    return context.out / "study.json"


def _log(context: Context) -> Path:
    return context.out / "study.log"


def _last_words(context: Context) -> str:
    return " ".join(_log(context).read_text(errors="replace").split())[-400:]


def told(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What of an answer (or a stored study) goes into the results."""
    decision = answer["decision"]
    judged = {each["trial"]: each for each in decision["judged"]}
    trials = [_trial(trial, judged.get(trial["number"])) for trial in answer["trials"]]
    chosen = decision["pick"] if decision["pick"] is not None else decision["nearest_miss"]
    return {
        "meets": decision["pick"] is not None,
        "pick": decision["pick"],
        "chosen": next((each for each in trials if each["number"] == chosen), None),
        "ties": decision["ties"],
        "reasons": decision["reasons"],
        "trials": trials,
        "wall_s": answer.get("wall_s"),
        "load_s": answer.get("load_s"),
        "stopped_because": answer.get("stopped_because", answer["study"]["reason"]),
        "warnings": answer.get("warnings", []),
        "confirmed": _confirmed(answer["trials"]),
    }


def _trial(trial: Mapping[str, Any], judged: Mapping[str, Any] | None) -> dict[str, Any]:
    metrics = {} if judged is None else judged["metrics"]
    intervals = {} if judged is None else judged["intervals"]
    return {
        "number": trial["number"],
        "candidate": trial["candidate"],
        "state": trial["state"],
        "reason": trial["reason"],
        "outcome": None if judged is None else judged["outcome"],
        **{name: metrics.get(name) for name in _METRICS},
        "p95_interval": intervals.get("p95_ms"),
        "saturation_interval": intervals.get("saturation_qps"),
    }


def _confirmed(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The measurement of the exported files."""
    found = [
        measured
        for trial in trials
        for measured in trial["measurements"]
        if measured["purpose"] == "confirm" and measured["valid"]
    ]
    if not found:
        return None
    last = found[-1]
    return {"verdict": last["verdict"], "p95_ms": last["metrics"]["p95_ms"]}
