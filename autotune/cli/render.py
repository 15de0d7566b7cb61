"""Answers and stored studies in words for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.text import Text

from autotune.bootstrap import StoredStudy
from autotune.cli.console import Console
from autotune.cli.tables import (
    GAP,
    LIMITS_MARK,
    capacity_sheet,
    comparisons_sheet,
    gauges_sheet,
    nearby_sheet,
    print_trials,
    steps_sheet,
    variants_sheet,
)
from autotune.cli.words import candidate_words, duration
from autotune.core.decision import Decision
from autotune.core.explain_steps import EACH_BY_ITSELF, STILL_WAITING, ms
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState, numbered
from autotune.core.variants import VariantRecord
from autotune.core.wording import disbelieved, disbelieved_words
from autotune.tuner.answer import Answer


# ------------------------------------------------------------------------------------- an answer
def print_answer(answer: Answer, *, noted: Collection[str]) -> None:
    """The table of the front, the pick with its reasons, and the paths of what was written; of the
    warnings those that were not ``noted`` before."""
    decision = answer.decision
    Console.out.print()
    _print_decision(answer.study, answer.trials, decision)
    _print_variants(answer.variants)
    _print_warnings([warning for warning in answer.warnings if warning not in noted])
    _print_disbelieved(answer.trials)
    if answer.exported_to is not None:
        _heading("Written")
        for path in (*_tuned(answer), *_beside(answer)):
            Console.plain(f"  {path}")
    elif answer.report is not None:
        _heading(f"The report:  {answer.report}")
    if answer.search_log is not None and answer.search_log.exists():
        _heading(_search_words(answer.search_log))
    measured = sum(trial.measurement is not None for trial in answer.trials)
    under_load = answer.load_s / answer.wall_s
    ruled_out = sum(trial.state is TrialState.PRUNED for trial in answer.trials)
    beside = f" ({ruled_out} ruled out unmeasured)" if ruled_out else ""
    _heading(
        f"Candidates measured: {measured}{_of_planned(decision)}{beside}, in"
        f" {duration(answer.wall_s)},"
        f" {under_load:.0%} of it under load; {answer.stopped_because}."
    )


def _of_planned(decision: Decision) -> str:
    searched = decision.searched
    return "" if searched is None or not searched.cut_short else f" of {searched.planned}"


def _search_words(log: Path) -> str:
    """The command where there is one: on a host without a network nobody can install it."""
    if find_spec("optuna_dashboard") is None:
        return f"The search, as Optuna keeps it:  {log}"
    return f"The search:  optuna-dashboard sqlite:///{log}"


def _heading(text: str) -> None:
    Console.plain("")
    Console.plain(text)


def _bullet(text: str) -> None:
    Console.hanging(Text(text), "- ")


def _tuned(answer: Answer) -> list[Path]:
    """The configurations that were tuned: of a pipeline those of its steps."""
    assert answer.exported_to is not None
    pick = numbered(answer.trials, answer.decision.pick)
    steps = () if pick is None else pick.candidate.steps
    names = steps or (answer.study.model.name,)
    return [answer.exported_to / name / "config.pbtxt" for name in names]


def _beside(answer: Answer) -> list[Path]:
    assert answer.exported_to is not None
    return [answer.exported_to / name for name in ("report.html", "provenance.json")]


def _print_decision(study: Study, trials: Sequence[Trial], decision: Decision) -> set[int]:
    """Returns the numbers of the trials that were shown."""
    by_number = {trial.number: trial for trial in trials}
    pick = by_number.get(-1 if decision.pick is None else decision.pick)
    if decision.without_verdict:
        headline = f"{study.name}: no trial could be measured, so there is no verdict"
        Console.out.print(Text(headline, style="bold red"))
    elif pick is None:
        unsure = decision.undecided or any(t.state is TrialState.INVALID for t in trials)
        known = "is known to meet" if unsure else "meets"
        searched = "" if decision.searched is None else decision.searched.words
        headline = f"{study.name}: no candidate {known} the SLA" + (searched and f" ({searched})")
        Console.out.print(Text(headline, style="bold red"))
    else:
        headline = f"{study.name}: {candidate_words(pick.candidate)}"
        confirmed = pick.confirmation is not None
        style = "bold green" if confirmed else "bold yellow"
        Console.out.print(Text(headline + ("" if confirmed else " (not confirmed)"), style=style))
    rows = decision.front or decision.infeasible_front
    nearest = [] if decision.nearest_miss is None else [decision.nearest_miss]
    wanted = set(by_number) if decision.without_verdict else {0, *rows, *nearest}
    numbers = sorted(wanted & set(by_number))
    Console.plain("")
    shown = [by_number[n] for n in numbers]
    print_trials(shown, study.sla, decision, trials)
    gauges = gauges_sheet(shown, study.sla)
    if gauges is not None:
        _heading("What the GPU did")
        gauges.print()
    Console.plain("")
    for reason in decision.reasons:
        _bullet(reason)
    _print_after_the_search(study, trials, decision)
    return set(numbers)


def _print_after_the_search(study: Study, trials: Sequence[Trial], decision: Decision) -> None:
    """A pipeline's time by step, the finals' comparisons, capacity, and who was measured under
    other traffic."""
    _print_steps(decision)
    if decision.comparisons:
        _heading("Run in turns, under the same arrivals")
        comparisons_sheet(decision.comparisons, decision.pick).print()
    capacity = capacity_sheet(trials, study.sla)
    if capacity is not None:
        _heading("How much they can take")
        capacity.print()
    nearby = nearby_sheet(decision.judged, study.sla)
    if nearby is not None:
        _heading("Under other traffic")
        nearby.print()


def _print_steps(decision: Decision) -> None:
    """Of the pick or the nearest miss, and of the configuration in service."""
    chosen = decision.nearest_miss if decision.pick is None else decision.pick
    named = "the nearest miss" if decision.pick is None else "the pick"
    roles = {0: "the configuration in service"}
    if chosen is not None:
        roles[chosen] = f"{named}, {roles[0]}" if chosen == 0 else named
    shown = [(n, decision.of(n)) for n in sorted(roles, key=lambda n: n != chosen)]
    told = [(n, steps) for n, judged in shown if judged and (steps := judged.steps)]
    for number, steps in told:
        mean = "" if steps.mean_ms is None else f": {ms(steps.mean_ms)} on average"
        Console.plain("")
        Console.hanging(Text(f"Time by step in trial {number} ({roles[number]}){mean}"), "")
        steps_sheet(steps).print()
        if steps.behind:
            Console.hanging(Text(STILL_WAITING, style="dim"), GAP)
    if told:
        if any(steps.clear for _, steps in told):
            Console.hanging(Text("the step that limits", style="dim"), f"{LIMITS_MARK} ")
        Console.hanging(Text(f"can take: {EACH_BY_ITSELF}", style="dim"), GAP)


def _print_variants(variants: Sequence[VariantRecord]) -> None:
    if variants:
        _heading("Variants")
        variants_sheet(variants).print()


def _print_warnings(warnings: Sequence[str]) -> None:
    if not warnings:
        return
    _heading("Mind these")
    for warning in warnings:
        Console.hanging(Text(warning, style="yellow"), "- ")


def _print_disbelieved(trials: Sequence[Trial]) -> None:
    """The measurements that say nothing about their candidates, by reason."""
    found = disbelieved(trials)
    if not found:
        return
    _heading(disbelieved_words(trials))
    for one in found:
        _bullet(f"{'; '.join(one.struck)}: {one.reason}")


# --------------------------------------------------------------------------------- stored studies
def print_stored(stored: StoredStudy) -> None:
    record = stored.record
    state = f"study {record.id} ({record.name}): {record.state}"
    Console.plain(f"{state}; {record.reason}" if record.reason else state)
    Console.plain("")
    shown = _print_decision(stored.study, stored.trials, stored.decision)
    _print_variants(stored.variants)
    _print_warnings((record.environment or {}).get("warnings", ()))
    _print_disbelieved(stored.trials)
    others = [trial for trial in stored.trials if trial.number not in shown]
    if others:
        _heading("Other trials")
        print_trials(others, stored.study.sla, stored.decision, stored.trials)
    if stored.exported_to:
        _heading(f"Exported to {stored.exported_to}")
