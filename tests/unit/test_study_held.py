"""A study with a champion, what earlier studies measured, and an end after a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.core.errors import CandidateFailed, Interrupted
from autotune.core.records import FOUND, HELD, PLANNED, StudyState
from autotune.core.trial import Trial, TrialState
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from tests.fakes import FakeGate, FakeServer
from tests.runner_bench import FOUR, ONE, TWO, Bench
from tests.unit.made_trials import made_measurement

FIRST = Trial(number=0, candidate=FOUR, state=TrialState.OK, measurements=(made_measurement(),))


@pytest.fixture
def bench(bench: Callable[..., Bench]) -> Bench:
    return bench()


def run(bench: Bench, **changes: Any) -> Any:
    return replace(bench.runner(), **changes).run()


def after_the_first(trial: Trial) -> str | None:
    return "enough is known" if trial.number == 0 else None


def test_a_study_that_may_end_after_a_trial_ends_without_finals_confirmation_and_export(
    bench: Bench,
) -> None:
    bench.baseline = TWO
    bench.search.candidates = [TWO, ONE, FOUR]
    answer = run(bench, stop_after=after_the_first)
    assert [trial.number for trial in answer.trials] == [0]
    assert answer.decision.pick == 0
    assert (answer.exported_to, bench.exporter.written) == (None, {})
    assert answer.record.state is StudyState.DONE
    assert answer.stopped_because == "enough is known"
    assert not bench.server.running


def test_it_is_recorded_that_it_did(bench: Bench) -> None:
    run(bench, stop_after=after_the_first)
    environment = bench.store.study("s").environment or {}
    assert environment[HELD] == "enough is known"
    assert environment[PLANNED] == 1
    decided = bench.store.decision(bench.study_id)
    assert decided is not None
    assert decided.exported_to is None


def test_it_is_asked_once_after_each_trial(bench: Bench) -> None:
    asked: list[int] = []
    run(bench, stop_after=lambda trial: asked.append(trial.number))
    assert asked == [0, 1, 2]


def test_one_that_was_killed_just_after_the_trial_is_asked_again(bench: Bench) -> None:
    def killed(_: Trial) -> str | None:
        raise Interrupted("killed")

    with pytest.raises(Interrupted):
        run(bench, stop_after=killed)
    answer = run(bench, stop_after=after_the_first)
    assert [trial.number for trial in answer.trials] == [0]


def test_the_search_is_told_what_earlier_studies_measured_and_what_comes_first(
    bench: Bench,
) -> None:
    answer = run(bench, known=[FIRST], first=[FOUR])
    ((candidate, outcome),) = bench.search.recalled
    assert candidate == FOUR
    assert isinstance(outcome, TrialOutcome)
    assert outcome.violations is not None
    assert [trial.candidate for trial in answer.trials] == [ONE, FOUR, TWO]


def test_what_earlier_studies_measured_is_no_trial_of_this_one(bench: Bench) -> None:
    bench.search.candidates = [ONE]
    answer = run(bench, known=[FIRST])
    assert [trial.candidate for trial in answer.trials] == [ONE]
    assert len(bench.store.trials(bench.study_id)) == 1


def test_a_champion_is_recorded_with_the_configuration_that_was_found(bench: Bench) -> None:
    bench.baseline = TWO
    bench.found = ONE
    run(bench)
    assert (bench.store.study("s").environment or {})[FOUND] == ONE.to_json()


HALF = Candidate({"instances": 2, "variant": "onnxruntime-fp16"})
OWN = Candidate({"instances": 1, "variant": "onnxruntime-fp32"})


class FirstAnswer(FakeGate):
    """Remembers which candidate answered first: it is taken for the source."""

    def drop(self, endpoint: Any, model: Any) -> float:
        if not self.asked:
            self.source = self.server.applied[-1]
        return FakeGate.drop(self, endpoint, model)

    source: Candidate | None = None


def test_accuracy_is_told_against_what_was_found_and_not_against_the_champion(
    bench: Bench,
) -> None:
    bench.baseline = HALF
    bench.search.candidates = [HALF, OWN]
    gate = FirstAnswer(bench.server)
    bench.found, bench.gate = OWN, gate
    run(bench)
    assert gate.source == OWN


def test_answers_of_the_champions_variant_that_are_wrong_fail_it_alone(bench: Bench) -> None:
    bench.baseline = HALF
    bench.search.candidates = [HALF, OWN]
    bench.check.differs_under = {HALF.key}
    bench.found = OWN
    with pytest.raises(CandidateFailed, match="not those of its own model file"):
        run(bench)


def test_a_server_that_was_tuned_is_ended(bench: Bench) -> None:
    run(bench, stop_after=after_the_first)
    assert isinstance(bench.server, FakeServer)
    assert not bench.server.running
