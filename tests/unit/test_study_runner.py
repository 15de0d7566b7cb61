"""The order of a study's steps, on fakes and the real store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.cli.as_json import answer_json
from autotune.cli.tune import exit_code
from autotune.core.errors import (
    AutotuneError,
    CandidateFailed,
    InputRefused,
    Interrupted,
    LoadFailed,
    OutputsDiffer,
    ServerFailed,
)
from autotune.core.measurement import Gauge, TelemetryWindow
from autotune.core.records import StudyState
from autotune.core.trial import TrialState
from autotune.core.validity import LOST_GPU
from autotune.tuner.recorder import ATTEMPTS
from search_spaces.candidate import Candidate
from tests.fakes import FakeServer, FakeTelemetry, ListSearch
from tests.runner_bench import FOUR, ONE, TWO


def test_a_study_ends_with_the_cheapest_candidate_that_meets_the_sla(bench: Any) -> None:
    b = bench()
    answer = b.runner().run()
    assert answer.decision.pick == 1
    assert b.exporter.written[b.out] == TWO
    assert answer.exported_to == b.out
    assert answer.record.state is StudyState.DONE
    assert "every candidate" in answer.stopped_because


def test_the_configuration_in_service_is_the_first_trial(bench: Any) -> None:
    b = bench()
    answer = b.runner().run()
    assert answer.trials[0].candidate == ONE
    assert answer.trials[0].number == 0


def test_the_pick_is_measured_again_from_its_exported_files_before_it_is_written(
    bench: Any,
) -> None:
    b = bench()
    answer = b.runner().run()
    assert b.strict.applied == [TWO]
    assert not b.strict.running
    staged, final = b.exporter.written
    assert staged.parent == b.work
    assert final == b.out
    assert answer.trials[1].confirmation is not None


def test_a_pick_that_fails_its_confirmation_gives_way_to_the_next(bench: Any) -> None:
    b = bench()
    b.strict.service_ms = 30.0
    answer = b.runner().run()
    assert b.strict.applied == [TWO, FOUR]
    assert answer.decision.pick == 2
    assert b.exporter.written[b.out] == FOUR


def test_a_study_whose_picks_all_fail_their_confirmation_says_so(bench: Any) -> None:
    candidates = [Candidate({"instances": n}) for n in (1, 2, 4, 8, 16)]
    b = bench(candidates, space={"instances": [1, 2, 4, 8, 16]})
    b.strict.service_ms = 500.0
    answer = b.runner().run()
    assert answer.exported_to is None
    assert b.strict.applied == candidates[1:4]
    assert "3 picks failed their confirmation, and trial 4" in answer.record.reason
    assert answer.decision.pick is None


def test_nothing_is_exported_when_no_candidate_meets_the_sla(bench: Any) -> None:
    b = bench(sla={"p95_ms": 5.0})
    answer = b.runner().run()
    assert answer.exported_to is None
    assert b.exporter.written == {}
    assert answer.decision.nearest_miss is not None
    stored = b.store.decision(b.study_id)
    assert stored is not None
    assert stored.pick is None
    assert answer.record.state is StudyState.DONE


def test_every_candidate_faces_the_same_arrivals_at_target_times_headroom(bench: Any) -> None:
    b = bench()
    b.runner().run()
    modes = {plan.mode for plan in b.load.plans if hasattr(plan.mode, "qps")}
    assert len(modes) == 1
    assert modes.pop().qps == pytest.approx(60)


def test_an_invalid_measurement_is_taken_again_and_kept(bench: Any) -> None:
    b = bench()
    b.load.lags_ms = [50.0, 0.5]
    answer = b.runner().run()
    first = answer.trials[0]
    assert first.state is TrialState.OK
    assert [m.valid for m in first.measurements] == [False, True]
    assert "fell behind its schedule" in first.measurements[0].invalid_because[0]


def test_a_trial_that_is_never_valid_is_invalid_and_not_blamed(bench: Any) -> None:
    b = bench()
    b.load.lags_ms = [50.0] * ATTEMPTS
    answer = b.runner().run()
    assert answer.trials[0].state is TrialState.INVALID
    assert len(answer.trials[0].measurements) == ATTEMPTS
    assert answer.trials[1].state is TrialState.OK


def test_where_no_trial_could_be_measured_there_is_no_verdict_and_nothing_is_called_measured(
    bench: Any,
) -> None:
    b = bench()
    b.load.lags_ms = [50.0] * ATTEMPTS * 3
    answer = b.runner().run()
    assert answer.decision.without_verdict
    assert exit_code(answer) == 1
    assert answer_json(answer)["meets"] is None
    assert "tried" in answer.stopped_because
    assert "measured" not in answer.stopped_because


def test_one_trial_that_was_measured_gives_a_verdict(bench: Any) -> None:
    b = bench(sla={"p95_ms": 5.0})
    b.load.lags_ms = [50.0] * ATTEMPTS * 2
    answer = b.runner().run()
    assert exit_code(answer) == 3
    assert answer_json(answer)["meets"] is False


def test_a_gpu_that_is_gone_for_good_ends_the_study_at_the_second_try(bench: Any) -> None:
    b = bench()
    b.telemetry = Lost()
    with pytest.raises(AutotuneError, match="GPU is gone") as ended:
        b.runner().run()
    assert "GPU 0: GPU is lost" in str(ended.value)
    assert len(b.load.plans) == 2
    assert b.store.study("s").state is StudyState.FAILED


def test_a_gpu_that_went_away_once_is_measured_again(bench: Any) -> None:
    b = bench()
    b.telemetry = Lost(times=1)
    answer = b.runner().run()
    assert [m.valid for m in answer.trials[0].measurements] == [False, True]


class Lost(FakeTelemetry):
    """A GPU that is lost in so many windows, and back then."""

    def __init__(self, times: int = 100) -> None:
        self._left = times

    def stop(self) -> TelemetryWindow:
        self._left -= 1
        notes = {LOST_GPU: "NVML: GPU 0: GPU is lost"} if self._left >= 0 else {}
        return replace(super().stop(), notes=notes)


@pytest.mark.parametrize(
    ("known", "end"),
    [
        ((), "is unknown of trial 0, and of every other: it plays no part"),
        ((TWO,), "is unknown of trial 0"),
    ],
)
def test_an_objective_that_is_unknown_at_first_is_told_at_the_end_as_it_turned_out(
    bench: Any, known: Sequence[Candidate], end: str
) -> None:
    b = bench(objectives=["energy_j_per_1000"])
    b.telemetry = Metered(b.server, known)
    answer = b.runner().run()
    (told,) = (w for w in answer.warnings if "energy_j_per_1000" in w)
    assert told == f"the objective energy_j_per_1000 {end}"
    assert b.store.study("s").environment["warnings"] == list(answer.warnings)


class Metered(FakeTelemetry):
    """Energy is known under these candidates alone."""

    def __init__(self, server: FakeServer, known: Sequence[Candidate]) -> None:
        self._server, self._known = server, known

    def stop(self) -> TelemetryWindow:
        metered = self._server.applied[-1] in self._known
        gauges = {"energy_j": Gauge(value=100.0, source="nvml", series=())} if metered else {}
        return replace(super().stop(), gauges=gauges)


def test_a_study_that_was_stopped_before_its_first_measurement_has_measured_nothing(
    bench: Any,
) -> None:
    b = bench()
    seen: list[bool] = []

    def stop(_: FakeServer) -> None:
        seen.append(runner.has_measured)
        if len(seen) == 3:
            raise Interrupted("stopped by SIGTERM")

    b.load.before = stop
    runner = b.runner()
    with pytest.raises(Interrupted):
        runner.run()
    assert seen == [False, False, True]


def test_no_saturation_burst_follows_an_invalid_measurement(bench: Any) -> None:
    b = bench([ONE])
    b.load.lags_ms = [50.0] * ATTEMPTS
    b.runner().run()
    assert len(b.load.plans) == ATTEMPTS


def test_a_candidate_that_does_not_load_fails_alone(bench: Any) -> None:
    b = bench()
    b.server.refuses = {TWO.key}
    answer = b.runner().run()
    assert [t.state for t in answer.trials] == [TrialState.OK, TrialState.FAILED, TrialState.OK]
    assert "does not load" in answer.trials[1].reason
    assert answer.decision.pick == 2


def test_a_server_that_dies_fails_its_trial_and_is_started_again(bench: Any) -> None:
    b = bench()
    b.server.dies_under = {TWO.key}
    answer = b.runner().run()
    assert answer.trials[1].state is TrialState.FAILED
    assert answer.trials[2].state is TrialState.OK
    assert b.server.starts == 2


def test_a_present_configuration_that_does_not_load_stops_the_study(bench: Any) -> None:
    b = bench()
    b.server.refuses = {ONE.key}
    with pytest.raises(CandidateFailed, match="as it is configured now"):
        b.runner().run()
    assert b.store.study("s").state is StudyState.FAILED


def test_a_champion_that_does_not_load_any_more_fails_as_the_first_trial_and_others_are_tried(
    bench: Any,
) -> None:
    """The model loads as it was found."""
    b = bench([FOUR, TWO])
    b.baseline, b.found = FOUR, ONE
    b.server.refuses = {FOUR.key}
    answer = b.runner().run()
    states = [(each.candidate, each.state) for each in answer.trials]
    assert states == [(FOUR, TrialState.FAILED), (TWO, TrialState.OK)]
    assert answer.decision.pick == 1


def test_an_error_that_a_candidate_answers_fails_its_trial_alone(bench: Any) -> None:
    b = bench()
    b.check.errors_under = {TWO.key}
    answer = b.runner().run()
    assert [t.state for t in answer.trials] == [TrialState.OK, TrialState.FAILED, TrialState.OK]
    assert answer.decision.pick == 2


def test_outputs_that_differ_stop_the_study_before_any_load(bench: Any) -> None:
    b = bench()
    b.check.differs = True
    with pytest.raises(OutputsDiffer):
        b.runner().run()
    assert b.load.plans == []
    assert b.store.study("s").state is StudyState.FAILED


def test_a_load_generator_that_dies_makes_the_trial_invalid_only_if_it_never_recovers(
    bench: Any,
) -> None:
    b = bench()
    falls = iter([True])

    def fall(_: FakeServer) -> None:
        if next(falls, False):
            raise LoadFailed("killed")

    b.load.before = fall
    answer = b.runner().run()
    assert answer.trials[0].state is TrialState.OK


def test_the_budget_of_trials_ends_the_search(bench: Any) -> None:
    b = bench(budget={"trials": 2, "minutes": 15.0})
    answer = b.runner().run()
    assert len(answer.trials) == 2
    assert "budget is used up: trials: 2" in answer.stopped_because


def test_the_budget_of_minutes_leaves_time_for_the_confirmation(bench: Any) -> None:
    b = bench(budget={"trials": 30, "minutes": 0.6})
    answer = b.runner().run()
    assert len(answer.trials) == 2
    assert "would not fit into the budget" in answer.stopped_because
    assert answer.wall_s <= 0.6 * 60


def test_a_search_that_the_budget_ends_says_how_many_of_how_many_were_tried(bench: Any) -> None:
    b = bench(budget={"trials": 30, "minutes": 0.6}, sla={"p95_ms": 5.0})
    answer = b.runner().run()
    assert answer.decision.searched is not None
    assert answer.decision.searched.words == "2 of 3 candidates tried"
    stored = b.store.decision(b.study_id)
    assert stored is not None
    assert stored.detail["searched"]["words"] == "2 of 3 candidates tried"
    assert b.store.study("s").environment["planned"] == 3


def test_a_search_that_tried_everything_was_not_cut_short(bench: Any) -> None:
    b = bench(sla={"p95_ms": 5.0})
    runner = b.runner()
    runner.planned = 30  # the budget of trials, of a space that could not be counted
    answer = runner.run()
    assert answer.decision.searched is not None
    assert not answer.decision.searched.cut_short
    assert b.store.study("s").environment["planned"] == 3


def test_an_interrupted_study_goes_on_where_it_stopped(bench: Any) -> None:
    b = bench()
    count = iter(range(100))

    def interrupt(_: FakeServer) -> None:
        if next(count) == 2:
            raise Interrupted("SIGTERM")

    b.load.before = interrupt
    with pytest.raises(Interrupted):
        b.runner().run()
    assert b.store.study("s").state is StudyState.INTERRUPTED
    states = [t.state for t in b.store.trials(b.study_id)]
    assert states == [TrialState.OK, TrialState.RUNNING]
    done = b.store.trials(b.study_id)[0]

    b.load.before = lambda _: None
    b.search = ListSearch([ONE, TWO, FOUR])
    answer = b.runner().run()
    assert [t.number for t in answer.trials] == [0, 1, 2]
    assert answer.trials[0].measurements == done.measurements
    assert answer.decision.pick == 1


def test_progress_says_stage_trial_best_and_time_left(bench: Any) -> None:
    b = bench()
    b.runner().run()
    trials = [step for step in b.steps if step.stage == "trial"]
    assert [step.trial for step in trials] == [1, 1, 2, 2, 3, 3]
    assert trials[1].best is None
    assert trials[-1].best is not None
    assert trials[-1].best.number == 1
    left = [step.seconds_left for step in trials if step.finished is None]
    assert left == sorted(left, reverse=True)
    assert list(dict.fromkeys(step.stage for step in b.steps)) == [
        "prepare",
        "check",
        "trial",
        "confirm",
        "export",
        "done",
    ]


def test_the_time_left_counts_on_what_was_lost_of_a_trial_that_is_measured_again(
    bench: Any,
) -> None:
    b = bench()
    b.load.lags_ms = [0.5, 50.0, 50.0]
    b.runner().run()
    left = [step.seconds_left for step in b.steps if step.trial == 2 and step.finished is None]
    assert len(left) == 3
    assert left == sorted(set(left)), "the longer, the more is lost"


def test_the_decision_is_stored_with_where_it_was_exported_to(bench: Any) -> None:
    b = bench()
    b.runner().run()
    stored = b.store.decision(b.study_id)
    assert stored is not None
    assert stored.pick == 1
    assert stored.exported_to == str(b.out)
    assert stored.detail["front"]


def test_the_environment_is_stored_with_the_servers_identity(bench: Any) -> None:
    b = bench()
    b.runner().run()
    environment = b.store.study("s").environment
    assert environment is not None
    assert environment["host"] == "here"
    assert environment["triton"] == "fake"
    assert environment["outputs"] == "1 outputs agree"


def test_a_saturated_server_gets_its_burst_too(bench: Any) -> None:
    b = bench([ONE])
    answer = b.runner().run()
    measured = answer.trials[0].measurement
    assert measured is not None
    assert measured.load.achieved_qps < measured.load.offered_qps
    assert measured.saturation_qps == pytest.approx(b.server.capacity_qps)


def test_a_pick_that_its_exported_files_cannot_serve_is_passed_over(bench: Any) -> None:
    b = bench()
    b.strict.refuses = {TWO.key}
    answer = b.runner().run()
    assert b.exporter.written[b.out] == FOUR
    assert "trial 1 cannot be served from its exported files" in answer.stopped_because
    assert b.store.trials(b.study_id)[1].state is TrialState.FAILED


def test_without_a_pick_the_report_is_left_in_the_scratch_folder(bench: Any) -> None:
    b = bench(sla={"p95_ms": 5.0})
    answer = b.runner().run()
    assert answer.report == b.work / "report.html"
    assert answer.report.exists()


def test_a_confirmation_whose_load_process_dies_is_measured_again(bench: Any) -> None:
    b = bench([ONE, TWO])
    deaths = iter([None])

    def die_once(server: FakeServer) -> None:
        if server is b.strict and next(deaths, "none left") is None:
            raise LoadFailed("the load generator died")

    b.load.before = die_once
    answer = b.runner().run()
    assert answer.exported_to == b.out
    assert next(deaths, "none left") == "none left"


def test_a_server_that_cannot_be_had_again_ends_the_study_and_fails_no_further_candidate(
    bench: Any,
) -> None:
    b = bench()
    runs = iter(range(9))

    def go_for_good(server: FakeServer) -> None:
        if next(runs) == 2:  # the target phase of the second trial, after that and a burst
            server.running = False
            server.gone = True
            raise ServerFailed("the server is gone")

    b.load.before = go_for_good
    with pytest.raises(ServerFailed, match="no live server"):
        b.runner().run()
    states = [trial.state for trial in b.store.trials(b.study_id)]
    assert states == [TrialState.OK, TrialState.FAILED]
    assert b.store.study("s").state is StudyState.FAILED


def test_a_server_that_dies_in_the_burst_has_failed_and_is_not_slow(bench: Any) -> None:
    b = bench([ONE, TWO])
    runs = iter(range(99))

    def die_in_the_burst(server: FakeServer) -> None:
        if next(runs) == 1:
            server.running = False

    b.load.before = die_in_the_burst
    answer = b.runner().run()
    assert [trial.state for trial in answer.trials] == [TrialState.FAILED, TrialState.OK]


def test_an_output_that_is_refused_is_refused_before_the_server_is_started(bench: Any) -> None:
    b = bench()
    b.out.write_text("a file")
    with pytest.raises(InputRefused):
        b.runner().run()
    assert b.server.starts == 0
