"""A server that crashes before it is measured is started once more, on fakes and the real store."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.core.errors import CandidateFailed, ServerCrashed, ServerFailed
from autotune.core.trial import TrialState
from autotune.ports import StatisticsMark
from autotune.tuner.crashes import despite_a_crash, revive
from tests.fakes import FakeClock, FakeServer
from tests.runner_bench import FOUR, ONE, TWO, Bench

AT_ITS_START = ""


def said(b: Bench) -> list[str]:
    return [step.text for step in b.steps if "crashed" in step.text]


# -------------------------------------------------------------------------- it is made ready
@pytest.mark.parametrize("under", [AT_ITS_START, ONE.key], ids=["start", "load"])
def test_a_study_whose_server_crashes_as_it_is_made_ready_says_so_and_comes_to_its_end(
    bench: Any, under: str
) -> None:
    b = bench()
    b.server.crashes[under] = 1
    answer = b.runner().run()
    assert [trial.state for trial in answer.trials] == [TrialState.OK] * 3
    assert answer.exported_to == b.out
    assert said(b) == [
        "the server crashed, and is started once more: the server was ended by SIGABRT"
    ]
    assert b.server.starts == 2


@pytest.mark.parametrize("under", [AT_ITS_START, ONE.key], ids=["start", "load"])
def test_a_server_that_crashes_again_ends_the_study_with_that_reason(
    bench: Any, under: str
) -> None:
    b = bench()
    b.server.crashes[under] = 2
    with pytest.raises(ServerCrashed, match="crashed twice: the server was ended by SIGABRT"):
        b.runner().run()
    assert b.server.crashes[under] == 0
    assert b.server.starts == 2


def test_a_configuration_that_is_refused_is_not_tried_again(bench: Any) -> None:
    b = bench()
    b.server.refuses = {ONE.key}
    with pytest.raises(CandidateFailed):
        b.runner().run()
    assert b.server.asked == [ONE]
    assert said(b) == []


def test_a_champion_that_the_server_crashes_under_for_once_stays_trial_0(bench: Any) -> None:
    b = bench([FOUR, TWO])
    b.baseline, b.found = FOUR, ONE
    b.server.crashes[FOUR.key] = 1
    answer = b.runner().run()
    assert [trial.state for trial in answer.trials] == [TrialState.OK, TrialState.OK]


def test_a_comparison_gets_its_server_at_the_second_start_too(bench: Any) -> None:
    b = bench(finals={"candidates": 2, "capacity": 0})
    answer = b.runner().run()
    comparison = b.comparison(answer.trials[1], answer.trials[2])
    b.server.crashes[AT_ITS_START] = 1
    assert comparison.run()
    assert len(said(b)) == 1


# ------------------------------------------------------------------------------------ a trial
@pytest.mark.parametrize(
    ("crashes", "state", "reason"),
    [(1, TrialState.OK, ""), (2, TrialState.FAILED, "crashed twice: the server was ended by")],
)
def test_one_crash_as_it_is_loaded_is_no_failure_of_a_candidate_and_two_are(
    bench: Any, crashes: int, state: TrialState, reason: str
) -> None:
    b = bench()
    b.server.crashes[TWO.key] = crashes
    answer = b.runner().run()
    assert [t.state for t in answer.trials] == [TrialState.OK, state, TrialState.OK]
    assert reason in answer.trials[1].reason
    assert len(said(b)) == 1


def test_a_crash_under_load_is_the_candidates_failure_at_once(bench: Any) -> None:
    b = bench()
    b.server.dies_under = {TWO.key}
    answer = b.runner().run()
    assert answer.trials[1].state is TrialState.FAILED
    assert b.server.asked.count(TWO) == 1


def test_a_pick_whose_strict_server_crashes_for_once_is_confirmed(bench: Any) -> None:
    b = bench()
    b.strict.crashes[AT_ITS_START] = 1
    answer = b.runner().run()
    assert answer.decision.pick == 1
    assert len(said(b)) == 1


# ------------------------------------------------------------------------------ what is a crash
def test_a_client_without_an_answer_finds_out_that_the_server_crashed() -> None:
    server = Gone(FakeClock(), crashed=True)
    tries: list[int] = []

    def ask() -> str:
        tries.append(server.starts)
        server.apply(ONE)
        if len(tries) == 1:
            server.running = False
            raise ServerFailed("the server does not answer: connection refused")
        return "an answer"

    assert despite_a_crash(ask, server, lambda _: None) == "an answer"
    assert len(tries) == 2


@pytest.mark.parametrize("lives", [True, False])
def test_what_is_no_crash_is_not_tried_again(lives: bool) -> None:
    server = Gone(FakeClock(), crashed=False)
    tries: list[None] = []

    def ask() -> None:
        tries.append(None)
        server.running = lives
        raise ServerFailed("the server hangs and was ended")

    with pytest.raises(ServerFailed, match="hangs"):
        despite_a_crash(ask, server, lambda _: None)
    assert len(tries) == 1


def test_a_server_is_revived_though_it_crashes_at_its_start() -> None:
    server = FakeServer(FakeClock())
    server.crashes[AT_ITS_START] = 1
    revive(server)
    revive(server)
    assert server.running
    assert server.starts == 2


class Gone(FakeServer):
    """Says of itself how it ended when it is asked."""

    def __init__(self, clock: FakeClock, *, crashed: bool) -> None:
        super().__init__(clock)
        self.kind = ServerCrashed if crashed else ServerFailed

    def mark(self) -> StatisticsMark:
        raise self.kind("the server ended")
