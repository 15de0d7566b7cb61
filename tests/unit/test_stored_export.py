"""Exports of stored studies: which trial may be exported, what is said of it, what was tuned."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autotune.bootstrap.stored import StoredStudy, _chosen, _outcome
from autotune.cli import export
from autotune.cli.console import Console
from autotune.cli.render import print_answer
from autotune.cli.tune import resumable
from autotune.core.decision import Decision, decide
from autotune.core.errors import ExportFailed, InputRefused
from autotune.core.sla import Outcome, Sla
from autotune.core.study import PickRule
from autotune.core.trial import Trial, TrialState
from autotune.tuner.answer import Answer
from tests.realistic import SLA, a_finished_study, a_record, a_study
from tests.unit.made_trials import starved_study


def _decided(trials: list[Trial], sla: Sla = SLA) -> Decision:
    return decide(trials, sla, a_study().objectives, PickRule.CHEAPEST)


def _stored(trial: Trial) -> StoredStudy:
    return StoredStudy(
        study=a_study(),
        record=a_record([trial]),
        trials=[trial],
        decision=_decided([trial]),
        exported_to=None,
    )


def _refused(trial: Trial) -> str:
    with pytest.raises(InputRefused) as refused:
        _chosen(_stored(trial), trial.number)
    return refused.value.rule


def test_a_trial_that_was_put_in_doubt_is_refused_in_these_words() -> None:
    trial = a_finished_study()[1]
    doubted = replace(
        trial,
        measurements=[
            replace(each, invalid_because=("the machine changed",)) for each in trial.measurements
        ],
    )
    assert _refused(doubted) == ("trial 1 was measured, but that is in doubt: the machine changed")


def test_a_trial_that_failed_is_refused_with_its_reason() -> None:
    failed = replace(
        a_finished_study()[1], state=TrialState.FAILED, measurements=(), reason="out of memory"
    )
    assert _refused(failed) == "trial 1 was not measured: failed: out of memory"


def test_a_trial_is_judged_for_its_export() -> None:
    trial = a_finished_study()[5]
    assert _outcome(trial, SLA) is Outcome.MEETS
    assert _outcome(trial, Sla(latency_ms={95.0: 1.0})) is Outcome.MISSES


@pytest.mark.parametrize(
    ("sla", "words"),
    [("meets", ""), ("misses", "trial 3 misses the study's SLA"), ("undecided", "is not sure")],
)
def test_an_export_of_a_trial_that_does_not_meet_the_sla_says_so(
    monkeypatch: pytest.MonkeyPatch, sla: str, words: str
) -> None:
    told: dict[str, Any] = {"study": "s", "trial": 3, "sla": sla, "files": []}
    monkeypatch.setattr(export, "open_store", lambda *_, **__: nullcontext())
    monkeypatch.setattr(export, "export_stored", lambda *_, **__: told)
    noted: list[str] = []
    monkeypatch.setattr(Console, "note", lambda text, **_: noted.append(text))
    CliRunner().invoke(export.command, ["s", "--out", "x", "--db", "y"], catch_exceptions=False)
    assert bool(noted) == bool(words)
    assert words in "".join(noted)


def test_of_a_pipeline_the_steps_configurations_are_said_to_be_written(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(200)
    trials = starved_study()
    generous = Sla(latency_ms={95.0: 1e6}, min_achieved=0.01)
    decision = _decided(trials, generous)
    assert decision.pick is not None
    print_answer(
        Answer(
            study=replace(a_study(), sla=generous),
            record=a_record(trials),
            trials=trials,
            decision=decision,
            exported_to=Path("deploy"),
            stopped_because="the budget is used up",
            wall_s=240.0,
            load_s=180.0,
            warnings=(),
        ),
        noted=(),
    )
    written = text.getvalue()
    assert "deploy/preprocess/config.pbtxt" in written
    assert f"deploy/{a_study().model.name}/config.pbtxt" not in written


def test_a_run_whose_export_fails_can_be_resumed_and_says_so() -> None:
    class Full:
        def run(self) -> None:
            raise ExportFailed("the export cannot be written", next_step="Make room.")

    with pytest.raises(ExportFailed, match=r"Make room\. The same command with --resume"):
        resumable(Full())  # type: ignore[arg-type]
