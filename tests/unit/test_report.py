"""The HTML report: what it says, that it loads nothing, that it trusts no name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest

from autotune.core.capacity import capacity_of
from autotune.core.decision import decide
from autotune.core.intervals import Interval
from autotune.core.judged import judge_trial
from autotune.core.measurement import TelemetryWindow
from autotune.core.searched import Searched
from autotune.core.sla import Sla
from autotune.core.study import Objective, PickRule
from autotune.core.trial import Trial, TrialState
from autotune.core.wording import span
from autotune.core.workload import Workload
from dashboards import render_report
from dashboards.figures import data, draw
from search_spaces.candidate import Candidate
from tests.realistic import (
    SLA,
    a_candidate,
    a_finished_study,
    a_measurement,
    a_record,
    a_study,
    a_study_of_trials,
    a_trial,
    comparisons,
    estimated,
)

OBJECTIVES = [Objective.of("saturation_qps"), Objective.of("p95_ms")]
HOSTILE = """<script>alert("x")</script>'"></script><img src=x onerror=alert(1)>{{7*7}}&amp;"""


class Page(HTMLParser):
    """The page's elements, its texts by the id they stand under, and what it would load."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[str] = []
        self.by_id: dict[str, str] = {}
        self._open: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = dict(attrs).get("id")
        self._raw = tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:
        self._raw = False
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open:
            self.by_id[self._open] = self.by_id.get(self._open, "") + data
        if not getattr(self, "_raw", False):
            self.data.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.data).split())

    def figure(self, name: str) -> dict[str, Any]:
        figure: dict[str, Any] = json.loads(self.by_id["figures"])[name]
        return figure


def _render(trials: Sequence[Trial], pick: int | None = None, **more: Any) -> str:
    wanted: dict[str, Any] = {
        "study": a_record(trials),
        "trials": trials,
        "decision": {"pick": pick, "rule": "cheapest", "front": [], "reasons": ["the why"]},
        "objectives": OBJECTIVES,
        "sla": SLA,
        "workload": Workload(target_qps=66.0),
    }
    return render_report(**(wanted | more))


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return a_study_of_trials()


@pytest.fixture(scope="module")
def html(trials: list[Trial]) -> str:
    return _render(
        trials,
        pick=5,
        config_text="max_batch_size: 4\nname: 'ocr'\n",
        default_config_text="max_batch_size: 1\nname: 'ocr'\n",
        warnings=["a delay overshoots the preferred size"],
    )


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


# -------------------------------------------------------------------------------------- contents
def test_the_report_gives_the_answer_in_one_sentence(page: Page) -> None:
    assert "Trial 5 (instances=2, max_batch_size=4, queue_delay_us=0) is the pick: p95" in page.text
    assert "of 80 ms allowed at 80 requests/s, where the default configuration has" in page.text


def test_the_report_tells_reasons_warnings_environment_and_method(page: Page) -> None:
    for told in (
        "the why",
        "a delay overshoots the preferred size",
        "server · triton",
        "2.51.0",
        "open loop",
        "66 requests/s × 1.2 headroom = 79.2 requests/s offered",
        "Poisson",
        "from the scheduled time",
        "p95_ms ≤ 80",
    ):
        assert told in page.text


def test_every_trial_stands_in_the_table_with_its_state_and_reason(
    page: Page, trials: list[Trial]
) -> None:
    rows = [attrs.get("data-sort") for tag, attrs in page.tags if attrs.get("scope") == "row"]
    assert rows == [str(trial.number) for trial in trials]
    for trial in trials:
        assert trial.reason in page.text
    for state in ("meets", "misses", "invalid", "failed", "pruned"):
        assert ("span", {"class": f"state {state}"}) in page.tags


def test_the_configuration_is_shown_with_its_difference_from_the_default(page: Page) -> None:
    assert page.by_id["config"] == "max_batch_size: 4\nname: 'ocr'\n"
    assert "-max_batch_size: 1" in page.text
    assert "+max_batch_size: 4" in page.text


def test_the_page_has_every_figure_and_a_place_for_each(page: Page) -> None:
    names = ["scatter", "distribution", "split", "batches", "timeline"]
    assert sorted(json.loads(page.by_id["figures"])) == sorted(names)
    places = [attrs["data-figure"] for _, attrs in page.tags if "data-figure" in attrs]
    assert places == names


def test_plotly_accepts_every_figure(page: Page) -> None:
    for figure in json.loads(page.by_id["figures"]).values():
        go.Figure(figure)  # refuses properties that do not exist


def test_latency_over_time_is_left_out_without_samples_or_utilization() -> None:
    measured = a_measurement(samples=False)
    quiet = replace(measured, telemetry=TelemetryWindow())
    trial = replace(a_trial(0, a_candidate(4, 2)), measurements=(quiet,))
    page = Page(_render([trial], pick=0))
    assert "timeline" not in json.loads(page.by_id["figures"])


def test_a_default_that_is_the_pick_is_called_so(trials: list[Trial]) -> None:
    best = replace(trials[5], number=0)
    page = Page(_render([best], pick=0))
    assert "The configuration already in service" in page.text
    names = [trace["name"] for trace in page.figure("distribution")["data"]]
    assert names == ["default = pick (trial 0)", "SLA"]


# --------------------------------------------------------------- intervals, finals, other traffic
@pytest.fixture(scope="module")
def finished() -> Page:
    trials, study = a_finished_study(), a_study()
    decision = decide(
        trials, study.sla, study.objectives, study.pick, comparisons=comparisons(pick=5, rival=7)
    )
    return Page(_render(trials, decision=decision.to_json()))


def test_the_answer_and_the_key_figures_give_their_intervals(finished: Page) -> None:
    p95 = estimated(a_finished_study()[5], "p95_ms")
    assert p95.interval is not None
    value, interval = f"{p95.value:.1f} ms", span(p95.interval)
    assert f"is the pick: p95 {value} ({interval}) of 80 ms allowed" in finished.text
    assert f"{value} 95% {interval} from" in finished.text


def test_every_point_has_its_interval_as_error_bars(finished: Page) -> None:
    meets = next(t for t in finished.figure("scatter")["data"] if t["name"] == "meets")
    at = meets["customdata"].index(5)
    p95 = estimated(a_finished_study()[5], "p95_ms")
    assert p95.interval is not None
    low = meets["y"][at] - meets["error_y"]["arrayminus"][at]
    high = meets["y"][at] + meets["error_y"]["array"][at]
    assert (low, high) == pytest.approx((p95.interval.low, p95.interval.high))
    reaches = json.loads(finished.by_id["choices"])["reaches"]["5"]
    assert reaches["saturation_qps"] == [pytest.approx(3.27, abs=0.01)] * 2
    assert reaches["instances"] == [None, None]


def test_the_comparisons_of_the_finals_stand_in_a_table(finished: Page) -> None:
    assert "The best against each other" in finished.text
    assert "5 tie 7 p95 latency −4.2% −9.3% to +1.2% 2" in finished.text
    assert "5 better 7 saturation rate +3.1% +1.1% to +4.9% 2" in finished.text


def test_capacity_stands_beside_saturation(finished: Page) -> None:
    assert "How much they can take" in finished.text
    rival = capacity_of(a_finished_study()[7].measurements, SLA)
    assert f"7 {rival} 166.0/s 163–169" in finished.text


def test_other_traffic_is_told_with_what_is_left_of_the_limit(finished: Page) -> None:
    assert "Under other traffic" in finished.text
    judged = judge_trial(a_finished_study()[5], SLA)
    assert judged is not None
    assert len(judged.probes) == 4
    for probe in judged.probes:
        p95 = probe.verdict.findings[0]
        assert p95.interval is not None
        said = f"{probe.verdict.outcome} {p95.value:.1f} ms {span(p95.interval)} +{p95.margin:.0%}"
        assert said in finished.text


def test_every_window_is_told_with_why_it_ended(finished: Page) -> None:
    assert finished.text.count("4.2 s fell behind") == 5
    assert "6.0 s at its longest" in finished.text


def test_a_window_that_opened_without_a_steady_state_says_so() -> None:
    trial = a_trial(0, a_candidate(4, 2))
    (measured,) = trial.measurements
    restless = replace(measured, load=replace(measured.load, steady=False))
    page = Page(_render([replace(trial, measurements=(restless,))], pick=0))
    assert "12.0 s clear, never steady" in page.text


def test_a_trial_whose_measurements_were_put_in_doubt_is_in_doubt_and_says_why() -> None:
    measured = a_measurement(invalid_because=("the machine changed",))
    trial = replace(a_trial(0, a_candidate(4, 2)), measurements=(measured,))
    page = Page(_render([trial]))
    assert "1 in doubt" in page.text
    assert ("span", {"class": "state in-doubt"}) in page.tags
    assert ("td", {"class": "why", "data-sort": "the machine changed"}) in page.tags


def test_a_saturation_that_the_generator_bounded_is_a_lower_bound_with_the_reason() -> None:
    measured = a_measurement()
    telemetry = replace(measured.telemetry, notes={"saturation": "the generator was full at 97%"})
    bounded = replace(measured, saturation_qps=2299.4, telemetry=telemetry)
    trial = replace(a_trial(0, a_candidate(4, 2)), measurements=(bounded,))
    text = Page(_render([trial], pick=0)).text
    assert text.count("≥ 2,299/s") == 2  # its card and its row
    assert text.count("the generator was full at 97%") == 2


def test_a_pick_that_is_the_default_is_not_held_against_itself() -> None:
    text = Page(_render([a_trial(0, a_candidate(4, 2))], pick=0)).text
    assert "The pick is the default, the configuration already in service" in text
    assert " from " not in text.split("All trials, and the front")[0].split("already in service")[2]


def test_batches_of_a_single_size_are_told_in_words() -> None:
    page = Page(_render([a_trial(0, a_candidate(1, 2))], pick=0))
    assert "batches" not in json.loads(page.by_id["figures"])
    assert "All 960 executions were batches of 1, 13.00 ms each." in page.text


def test_logarithmic_axes_are_labelled_in_full(page: Page) -> None:
    axes = [page.figure(name)["layout"]["yaxis"] for name in ("scatter", "distribution")]
    for axis in axes:
        assert axis["type"] == "log"
        assert {"20", "50", "100", "200"} <= set(axis["ticktext"])


def test_the_comparisons_are_told_from_the_picks_side() -> None:
    trials, study = a_finished_study(), a_study()
    decision = decide(trials, study.sla, study.objectives, study.pick, comparisons=comparisons())
    turned = [one.turned() for one in decision.comparisons]
    told = replace(decision, comparisons=tuple(turned)).to_json()
    assert (
        "5 better 7 saturation rate +3.1% +1.1% to +4.9% 2"
        in Page(_render(trials, decision=told)).text
    )


def test_what_was_not_believed_is_listed_with_counts_and_reasons(finished: Page) -> None:
    assert "Not believed: 3 of 34 measurements, of the search 2 of 15" in finished.text
    assert "trial 7, final 23% of this machine's processor was taken" in finished.text


def test_a_study_without_finals_or_doubts_does_not_speak_of_them() -> None:
    text = Page(_render([a_trial(0, a_candidate(4, 2))], pick=0)).text
    for words in ("against each other", "How much they can", "Under other", "Not believed"):
        assert words not in text


# -------------------------------------------------------------------------------- without a pick
def test_without_a_pick_the_nearest_miss_is_shown(trials: list[Trial]) -> None:
    page = Page(_render(trials, sla=Sla(latency_ms={95.0: 10.0})))
    p95 = {t.number: t.measurement.metric("p95_ms") for t in trials if t.measurement}
    nearest = min(p95, key=lambda number: p95[number] or math.inf)
    assert "The SLA is not met" in page.text
    assert f"No candidate meets the SLA. The nearest miss is trial {nearest}: p95" in page.text
    assert "times the limit of 10 ms" in page.text
    assert page.figure("scatter")["data"][0]["name"] == "front (none meets the SLA)"


def test_without_a_burst_there_is_no_card_for_the_saturation_rate() -> None:
    trial = a_trial(0, a_candidate(4, 2))
    (measured,) = trial.measurements
    without = replace(trial, measurements=(replace(measured, saturation_qps=None),))
    assert "<dt>saturation rate" in _render([trial], pick=0)
    assert "<dt>saturation rate" not in _render([without], pick=0)


def test_a_single_latency_is_drawn_as_a_point() -> None:
    one = data.Distribution(name="x", count=1, shares=(1.0,), latency_ms=(9.5,), exact=True)
    two = replace(one, shares=(0.5, 1.0), latency_ms=(9.5, 9.9))
    figures = [draw.draw_distributions({"#000000": curve}, {}) for curve in (one, two)]
    assert [f["data"][0]["mode"] for f in figures if f] == ["lines+markers", "lines"]


def test_without_a_pick_the_page_says_how_far_the_search_got() -> None:
    trials, strict = [a_trial(0, a_candidate(4, 2))], Sla(latency_ms={95.0: 10.0})
    searched = Searched(tried=1, planned=36, minutes=3.0)
    told = decide(trials, strict, (), PickRule.CHEAPEST, searched=searched).to_json()
    text = Page(_render(trials, sla=strict, decision=told)).text
    assert "No candidate meets the SLA (1 of 36 candidates tried). The nearest miss" in text


def test_where_the_nearest_is_undecided_the_page_says_so() -> None:
    trial = a_trial(0, a_candidate(4, 2))
    (measured,) = trial.measurements
    around = replace(measured, intervals={"p95_ms": Interval(low=30.0, high=95.0)})
    page = Page(_render([replace(trial, measurements=(around,))]))
    assert "It is undecided whether the SLA is met" in page.text
    assert "No candidate is known to meet the SLA. Trial 0 comes nearest" in page.text
    assert "nearest miss" not in page.text
    assert "Over time, for the nearest trial" in page.text


def test_a_study_without_a_single_measurement_has_a_report() -> None:
    failed = Trial(number=0, candidate=a_candidate(1, 1), state=TrialState.FAILED, reason="no load")
    running = Trial(number=1, candidate=Candidate({}), state=TrialState.RUNNING)
    page = Page(
        _render([failed, running], decision=None, study=replace(a_record(), environment=None))
    )
    assert "No candidate could be judged" in page.text
    assert "no load" in page.text


def test_a_study_without_trials_has_a_report() -> None:
    assert "No candidate could be judged" in Page(_render([], decision=None)).text


def test_a_measurement_without_server_statistics_or_latency_has_a_report() -> None:
    measured = a_measurement()
    load = replace(measured.load, latency=None, send_lag=None, histogram="")
    bare = replace(measured, load=load, server=None, telemetry=TelemetryWindow())
    trial = replace(a_trial(0, a_candidate(4, 2)), measurements=(bare,))
    page = Page(_render([trial]))
    assert "p95 is unknown" in page.text


def test_a_damaged_histogram_falls_back_to_the_percentiles() -> None:
    measured = a_measurement()
    for damaged in ("nonsense", "HISTFAAAACR42pN", measured.load.histogram[:-20], "é"):
        load = replace(measured.load, histogram=damaged)
        trial = replace(a_trial(0, a_candidate(4, 2)), measurements=(replace(measured, load=load),))
        names = [t["name"] for t in Page(_render([trial], pick=0)).figure("distribution")["data"]]
        assert names[0] == "default = pick (trial 0) (percentiles only)"


def test_infinite_and_nan_values_do_not_break_the_figures() -> None:
    measured = a_measurement()
    assert measured.server is not None
    server = replace(measured.server, queue_ms=math.nan)
    odd = replace(measured, saturation_qps=math.inf, server=server)
    trial = replace(a_trial(0, a_candidate(4, 2)), measurements=(odd,))
    written = Page(_render([trial], pick=0)).by_id
    json.loads(written["figures"], parse_constant=pytest.fail)
    json.loads(written["choices"], parse_constant=pytest.fail)


# ------------------------------------------------------------------------------- self-contained
def test_the_report_loads_nothing(html: str, page: Page) -> None:
    for tag, attrs in page.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img"}
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_plotly_is_in_it_once_and_the_file_stays_small(html: str) -> None:
    assert html.count("* plotly.js v") == 1
    assert len(html.encode()) < 6_000_000


def test_hostile_names_are_only_ever_text() -> None:
    trial = replace(
        a_trial(0, Candidate({"max_batch_size": 4, "instances": 2, HOSTILE: HOSTILE})),
        reason=HOSTILE,
    )
    failed = Trial(number=1, candidate=a_candidate(1, 1), state=TrialState.FAILED, reason=HOSTILE)
    record = replace(
        a_record(), name=HOSTILE, digest=HOSTILE, environment={HOSTILE: {HOSTILE: HOSTILE}}
    )
    html = _render(
        [trial, failed],
        study=record,
        decision={"pick": 0, "rule": HOSTILE, "front": [], "reasons": [HOSTILE]},
        config_text=HOSTILE,
        default_config_text="",
        warnings=[HOSTILE],
    )
    page = Page(html)
    assert [tag for tag, _ in page.tags].count("script") == 4
    assert not [attrs for _, attrs in page.tags if "onerror" in attrs]
    assert page.by_id["config"] == HOSTILE
    assert "{{7*7}}" in page.text
    hovers = [t for trace in page.figure("scatter")["data"] for t in trace.get("text", ())]
    assert hovers
    assert not any("<script" in text or "<img" in text for text in hovers)
