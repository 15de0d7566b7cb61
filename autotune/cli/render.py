"""Answers and stored studies, as tables for people and as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from autotune.bootstrap import StoredStudy
from autotune.cli.console import Console
from autotune.cli.words import candidate_words, duration, number, share
from autotune.core.decision import Decision
from autotune.core.measurement import METRICS, Measurement
from autotune.core.plain import finite
from autotune.core.records import StudyRecord
from autotune.core.sla import Outcome, Sla, Verdict, judge
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.tuner.answer import Answer

VERDICT_STYLES = {Outcome.MEETS: "green", Outcome.MISSES: "red", Outcome.UNDECIDED: "yellow"}


# ------------------------------------------------------------------------------------- an answer
def print_answer(answer: Answer) -> None:
    """The table of the front, the pick with its reasons, and the paths of what was written."""
    decision = answer.decision
    Console.out.print()
    _print_decision(answer.study, answer.trials, decision)
    if answer.exported_to is not None:
        Console.plain("")
        Console.plain("Written")
        model = answer.exported_to / answer.study.model.name
        for path in (model / "config.pbtxt", *_beside(answer)):
            Console.plain(f"  {path}")
    elif answer.report is not None:
        Console.plain("")
        Console.plain(f"The report:  {answer.report}")
    if answer.search_log is not None and answer.search_log.exists():
        Console.plain("")
        Console.plain(f"The search:  optuna-dashboard sqlite:///{answer.search_log}")
    measured = sum(trial.measurement is not None for trial in answer.trials)
    Console.plain("")
    under_load = answer.load_s / answer.wall_s
    Console.plain(
        f"Candidates measured: {measured}, in {duration(answer.wall_s)}, {under_load:.0%} of it"
        f" under load; {answer.stopped_because}."
    )


def _beside(answer: Answer) -> list[Path]:
    assert answer.exported_to is not None
    return [answer.exported_to / name for name in ("report.html", "provenance.json")]


def _print_decision(study: Study, trials: Sequence[Trial], decision: Decision) -> set[int]:
    """Returns the numbers of the trials that were shown."""
    by_number = {trial.number: trial for trial in trials}
    pick = by_number.get(-1 if decision.pick is None else decision.pick)
    if pick is None:
        Console.out.print(Text(f"{study.name}: no candidate meets the SLA", style="bold red"))
    else:
        headline = f"{study.name}: {candidate_words(pick.candidate)}"
        confirmed = pick.confirmation is not None
        style = "bold green" if confirmed else "bold yellow"
        Console.out.print(Text(headline + ("" if confirmed else " (not confirmed)"), style=style))
    rows = decision.front or decision.infeasible_front
    nearest = [] if decision.nearest_miss is None else [decision.nearest_miss]
    numbers = sorted({0, *rows, *nearest} & set(by_number))
    Console.plain("")
    Console.out.print(trials_table([by_number[n] for n in numbers], study.sla, decision))
    Console.plain("")
    for reason in decision.reasons:
        Console.out.print(Text(f"- {reason}"), soft_wrap=False)
    return set(numbers)


def trials_table(trials: Iterable[Trial], sla: Sla, decision: Decision | None) -> Table:
    """A row per trial. ★ is the pick; trial 0 is the configuration found in service."""
    latency = sla.tightest_metric
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=True)
    table.add_column("trial", justify="right")
    table.add_column("configuration", overflow="fold", min_width=20)
    for name in (latency.replace("_ms", " ms"), "saturates", "utilized", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    pick = None if decision is None else decision.pick
    for trial in trials:
        picked = trial.number == pick
        mark = f"★ {trial.number}" if picked else str(trial.number)
        table.add_row(mark, *_row(trial, sla, latency), style="bold" if picked else "")
    return table


def _row(trial: Trial, sla: Sla, latency: str) -> list[str | Text]:
    name = candidate_words(trial.candidate) + (" (now)" if trial.number == 0 else "")
    measurement = trial.measurement
    if measurement is None:
        empty = ["–"] * 4
        return [name, *empty, Text(_state(trial), style="red")]
    return [
        name,
        number(measurement.metric(latency)),
        number(measurement.saturation_qps, unit="/s"),
        share(measurement.telemetry.utilization),
        number(measurement.telemetry.memory_mb, 0, " MB"),
        _verdict(trial, measurement, sla),
    ]


def _state(trial: Trial) -> str:
    reason = trial.reason.splitlines()[0] if trial.reason else ""
    return f"{trial.state}: {reason}" if reason else str(trial.state)


def _verdict(trial: Trial, measurement: Measurement, sla: Sla) -> Text:
    verdict = judge(measurement, sla)
    confirmed = None if trial.confirmation is None else judge(trial.confirmation, sla)
    if verdict.meets and confirmed is not None and not confirmed.meets:
        return Text(f"{confirmed.outcome} when confirmed", style="red")
    style = VERDICT_STYLES[verdict.outcome]
    return Text(f"{verdict.outcome}{_margin(verdict)}", style=style)


def _margin(verdict: Verdict) -> str:
    tightest = verdict.tightest
    if tightest is None or tightest.margin is None:
        return ""
    if verdict.outcome is Outcome.MISSES and tightest.value is not None:
        over = tightest.value / tightest.limit if tightest.limit else 0.0
        return f", {over:.3g}× limit" if over > 2 else f" by {-tightest.margin:.0%}"
    return f", {tightest.margin:.0%} to spare"


# --------------------------------------------------------------------------------- stored studies
def studies_table(records: Sequence[StudyRecord]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", justify="right")
    for name in ("study", "state", "trials", "started", "note"):
        table.add_column(name, overflow="fold")
    for record in records:
        started = datetime.fromtimestamp(record.created_at, UTC).astimezone()
        table.add_row(
            str(record.id),
            Text(record.name),
            str(record.state),
            str(record.trials),
            f"{started:%Y-%m-%d %H:%M}",
            Text(record.reason.splitlines()[0] if record.reason else ""),
        )
    return table


def print_stored(stored: StoredStudy) -> None:
    record = stored.record
    state = f"study {record.id} ({record.name}): {record.state}"
    Console.plain(f"{state}; {record.reason}" if record.reason else state)
    Console.plain("")
    shown = _print_decision(stored.study, stored.trials, stored.decision)
    others = [trial for trial in stored.trials if trial.number not in shown]
    if others:
        Console.plain("")
        Console.plain("Other trials")
        Console.out.print(trials_table(others, stored.study.sla, stored.decision))
    if stored.exported_to:
        Console.plain("")
        Console.plain(f"Exported to {stored.exported_to}")


# ------------------------------------------------------------------------------------------- JSON
def answer_json(answer: Answer) -> dict[str, Any]:
    return {
        "study": study_json(answer.record),
        "meets": answer.exported_to is not None,
        "exported_to": None if answer.exported_to is None else str(answer.exported_to),
        "stopped_because": answer.stopped_because,
        "wall_s": round(answer.wall_s, 1),
        "load_s": round(answer.load_s, 1),
        "warnings": list(answer.warnings),
        "trials": [trial_json(trial, answer.study.sla) for trial in answer.trials],
        "decision": finite(answer.decision.to_json()),
    }


def stored_json(stored: StoredStudy) -> dict[str, Any]:
    return {
        "study": study_json(stored.record),
        "exported_to": stored.exported_to,
        "trials": [trial_json(trial, stored.study.sla) for trial in stored.trials],
        "decision": finite(stored.decision.to_json()),
    }


def study_json(record: StudyRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state,
        "reason": record.reason,
        "trials": record.trials,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "environment": finite(dict(record.environment or {})),
        "definition": finite(dict(record.definition)),
    }


def trial_json(trial: Trial, sla: Sla) -> dict[str, Any]:
    return {
        "number": trial.number,
        "candidate": trial.candidate.to_json(),
        "state": trial.state,
        "reason": trial.reason,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "measurements": [_measurement_json(m, sla) for m in trial.measurements],
    }


def _measurement_json(measurement: Measurement, sla: Sla) -> dict[str, Any]:
    verdict = judge(measurement, sla) if measurement.valid else None
    return {
        "purpose": measurement.purpose,
        "valid": measurement.valid,
        "invalid_because": list(measurement.invalid_because),
        "verdict": None if verdict is None else verdict.outcome,
        "reasons": [] if verdict is None else list(verdict.reasons),
        "offered_qps": measurement.load.offered_qps,
        "errors": dict(measurement.load.errors),
        "utilization_source": measurement.telemetry.source,
        "memory_source": measurement.telemetry.memory_source,
        "metrics": finite({name: measurement.metric(name) for name in METRICS}),
    }
