"""Pipelines, variants, accuracy and what is emulated, as people and programs are shown them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest

from autotune.bootstrap import StoredStudy
from autotune.cli.as_json import stored_json
from autotune.cli.render import print_stored
from autotune.cli.tables import print_trials
from autotune.cli.words import candidate_words
from autotune.core.decision import Decision, decide
from autotune.core.explain import shown
from autotune.core.explain_steps import EACH_BY_ITSELF, STILL_WAITING
from autotune.core.sla import Sla
from autotune.core.study import Objective, PickRule
from autotune.core.trial import Trial
from autotune.core.variants import Attempt, Variant, VariantRecord
from autotune.core.wording import share_words
from autotune.core.workload import Workload
from dashboards import render_report
from dashboards.figures import data, draw
from search_spaces.candidate import Candidate
from search_spaces.space import parse_space
from tests.realistic import a_record, a_study
from tests.unit.made_trials import (
    made_measurement,
    made_trial,
    starved_candidate,
    starved_study,
)
from tests.unit.test_report import Page

SLA = Sla(latency_ms={95.0: 800.0})
OBJECTIVES = (Objective.of("saturation_qps"), Objective.of("utilization"))
SPACE = parse_space({"preprocess.workers": [1, 4, 12]}, "pipeline")
VARIANTS = (
    VariantRecord(
        variant=Variant.parse("onnxruntime-fp32"),
        accuracy_drop=0.0,
        served_drop=0.0,
        size_mb=21.2,
        cached=True,
    ),
    VariantRecord(
        variant=Variant.parse("onnxruntime-int8"),
        step="device",
        accuracy_drop=0.004,
        served_drop=0.0042,
        size_mb=6.1,
        seconds=74.2,
        attempts=(
            Attempt(what="minmax", accuracy_drop=0.031, seconds=6.0),
            Attempt(what="entropy, 4 nodes in fp32", accuracy_drop=0.004, seconds=9.0, kept=True),
            Attempt(what="percentile", accuracy_drop=None, seconds=1.0, note="no ranges"),
        ),
        tools={"onnxruntime": "1.32.0"},
        notes=("samples cover 93% of the inputs",),
    ),
    VariantRecord(
        variant=Variant.parse("onnxruntime-bf16"), step="device", refused="no kernels for Conv"
    ),
)


def _decided(trials: Sequence[Trial], sla: Sla = SLA) -> Decision:
    return decide(trials, sla, OBJECTIVES, PickRule.CHEAPEST, space=SPACE)


def _stored(trials: Sequence[Trial], sla: Sla = SLA) -> StoredStudy:
    return StoredStudy(
        study=replace(a_study(), name="starved-gpu", sla=sla),
        record=a_record(trials, "starved-gpu"),
        trials=trials,
        decision=_decided(trials, sla),
        exported_to=None,
        variants=VARIANTS,
    )


def rendered(trials: Sequence[Trial], **more: Any) -> str:
    """The report of a pipeline's study."""
    wanted: dict[str, Any] = {
        "study": a_record(trials, "starved-gpu"),
        "trials": trials,
        "decision": _decided(trials, more.get("sla", SLA)).to_json(),
        "objectives": OBJECTIVES,
        "sla": SLA,
        "workload": Workload(target_qps=15.0),
    }
    return render_report(**(wanted | more))


def _page(trials: Sequence[Trial], **more: Any) -> Page:
    return Page(rendered(trials, **more))


def _shown(stored: StoredStudy, text: io.StringIO) -> str:
    print_stored(stored)
    return " ".join(text.getvalue().split())


# -------------------------------------------------------------------------------- the candidates
def test_a_pipelines_configuration_is_told_by_step() -> None:
    assert candidate_words(starved_candidate(12, 8, 12_000)) == (
        "device batch 8, delay 12 ms, instances 1 · postprocess no batching, workers 4"
        " · preprocess workers 12"
    )


def test_a_variant_is_told_by_its_name() -> None:
    candidate = Candidate({"variant": "onnxruntime-int8", "max_batch_size": 4})
    assert candidate_words(candidate) == "batch 4 · onnxruntime-int8"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_what_all_trials_have_in_common_is_told_once_and_a_line_fits(
    printed: Callable[[int], io.StringIO], width: int
) -> None:
    text = printed(width)
    print_trials(starved_study(), SLA, None)
    lines = text.getvalue().splitlines()
    said = " ".join(text.getvalue().split())
    assert max(map(len, lines)) <= width
    assert said.count("postprocess") == 1
    assert "= in every trial: device no delay, instances 1 · postprocess no batching" in said
    assert "device batch 8 · preprocess workers 12" in said


def test_a_single_models_configurations_are_told_in_full(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(100)
    print_trials([made_trial(n, made_measurement()) for n in (0, 1)], SLA, None)
    assert "in every trial" not in text.getvalue()


# ------------------------------------------------------------------------------------- emulated
def test_a_utilization_that_is_emulated_is_called_so_in_the_table_and_the_sentences(
    printed: Callable[[int], io.StringIO],
) -> None:
    said = _shown(_stored(starved_study(185.0)), printed(120))
    assert "70%*" in said
    assert "* busy share of an emulated accelerator, not of hardware" in said
    assert "emulated utilization 12.0% → 70.0%" in said


def test_a_utilization_of_hardware_is_not_called_emulated(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(120)
    print_trials([made_trial(0, made_measurement())], SLA, None)
    assert "emulated" not in text.getvalue()


def test_the_report_calls_it_emulated_wherever_it_stands() -> None:
    page = _page(starved_study())
    assert "utilization emulated 70.0%" in page.text  # the key figure
    assert "70.0% emulated" in page.text  # the table
    hovers = [t for trace in page.figure("scatter")["data"] for t in trace.get("text", ())]
    assert any("emulated utilization 70.0%" in text for text in hovers)
    titles = json.loads(page.by_id["choices"])["titles"]
    assert titles["utilization"] == "utilization (emulated)"


# ----------------------------------------------------------------------------------- the steps
@pytest.mark.parametrize("width", [80, 120])
def test_the_steps_of_the_nearest_miss_and_of_the_default_stand_in_tables(
    printed: Callable[[int], io.StringIO], width: int
) -> None:
    text = printed(width)
    said = _shown(_stored(starved_study()), text)
    assert "Time by step in trial 2 (the nearest miss): 787 ms on average" in said
    assert "▸ preprocess 371.0 1.0 370.0 1.0 12 55%" in said
    assert "device 240.0 90.0 150.0 4.0 1 68%" in said
    assert "in no step 80.0" in said
    assert "Time by step in trial 0 (the configuration in service)" in said
    assert max(map(len, text.getvalue().splitlines())) <= width


def test_a_pipeline_is_readable_in_a_narrow_terminal(printed: Callable[[int], io.StringIO]) -> None:
    text = printed(60)
    said = _shown(_stored(starved_study()), text)
    assert "▸ preprocess 371.0 1.0 370.0 12 55% batch 1.0, can take 32.4/s" in said
    assert "onnxruntime-int8 device 0.4% built in 74 s as served 0.42% 6.1 MB" in said
    assert max(map(len, text.getvalue().splitlines())) <= 60


def test_a_single_model_has_no_table_of_steps(printed: Callable[[int], io.StringIO]) -> None:
    said = _shown(_stored([made_trial(0, made_measurement())]), printed(100))
    assert "by step" not in said


def test_json_has_the_steps_of_every_measurement() -> None:
    document = json.loads(json.dumps(stored_json(_stored(starved_study())), allow_nan=False))
    steps = document["trials"][2]["measurements"][0]["steps"]
    assert steps["limiting"] == "preprocess"
    device = steps["steps"][1]
    assert (device["name"], device["queue_ms"], device["instances"]) == ("device", 90.0, 1)
    assert document["decision"]["steps"]["trial"] == 2
    assert document["trials"][2]["measurements"][0]["utilization_source"] == "emulated"


def test_the_report_shows_the_steps_as_stacked_bars_with_the_limiting_one_marked() -> None:
    page = _page(starved_study(185.0))
    bars = {trace["name"]: trace for trace in page.figure("split")["data"]}
    assert list(bars) == [
        "preprocess, in its queue",
        "preprocess",
        "device, in its queue",
        "device",
        "postprocess, in its queue",
        "postprocess",
        "in no step",
    ]
    pick = bars["device"]["y"].index("pick (trial 2)")
    assert bars["device"]["x"][pick] == 150.0
    assert bars["device"]["text"][pick] == "limits"
    assert bars["preprocess"]["text"][pick] == ""
    assert "device limits 240.0 90.0 150.0 4.0 1 68%" in page.text
    for figure in json.loads(page.by_id["figures"]).values():
        go.Figure(figure)  # refuses properties that do not exist


def test_the_limiting_step_is_marked_where_its_bar_is_longest_and_begins() -> None:
    bars = {trace["name"]: trace for trace in _page(starved_study()).figure("split")["data"]}
    queue, compute = bars["preprocess, in its queue"], bars["preprocess"]
    behind = queue["y"].index("default (trial 0)")
    assert (queue["text"][behind], compute["text"][behind]) == ("limits", "")
    assert {bar["insidetextanchor"] for bar in (queue, compute)} == {"start"}


def test_of_a_pipeline_that_fell_behind_it_is_said_which_requests_its_steps_tell_of(
    printed: Callable[[int], io.StringIO],
) -> None:
    text, trials = printed(160), starved_study()[:1]
    print_stored(_stored(trials))
    said = " ".join(text.getvalue().split())
    assert said.count(STILL_WAITING) == 2  # among the reasons, and below the table
    assert EACH_BY_ITSELF in said
    assert STILL_WAITING[1:] in _page(trials).text


def test_of_a_pipeline_that_keeps_up_nothing_is_said_of_those_that_wait(
    printed: Callable[[int], io.StringIO],
) -> None:
    text, trials = printed(160), starved_study()[2:3]
    print_stored(_stored(trials))
    assert STILL_WAITING not in " ".join(text.getvalue().split())
    assert STILL_WAITING[1:] not in _page(trials).text


def test_what_would_help_begins_with_a_capital_unless_it_is_a_metrics_name() -> None:
    assert "p95 is 62 ms (85 ms by its interval) above its limit" in _page(starved_study()).text
    assert "More instances of preprocess would help" in _page(starved_study()[:1]).text


def test_a_bar_that_would_flatten_the_others_is_cut_off_and_says_how_long_it_is() -> None:
    figure = _page(starved_study()).figure("split")
    assert figure["layout"]["xaxis"]["range"][1] < 2000
    assert "<b>8,737 ms →</b>" in [note["text"] for note in figure["layout"]["annotations"]]


def test_the_report_says_at_its_top_what_would_help() -> None:
    told = _page(starved_study()).text.split("4 trials:", 1)[0]
    assert "p95 is 62 ms (85 ms by its interval) above its limit: to meet it, shorten" in told


def test_bars_of_like_length_are_shown_in_full() -> None:
    steps = [entry.steps for entry in data.entries(starved_study()[2:], SLA)]
    splits = [data.step_split(str(n), found) for n, found in enumerate(steps) if found]
    assert data.cut_ms(splits) is None
    drawn = draw.draw_step_splits(splits)
    assert drawn is not None
    assert drawn["layout"]["annotations"] == []


def test_the_reports_table_has_no_column_for_what_all_trials_have_in_common() -> None:
    page = _page(starved_study())
    assert "In every trial: device.instances=1, device.queue_delay_us=0" in page.text
    heads = page.text.split("trial state", 1)[1].split("window", 1)[0]
    assert "device.max_batch_size" in heads
    assert "device.instances" not in heads
    assert "mean batch" not in heads


# -------------------------------------------------------------------------------------- accuracy
def test_an_accuracy_drop_is_shown_as_a_percentage() -> None:
    assert shown("accuracy_drop", 0.0042) == "0.42%"
    assert [share_words(share) for share in (0.0, 0.00012, 0.5)] == ["0%", "0.012%", "50%"]


def test_accuracy_has_a_column_where_it_is_known_and_its_own_verdict(
    printed: Callable[[int], io.StringIO],
) -> None:
    sla = Sla(latency_ms={95.0: 800.0}, accuracy_drop=0.01)
    trials = [
        made_trial(0, made_measurement(accuracy_drop=0.0)),
        made_trial(1, made_measurement(accuracy_drop=0.023)),
    ]
    text = printed(100)
    print_trials(trials, sla, None)
    head, *rows = text.getvalue().splitlines()
    assert "acc. drop" in head
    assert rows[0].endswith("meets, 95% to spare")
    assert "2.3%" in rows[1]
    assert rows[1].endswith("misses, accuracy")


def test_the_pick_says_what_its_accuracy_costs() -> None:
    sla = Sla(latency_ms={95.0: 800.0}, accuracy_drop=0.01)
    trials = [
        made_trial(0, made_measurement(p95=900.0, accuracy_drop=0.0)),
        made_trial(1, made_measurement(accuracy_drop=0.004)),
    ]
    said = "\n".join(_decided(trials, sla).reasons)
    assert "accuracy drop 0.4% meets 1% with 60% to spare" in said
    assert "accuracy drop 0% → 0.4%" in said
    page = _page(trials, sla=sla)
    assert "accuracy_drop ≤ 1%" in page.text
    assert "accuracy drop 0.4% from 0%" in page.text


# -------------------------------------------------------------------------------------- variants
@pytest.mark.parametrize("width", [80, 120])
def test_variants_are_shown_with_their_accuracy_and_why_one_was_refused(
    printed: Callable[[int], io.StringIO], width: int
) -> None:
    text = printed(width)
    said = _shown(_stored(starved_study()), text)
    assert "onnxruntime-fp32 0% 0% 21.2 MB from the cache" in said
    assert "onnxruntime-int8 device 0.4% 0.42% 6.1 MB built in 74 s" in said
    assert "kept: entropy, 4 nodes in fp32, of 3 tried" in said
    assert "refused: no kernels for Conv" in said
    assert max(map(len, text.getvalue().splitlines())) <= width


def test_json_has_every_variant_with_what_was_tried() -> None:
    document = json.loads(json.dumps(stored_json(_stored(starved_study())), allow_nan=False))
    _, int8, bf16 = document["variants"]
    assert (int8["variant"], int8["engine"], int8["precision"]) == (
        "onnxruntime-int8",
        "onnxruntime",
        "int8",
    )
    assert [attempt["kept"] for attempt in int8["attempts"]] == [False, True, False]
    assert (bf16["usable"], bf16["refused"]) == (False, "no kernels for Conv")


def test_the_report_folds_what_was_tried_for_a_variant() -> None:
    page = _page(starved_study(), variants=VARIANTS)
    assert [tag for tag, _ in page.tags].count("details") == 1
    assert "3 ways were tried; kept: entropy, 4 nodes in fp32" in page.text
    assert "percentile – 1.0 s no ranges" in page.text
    assert "no kernels for Conv" in page.text
    assert "samples cover 93% of the inputs" in page.text
    assert "onnxruntime 1.32.0" in page.text


def test_a_report_without_variants_does_not_speak_of_them() -> None:
    assert "Variants" not in _page(starved_study()).text
