"""Parts of a trial's page: its answer, why it is or is not the pick, its measurements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from autotune.core.comparison import Comparison
from autotune.core.contrast import Contrast, Contrasts
from autotune.core.explain import shown
from autotune.core.measurement import Measurement, Purpose
from autotune.core.records import StudyState
from autotune.core.sla import ACCURACY
from autotune.core.standing import Standing
from autotune.core.wording import change_span, ended_words, percent, span
from autotune.service_ports import StudyOutline
from dashboards.figures.data import Entry, label
from dashboards.figures.draw import told
from dashboards.web.parts import cards, notes
from dashboards.web.parts.acts import button
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import UNKNOWN, aria, duration, when

FIGURES = (
    "saturation_qps",
    "utilization",
    "memory_mb",
    "instances",
    "mean_batch",
    ACCURACY,
    "energy_j_per_1000",
    "cost_per_1000",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a trial's page shows: the trial, the pick (None: there is none) and the configuration
    in service, which may be one and the same."""

    outline: StudyOutline
    entry: Entry
    pick: Entry | None
    first: Entry | None

    @property
    def study_id(self) -> int:
        return self.outline.record.id

    @property
    def number(self) -> int:
        return self.entry.number

    @property
    def is_pick(self) -> bool:
        return self.pick is not None and self.pick.number == self.number


def href(study_id: int, number: int) -> str:
    return f"/study/{study_id}/trial/{number}"


def api(study_id: int, number: int, file: str) -> str:
    return f"/api/v1/studies/{study_id}/trials/{number}/{file}"


# ------------------------------------------------------------------------------------------- head
def head(seen: Seen) -> list[Component | None]:
    record, entry = seen.outline.record, seen.entry
    tag = html.Span("pick", className="tag") if seen.is_pick else None
    return [
        html.Nav(
            [
                dcc.Link("Studies", href="/"),
                " / ",
                dcc.Link(f"{record.name} (run {record.id})", href=f"/study/{record.id}"),
                " / ",
                f"trial {entry.number}",
            ],
            className="eyebrow",
            **aria(label="Where this is"),
        ),
        html.Div(
            [
                html.H1(f"Trial {entry.number}", tabIndex=-1),
                badge(entry.standing),
                tag,
                html.Span(_times(entry), className="quiet"),
                _neighbours(seen),
            ],
            className="title",
        ),
        html.P(_answer(seen), className=f"answer {_kind(seen)}"),
        html.Div(
            [
                html.Section(cards.facts(_candidate(entry)), **aria(label="The candidate")),
                *_figures(seen),
            ],
            className="head-pair",
        ),
        links(seen),
    ]


def _times(entry: Entry) -> list[Any]:
    trial = entry.trial
    if not trial.started_at:
        return []
    took = "" if trial.ended_at is None else f", took {duration(trial.ended_at - trial.started_at)}"
    return ["measured ", when(trial.started_at), took]


def _neighbours(seen: Seen) -> Component:
    number, last = seen.number, seen.outline.record.trials - 1
    return html.Span(
        [
            dcc.Link(f"← {number - 1}", href=href(seen.study_id, number - 1))
            if number > 0
            else None,
            " ",
            dcc.Link(f"{number + 1} →", href=href(seen.study_id, number + 1))
            if number < last
            else None,
        ],
        className="neighbours",
    )


def _kind(seen: Seen) -> str:
    return {Standing.MEETS: "good", Standing.MISSES: "bad", Standing.FAILED: "bad"}.get(
        seen.entry.standing, ""
    )


def _answer(seen: Seen) -> list[Any]:
    entry = seen.entry
    why = f": {entry.why}" if entry.why else ""
    if seen.is_pick:
        return [f"This is the pick{why}."]
    if seen.outline.record.state is StudyState.RUNNING:
        return [f"{_said(entry)}{why}. The study has not decided yet."]
    if seen.pick is None:
        return [f"{_said(entry)}{why}. The study has no pick."]
    pick = dcc.Link(f"trial {seen.pick.number}", href=href(seen.study_id, seen.pick.number))
    return [f"Not the pick. {_said(entry)}{why}. The pick is ", pick, "."]


_SAID = {
    Standing.MEETS: "It meets the SLA",
    Standing.MISSES: "It misses the SLA",
    Standing.UNDECIDED: "It is not sure whether it meets the SLA",
    Standing.DOUBTED: "Its measurements were put in doubt",
    Standing.INVALID: "It could not be measured so that the figures can be believed",
    Standing.FAILED: "It failed",
    Standing.PRUNED: "It was ruled out without being measured",
    Standing.RUNNING: "It is being measured",
}


def _said(entry: Entry) -> str:
    return _SAID[entry.standing]


def _candidate(entry: Entry) -> list[tuple[str, Any]]:
    found = [(name, str(value)) for name, value in entry.candidate.to_json().items()]
    if entry.number == 0:
        found.append(("trial 0", "the configuration that was found in service"))
    return found or [("candidate", "the model’s own settings")]


def _figures(seen: Seen) -> list[Component]:
    wanted = (seen.outline.study.sla.tightest_metric, *FIGURES)
    known = [metric for metric in wanted if seen.entry.metric(metric) is not None]
    if not known:
        return []
    row = cards.figures(seen.entry, seen.first, known)
    return [html.Section(row, **aria(label="Figures, against the configuration in service"))]


def links(seen: Seen) -> Component:
    study_id, number = seen.study_id, seen.number
    other = next(
        (e.number for e in (seen.pick, seen.first) if e is not None and e.number != number), None
    )
    compare = f"/study/{study_id}/compare?a={'' if other is None else other}&b={number}"
    return html.Div(
        [
            html.A(words, href=api(study_id, number, file), className="action", download="")
            for words, file in (
                ("config.pbtxt", "config.pbtxt"),
                ("Repository (ZIP)", "repository.zip"),
            )
        ]
        + [
            dcc.Link("Compare …", href=compare, className="action"),
            None
            if seen.entry.judged is None
            else button("propose", f"{study_id}/{number}", "Propose for service …"),
        ],
        className="actions",
    )


# -------------------------------------------------------------------------------------------- why
def why(seen: Seen) -> Component:
    return cards.section(
        "Why it is the pick" if seen.is_pick else "Why it is not the pick",
        *_reasons(seen),
        _findings(seen),
        _against(seen),
        name="why",
    )


def _reasons(seen: Seen) -> list[Component]:
    """All of the decision's for the pick; for another those that speak of it."""
    decision = seen.outline.decision
    if decision is None:
        return [
            html.P("There is no decision yet; it comes when the study ends.", className="quiet")
        ]
    named = re.compile(rf"\btrials?\b[^;:.]*\b{seen.number}\b")
    reasons = [
        reason
        for reason in decision.detail.get("reasons", ())
        if seen.is_pick or named.search(reason)
    ]
    told_ = [*reasons, *_places(seen)]
    if not told_:
        return []
    return [html.Ul([html.Li(each) for each in told_], className="reasons")]


def _places(seen: Seen) -> list[str]:
    """Where the decision put it, beside its words."""
    detail = {} if seen.outline.decision is None else seen.outline.decision.detail
    number, told_ = seen.number, []
    if number == detail.get("nearest_miss"):
        told_.append("No candidate is known to meet the SLA; this one comes nearest.")
    if seen.is_pick:
        return told_
    if number in detail.get("front", ()):
        told_.append("It is on the front: no other is better in all that the study asks for.")
    elif seen.entry.standing is Standing.MEETS and detail.get("front"):
        told_.append("It is not on the front: another is at least as good in all that counts.")
    if number in detail.get("ties", ()):
        told_.append("It is a tie with the pick, within what was measured.")
    return told_


def _findings(seen: Seen) -> Component | None:
    """Each term of the SLA, as it was judged."""
    judged = seen.entry.judged
    if judged is None:
        return None
    checks = [("measured", judged.verdict)]
    if judged.confirmation is not None:
        checks.append(("from its exported files", judged.confirmation))
    rows = [
        {
            "term": label(finding.metric),
            "where": where,
            "value": "–"
            if finding.value is None
            else shown_or_share(finding.metric, finding.value),
            "interval": "" if finding.interval is None else span(finding.interval),
            "limit": "–"
            if finding.limit is None
            else shown_or_share(finding.metric, finding.limit),
            "outcome": badge(finding.outcome),
        }
        for where, verdict in checks
        for finding in verdict.findings
    ]
    columns = (
        Column(key="term", title="Term of the SLA"),
        Column(key="outcome", title="Verdict"),
        Column(key="value", title="Value", number=True),
        Column(key="interval", title="95% interval", number=True),
        Column(key="limit", title="Limit", number=True),
        Column(key="where", title="Seen"),
    )
    return table("findings", "The SLA’s terms", columns, rows)


def shown_or_share(metric: str, value: float) -> str:
    """As `shown`; what is no metric is a share of what was offered."""
    return f"{value:.1%}" if metric == "achieved" else shown(metric, value)


def _against(seen: Seen) -> Component | None:
    """Figures of the pick beside this trial's, with what is more than noise."""
    if seen.pick is None or seen.is_pick or seen.entry.measurement is None:
        return None
    rows = versus(seen.pick, seen.entry, seen.outline)
    if not rows:
        return None
    told_apart = [html.P(APART, className="quiet"), versus_table(seen.pick, seen.entry, rows)]
    found = in_turn(seen.outline.comparisons, seen.pick.number, seen.entry.number)
    beside = [html.H4("Runs of both in turn"), in_turn_table(found, seen.entry.number)]
    return html.Div([html.H3("Against the pick"), *told_apart, *(beside if found else [])])


COMPARED = (
    "p50_ms",
    "p90_ms",
    "p95_ms",
    "p99_ms",
    "mean_ms",
    "achieved_qps",
    "saturation_qps",
    "queue_ms",
    "compute_ms",
    "mean_batch",
    "utilization",
    "memory_mb",
    "instances",
    "error_rate",
    ACCURACY,
    "power_w",
    "energy_j_per_1000",
    "cost_per_1000",
)


APART = (
    "Each as it was measured by itself, with 95% intervals; a tie is what the intervals do not tell"
    " apart. Where the two were also run in turn, under the same arrivals, those runs tell it: they"
    " have a table of their own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """A metric of two trials; ``contrast`` is between the two values, each measured by itself.
    ``in_turn``: runs of both in turn say which is better, and these values do not."""

    metric: str
    contrast: Contrast | None
    in_turn: bool = False


def versus(one: Entry, other: Entry, outline: StudyOutline) -> list[Versus]:
    """Every metric that is known of either; told apart where both were judged."""
    apart = Contrasts.of(())
    known = [m for m in COMPARED if one.metric(m) is not None or other.metric(m) is not None]
    told_in_turn = {c.metric for c in in_turn(outline.comparisons, one.number, other.number)}
    return [
        Versus(
            metric=metric,
            contrast=apart.between(one.judged, other.judged, metric)
            if one.judged is not None and other.judged is not None
            else None,
            in_turn=metric in told_in_turn,
        )
        for metric in known
    ]


def in_turn(comparisons: Sequence[Comparison], one: int, other: int) -> list[Comparison]:
    """Of the two, from the one to the other, the latest first."""
    both = [c for c in comparisons if {c.first, c.second} == {one, other}]
    turned = [c if c.first == one else c.turned() for c in both]
    return sorted(turned, key=lambda c: -c.taken_at)


def in_turn_table(found: Sequence[Comparison], other: int) -> Component:
    columns = (
        Column(key="metric", title="Metric"),
        Column(key="relation", title=f"Trial {other} is"),
        Column(key="effect", title="Change in these runs", number=True),
        Column(key="interval", title="95% interval", number=True),
        Column(key="pairs", title="Pairs of runs", number=True),
        Column(key="at", title="Taken"),
    )
    rows = [
        {
            "metric": label(each.metric),
            "relation": badge(each.relation),
            "effect": percent(each.effect),
            "interval": change_span(each.interval),
            "pairs": str(each.pairs),
            "at": when(each.taken_at or None),
        }
        for each in found
    ]
    return table("compared", "Comparisons", columns, rows)


def versus_table(one: Entry, other: Entry, rows: Sequence[Versus]) -> Component:
    columns = (
        Column(key="metric", title="Metric"),
        Column(key="one", title=f"Trial {one.number}", number=True),
        Column(key="other", title=f"Trial {other.number}", number=True),
        Column(key="change", title="Change of these", number=True),
        Column(key="clear", title=f"Trial {other.number} is"),
    )
    return table(
        "versus",
        f"Trial {one.number} and trial {other.number}",
        columns,
        [
            {
                "metric": label(row.metric),
                "one": told(one, row.metric),
                "other": told(other, row.metric),
                "change": _change(row.contrast),
                "clear": _relation(row),
            }
            for row in rows
        ],
    )


def _change(contrast: Contrast | None) -> str:
    if contrast is None or abs(contrast.effect) == float("inf"):
        return UNKNOWN
    return percent(contrast.effect)


def _relation(row: Versus) -> Any:
    if row.in_turn:
        return html.Small("see the runs in turn", className="quiet")
    if row.contrast is None or row.contrast.relation is None:
        return UNKNOWN
    return badge(row.contrast.relation)


# ----------------------------------------------------------------------------------- measurements
def measurement_words(at: int, measurement: Measurement) -> str:
    """A measurement for a list to choose from."""
    rate = measurement.load.offered_qps
    doubt = "" if measurement.valid else ", not believed"
    return (
        f"{at + 1}. {measurement.purpose}: {measurement.load.window_s:.1f} s at {rate:.0f}/s{doubt}"
    )


def shown_first(entry: Entry) -> int | None:
    """Of its measurements, the one that the verdict rests on, or the last."""
    found = list(entry.trial.measurements)
    if not found:
        return None
    at = next((i for i, m in enumerate(found) if m is entry.measurement), None)
    return len(found) - 1 if at is None else at


_PURPOSES = {
    Purpose.TRIAL: "the search’s own",
    Purpose.CANARY: "is the machine still the same?",
    Purpose.FINAL: "a finalist, interleaved",
    Purpose.COMPARE: "held against another",
    Purpose.CAPACITY: "at another rate",
    Purpose.ROBUST: "under other traffic",
    Purpose.CONFIRM: "from its exported files",
}


def measurements(seen: Seen) -> Component:
    found = seen.entry.trial.measurements
    if not found:
        nothing = notes.empty(
            "It has no measurement.", seen.entry.why or "It was not measured yet."
        )
        return cards.section("Measurements", nothing, name="measurements")
    columns = (
        Column(key="at", title="No."),
        Column(key="purpose", title="What for"),
        Column(key="rate", title="Offered", number=True),
        Column(key="window", title="Window"),
        Column(key="p50", title="p50", number=True),
        Column(key="p95", title="p95", number=True),
        Column(key="p99", title="p99", number=True),
        Column(key="good", title="Good answers", number=True),
        Column(key="saturation", title="Saturation", number=True),
        Column(key="busy", title="Utilization", number=True),
        Column(key="valid", title="Believed"),
    )
    rows = [_measurement(at, each) for at, each in enumerate(found)]
    return cards.section(
        "Measurements",
        table("measurements", "Measurements", columns, rows, dense=True),
        name="measured",
    )


def _measurement(at: int, measurement: Measurement) -> dict[str, Any]:
    load = measurement.load
    traffic = "" if measurement.traffic is None else f", {measurement.traffic.arrival}"
    return {
        "at": str(at + 1),
        "purpose": [
            str(measurement.purpose),
            html.Small(f" {_PURPOSES[measurement.purpose]}", className="quiet"),
        ],
        "rate": f"{load.offered_qps:.1f}/s{traffic}",
        "window": f"{load.window_s:.1f} s: {ended_words(measurement)}",
        **{f"p{p}": _metric(measurement, f"p{p}_ms") for p in (50, 95, 99)},
        "good": f"{load.ok:,} of {load.scheduled:,}",
        "saturation": _metric(measurement, "saturation_qps"),
        "busy": _metric(measurement, "utilization"),
        "valid": "yes"
        if measurement.valid
        else [badge("invalid"), html.Span(f" {'; '.join(measurement.invalid_because)}")],
        "class": "" if measurement.valid else "doubted",
    }


def _metric(measurement: Measurement, metric: str) -> str:
    value = measurement.metric(metric)
    return UNKNOWN if value is None else shown(metric, value)
