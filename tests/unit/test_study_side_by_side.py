"""A study whose venue measures several trials at once, on fakes and the real store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autotune.core.errors import Interrupted
from autotune.core.trial import Trial, TrialState
from autotune.ports import TrialSource
from autotune.tuner.conclude import Settled
from autotune.tuner.here import Here
from autotune.tuner.recorder import Say
from autotune.tuner.run import StudyRunner
from autotune.tuner.venue import Overseer, Readied
from search_spaces.candidate import Candidate
from tests.runner_bench import Bench

MANY = [Candidate({"instances": n}) for n in (1, 2, 4, 8, 16)]


@dataclass
class Several:
    """Begins as many trials as there are slots, and ends the latest first, so that they end in
    another order than they were begun in."""

    here: Here
    side_by_side: int = 2
    most: int = 0
    fail: Callable[[Trial], None] = lambda _: None
    begun: list[int] = field(default_factory=list)

    def prepare(self, say: Say) -> Readied:
        return self.here.prepare(say)

    def run(self, source: TrialSource) -> None:
        under_way: list[Trial] = []
        while True:
            while len(under_way) < self.side_by_side and (trial := source.next()) is not None:
                under_way.append(trial)
                self.begun.append(trial.number)
            self.most = max(self.most, len(under_way))
            if not under_way:
                return
            latest = under_way.pop()
            self.fail(latest)
            self.here.carry_out(latest, source)

    def settle(self, overseer: Overseer) -> Settled:
        return self.here.settle(overseer)

    def close(self) -> None:
        self.here.close()


@pytest.fixture
def bench(bench: Callable[..., Bench]) -> Callable[..., Bench]:
    space = {"instances": [each["instances"] for each in MANY]}
    return lambda **changes: bench(MANY, space=space, **changes)


def several(b: Bench, **options: Any) -> tuple[StudyRunner, Several]:
    venue = Several(b.here(), **options)
    return replace(b.runner(), venue=venue, planned=len(MANY), holds=len(MANY)), venue


def test_trials_side_by_side_come_to_the_same_decision_as_one_after_another(bench: Any) -> None:
    one_by_one = bench().runner().run()
    b = bench()
    b.study_id = b.store.create_study("again", b.study.definition, b.study.digest)
    runner, venue = several(b)
    answer = runner.run()
    assert venue.most == 2
    assert answer.decision.pick == one_by_one.decision.pick
    assert answer.decision.front == one_by_one.decision.front
    assert [t.number for t in answer.trials] == [0, 1, 2, 3, 4]
    assert [t.candidate for t in answer.trials] == MANY


def test_the_budget_of_trials_counts_what_is_under_way(bench: Any) -> None:
    b = bench(budget={"trials": 3, "minutes": 15.0})
    runner, venue = several(b, side_by_side=4)
    answer = runner.run()
    assert venue.most == 3
    assert len(answer.trials) == 3
    assert answer.stopped_because == "the budget is used up: trials: 3"


def test_the_time_that_is_left_is_that_of_several_at_once(bench: Any) -> None:
    b = bench()
    b.runner().run()
    alone = max(step.seconds_left for step in b.steps if step.stage == "trial")
    b.study_id = b.store.create_study("again", b.study.definition, b.study.digest)
    b.steps.clear()
    b.search.told.clear()
    several(b, side_by_side=5)[0].run()
    assert max(step.seconds_left for step in b.steps if step.stage == "trial") < alone


def test_what_a_trial_waits_for_its_device_is_not_the_time_that_trials_take(bench: Any) -> None:
    b = bench()
    left: dict[float | None, float] = {}
    for took_s in (None, 3.0):
        b.study_id = b.store.create_study(f"{took_s}", b.study.definition, b.study.digest)
        b.clock.seconds = 0.0  # the run's beginning
        runner = b.runner()
        trial = runner.next()
        assert trial is not None
        b.clock.pass_(50)
        runner.ended(trial.number, TrialState.INVALID, "its device was lost 3 times", took_s)
        left[took_s] = b.steps[-1].seconds_left
    assert left[3.0] < left[None]


@pytest.mark.parametrize(("slots", "trials"), [(8, 3), (1, 1)])
def test_the_time_of_an_earlier_run_is_that_of_its_own_number_of_slots(
    bench: Any, slots: int, trials: int
) -> None:
    b = bench(budget={"trials": 20, "minutes": 0.7})

    def interrupt(trial: Trial) -> None:
        if trial.number == 1:
            raise Interrupted("SIGTERM")

    runner, _ = several(b, side_by_side=1, fail=interrupt)
    runner.environment = lambda: {"executor": {"side_by_side": slots}}
    with pytest.raises(Interrupted):
        runner.run()
    b.search = type(b.search)(MANY)
    b.load.server = b.server
    assert len(several(b, side_by_side=1)[0].run().trials) == trials


def test_what_is_warned_of_again_when_the_end_is_begun_again_is_kept_once(bench: Any) -> None:
    @dataclass
    class Twice(Several):
        def settle(self, overseer: Overseer) -> Settled:
            for _ in range(2):
                overseer.warn("the machine has changed")
            return super().settle(overseer)

    b = bench()
    runner, venue = several(b)
    answer = replace(runner, venue=Twice(venue.here)).run()
    assert answer.warnings.count("the machine has changed") == 1


def test_a_study_that_ends_after_a_trial_begins_no_other_and_keeps_those_under_way(
    bench: Any,
) -> None:
    b = bench()
    runner, venue = several(b)
    runner.stop_after = lambda trial: "enough is known" if trial.number == 1 else None
    answer = runner.run()
    assert venue.begun == [0, 1]
    assert [t.state for t in answer.trials] == [TrialState.OK, TrialState.OK]
    assert answer.stopped_because == "enough is known"


def test_an_interrupted_trial_is_measured_anew_under_its_own_number(bench: Any) -> None:
    b = bench()

    def interrupt(trial: Trial) -> None:
        if trial.number == 2:
            raise Interrupted("SIGTERM")

    runner, _ = several(b, fail=interrupt)
    with pytest.raises(Interrupted):
        runner.run()
    assert [t.state for t in b.store.trials(b.study_id)] == [
        TrialState.RUNNING,
        TrialState.OK,
        TrialState.RUNNING,
    ]
    b.search = type(b.search)(MANY)
    b.load.server = b.server
    answer = several(b)[0].run()
    assert [t.state for t in answer.trials] == [TrialState.OK] * len(MANY)
    assert {t.candidate for t in answer.trials} == set(MANY)
