"""Tables for people, in 80 columns and better in 120."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from autotune.cli.console import Console
from autotune.cli.words import candidate_words, number, share
from autotune.core.capacity import capacity_of
from autotune.core.comparison import Comparison, Relation
from autotune.core.decision import Decision
from autotune.core.intervals import Estimate
from autotune.core.judged import Judged, Probe, judge_trial
from autotune.core.measurement import label
from autotune.core.records import StudyRecord
from autotune.core.sla import Outcome, Sla, Verdict
from autotune.core.trial import Trial
from autotune.core.wording import change_span, percent, span

VERDICT_STYLES = {Outcome.MEETS: "green", Outcome.MISSES: "red", Outcome.UNDECIDED: "yellow"}
RELATION_STYLES = {Relation.BETTER: "green", Relation.WORSE: "red", Relation.TIE: "yellow"}
GAP = "  "


# ------------------------------------------------------------------------------------ the trials
@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A measured trial has ``cells``, in the order of the header; another one has ``state``."""

    mark: str
    configuration: str
    cells: tuple[str, ...] = ()
    verdict: Text | None = None
    state: str = ""
    picked: bool = False


def print_trials(trials: Iterable[Trial], sla: Sla, decision: Decision | None) -> None:
    """A row per trial. ★ is the pick; trial 0 is the configuration found in service.

    The configuration stands in a column where a line has room for it, else on a line of its own
    below the trial's numbers.
    """
    pick = None if decision is None else decision.pick
    rows = [_row(trial, sla, pick) for trial in trials]
    head = ("trial", sla.tightest_metric.replace("_ms", " ms"), "", "saturates", "", "busy")
    layout = _Layout.of((*head, "memory"), rows, Console.out.width)
    Console.out.print(layout.header(), soft_wrap=True)
    for row in rows:
        layout.print(row)


def _row(trial: Trial, sla: Sla, pick: int | None) -> _Row:
    picked = trial.number == pick
    mark = f"★ {trial.number}" if picked else str(trial.number)
    name = candidate_words(trial.candidate) + (" (now)" if trial.number == 0 else "")
    judged = judge_trial(trial, sla)
    if judged is None:
        reason = trial.reason.splitlines()[0] if trial.reason else ""
        state = f"{trial.state}: {reason}" if reason else str(trial.state)
        return _Row(mark=mark, configuration=name, state=state)
    latency, saturation = judged.estimate(sla.tightest_metric), judged.estimate("saturation_qps")
    cells = (
        mark,
        number(None if latency is None else latency.value),
        _beside(latency),
        number(None if saturation is None else saturation.value, unit="/s"),
        _beside(saturation),
        share(judged.metric("utilization")),
        number(judged.metric("memory_mb"), 0, " MB"),
    )
    return _Row(
        mark=mark, configuration=name, cells=cells, verdict=verdict_words(judged), picked=picked
    )


def _beside(known: Estimate | None) -> str:
    return "" if known is None or known.interval is None else f"({span(known.interval)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """``beside`` is the width of the configuration's column; None: it has lines of its own."""

    head: tuple[str, ...]
    widths: tuple[int, ...]
    beside: int | None

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
        return cls(head=head, widths=widths, beside=beside)

    def header(self) -> Text:
        return Text(f"{self._line(self.head, 'configuration')}{GAP}verdict", style="dim")

    def print(self, row: _Row) -> None:
        below = " " * (self.widths[0] + len(GAP))
        if row.verdict is None:
            Console.plain(f"{row.mark:>{self.widths[0]}}{GAP}{row.configuration}")
            Console.hanging(Text(row.state, style="red"), below)
            return
        style = "bold" if row.picked else ""
        line = Text.assemble(self._line(row.cells, row.configuration), GAP, row.verdict)
        Console.out.print(line, style=style, soft_wrap=True)
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
    """Of the term that makes the verdict what it is."""
    deciding = [f for f in verdict.findings if f.outcome is verdict.outcome]
    tightest = min(deciding, key=lambda f: math.inf if f.margin is None else f.margin)
    if tightest.margin is None or verdict.outcome is Outcome.UNDECIDED:
        return ""
    if verdict.meets:
        return f", {tightest.margin:.0%} to spare"
    if tightest.metric == "achieved":
        return ", falls behind"
    over = (tightest.value or 0.0) / tightest.limit if tightest.limit else 0.0
    return f", {over:.3g}× limit" if over > 2 else f" by {-tightest.margin:.0%}"


# ------------------------------------------------------------------------------ after the search
def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def nearby_table(judged: Iterable[Judged], sla: Sla) -> Table | None:
    """A row per trial, rate and burstiness that was probed, with the tightest latency; None where
    nothing was."""
    table = _plain_table()
    table.add_column("trial", justify="right")
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("arrivals", no_wrap=True)
    table.add_column(sla.tightest_metric.replace("_ms", " ms"), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for trial in judged:
        for probe in trial.probes:
            table.add_row(str(trial.number), *_probed(probe, sla))
    return table if table.row_count else None


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


def capacity_table(trials: Iterable[Trial], sla: Sla) -> Table | None:
    """A row per trial whose capacity was probed, beside its saturation; None where none was."""
    table = _plain_table()
    table.add_column("trial", justify="right")
    table.add_column("meets the SLA up to", no_wrap=True)
    table.add_column("saturates", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for trial in trials:
        judged, capacity = judge_trial(trial, sla), capacity_of(trial.measurements, sla)
        if judged is not None and capacity is not None:
            known = judged.estimate("saturation_qps")
            saturation = "–" if known is None else number(known.value, unit=f"/s {_beside(known)}")
            table.add_row(
                str(trial.number), str(capacity), saturation, share(capacity.saturation_share)
            )
    return table if table.row_count else None


def comparisons_table(comparisons: Iterable[Comparison]) -> Table:
    """A row per comparison: the second trial against the first."""
    table = _plain_table()
    table.add_column("trial", justify="right")
    table.add_column("against", justify="right")
    table.add_column("metric", no_wrap=True)
    table.add_column("change", justify="right", no_wrap=True)
    table.add_column("95% interval", no_wrap=True)
    table.add_column("pairs", justify="right")
    table.add_column("it is")
    for one in comparisons:
        table.add_row(
            str(one.second),
            str(one.first),
            label(one.metric),
            percent(one.effect),
            change_span(one.interval),
            str(one.pairs),
            Text(str(one.relation), style=RELATION_STYLES[one.relation]),
        )
    return table


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
