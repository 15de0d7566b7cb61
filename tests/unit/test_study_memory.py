"""A study whose candidates need more memory than there is, on fakes and the real store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autotune.core.errors import CandidateFailed, Interrupted
from autotune.core.measurement import LoadResult, TelemetryWindow
from autotune.core.memory import RAN_OUT
from autotune.core.trial import TrialState
from autotune.ports import Applied, LoadPlan, WindowObserver
from search_spaces.candidate import Candidate
from tests.fakes import FakeLoad, FakeServer, FakeTelemetry, ListSearch
from tests.runner_bench import Bench

SIZES = (1, 2, 3, 4, 6, 8)
CANDIDATES = [Candidate({"instances": n}) for n in SIZES]
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB"


@dataclass(slots=True)
class TightServer(FakeServer):
    """Has room for so many instances."""

    room: int = 99

    def apply(self, candidate: Candidate) -> Applied:
        if int(str(candidate["instances"])) > self.room:
            raise CandidateFailed(f"{RAN_OUT}: the server cannot load {candidate}: {OOM}")
        return FakeServer.apply(self, candidate)


@dataclass(slots=True)
class TightLoad(FakeLoad):
    """Is told by the server that memory ran out, above so many instances."""

    room: int = 99

    def run(self, endpoint: Any, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        result = FakeLoad.run(self, endpoint, plan, window)
        texts = {"http_500": OOM} if self.server.instances > self.room else {}
        return replace(result, error_texts=texts)


@dataclass(slots=True)
class Weighed(FakeTelemetry):
    """1,500 MB an instance, of 8,000."""

    server: FakeServer = field(kw_only=True)

    def stop(self) -> TelemetryWindow:
        return TelemetryWindow(
            utilization=0.5,
            source="nvml",
            memory_mb=500.0 + 1500.0 * self.server.instances,
            memory_source="nvml_device",
            memory_total_mb=8000.0,
        )


@dataclass(slots=True)
class Interrupting(ListSearch):
    """Is interrupted when it has been told so often."""

    after: int = 0

    def ask(self, pending: Sequence[Candidate] = ()) -> Candidate | None:
        if len(self.told) == self.after:
            raise Interrupted("SIGTERM")
        return ListSearch.ask(self, pending)


@pytest.fixture
def bench(bench: Callable[..., Bench]) -> Callable[..., Bench]:
    def make(room: int = 99, room_under_load: int = 99, **changes: Any) -> Bench:
        b = bench(CANDIDATES, space={"instances": list(SIZES)}, **changes)
        b.server = TightServer(b.clock, room=room)
        b.check.server = b.server
        b.load = TightLoad(b.server, room=room_under_load)
        return b

    return make


def states(answer: Any) -> list[str]:
    return [str(trial.state) for trial in answer.trials]


def run(b: Bench) -> Any:
    runner = b.runner()
    runner.planned = runner.holds = len(CANDIDATES)
    return runner.run()


def test_after_one_that_does_not_load_for_want_of_memory_larger_ones_are_not_loaded(
    bench: Any,
) -> None:
    b = bench(room=2)
    answer = run(b)
    assert states(answer) == ["ok", "ok", "failed", "pruned", "pruned", "pruned"]
    assert answer.trials[3].reason.endswith("as trial 2, which ran out of it")
    assert [int(str(c["instances"])) for c in b.server.applied] == [1, 1, 2]
    assert answer.decision.pick == 1


def test_an_answer_under_load_that_says_so_fails_its_trial_and_rules_larger_ones_out(
    bench: Any,
) -> None:
    answer = run(bench(room_under_load=3))
    assert states(answer) == ["ok", "ok", "ok", "failed", "pruned", "pruned"]
    assert answer.trials[3].reason == f"{RAN_OUT} under load: {OOM}"


def test_what_would_not_fit_by_what_others_took_is_not_loaded(bench: Any) -> None:
    b = bench()
    b.telemetry = Weighed(server=b.server)
    answer = run(b)
    assert states(answer) == ["ok", "ok", "ok", "ok", "pruned", "pruned"]
    assert "1,500 MB for each of 6 instances" in answer.trials[4].reason


def test_what_is_ruled_out_is_told_with_the_answer(bench: Any) -> None:
    b = bench(room=2)
    answer = run(b)
    told = "trial 2 ran out of memory; trials 3, 4 and 5 were not loaded, for want of memory"
    assert told in answer.decision.reasons
    assert "tried or ruled out" in answer.stopped_because
    stored = b.store.decision(b.study_id)
    assert stored is not None
    assert told in stored.detail["reasons"]


def test_the_search_is_told_what_cannot_be_had(bench: Any) -> None:
    b = bench(room=2)
    run(b)
    infeasible = [b.search.told[candidate.key].infeasible for candidate in CANDIDATES]
    assert infeasible == [False, False, True, True, True, True]


def test_a_resumed_study_tells_the_search_again(bench: Any) -> None:
    b = bench(room=2)
    b.search = Interrupting(CANDIDATES, after=5)
    with pytest.raises(Interrupted):
        run(b)
    b.search = ListSearch(CANDIDATES)
    answer = run(b)
    assert states(answer) == ["ok", "ok", "failed", "pruned", "pruned", "pruned"]
    assert b.search.told[CANDIDATES[4].key].infeasible


def test_what_is_ruled_out_takes_nothing_of_the_budget(bench: Any) -> None:
    small = Candidate({"instances": 2, "queue_delay_us": 1000})
    b = bench(room=2, budget={"trials": 4})
    b.search = ListSearch([*CANDIDATES, small])
    runner = b.runner()
    runner.planned, runner.holds = 4, 7
    answer = runner.run()
    assert states(answer) == ["ok", "ok", "failed", "pruned", "pruned", "pruned", "ok"]
    assert b.store.study("s").environment["planned"] == 7
    assert "trials: 4" in answer.stopped_because
    assert not answer.decision.searched.cut_short


def test_a_search_that_finds_nothing_but_what_is_ruled_out_ends(bench: Any) -> None:
    endless = [Candidate({"instances": n}) for n in range(1, 60)]
    b = bench(room=1, budget={"trials": 5})
    b.search = ListSearch(endless)
    runner = b.runner()
    runner.planned, runner.holds = 5, None
    answer = runner.run()
    assert states(answer).count("pruned") == 8
    assert len(answer.trials) == 10


def test_what_is_ruled_out_makes_no_trial_seem_shorter(bench: Any) -> None:
    b = bench()
    b.telemetry = Weighed(server=b.server)
    runner = b.runner()
    answer = runner.run()
    assert "pruned" in states(answer)
    assert min(runner._measured_s) > 0


def test_a_pick_that_runs_out_of_memory_from_its_exported_files_is_passed_over(
    bench: Any,
) -> None:
    b = bench()
    b.strict = TightServer(b.clock, room=1)
    answer = run(b)
    assert f"{RAN_OUT}: the server cannot load" in answer.stopped_because
    assert answer.trials[1].state is TrialState.FAILED


def test_objectives_that_cannot_be_had_here_are_told_once(bench: Any) -> None:
    b = bench(objectives=["energy_j_per_1000", "p95_ms"])
    answer = run(b)
    (told,) = [w for w in answer.warnings if "energy_j_per_1000" in w]
    assert told == (
        "the objective energy_j_per_1000 is unknown of trial 0, and of every other: it plays no"
        " part"
    )
    assert "not compared, since unknown: energy_j_per_1000" in answer.decision.reasons
