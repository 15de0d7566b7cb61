"""What GPUs tell beside utilization, as people and programs are shown it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.tables import gauges_sheet
from autotune.core import measurement
from autotune.core.as_json import trial_json
from autotune.core.measurement import Gauge
from autotune.core.study import Objective
from autotune.core.trial import Trial
from autotune.core.workload import Workload
from dashboards import render_report
from tests.realistic import SLA, a_candidate, a_record, a_trial

SERIES = ((0.2, 0.6), (0.4, 0.7))
GAUGES = {
    "sm_active": Gauge(value=0.645, source="gpm", series=SERIES),
    "power_w": Gauge(value=412.5, source="nvml", series=SERIES),
    "energy_j": Gauge(value=960.0, source="nvml_whole_gpu", series=SERIES),
}


def told(number: int) -> Trial:
    """A trial on a GPU that says nothing of its tensor cores."""
    trial = a_trial(number, a_candidate(4, 2 + number))
    (measured,) = trial.measurements
    notes = {"gpm": "NVML: Not Supported"}
    seen = replace(measured.telemetry, gauges=GAUGES, notes=notes)
    return replace(trial, measurements=(replace(measured, telemetry=seen),))


def report(trials: Sequence[Trial]) -> str:
    return render_report(
        study=a_record(trials),
        trials=trials,
        decision={"pick": trials[-1].number},
        objectives=[Objective.of("saturation_qps"), Objective.of("p95_ms")],
        sla=SLA,
        workload=Workload(target_qps=66.0),
    )


def test_a_program_is_told_each_gauge_with_its_source_and_why_others_are_unknown() -> None:
    (measured,) = trial_json(told(0), SLA)["measurements"]
    assert measured["gauges"] == {
        "sm_active": {"value": 0.645, "source": "gpm"},
        "power_w": {"value": 412.5, "source": "nvml"},
        "energy_j": {"value": 960.0, "source": "nvml_whole_gpu"},
    }
    assert measured["metrics"]["sm_active"] == 0.645
    assert measured["metrics"]["tensor_active"] is None
    assert measured["telemetry_notes"] == {"gpm": "NVML: Not Supported"}


def test_of_a_server_without_a_gpu_a_program_is_told_none() -> None:
    (measured,) = trial_json(a_trial(0, a_candidate(4, 2)), SLA)["measurements"]
    assert measured["gauges"] == {}


@pytest.mark.parametrize("width", [60, 80])
def test_a_row_per_trial_tells_what_the_gpu_did(
    printed: Callable[[int], io.StringIO], width: int
) -> None:
    text = printed(width)
    sheet = gauges_sheet([told(0), a_trial(1, a_candidate(4, 2))], SLA)
    assert sheet is not None
    sheet.print()
    head, row = text.getvalue().splitlines()
    assert head.split() == ["trial", "SM", "active", "tensor", "DRAM", "power", "J/1,000"]
    assert row.split() == ["0", "64%", "–", "–", "412", "W", "1,001.0"]  # of 959 answers
    assert max(len(head), len(row)) <= width


def test_trials_without_a_gpu_have_no_such_rows() -> None:
    assert gauges_sheet([a_trial(0, a_candidate(4, 2))], SLA) is None


def test_the_report_has_a_column_and_a_card_for_what_is_known_alone() -> None:
    html = report([told(0), told(1)])
    assert html.count(">SM active<") >= 2
    assert "64.5%" in html
    assert "412.5 W" in html
    assert ">tensor cores active<" not in html
    assert "nvml whole gpu" in html


def test_the_report_of_a_study_without_a_gpu_does_not_speak_of_one() -> None:
    html = report([a_trial(0, a_candidate(1, 1)), a_trial(1, a_candidate(4, 2))])
    assert ">SM active" not in html
    assert ">power<" not in html


def test_every_gauge_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "measuring.md").read_text()
    assert [name for name in measurement.GAUGES if f"`{name}`" not in documented] == []
