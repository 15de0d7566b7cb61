"""Tables for people, in 60 columns, and better in 120."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rich.text import Text

from autotune.cli.console import Console
from autotune.cli.words import (
    candidate_words,
    number,
    share,
    unjudged_words,
)
from autotune.core.bottleneck import Breakdown, Step
from autotune.core.capacity import capacity_of
from autotune.core.comparison import Comparison, Relation
from autotune.core.decision import Decision
from autotune.core.evidence import latest
from autotune.core.explain_steps import capacity as capacity_words
from autotune.core.intervals import Estimate
from autotune.core.judged import Judged, Probe, emulated, judge_trial
from autotune.core.measurement import label
from autotune.core.records import StudyRecord
from autotune.core.sla import ACCURACY, Outcome, Sla, Verdict
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from autotune.core.wording import (
    IN_DOUBT,
    change_span,
    cost_words,
    in_kinds,
    percent,
    rate_words,
    saturation_bound,
    share_words,
    span,
    the_same,
    without,
)
from search_spaces.candidate import Candidate

VERDICT_STYLES = {Outcome.MEETS: "green", Outcome.MISSES: "red", Outcome.UNDECIDED: "yellow"}
RELATION_STYLES = {Relation.BETTER: "green", Relation.WORSE: "red", Relation.TIE: "yellow"}
GAP = "  "
EMULATED_MARK = "*"
COST = "cost/1,000"
SOMETIMES = (COST, "acc. drop")
"""Columns that are known in some studies alone, at the end of a row."""
OF_GPUS = ("sm_active", "tensor_active", "dram_active", "power_w", "energy_j_per_1000")
"""The metrics of `gauges_sheet`."""
LIMITS_MARK = "▸"


# ------------------------------------------------------------------------------------ the trials
@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A judged trial has ``cells``, in the order of the header; another one has ``state``.
    ``bound`` says why its saturation is a lower bound, where it is; ``emulated`` that it is busy as
    an emulated accelerator is."""

    mark: str
    configuration: str
    cells: tuple[str, ...] = ()
    verdict: Text | None = None
    state: str = ""
    picked: bool = False
    bound: str = ""
    emulated: bool = False


def print_trials(
    trials: Iterable[Trial],
    sla: Sla,
    decision: Decision | None,
    among: Sequence[Trial] | None = None,
) -> None:
    """A row per trial. ★ is the pick; trial 0 is the configuration found in service.

    The configuration stands in a column where a line has room for it, else on a line of its own
    below the trial's numbers. What all trials of a pipeline have in common (those ``among`` which
    these are) is told once.
    """
    shown = list(trials)
    pick = None if decision is None else decision.pick
    same = the_same(trial.candidate for trial in (shown if among is None else among))
    rows = [_row(trial, sla, pick, same) for trial in shown]
    latency = sla.tightest_metric.replace("_ms", " ms")
    always = ("trial", latency, "", "saturates", "", "busy", "memory")
    head: tuple[str, ...] = (*always, *SOMETIMES)
    for name in reversed(SOMETIMES):
        if all(row.cells[head.index(name)] == "–" for row in rows if row.cells):
            head, rows = _without(name, head, rows)
    if COST in head and _Layout.of(head, rows, Console.out.width).overflows:
        head, rows = _without(COST, head, rows)
    layout = _Layout.of(head, rows, Console.out.width)
    Console.out.print(layout.header(), soft_wrap=True)
    for row in rows:
        layout.print(row)
    for mark, note in _notes(rows, same):
        Console.hanging(Text(note, style="dim"), f"  {mark}  ")


def _without(
    name: str, head: tuple[str, ...], rows: Sequence[_Row]
) -> tuple[tuple[str, ...], list[_Row]]:
    """Less a column."""
    at = head.index(name)
    kept = [replace(row, cells=(*row.cells[:at], *row.cells[at + 1 :])) for row in rows]
    return (*head[:at], *head[at + 1 :]), kept


def _notes(rows: Sequence[_Row], same: Candidate) -> list[tuple[str, str]]:
    notes = [("=", f"in every trial: {candidate_words(same)}")] if list(same) else []
    notes += [("≥", note) for note in in_kinds(row.bound for row in rows if row.bound)]
    if any(row.emulated for row in rows):
        notes.append((EMULATED_MARK, "busy share of an emulated accelerator, not of hardware"))
    return notes


def _row(trial: Trial, sla: Sla, pick: int | None, same: Candidate) -> _Row:
    picked = trial.number == pick
    mark = f"★ {trial.number}" if picked else str(trial.number)
    name = candidate_words(without(trial.candidate, same))
    name = f"{name} (now)" if trial.number == 0 else name
    judged = judge_trial(trial, sla)
    if judged is None:
        return _Row(mark=mark, configuration=name, state=unjudged_words(trial))
    latency, saturation = judged.estimate(sla.tightest_metric), judged.estimate("saturation_qps")
    cells = (
        mark,
        number(None if latency is None else latency.value),
        _beside(latency),
        _saturation(judged),
        _beside(saturation),
        share(judged.metric("utilization")) + (EMULATED_MARK if emulated(judged) else ""),
        number(judged.metric("memory_mb"), 0, " MB"),
        _cost_or_dash(judged.metric("cost_per_1000")),
        _share_or_dash(judged.metric(ACCURACY)),
    )
    return _Row(
        mark=mark,
        configuration=name,
        cells=cells,
        verdict=verdict_words(judged),
        picked=picked,
        bound=_bound(judged),
        emulated=emulated(judged),
    )


def _share_or_dash(value: float | None) -> str:
    return "–" if value is None else share_words(value)


def _cost_or_dash(value: float | None) -> str:
    return "–" if value is None else cost_words(value)


def _saturation(judged: Judged) -> str:
    known = judged.metric("saturation_qps")
    return "–" if known is None else rate_words(known, bounded=bool(_bound(judged)))


def _bound(judged: Judged) -> str:
    return saturation_bound((*latest(judged.trial.measurements), *judged.evidence))


def _beside(known: Estimate | None) -> str:
    return "" if known is None or known.interval is None else f"({span(known.interval)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """``beside`` is the width of the configuration's column; None: it has lines of its own, as the
    verdict has where there is no room for it (``stacked``). ``overflows``: not even the numbers fit
    into a line."""

    head: tuple[str, ...]
    widths: tuple[int, ...]
    beside: int | None
    stacked: bool
    overflows: bool

    @classmethod
    def of(cls, head: tuple[str, ...], rows: Sequence[_Row], width: int) -> _Layout:
        measured = [row for row in rows if row.cells]
        columns = zip(*(row.cells for row in measured), strict=True) if measured else ()
        cells = list(columns) or [()] * len(head)
        widths = tuple(
            max(map(len, (name, *column))) for name, column in zip(head, cells, strict=True)
        )
        names = max((len(row.configuration) for row in rows), default=0)
        verdicts = max((len(row.verdict or "") for row in measured), default=0)
        numbers = len(_joined(head, widths))
        fits = numbers + 2 * len(GAP) + max(names, len("configuration")) + verdicts <= width
        beside = max(names, len("configuration")) if fits else None
        stacked = numbers + len(GAP) + verdicts > width
        return cls(
            head=head,
            widths=widths,
            beside=beside,
            stacked=stacked,
            overflows=numbers > width,
        )

    def header(self) -> Text:
        verdict = "" if self.stacked else f"{GAP}verdict"
        return Text(self._line(self.head, "configuration") + verdict, style="dim")

    def print(self, row: _Row) -> None:
        below = " " * (self.widths[0] + len(GAP))
        if row.verdict is None:
            Console.plain(f"{row.mark:>{self.widths[0]}}{GAP}{row.configuration}")
            doubted = row.state.startswith(IN_DOUBT)
            Console.hanging(Text(row.state, style="yellow" if doubted else "red"), below)
            return
        style = "bold" if row.picked else ""
        line = Text(self._line(row.cells, row.configuration))
        if not self.stacked:
            line = Text.assemble(line, GAP, row.verdict)
        Console.out.print(line, style=style, soft_wrap=True)
        if self.stacked:
            Console.hanging(row.verdict, below)
        if self.beside is None:
            Console.hanging(Text(row.configuration, style=style or "dim"), below)

    def _line(self, cells: Sequence[str], configuration: str) -> str:
        if self.beside is None:
            return _joined(cells, self.widths)
        first = f"{cells[0]:>{self.widths[0]}}{GAP}{configuration:<{self.beside}}{GAP}"
        return first + _joined(cells[1:], self.widths[1:], intervals=(1, 3))


def _joined(cells: Sequence[str], widths: Sequence[int], intervals: Sequence[int] = (2, 4)) -> str:
    """Numbers to the right; an interval to the left, close to its number."""
    text = ""
    for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        if i in intervals:
            text += f" {cell:<{width}}" if width else ""
        else:
            text += (GAP if i else "") + f"{cell:>{width}}"
    return text


def verdict_words(judged: Judged) -> Text:
    """``meets, 49% to spare``; where a check objects, which."""
    style = VERDICT_STYLES[judged.outcome]
    if judged.verdict.outcome is judged.outcome:
        return Text(f"{judged.outcome}{_margin(judged.verdict)}", style=style)
    confirmed = judged.confirmation is None or judged.confirmation.outcome is not judged.outcome
    return Text(f"{judged.outcome} {'nearby' if confirmed else 'when confirmed'}", style=style)


def _margin(verdict: Verdict) -> str:
    """Of the term that makes the verdict what it is; what is to spare is of the time."""
    deciding = [f for f in verdict.findings if f.outcome is verdict.outcome]
    if verdict.meets:
        deciding = [f for f in deciding if f.metric != ACCURACY]
    tightest = min(deciding, key=lambda f: math.inf if f.margin is None else f.margin)
    if tightest.margin is None or verdict.outcome is Outcome.UNDECIDED:
        return ""
    if verdict.meets:
        return f", {tightest.margin:.0%} to spare"
    if tightest.metric == "achieved":
        return ", falls behind"
    if tightest.metric == ACCURACY:
        return ", accuracy"
    over = (tightest.value or 0.0) / tightest.limit if tightest.limit else 0.0
    return f", {over:.3g}× limit" if over > 2 else f" by {-tightest.margin:.0%}"


# ------------------------------------------------------------------------------ after the search
@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """``below``: where the table is too wide for the terminal, its cells stand on a line of their
    own below each row, in this form."""

    name: str
    right: bool = False
    below: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table of which a row takes one line, or two in a narrow terminal; ``notes`` has more lines
    to stand below each row."""

    columns: tuple[_Column, ...]
    rows: Sequence[tuple[str | Text, ...]]
    notes: Sequence[Sequence[str]] = ()

    def print(self) -> None:
        kept = list(range(len(self.columns)))
        if self._width(kept) > Console.out.width:
            kept = [i for i in kept if not self.columns[i].below]
        heads = tuple(column.name for column in self.columns)
        Console.out.print(self._line(heads, kept), style="dim", soft_wrap=True)
        for at, row in enumerate(self.rows):
            Console.out.print(self._line(row, kept), soft_wrap=True)
            told = [
                column.below.format(cell)
                for i, (column, cell) in enumerate(zip(self.columns, row, strict=True))
                if i not in kept and str(cell) not in ("", "–")
            ]
            below = [" ".join(told)] if told else []
            for line in (*below, *(self.notes[at] if self.notes else ())):
                Console.hanging(Text(line, style="dim"), " " * 7)

    def _line(self, cells: Sequence[str | Text], kept: Sequence[int]) -> Text:
        line = Text()
        for i in kept:
            cell, gap = cells[i], GAP if line else ""
            space = " " * (self._widths[i] - len(cell))
            line.append(gap + (space if self.columns[i].right else ""))
            line.append(cell)
            line.append("" if self.columns[i].right else space)
        line.rstrip()
        return line

    def _width(self, kept: Sequence[int]) -> int:
        return sum(self._widths[i] for i in kept) + len(GAP) * (len(kept) - 1)

    @property
    def _widths(self) -> list[int]:
        columns = zip(*self.rows, strict=True)
        return [
            max(map(len, (column.name, *cells)))
            for column, cells in zip(self.columns, columns, strict=True)
        ]


def nearby_sheet(judged: Iterable[Judged], sla: Sla) -> Sheet | None:
    """A row per trial, rate and burstiness that was probed, with the tightest latency; None where
    nothing was."""
    latency = sla.tightest_metric.replace("_ms", " ms")
    columns = (
        _Column(name="trial", right=True),
        _Column(name="rate", right=True),
        _Column(name="arrivals"),
        _Column(name=latency, right=True, below=latency + " {}"),
        _Column(name="", below="{}"),
        _Column(name="verdict"),
    )
    rows = [(str(t.number), *_probed(probe, sla)) for t in judged for probe in t.probes]
    return Sheet(columns=columns, rows=rows) if rows else None


def _probed(probe: Probe, sla: Sla) -> tuple[str | Text, ...]:
    traffic, verdict = probe.traffic, probe.verdict
    finding = next(f for f in verdict.findings if f.metric == sla.tightest_metric)
    return (
        number(traffic.qps, unit="/s"),
        traffic.arrival if traffic.cv is None else f"{traffic.arrival}, cv {traffic.cv:g}",
        number(finding.value),
        "" if finding.interval is None else f"({span(finding.interval)})",
        Text(f"{verdict.outcome}{_margin(verdict)}", style=VERDICT_STYLES[verdict.outcome]),
    )


def gauges_sheet(trials: Iterable[Trial], sla: Sla) -> Sheet | None:
    """A row per trial of which a GPU tells more than how busy it was; None where there is none."""
    columns = (
        _Column(name="trial", right=True),
        _Column(name="SM active", right=True),
        _Column(name="tensor", right=True),
        _Column(name="DRAM", right=True),
        _Column(name="power", right=True),
        _Column(name="J/1,000", right=True),
    )
    rows = []
    for trial in trials:
        judged = judge_trial(trial, sla)
        known = {} if judged is None else {name: judged.metric(name) for name in OF_GPUS}
        if any(value is not None for value in known.values()):
            shares = [share(known[name]) for name in OF_GPUS if name.endswith("_active")]
            power = number(known["power_w"], 0, " W")
            joules = number(known["energy_j_per_1000"])
            rows.append((str(trial.number), *shares, power, joules))
    return Sheet(columns=columns, rows=rows) if rows else None


def capacity_sheet(trials: Iterable[Trial], sla: Sla) -> Sheet | None:
    """A row per trial whose capacity was probed, beside its saturation; None where none was."""
    columns = (
        _Column(name="trial", right=True),
        _Column(name="meets the SLA up to"),
        _Column(name="saturates", below="saturates at {}"),
        _Column(name="share", right=True),
    )
    rows = []
    for trial in trials:
        judged, capacity = judge_trial(trial, sla), capacity_of(trial.measurements, sla)
        if judged is not None and capacity is not None:
            known = judged.estimate("saturation_qps")
            told = f"{_saturation(judged)} {_beside(known)}".strip()
            part = share(capacity.saturation_share)
            at_most = "≤ " if capacity.saturation_share and _bound(judged) else ""
            rows.append((str(trial.number), str(capacity), told, at_most + part))
    return Sheet(columns=columns, rows=rows) if rows else None


def comparisons_sheet(comparisons: Iterable[Comparison], pick: int | None = None) -> Sheet:
    """A row per comparison: the second trial against the first; the pick against the other."""
    columns = (
        _Column(name="trial", right=True),
        _Column(name="against", right=True),
        _Column(name="metric"),
        _Column(name="change", right=True),
        _Column(name="95% interval", below="95% interval {},"),
        _Column(name="pairs", right=True, below="pairs of runs: {}"),
        _Column(name="it is"),
    )
    seen = [one.turned() if one.first == pick else one for one in comparisons]
    rows = [
        (
            str(one.second),
            str(one.first),
            label(one.metric),
            percent(one.effect),
            change_span(one.interval),
            str(one.pairs),
            Text(str(one.relation), style=RELATION_STYLES[one.relation]),
        )
        for one in seen
    ]
    return Sheet(columns=columns, rows=rows)


# ------------------------------------------------------------------------ steps of a pipeline
def steps_sheet(found: Breakdown) -> Sheet:
    """A row per step, with the means of a request in ms; ▸ marks the one that limits."""
    columns = (
        _Column(name=f"{GAP}step"),
        _Column(name="mean ms", right=True),
        _Column(name="queue", right=True),
        _Column(name="compute", right=True),
        _Column(name="batch", right=True, below="batch {},"),
        _Column(name="instances", right=True),
        _Column(name="busy", right=True),
        _Column(name="can take", below="can take {}"),
    )
    rows = [_step_row(step, found) for step in found.steps]
    if found.outside_ms is not None:
        rows.append((f"{GAP}in no step", number(found.outside_ms), *[""] * 6))
    return Sheet(columns=columns, rows=rows)


def _step_row(step: Step, found: Breakdown) -> tuple[str | Text, ...]:
    limits = found.limits(step.name)
    name = f"{LIMITS_MARK if limits else ' '} {step.name}"
    return (
        Text(name, style="bold" if limits else ""),
        number(step.latency_ms),
        number(step.queue_ms),
        number(step.compute_ms),
        number(step.mean_batch),
        str(step.instances) if step.instances else "–",
        share(step.utilization),
        "–" if step.capacity_qps is None else capacity_words(step),
    )


# ------------------------------------------------------------------------------------- variants
def variants_sheet(variants: Sequence[VariantRecord]) -> Sheet:
    """A row per variant, with why it was refused, what was kept of what was tried, and notes."""
    steps = any(record.step for record in variants)
    columns = (
        _Column(name="variant"),
        *([_Column(name="step")] if steps else []),
        _Column(name="accuracy drop", right=True),
        _Column(name="as served", right=True, below="as served {}"),
        _Column(name="size", right=True, below="{}"),
        _Column(name="came of it"),
    )
    rows = [_variant_row(record, steps=steps) for record in variants]
    return Sheet(columns=columns, rows=rows, notes=[_variant_notes(r) for r in variants])


def _variant_row(record: VariantRecord, *, steps: bool) -> tuple[str | Text, ...]:
    return (
        str(record.variant),
        *([record.step] if steps else []),
        _share_or_dash(record.accuracy_drop),
        _share_or_dash(record.served_drop),
        number(record.size_mb, 1, " MB"),
        _came_of(record),
    )


def _came_of(record: VariantRecord) -> Text:
    return Text(record.came_of, style="red" if record.refused else "green")


def _variant_notes(record: VariantRecord) -> list[str]:
    kept = next((attempt.what for attempt in record.attempts if attempt.kept), "")
    tried = len(record.attempts)
    told = [f"refused: {record.refused}"] if record.refused else []
    if kept:
        told.append(f"kept: {kept}" + (f", of {tried} tried" if tried > 1 else ""))
    elif tried > 1:
        told.append(f"{tried} ways were tried")
    return [*told, *record.notes]


# --------------------------------------------------------------------------------- stored studies
def studies_sheet(records: Sequence[StudyRecord]) -> Sheet:
    """A row per study; why it ended stands below it where a line has no room for it."""
    columns = (
        _Column(name="id", right=True),
        _Column(name="study"),
        _Column(name="state"),
        _Column(name="trials", right=True),
        _Column(name="started"),
        _Column(name="note", below="{}"),
    )
    return Sheet(columns=columns, rows=[_study_row(record) for record in records])


def _study_row(record: StudyRecord) -> tuple[str, ...]:
    started = datetime.fromtimestamp(record.created_at, UTC).astimezone()
    return (
        str(record.id),
        record.name,
        str(record.state),
        str(record.trials),
        f"{started:%Y-%m-%d %H:%M}",
        record.reason.splitlines()[0] if record.reason else "",
    )
