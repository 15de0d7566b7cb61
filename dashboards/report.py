"""One study as one HTML file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from autotune.core.bottleneck import Breakdown, Step
from autotune.core.capacity import capacity_of
from autotune.core.comparison import Comparison, Relation
from autotune.core.explain import shown
from autotune.core.explain_steps import EACH_BY_ITSELF, STILL_WAITING, ms
from autotune.core.explain_steps import capacity as capacity_words
from autotune.core.intervals import Interval
from autotune.core.judged import Probe
from autotune.core.measurement import EMULATED, METRICS
from autotune.core.plain import finite
from autotune.core.records import PLANNED, StudyRecord
from autotune.core.sla import ACCURACY, Limit, Sla
from autotune.core.standing import Standing
from autotune.core.study import Objective
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from autotune.core.wording import (
    change_span,
    disbelieved,
    disbelieved_words,
    ended_words,
    in_kinds,
    percent,
    share_words,
    span,
    the_same,
    without,
)
from autotune.core.workload import ArrivalKind, Workload
from dashboards import plots_library
from dashboards.figures import data, draw
from dashboards.figures.data import Entry, label
from search_spaces.candidate import Candidate


def render_report(  # noqa: PLR0913 - everything that is known of a study
    *,
    study: StudyRecord,
    trials: Sequence[Trial],
    decision: Mapping[str, Any] | None,
    objectives: Sequence[Objective],
    sla: Sla,
    workload: Workload,
    config_text: str | None = None,
    default_config_text: str | None = None,
    warnings: Sequence[str] = (),
    variants: Sequence[VariantRecord] = (),
) -> str:
    """The report as HTML.

    ``decision`` is a `DecisionRecord`'s detail; of it, ``pick``, ``rule``, ``front``,
    ``comparisons`` and ``reasons`` are used where they are given; ``pick`` must be one of
    ``trials``, or None.
    Verdicts are computed anew from ``sla``. ``config_text`` is the pick's config.pbtxt,
    ``default_config_text`` the one found in service. Latency over time is shown where the pick's
    trial was loaded with its samples.
    """
    told = decision or {}
    found = data.entries(trials, sla)
    cast = _Cast.of(found, told.get("pick"))
    page = {
        "study": study,
        "title": f"{study.name}: autotune report",
        "answer": answer(cast, sla, (told.get("searched") or {}).get("words", "")),
        "helping": _sentence((told.get("remedy") or {}).get("words", "")),
        "met": cast.pick is not None,
        "headline": _headline(cast),
        "rule": told.get("rule", ""),
        "reasons": list(told.get("reasons", ())),
        "warnings": list(warnings),
        "figures_of": cast.words,
        "keys": _key_figures(cast, sla),
        "scatter": data.scatter(found, sla, objectives, told.get("pick")),
        "table": _table(found),
        "cast": cast,
        "counts": _counts(found),
        "comparisons": [_compared(one, told.get("pick")) for one in told.get("comparisons", ())],
        "batches": _batch_words(cast),
        "steps": _steps(cast),
        "each_by_itself": EACH_BY_ITSELF,
        "variants": [_variant(record) for record in variants],
        "emulated": any(entry.emulated for entry in found),
        "bounds": in_kinds(e.saturation_bound for e in found if e.saturation_bound),
        "capacity": _capacity(found, sla),
        "nearby": [one for entry in found for one in _nearby(entry, sla)],
        "disbelieved": disbelieved(trials),
        "disbelieved_words": disbelieved_words(trials),
        "config": config_text,
        "diff": _diff(default_config_text, config_text),
        "measured": _how_measured(cast, workload, sla, objectives),
        "environment": list(_environment(study)),
        "created": _moment(study.created_at),
        "label": label,
    }
    page["figures"] = finite(_figures(found, cast, page["scatter"], sla, told))
    page["choices"] = finite(draw.scatter_values(page["scatter"]))
    return str(_template().render(page, plotly_js=_plotly_js()))


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("dashboards", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["lines"] = str.splitlines
    return environment.get_template("report.html.j2")


@cache
def _plotly_js() -> str:
    return plots_library.script()


# ------------------------------------------------------------------------------ who plays a part
@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast:
    """The trials that the report speaks of. ``shown`` is the pick, or the nearest miss; ``same`` is
    what all trials of a pipeline have in common."""

    default: Entry | None
    pick: Entry | None
    miss: Entry | None
    same: Candidate

    def own(self, candidate: Candidate) -> Candidate:
        """What tells a candidate from others."""
        return without(candidate, self.same)

    @classmethod
    def of(cls, found: Sequence[Entry], pick: int | None) -> _Cast:
        chosen = data.of_number(found, pick)
        return cls(
            default=data.of_number(found, 0),
            pick=chosen,
            miss=data.nearest_miss(found) if chosen is None else None,
            same=the_same(entry.trial.candidate for entry in found),
        )

    @property
    def shown(self) -> Entry | None:
        return self.pick or self.miss

    @property
    def words(self) -> str:
        if self.pick is not None or self.miss is None:
            return "pick" if self.pick is not None else "nearest miss"
        return data.called(self.miss)

    @property
    def changes(self) -> bool:
        """Whether another configuration than the default is shown."""
        return self.default is None or self.shown is not self.default

    @property
    def pairs(self) -> list[tuple[str, Entry]]:
        """Default and the one that is shown, by name; only one of them where they are the same."""
        default, shown_ = self.default, self.shown
        if default is not None and shown_ is not None and default.number == shown_.number:
            return [(f"default = {self.words} (trial 0)", default)]
        named = (("default", default), (self.words, shown_))
        return [(f"{name} (trial {e.number})", e) for name, e in named if e is not None]


def answer(cast: _Cast, sla: Sla, searched: str = "") -> str:
    """The study's answer in one sentence; ``searched`` tells how far the search got, where it was
    cut short."""
    of_those = searched and f" ({searched})"
    pick, miss = cast.pick, cast.miss
    if pick is not None:
        rate = _offered(pick)
        which = (
            "The configuration already in service" if pick.number == 0 else f"Trial {pick.number}"
        )
        candidate = str(cast.own(pick.trial.candidate)) or "the model's own settings"
        latency = draw.told(pick, sla.tightest_metric)
        return (
            f"{which} ({candidate}) is the pick: {_name(sla)} {latency} of {_limit(sla)} allowed"
            f"{rate}{_gain(cast, sla)}."
        )
    if miss is not None:
        tightest = _broken(miss, sla)
        if miss.standing is Standing.UNDECIDED:
            return (
                f"No candidate is known to meet the SLA{of_those}. Trial"
                f" {miss.number} comes nearest, and is undecided: {miss.why}."
            )
        nearest = f"The nearest miss is trial {miss.number}: {tightest}"
        return f"No candidate meets the SLA{of_those}. {nearest}."
    return "No candidate could be judged: there is no measurement that can be believed."


def _sentence(words: str) -> str:
    """With a capital and a full stop; what is no plain word, such as p95, stays as it is."""
    first, _, rest = words.partition(" ")
    return words and f"{first.capitalize() if first.isalpha() else first} {rest}."


def _headline(cast: _Cast) -> str:
    if cast.pick is not None:
        return "The SLA is met"
    undecided = cast.miss is not None and cast.miss.standing is Standing.UNDECIDED
    return "It is undecided whether the SLA is met" if undecided else "The SLA is not met"


def _name(sla: Sla) -> str:
    return sla.tightest_metric.removesuffix("_ms")


def _limit(sla: Sla) -> str:
    return f"{sla.tightest_latency_ms:g} ms"


def _offered(entry: Entry) -> str:
    rate = entry.measurement.load.offered_qps if entry.measurement is not None else None
    return "" if rate is None else f" at {rate:.0f} requests/s"


def _gain(cast: _Cast, sla: Sla) -> str:
    """Against the default, where both are known and the difference is worth words."""
    metric = sla.tightest_metric
    if cast.default is None or cast.pick is None or cast.default.number == cast.pick.number:
        return ""
    before, after = cast.default.metric(metric), cast.pick.metric(metric)
    if before is None or after is None:
        return ""
    return f", where the default configuration has {shown(metric, before)}"


def _broken(entry: Entry, sla: Sla) -> str:
    broken = [
        reason for reason in entry.why.split("; ") if "breaks" in reason or "behind" in reason
    ]
    return "; ".join(broken) or entry.why or f"it was not shown to keep {_name(sla)} {_limit(sla)}"


# ----------------------------------------------------------------------------------- key figures
OF_GPUS = ("sm_active", "tensor_active", "dram_active", "power_w")
PRICES = ("energy_j_per_1000", "cost_per_1000")
_NEUTRAL = {"utilization", *OF_GPUS}
"""More of these is neither better nor worse."""


def _key_figures(cast: _Cast, sla: Sla) -> list[dict[str, Any]]:
    metrics = [sla.tightest_metric, "saturation_qps", "utilization", "memory_mb", "instances"]
    if cast.shown is not None and cast.shown.metric(ACCURACY) is not None:
        metrics.append(ACCURACY)
    known = (*OF_GPUS, *PRICES)
    metrics += [name for name in known if cast.shown and cast.shown.metric(name) is not None]
    if not any(e.metric("saturation_qps") for e in (cast.default, cast.shown) if e is not None):
        metrics.remove("saturation_qps")  # no burst was asked for, or none could be taken
    return [_key_figure(cast, metric) for metric in metrics]


def _key_figure(cast: _Cast, metric: str) -> dict[str, Any]:
    default = cast.default if cast.changes else None
    before = default.metric(metric) if default else None
    after = cast.shown.metric(metric) if cast.shown else None
    change = None
    if before and after is not None and before != after:
        change = after / before - 1
    better = change is not None and (change > 0) == METRICS[metric].maximize
    return {
        "label": label(metric),
        "before": _value(default, metric) if cast.changes else "",
        "after": _value(cast.shown, metric),
        "interval": _interval(cast.shown, metric),
        "change": None if change is None else _change(change),
        "better": better and metric not in _NEUTRAL,
        "note": _source(cast, metric),
        "bound": cast.shown.saturation_bound if cast.shown and metric == "saturation_qps" else "",
    }


def _value(entry: Entry | None, metric: str) -> str:
    return shown(metric, None) if entry is None else draw.value_words(entry, metric)


def _change(change: float) -> str:
    return f"{change + 1:.1f}×" if change >= 1 else percent(change, 0)


def _interval(entry: Entry | None, metric: str) -> str:
    interval = None if entry is None else entry.interval(metric)
    return "" if interval is None else span(interval)


def _source(cast: _Cast, metric: str) -> str:
    measurement = cast.shown.measurement if cast.shown else None
    if measurement is None:
        return ""
    telemetry = measurement.telemetry
    gauge = telemetry.gauges.get("energy_j" if metric == "energy_j_per_1000" else metric)
    sources = {"utilization": telemetry.source, "memory_mb": telemetry.memory_source}
    source = sources.get(metric) if gauge is None else gauge.source
    return (source or "").replace("_", " ")


# --------------------------------------------------------------------------------------- figures
def _figures(
    found: Sequence[Entry],
    cast: _Cast,
    scatter: data.Scatter,
    sla: Sla,
    told: Mapping[str, Any],
) -> dict[str, draw.Figure]:
    main = cast.shown.measurement if cast.shown else None
    drawn = {
        "scatter": draw.draw_scatter(scatter),
        "distribution": draw.draw_distributions(_curves(cast), sla.latency_ms),
        "split": draw.draw_step_splits(_step_splits(found, cast, told))
        or draw.draw_splits(_splits(found, cast, told)),
        "batches": draw.draw_batches(data.batches(main)),
        "timeline": draw.draw_timeline(data.timeline(main), sla.tightest_latency_ms),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _curves(cast: _Cast) -> dict[str, data.Distribution]:
    colours = [draw.DEFAULT_COLOUR, draw.PICK_COLOUR][-len(cast.pairs) :]
    named = zip(colours, cast.pairs, strict=True) if cast.pairs else ()
    curves = {colour: data.distribution(name, entry.measurement) for colour, (name, entry) in named}
    return {colour: curve for colour, curve in curves.items() if curve is not None}


def _splits(found: Sequence[Entry], cast: _Cast, told: Mapping[str, Any]) -> list[data.Split]:
    rows = _in_the_split(found, cast, told)
    splits = (data.split(name, entry.measurement) for name, entry in rows)
    return [one for one in splits if one is not None]


def _step_splits(
    found: Sequence[Entry], cast: _Cast, told: Mapping[str, Any]
) -> list[data.StepSplit]:
    """Of a pipeline's trials; none of a model that is tuned alone."""
    rows = _in_the_split(found, cast, told)
    return [data.step_split(name, steps) for name, entry in rows if (steps := entry.steps)]


def _in_the_split(
    found: Sequence[Entry], cast: _Cast, told: Mapping[str, Any], most: int = 8
) -> list[tuple[str, Entry]]:
    """Default and pick, then the decision's front (of a study without a pick, the front of the
    trials that do not meet the SLA)."""
    named = {entry.number: name for name, entry in cast.pairs}
    front = told.get("front") or told.get("infeasible_front", ())
    for number in front:
        named.setdefault(number, f"front (trial {number})")
    rows = ((name, data.of_number(found, number)) for number, name in list(named.items())[:most])
    return [(name, entry) for name, entry in rows if entry is not None]


def _steps(cast: _Cast) -> list[dict[str, Any]]:
    """The steps of the default and of what is shown, where they are of a pipeline."""
    return [
        {
            "name": name,
            "note": STILL_WAITING if steps.behind else "",
            "mean": "" if steps.mean_ms is None else ms(steps.mean_ms),
            "outside": "" if steps.outside_ms is None else f"{steps.outside_ms:.1f}",
            "rows": [_step(step, steps) for step in steps.steps],
        }
        for name, entry in cast.pairs
        if (steps := entry.steps)
    ]


def _step(step: Step, found: Breakdown) -> dict[str, Any]:
    return {
        "name": step.name,
        "limits": found.limits(step.name),
        "latency": f"{step.latency_ms:,.1f}",
        "queue": f"{step.queue_ms:,.1f}",
        "compute": f"{step.compute_ms:,.1f}",
        "batch": "–" if step.mean_batch is None else f"{step.mean_batch:.1f}",
        "instances": step.instances or "–",
        "busy": step.utilization,
        "capacity": "–" if step.capacity_qps is None else capacity_words(step),
    }


def _batch_words(cast: _Cast) -> str:
    """Of batches that were all of one size, of which a figure would say nothing."""
    found = data.batches(cast.shown.measurement if cast.shown else None)
    if found is None or len(found.sizes) > 1:
        return ""
    (size,), (count,), (took_ms,) = found.sizes, found.executions, found.compute_ms
    return f"All {count:,} executions were batches of {size}, {took_ms:.2f} ms each."


# ----------------------------------------------------------------------------------- the trials
@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``sort`` orders the column: a number or a text; None comes last. ``beside`` is said more
    quietly after the text."""

    text: str
    sort: float | str | None
    numeric: bool = True
    beside: str = ""


_COLUMNS = (
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "achieved_qps",
    "saturation_qps",
    "queue_ms",
    "compute_ms",
    "mean_batch",
    "utilization",
    "memory_mb",
    *OF_GPUS,
    *PRICES,
    "error_rate",
    "accuracy_drop",
)


def _table(found: Sequence[Entry]) -> dict[str, Any]:
    """What all trials of a pipeline have in common has no column."""
    same = the_same(entry.trial.candidate for entry in found)
    parameters = sorted({name for entry in found for name in entry.trial.candidate} - set(same))
    metrics = [metric for metric in _COLUMNS if _worth_a_column(metric, found)]
    return {
        "same": str(same),
        "parameters": parameters,
        "metrics": [label(metric) for metric in metrics],
        "rows": [_row(entry, parameters, metrics) for entry in found],
    }


def _worth_a_column(metric: str, found: Sequence[Entry]) -> bool:
    """Not for every study is there an accuracy, a price or a GPU that tells; of a pipeline there is
    no mean batch."""
    always = metric not in {"accuracy_drop", "mean_batch", *OF_GPUS, *PRICES}
    return always or any(entry.metric(metric) is not None for entry in found)


def _row(entry: Entry, parameters: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    candidate = entry.trial.candidate.to_json()
    return {
        "entry": entry,
        "parameters": [_parameter(candidate, name) for name in parameters],
        "metrics": [_metric_cell(entry, metric) for metric in metrics],
        "window": _window_cell(entry),
    }


def _window_cell(entry: Entry) -> Cell:
    """How long the window was, and why it closed."""
    if entry.measurement is None:
        return Cell(text="–", sort=None)
    window_s = entry.measurement.load.window_s
    return Cell(text=f"{window_s:.1f} s", sort=window_s, beside=ended_words(entry.measurement))


def _parameter(candidate: Mapping[str, Any], name: str) -> Cell:
    if name not in candidate:
        return Cell(text="–", sort=None)
    value = candidate[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(text=f"{value:g}" if isinstance(value, float) else str(value), sort=value)
    text = (
        "unset"
        if value is None
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else value
    )
    return Cell(text=str(text), sort=str(text), numeric=False)


def _metric_cell(entry: Entry, metric: str) -> Cell:
    value = entry.metric(metric)
    if value is None:
        return Cell(text="–", sort=None)
    text = draw.value_words(entry, metric)
    emulated = metric == "utilization" and entry.emulated
    return Cell(text=text, sort=value, beside=EMULATED if emulated else _interval(entry, metric))


_COUNTED = {Standing.MEETS: "meet the SLA", Standing.MISSES: "miss it"}


def _counts(found: Sequence[Entry]) -> str:
    counts = [(s, sum(entry.standing is s for entry in found)) for s in Standing]
    words = [f"{count} {_COUNTED.get(s, str(s))}" for s, count in counts if count]
    return ", ".join(words) or "none yet"


# ------------------------------------------------------------------------- finals, robust choice
def _compared(stored: Mapping[str, Any], pick: int | None) -> dict[str, Any]:
    """The pick against the other, whichever way round they were compared."""
    low, high = stored["interval"]
    one = Comparison(
        **{name: stored[name] for name in ("first", "second", "metric", "effect", "pairs")},
        interval=Interval(low=low, high=high),
        relation=Relation(stored["relation"]),
    )
    seen = one.turned() if one.first == pick else one
    return {
        "second": seen.second,
        "first": seen.first,
        "metric": label(seen.metric),
        "effect": percent(seen.effect),
        "interval": change_span(seen.interval),
        "pairs": seen.pairs,
        "relation": str(seen.relation),
    }


def _capacity(found: Sequence[Entry], sla: Sla) -> list[dict[str, Any]]:
    """The highest rate that meets the SLA, beside the saturation, of every trial so probed."""
    probed = ((entry, capacity_of(entry.trial.measurements, sla)) for entry in found)
    return [
        {
            "trial": entry.number,
            "capacity": str(capacity),
            "saturation": draw.value_words(entry, "saturation_qps"),
            "bounded": bool(entry.saturation_bound),
            "interval": _interval(entry, "saturation_qps"),
            "share": capacity.saturation_share,
        }
        for entry, capacity in probed
        if capacity is not None
    ]


def _nearby(entry: Entry, sla: Sla) -> list[dict[str, Any]]:
    """How a trial held the SLA at other rates and burstiness, where it was measured there."""
    probes = () if entry.judged is None else entry.judged.probes
    return [{"trial": entry.number, **_probed(probe, sla)} for probe in probes]


def _probed(probe: Probe, sla: Sla) -> dict[str, Any]:
    """The margin is that of the tightest latency: what is left of its limit."""
    verdict, traffic = probe.verdict, probe.traffic
    finding = next(f for f in verdict.findings if f.metric == sla.tightest_metric)
    burstiness = traffic.arrival if traffic.cv is None else f"{traffic.arrival}, cv {traffic.cv:g}"
    return {
        "qps": f"{traffic.qps:.1f}/s",
        "arrivals": burstiness,
        "value": "–" if finding.value is None else shown(finding.metric, finding.value),
        "interval": "" if finding.interval is None else span(finding.interval),
        "margin": "–" if finding.margin is None else percent(finding.margin, 0),
        "outcome": str(verdict.outcome),
    }


# -------------------------------------------------------------------------------------- variants
def _variant(record: VariantRecord) -> dict[str, Any]:
    return {
        "name": str(record.variant),
        "step": record.step,
        "accuracy_drop": _drop(record.accuracy_drop),
        "served_drop": _drop(record.served_drop),
        "size": "–" if record.size_mb is None else f"{record.size_mb:,.1f} MB",
        "came_of_it": _came_of(record),
        "refused": record.refused,
        "notes": record.notes,
        "attempts": [
            {
                "what": attempt.what,
                "accuracy_drop": _drop(attempt.accuracy_drop),
                "seconds": f"{attempt.seconds:.1f} s",
                "kept": attempt.kept,
                "note": attempt.note,
            }
            for attempt in record.attempts
        ],
        "tools": ", ".join(f"{tool} {version}" for tool, version in record.tools.items()),
    }


def _drop(share: float | None) -> str:
    return "–" if share is None else share_words(share)


def _came_of(record: VariantRecord) -> str:
    return record.came_of


# ---------------------------------------------------------------------------------- config.pbtxt
def _diff(before: str | None, after: str | None) -> list[tuple[str, str]]:
    """Lines with what they are: added, removed, hunk or kept."""
    if before is None or after is None:
        return []
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    kinds = {"+": "added", "-": "removed", "@": "hunk"}
    return [(kinds.get(line[:1], "kept"), line) for line in list(lines)[2:]]


# ------------------------------------------------------------------------------- how, and on what
_ARRIVALS = {
    ArrivalKind.CONSTANT: "evenly spaced",
    ArrivalKind.POISSON: "Poisson (random and independent)",
    ArrivalKind.GAMMA: "gamma",
    ArrivalKind.TRACE: "replayed from a trace",
}


def _how_measured(
    cast: _Cast, workload: Workload, sla: Sla, objectives: Sequence[Objective]
) -> list[tuple[str, str]]:
    arrival = _ARRIVALS[workload.arrival.kind]
    if workload.arrival.kind is ArrivalKind.GAMMA:
        arrival += f", coefficient of variation {workload.arrival.cv:g}"
    rate = f"{workload.target_qps:g} requests/s × {workload.headroom:g} headroom"
    limits = [f"{limit.metric} ≤ {_limit_words(limit)}" for limit in sla.limits]
    rows = [
        ("load", "open loop: requests are sent on schedule, whatever the server does"),
        ("rate", f"{rate} = {workload.offered_qps:g} requests/s offered"),
        ("arrivals", arrival),
        ("warm-up", f"until a steady state is seen, at most {workload.warmup_s:g} s"),
        (
            "window",
            f"until the verdict is decided: at most {workload.measure_s:g} s, or"
            f" {workload.longest_s:g} s where it is undecided",
        ),
        ("intervals", "95%, for autocorrelated latencies"),
        ("latency", "from the scheduled time, so that waiting to be sent counts"),
        ("errors", f"count as misses; time-out {workload.timeout_s:g} s"),
        ("saturation", f"{workload.saturation_s:g} s with more offered than the server can take"),
        ("SLA", ", ".join([*limits, f"answered ≥ {sla.min_achieved:.0%} of what was offered"])),
        (
            "objectives",
            ", ".join(("max " if o.maximize else "min ") + o.metric for o in objectives),
        ),
    ]
    return [row for row in rows if row[1]] + _generator(cast)


def _limit_words(limit: Limit) -> str:
    return share_words(limit.limit) if limit.metric == ACCURACY else f"{limit.limit:g}"


def _generator(cast: _Cast) -> list[tuple[str, str]]:
    """How well the generator kept its schedule in the measurement that is shown."""
    measurement = cast.shown.measurement if cast.shown else None
    if measurement is None or measurement.load.send_lag is None:
        return []
    load = measurement.load
    assert load.send_lag is not None
    lag = load.send_lag.percentiles_ms
    known = ", ".join(f"p{p:g} {lag[p]:.1f} ms" for p in (50.0, 99.0) if p in lag)
    sent = f"{load.sent} of {load.scheduled} requests sent"
    return [("generator", f"{sent}; sent late by {known}; {load.generator_cpu:.0%} of one core")]


_NO_FACTS = {"warnings", PLANNED}
"""What of the environment is no description of it."""


def _environment(study: StudyRecord) -> Iterator[tuple[str, str]]:
    """Without the warnings, which stand on top of the page."""
    return _flat({k: v for k, v in (study.environment or {}).items() if k not in _NO_FACTS})


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested plain data as rows; unknown is said to be unknown."""
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name} · ")
        elif isinstance(value, list | tuple) and not any(isinstance(v, Mapping) for v in value):
            yield name, ", ".join(map(str, value)) or "none"
        else:
            yield name, "unknown" if value is None else str(value)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
