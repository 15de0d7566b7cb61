"""What a candidate answers, before it is timed: on fakes and the real store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.adapters.triton.evaluation import ServedGate
from autotune.core.accuracy import Accuracy
from autotune.core.errors import CandidateFailed, OutputsDiffer
from autotune.core.measurement import Purpose
from autotune.core.trial import TrialState
from autotune.core.variants import Variant, VariantRecord
from search_spaces.candidate import Candidate
from tests.fakes import FakeGate
from tests.runner_bench import Bench, study

OWN, HALF, BRAIN = (f"onnxruntime-{p}" for p in ("fp32", "fp16", "bf16"))


def candidate(variant: str, instances: int = 2) -> Candidate:
    return Candidate({"variant": variant, "instances": instances})


def record(variant: str, step: str = "") -> VariantRecord:
    return VariantRecord(variant=Variant.parse(variant), step=step, accuracy_drop=0.0)


FOUND = candidate(OWN, instances=1)
ACCURATE: dict[str, Any] = {
    "space": {"variant": [OWN, HALF, BRAIN], "instances": [1, 2]},
    "accuracy": "cosine",
    "sla": {"p95_ms": 80.0, "accuracy_drop": 0.02},
}


@pytest.fixture
def bench(bench: Callable[..., Bench]) -> Callable[..., Bench]:
    def make(candidates: list[Candidate], drops: dict[Candidate, float], **changes: Any) -> Bench:
        one = bench(candidates, **{**ACCURATE, **changes})
        one.baseline = candidates[0]
        one.gate = FakeGate(one.server, {c.key: drop for c, drop in drops.items()})
        one.variants = (record(OWN), record(HALF), record(BRAIN))
        return one

    return make


def test_every_measurement_of_a_candidate_carries_how_much_worse_it_answers(bench: Any) -> None:
    b = bench([FOUND, candidate(HALF)], {candidate(HALF): 0.01})
    answer = b.runner().run()
    drops = [[m.accuracy_drop for m in trial.measurements] for trial in answer.trials]
    assert drops[0] == [0.0]
    assert set(drops[1]) == {0.01}, "the confirmation's too"


def test_what_is_served_is_judged_once_for_each_variant_and_anew_when_exported(
    bench: Any,
) -> None:
    b = bench([FOUND, candidate(OWN), candidate(HALF, 1), candidate(HALF)], {})
    b.runner().run()
    assert b.gate.asked == 2 + 1


def test_a_variant_above_the_limit_fails_before_it_is_loaded(bench: Any) -> None:
    b = bench([FOUND, candidate(BRAIN), candidate(HALF)], {candidate(BRAIN): 0.05})
    answer = b.runner().run()
    states = [trial.state for trial in answer.trials]
    assert states == [TrialState.OK, TrialState.FAILED, TrialState.OK]
    assert "accuracy drop 5% of what is served is above the SLA's 2%" in answer.trials[1].reason
    assert not answer.trials[1].measurements


def test_what_was_served_is_stored_with_the_variant(bench: Any) -> None:
    b = bench([FOUND, candidate(BRAIN), candidate(HALF)], {candidate(BRAIN): 0.05})
    answer = b.runner().run()
    served = {str(each.variant): each.served_drop for each in answer.variants}
    assert served == {OWN: 0.0, HALF: 0.0, BRAIN: 0.05}


def test_of_a_pipeline_a_loss_is_its_step_s_only_where_no_other_serves_a_variant(
    bench: Any,
) -> None:
    def both(one: str, two: str) -> Candidate:
        return Candidate({"a.variant": one, "b.variant": two})

    space = {"a.variant": [OWN, HALF], "b.variant": [OWN, HALF]}
    drops = {both(HALF, HALF): 0.02, both(HALF, OWN): 0.005}
    b = bench([both(OWN, OWN), both(HALF, HALF), both(HALF, OWN)], drops, space=space)
    b.study = study(**{**ACCURATE, "space": space})
    b.variants = (record(HALF, "a"), record(HALF, "b"))
    answer = b.runner().run()
    assert {each.step: each.served_drop for each in answer.variants} == {"a": 0.005, "b": None}


def test_where_nobody_asks_about_accuracy_none_is_measured(bench: Any) -> None:
    b = bench([FOUND, candidate(OWN)], {})
    b.gate = None
    b.study = study(space={"instances": [1, 2]})
    answer = b.runner().run()
    assert {m.accuracy_drop for trial in answer.trials for m in trial.measurements} == {None}


def test_a_variant_whose_answers_are_not_its_own_file_s_fails_alone(bench: Any) -> None:
    b = bench([FOUND, candidate(BRAIN), candidate(HALF)], {})
    b.check.differs_under = {candidate(BRAIN).key}
    answer = b.runner().run()
    assert [trial.state for trial in answer.trials][1:] == [TrialState.FAILED, TrialState.OK]
    assert "not those of its own model file" in answer.trials[1].reason


def test_the_model_s_own_answers_that_differ_end_the_study(bench: Any) -> None:
    b = bench([FOUND, candidate(OWN)], {})
    b.check.differs_under = {candidate(OWN).key}
    with pytest.raises(OutputsDiffer):
        b.runner().run()


# ---------------------------------------- the source's answers, where only a server has them
def asking(bench: Bench, answers: dict[str, float | None]) -> ServedGate:
    """A gate that knows no source: each variant answers a number of its own, or an error."""

    def connect(_endpoint: Any, _model: Any) -> Any:
        def infer(_samples: Any, *, at_once: int) -> list[dict[str, Any]]:
            said = answers[str(bench.server.applied[-1]["variant"])]
            if said is None:
                raise CandidateFailed("the server answers an error")
            return [{"y": np.array([[said]])}]

        return infer

    return ServedGate(Accuracy(metric="relative_error"), [{}], connect=connect)


def test_two_trials_are_compared_by_accuracy_against_what_was_found_in_service(bench: Any) -> None:
    b = bench([FOUND, candidate(HALF), candidate(BRAIN)], {})
    answers = {OWN: 1.0, HALF: 0.99, BRAIN: 0.985}
    b.gate = asking(b, answers)
    answer = b.runner().run()
    b.gate = asking(b, answers)
    runner = b.comparison(answer.trials[2], answer.trials[0])
    runner.run()
    trials = b.store.trials(b.study_id)
    drops = [{round(m.accuracy_drop or 0, 6) for m in t.of(Purpose.COMPARE)} for t in trials]
    assert drops == [{0.0}, set(), {0.015}]
    served = {str(each.variant): each.served_drop for each in b.store.variants(b.study_id)}
    assert (served[OWN], served[BRAIN]) == (0.0, pytest.approx(0.015))


def test_no_other_candidate_s_answers_stand_for_the_source_s_where_it_gives_none(
    bench: Any,
) -> None:
    b = bench([FOUND, candidate(HALF), candidate(OWN)], {})
    b.gate = asking(b, {OWN: None, HALF: 0.5})
    with pytest.raises(CandidateFailed, match="answers an error"):
        b.runner().run()
    assert not b.store.trials(b.study_id)
