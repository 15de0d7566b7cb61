"""The order of a night's steps, on fakes and the real store of schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core.comparison import Comparison, relation
from autotune.core.decision import decide
from autotune.core.drift import Observation
from autotune.core.errors import (
    AutotuneError,
    InputRefused,
    Interrupted,
    LoadFailed,
    MachineBusy,
    ServerFailed,
)
from autotune.core.intervals import Interval
from autotune.core.measurement import Measurement, Purpose
from autotune.core.notices import Event
from autotune.core.promotions import Edited, Promotion, PromotionState, Target
from autotune.core.records import CUT, HELD, StudyRecord, StudyState
from autotune.core.schedules import NightRun, Outcome, Policy, RunState, Schedule, news
from autotune.core.study import PickRule, Study
from autotune.core.trial import Trial, TrialState
from autotune.retune.nightly import (
    Night,
    Tonight,
    Weigh,
    Weighing,
    WindowOver,
    challenge_s,
)
from autotune.retune.past import Past, last_seen
from autotune.retune.promote import CHECK
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests.fakes import FakeClock
from tests.runner_bench import FOUR, ONE, TWO, study
from tests.unit.made_trials import made_measurement

STUDY: Study = study()
HERE: dict[str, Any] = {"model_digest": "a", "processor": "p", "cores": 2, "triton": "2.51"}
TARGET = Target(repository=Path("/models"))


def measured(
    p95: float, *, instances: int, saturation: float = 150.0, purpose: Purpose = Purpose.TRIAL
) -> Measurement:
    return made_measurement(
        p95=p95,
        saturation=saturation,
        instances=instances,
        purpose=purpose,
        within={
            "p95_ms": (p95 * 0.98, p95 * 1.02),
            "saturation_qps": (saturation * 0.99, saturation * 1.01),
        },
        qps=60.0,
    )


def trial(number: int, candidate: Candidate, p95: float = 40.0, **changes: Any) -> Trial:
    instances = candidate["instances"]
    assert isinstance(instances, int)
    taken = [
        measured(p95, instances=instances, purpose=purpose)
        for purpose in (Purpose.TRIAL, Purpose.CONFIRM)
    ]
    made = Trial(number=number, candidate=candidate, state=TrialState.OK, measurements=taken)
    return replace(made, **changes)


def past(
    *trials: Trial,
    kept: Candidate | None = ONE,
    study_id: int = 7,
    state: StudyState = StudyState.DONE,
    **environment: Any,
) -> Past:
    record = StudyRecord(
        id=study_id,
        name="s",
        state=state,
        definition=STUDY.definition,
        digest=STUDY.digest,
        created_at=0.0,
        environment={**HERE, **environment},
        trials=len(trials),
    )
    return Past(record=record, trials=trials, kept=kept)


def faster(effect: float) -> list[Comparison]:
    interval = Interval(effect - 0.03, effect + 0.03)
    return [
        Comparison(
            first=0,
            second=1,
            metric="p95_ms",
            effect=effect,
            interval=interval,
            relation=relation("p95_ms", effect, interval),
            pairs=6,
        )
    ]


@dataclass
class FakeWork:
    """Implements `autotune.retune.nightly.Work`: the study's trials are given."""

    trials: Sequence[Trial]
    pasts: Sequence[Past] = ()
    environment: Mapping[str, Any] = field(default_factory=lambda: dict(HERE))
    comparisons: Sequence[Comparison] = ()
    why_barred: str = ""
    becomes: PromotionState = PromotionState.DONE
    check: str = "meets"
    edited: Edited | None = None
    measured: bool = False
    replaced: bool = False
    looked: bool = False
    unseen: str = ""
    since: Edited | None = None
    is_begun: bool = False
    during: Callable[[str], None] = lambda _: None
    did: list[str] = field(default_factory=list)
    weighed: str | None = None

    def tune(self, weigh: Weigh) -> Tonight:
        self._do("tune")
        first = self.trials[0]
        self.weighed = weigh(
            Weighing(
                trial=first,
                study=STUDY,
                study_id=11,
                environment=self.environment,
                pasts=self.pasts,
                before=self._before(first),
                edited=self.edited,
                measured=self.measured,
                replaced=self.replaced,
                looked=self.looked,
                unseen=self.unseen,
            )
        )
        trials = self.trials[:1] if self.weighed is not None else self.trials
        if self.weighed is None:
            self._do("search")
        return Tonight(
            study=STUDY,
            study_id=11,
            trials=trials,
            decision=decide(trials, STUDY.sla, STUDY.objectives, STUDY.pick),
            why=self.weighed or "the budget is used up",
            held=self.weighed is not None,
        )

    def _before(self, champion: Trial) -> Observation | None:
        candidate = self.pasts[0].trials[0].candidate if self.replaced else champion.candidate
        seen = last_seen(candidate, STUDY.definition, self.pasts, self.environment)
        if seen is None:
            return None
        past, trial = seen
        return Observation.of(trial, past.record.id, past.environment)

    def compare(self, tonight: Tonight, number: int) -> tuple[Sequence[Trial], Any]:
        self._do(f"compare {number}")
        return tonight.trials, self.comparisons

    def propose(self, tonight: Tonight, number: int, why: str) -> int:
        self._do(f"propose {number}")
        return 5

    def barred(self, candidate: Candidate) -> str:
        return self.why_barred

    def begun(self, promotion_id: int) -> bool:
        return self.is_begun

    def edited_since(self, tonight: Tonight) -> Edited | None:
        return self.since

    def promote(self, promotion_id: int) -> Promotion:
        self._do(f"promote {promotion_id}")
        return Promotion(
            id=promotion_id,
            model="m",
            target=TARGET,
            study_id=11,
            trial=1,
            candidate={},
            state=self.becomes,
            reason=f"{self.check} with 5/s probes",
            detail={CHECK: {"outcome": self.check}},
        )

    def _do(self, what: str) -> None:
        self.did.append(what)
        self.during(what)


@dataclass
class Bench:
    store: ServiceStore
    clock: FakeClock
    told: list[tuple[Event, str, str, Mapping[str, Any]]] = field(default_factory=list)
    windows: list[float | None] = field(default_factory=list)

    def schedule(self, policy: Policy = Policy.REPORT, window: float | None = None) -> Schedule:
        made = Schedule(
            id=0,
            name="nightly",
            definition=STUDY.definition,
            cron="0 2 * * *",
            policy=policy,
            window_minutes=window,
            target=None if policy is Policy.REPORT else TARGET,
        )
        return replace(made, id=self.store.schedules.add(made))

    def due(self, schedule: Schedule) -> NightRun:
        run_id = self.store.schedules.due(schedule.id, self.clock.now())
        assert run_id is not None
        return self.store.schedules.run(run_id)

    def night(self, work: FakeWork, schedule: Schedule, run: NightRun | None = None) -> Night:
        return Night(
            schedule=schedule,
            run=run or self.due(schedule),
            model="m",
            runs=self.store.schedules,
            work=work,
            tell=lambda *notice: self.told.append(notice),
            clock=self.clock,
            window=self._window,
        )

    def carry_out(self, work: FakeWork, policy: Policy = Policy.REPORT) -> NightRun:
        return self.night(work, self.schedule(policy)).carry_out()

    @contextmanager
    def _window(self, deadline: float | None) -> Iterator[None]:
        self.windows.append(deadline)
        yield

    @property
    def events(self) -> list[Event]:
        return [event for event, *_ in self.told]


@pytest.fixture
def bench(database: Path) -> Iterator[Bench]:
    clock = FakeClock()
    store = ServiceStore(str(database), now=clock.now)
    yield Bench(store, clock)
    store.close()


def before(*trials: Trial, **changes: Any) -> Past:
    """A whole search that left the first candidate in service."""
    return past(*(trials or (trial(0, ONE), trial(1, TWO, 80.0))), **changes)


CHAMPION = trial(0, ONE)
LOSER = trial(1, TWO, 70.0)


# --------------------------------------------------------------------------- does it still win?
def test_a_night_ends_with_the_champion_that_is_what_it_was(bench: Bench) -> None:
    work = FakeWork([CHAMPION, LOSER], [before()])
    ended = bench.carry_out(work)
    assert (ended.state, ended.outcome) == (RunState.DONE, Outcome.HOLDS)
    assert work.did == ["tune"]
    assert ended.study_id == 11
    assert ended.summary["champion"]["candidate"] == {"instances": 1}
    assert ended.summary["drift"]["drifted"] is False
    assert bench.told == []


def test_a_first_night_searches(bench: Bench) -> None:
    work = FakeWork([CHAMPION, LOSER])
    ended = bench.carry_out(work)
    assert work.did == ["tune", "search"]
    assert ended.outcome is Outcome.HOLDS
    assert ended.summary["drift"] is None


HELD_LAST = past(trial(0, ONE), study_id=9, **{HELD: "the champion still wins"})


def test_after_a_night_that_only_held_the_search_before_it_counts(bench: Bench) -> None:
    work = FakeWork([CHAMPION, LOSER], [HELD_LAST, before()])
    ended = bench.carry_out(work)
    assert work.did == ["tune"]
    assert ended.summary["drift"]["since"] == 9


def test_a_night_that_only_held_is_no_search_by_itself(bench: Bench) -> None:
    assert "search" in _did(bench, FakeWork([CHAMPION, LOSER], [HELD_LAST]))


@pytest.mark.parametrize(
    "earlier",
    [
        before(kept=TWO),
        before(kept=None),
        before(triton="2.40"),
        before(model_digest="b"),
        before(cores=4),
        before(state=StudyState.INTERRUPTED),
        before(**{CUT: 3.0}),
    ],
    ids=["another kept", "none kept", "versions", "model", "hardware", "interrupted", "cut short"],
)
def test_a_night_searches_where_the_champion_did_not_come_out_of_a_search_that_is_still_true(
    bench: Bench, earlier: Past
) -> None:
    work = FakeWork([CHAMPION, LOSER], [earlier])
    bench.carry_out(work)
    assert "search" in work.did


def test_searches_that_were_cut_short_count_once_they_have_tried_what_the_budget_has(
    bench: Bench,
) -> None:
    many = [trial(n, Candidate({"instances": n + 1})) for n in range(STUDY.budget.trials)]
    halves = before(*many[:9], **{CUT: 3.0}), before(*many[9:], **{CUT: 3.0})
    assert _did(bench, FakeWork([CHAMPION, LOSER], halves)) == ["tune"]


def test_a_champion_that_does_not_clearly_meet_the_sla_is_searched_against(bench: Bench) -> None:
    unsure = trial(0, ONE, 79.5)
    assert "search" in _did(bench, FakeWork([unsure, LOSER], [before(unsure, LOSER)]))


def _did(bench: Bench, work: FakeWork) -> list[str]:
    bench.carry_out(work)
    return work.did


# ------------------------------------------------------------------------------------- the drift
def test_a_drift_is_told_with_its_cause_and_the_night_searches(bench: Bench) -> None:
    slower = trial(0, ONE, 55.0)
    work = FakeWork([slower, LOSER], [before()], environment={**HERE, "driver": "2"})
    work.pasts = [before(driver="1")]
    ended = bench.carry_out(work)
    assert "search" in work.did
    ((event, title, text, payload),) = bench.told
    assert event is Event.DRIFT
    assert title.startswith("m: the champion is worse than it was: p95 40.0 to 55.0 ms (+37.5%;")
    assert "the GPU driver: 1 before, 2 now (likely)" in text
    assert "Next:" in text
    assert payload["night"]["drift"]["causes"][0]["kind"] == "driver"
    assert ended.summary["drift"]["drifted"] is True


def test_a_drift_is_told_once_however_often_the_night_is_taken_up(bench: Bench) -> None:
    work = FakeWork([trial(0, ONE, 55.0), LOSER], [before()])
    schedule = bench.schedule()
    run = bench.due(schedule)
    work.during = _raising("search", Interrupted("stopped by SIGTERM"))
    with pytest.raises(Interrupted):
        bench.night(work, schedule, run).carry_out()
    work.during = lambda _: None
    again = bench.store.schedules.run(run.id)
    assert bench.night(work, schedule, again).carry_out().state is RunState.DONE
    assert bench.events == [Event.DRIFT]


def _raising(step: str, error: BaseException) -> Callable[[str], None]:
    def during(what: str) -> None:
        if what == step:
            raise error

    return during


# --------------------------------------------------------------------------- edited in service
EDIT = Edited(
    promotion=4,
    target="/models",
    words="m: max_batch_size is 2, not 4",
    diff="-max_batch_size: 4\n+max_batch_size: 2\n",
)


def test_what_somebody_changed_in_service_is_told_with_its_difference(bench: Bench) -> None:
    ended = bench.carry_out(FakeWork([CHAMPION, LOSER], [before()], edited=EDIT, measured=True))
    ((event, title, text, payload),) = bench.told
    assert event is Event.DRIFT
    not_promoted = "what is in service at /models is not what was promoted: m: max_batch_size is 2"
    assert title.startswith(f"m: {not_promoted}")
    assert "-max_batch_size: 4\n+max_batch_size: 2" in text
    assert "Tonight's champion, trial 0, is what is in service now." in text
    assert "--anyway" in text
    assert payload["night"]["edited"]["promotion"] == 4
    assert ended.outcome is Outcome.HOLDS
    assert not_promoted in ended.reason


def test_that_it_could_not_be_measured_is_told(bench: Bench) -> None:
    bench.carry_out(FakeWork([CHAMPION, LOSER], [before()], edited=EDIT))
    assert "trial 0 is not what is in service: how that does is not known" in bench.told[0][2]


def test_an_edit_is_told_once_and_another_again(bench: Bench) -> None:
    schedule = bench.schedule()
    for edit in (EDIT, EDIT, EDIT, replace(EDIT, diff="-another\n"), None, EDIT):
        work = FakeWork([CHAMPION, LOSER], [before()], edited=edit, measured=True)
        bench.night(work, schedule).carry_out()
        bench.clock.pass_(86_400)
    assert bench.events == [Event.DRIFT] * 3


def test_an_edit_is_told_once_over_a_night_that_could_not_look(bench: Bench) -> None:
    schedule = bench.schedule()
    for seen in ({"edited": EDIT}, {"unseen": "no live Triton"}, {"edited": EDIT}):
        bench.night(FakeWork([CHAMPION, LOSER], [before()], **seen), schedule).carry_out()
        bench.clock.pass_(86_400)
    assert bench.events == [Event.DRIFT]


def test_another_edit_is_told_where_the_night_is_taken_up_after_it(bench: Bench) -> None:
    schedule = bench.schedule()
    run = bench.due(schedule)
    work = FakeWork([CHAMPION, LOSER], edited=EDIT)
    for edit in (EDIT, EDIT, replace(EDIT, diff="-another\n"), None):
        work.edited = edit
        work.during = _raising("search", Interrupted("stopped by SIGTERM"))
        with pytest.raises(Interrupted):
            bench.night(work, schedule, bench.store.schedules.run(run.id)).carry_out()
    assert bench.events == [Event.DRIFT] * 2
    assert "edited" not in bench.store.schedules.run(run.id).summary


def test_the_edit_is_a_cause_of_the_drift_from_what_was_promoted_and_told_with_it(
    bench: Bench,
) -> None:
    """What was promoted is not what is measured tonight: the two are held against each other."""
    slower = trial(0, FOUR, 55.0)
    work = FakeWork([slower, LOSER], [before()], edited=EDIT, measured=True, replaced=True)
    ended = bench.carry_out(work)
    ((event, title, text, _),) = bench.told
    assert event is Event.DRIFT
    assert title.startswith("m: the champion is worse than it was: p95 40.0 to 55.0 ms")
    cause = "- the configuration in service was changed by hand since promotion 4: "
    assert f"{cause}{EDIT.words} (likely)" in text
    assert "+max_batch_size: 2" in text
    assert "nothing is promoted over it without anyone asking" in text
    assert ended.summary["drift"]["causes"][0]["kind"] == "edited"
    assert "search" in work.did


def test_a_drift_of_the_same_edit_has_other_causes(bench: Bench) -> None:
    work = FakeWork([trial(0, ONE, 55.0), LOSER], [before()], edited=EDIT, measured=True)
    ended = bench.carry_out(work)
    assert ended.summary["drift"]["causes"] == []
    assert bench.events == [Event.DRIFT, Event.DRIFT]


BROKEN = replace(CHAMPION, state=TrialState.FAILED, reason="does not load", measurements=())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_champion_that_fails_is_told_beside_the_edit(bench: Bench, replaced: bool) -> None:
    """Also where what was promoted was measured before, and only that."""
    schedule = bench.schedule()
    for _ in range(2):
        work = FakeWork([BROKEN, LOSER], [before()], edited=EDIT, measured=True, replaced=replaced)
        bench.night(work, schedule).carry_out()
        bench.clock.pass_(86_400)
    titles = [title for event, title, *_ in bench.told if event is Event.DRIFT]
    assert [("is not what was promoted" in title) for title in titles] == [False, True, False]
    assert titles[0] == "m: the champion fails: does not load"


def test_that_the_target_could_not_be_looked_at_is_in_the_report(bench: Bench) -> None:
    ended = bench.carry_out(FakeWork([CHAMPION, LOSER], [before()], unseen="no live Triton"))
    assert ended.reason.endswith("what is in service could not be looked at: no live Triton")
    assert bench.told == []


# --------------------------------------------------------------------------------- the challenge
CHALLENGED = [trial(0, TWO), trial(1, ONE, 41.0)]
"""The second is as fast in one instance."""


def test_a_challenger_that_wins_is_told_of(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0))
    ended = bench.carry_out(work)
    assert work.did == ["tune", "search", "compare 1"]
    assert ended.outcome is Outcome.BETTER
    ((event, title, text, _),) = bench.told
    assert event is Event.BETTER
    assert "1 instance instead of 2: cheaper by the margin of 5% at least" in title
    assert "autotune export 11 --trial 1" in text
    assert ended.summary["verdict"]["ground"] == "cheaper"
    assert ended.summary["challenger"]["trial"] == 1
    assert ended.summary["comparisons"][0]["pairs"] == 6


def test_a_challenger_that_loses_changes_nothing(bench: Bench) -> None:
    as_dear = [CHALLENGED[0], trial(1, Candidate({"instances": 2, "max_batch_size": 4}), 20.0)]
    ended = bench.carry_out(FakeWork(as_dear, comparisons=faster(0.2)), Policy.AUTO)
    assert ended.outcome is Outcome.HOLDS
    assert "worse: p95 +20.0%" in ended.reason
    assert bench.told == []


def held(trial: Trial, *memory: float) -> Trial:
    """With so much memory in one measurement after the other of the search."""
    first, *others = trial.measurements
    taken = [replace(first, telemetry=replace(first.telemetry, memory_mb=mb)) for mb in memory]
    return replace(trial, measurements=(*taken, *others))


@pytest.mark.parametrize(
    ("third", "outcome"), [((1000.0, 1000.0), Outcome.BETTER), ((1000.0, 1400.0), Outcome.HOLDS)]
)
def test_less_memory_counts_only_beyond_what_all_the_night_s_trials_vary_by(
    bench: Bench, third: tuple[float, float], outcome: Outcome
) -> None:
    alike, slow = (Candidate({"instances": 1, "max_batch_size": size}) for size in (4, 8))
    trials = [
        held(trial(0, ONE), 1000.0),
        held(trial(1, alike, 20.0), 850.0),
        held(trial(2, slow, 70.0), *third),
    ]
    ended = bench.carry_out(FakeWork(trials, comparisons=faster(0.0)))
    assert ended.summary["challenger"]["trial"] == 1
    assert ended.outcome is outcome


def test_where_the_cheapest_is_asked_for_a_slower_one_that_is_cheaper_wins(bench: Bench) -> None:
    assert STUDY.pick is PickRule.CHEAPEST
    ended = bench.carry_out(FakeWork(CHALLENGED, comparisons=faster(0.2)), Policy.AUTO)
    assert ended.outcome is Outcome.PROMOTED


def test_a_challenger_that_cannot_be_compared_changes_nothing(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, during=_raising("compare 1", LoadFailed("too noisy")))
    ended = bench.carry_out(work, Policy.AUTO)
    assert ended.outcome is Outcome.HOLDS
    assert ended.summary["not_compared"] == "too noisy"


def test_the_same_news_is_not_told_again_the_next_night(bench: Bench) -> None:
    schedule = bench.schedule()
    for _ in range(2):
        bench.night(FakeWork(CHALLENGED, comparisons=faster(0.0)), schedule).carry_out()
        bench.clock.pass_(86_400)
    assert bench.events == [Event.BETTER]


def test_other_news_is(bench: Bench) -> None:
    schedule = bench.schedule()
    for second in (ONE, Candidate({"instances": 1, "max_batch_size": 4})):
        trials = [CHALLENGED[0], trial(1, second, 41.0)]
        bench.night(FakeWork(trials, comparisons=faster(0.0)), schedule).carry_out()
        bench.clock.pass_(86_400)
    assert bench.events == [Event.BETTER, Event.BETTER]


@pytest.mark.parametrize(
    ("between", "told"), [([CHAMPION, LOSER], 2), ([CHALLENGED[0]], 1)], ids=["other", "same"]
)
def test_nor_is_it_the_night_after_unless_the_champion_was_another_meanwhile(
    bench: Bench, between: list[Trial], told: int
) -> None:
    schedule = bench.schedule()
    for trials in (CHALLENGED, between, CHALLENGED):
        bench.night(FakeWork(trials, comparisons=faster(0.0)), schedule).carry_out()
        bench.clock.pass_(86_400)
    assert bench.events == [Event.BETTER] * told


def test_after_a_drift_it_is_news_again(bench: Bench) -> None:
    schedule = bench.schedule()
    for pasts in ([], [past(trial(0, TWO, 20.0), trial(1, ONE))]):
        bench.night(FakeWork(CHALLENGED, pasts, comparisons=faster(0.0)), schedule).carry_out()
        bench.clock.pass_(86_400)
    assert bench.events == [Event.BETTER, Event.DRIFT, Event.BETTER]


def test_by_the_policy_propose_it_waits_for_approval(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0))
    ended = bench.carry_out(work, Policy.PROPOSE)
    assert work.did[-1] == "propose 1"
    assert (ended.outcome, ended.promotion_id) == (Outcome.PROPOSED, 5)
    assert "autotune promote 5" in bench.told[0][2]


def test_by_the_policy_auto_it_is_promoted(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0))
    ended = bench.carry_out(work, Policy.AUTO)
    assert work.did[-2:] == ["propose 1", "promote 5"]
    assert ended.outcome is Outcome.PROMOTED
    assert "is in service" in bench.told[0][1]
    assert "Next: nothing." in bench.told[0][2]


def test_that_its_check_in_service_was_undecided_is_told_with_what_to_do(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0), check="undecided")
    assert bench.carry_out(work, Policy.AUTO).outcome is Outcome.PROMOTED
    text = bench.told[0][2]
    assert "Note: undecided with 5/s probes." in text
    assert "Next: watch it, since its check in service left that open." in text


DEAR = trial(0, TWO)


@pytest.mark.parametrize(
    ("champion", "seen"),
    [
        (DEAR, {"edited": EDIT, "measured": True}),
        (DEAR, {"edited": EDIT}),
        (trial(0, TWO, 60.0), {"edited": EDIT, "measured": True, "replaced": True}),
        (replace(BROKEN, candidate=TWO), {"edited": EDIT, "measured": True, "replaced": True}),
        (DEAR, {"since": EDIT}),
    ],
    ids=["measured", "not in the space", "with a drift", "a broken one", "while the night ran"],
)
def test_over_an_edit_nothing_is_promoted_without_anyone_asking(
    bench: Bench, champion: Trial, seen: dict[str, Any]
) -> None:
    work = FakeWork([champion, CHALLENGED[1]], [before()], comparisons=faster(0.0), **seen)
    ended = bench.carry_out(work, Policy.AUTO)
    assert work.did[-1] == "propose 1"
    assert (ended.outcome, ended.promotion_id) == (Outcome.PROPOSED, 5)
    event, title, text, _ = bench.told[-1]
    assert (event, "waits for your approval" in title) == (Event.BETTER, True)
    assert f"Note: it is not promoted without anyone asking, since {EDIT.told}." in text


def test_what_somebody_has_approved_meanwhile_is_gone_on_with_over_an_edit(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0), edited=EDIT, is_begun=True)
    assert bench.carry_out(work, Policy.AUTO).outcome is Outcome.PROMOTED


FOUND = replace(EDIT, promotion=None, candidate=TWO)


@pytest.mark.parametrize(
    ("edit", "champion", "seen", "becomes"),
    [
        (FOUND, DEAR, {}, Outcome.PROPOSED),
        (FOUND, trial(0, Candidate({"instances": 3})), {}, Outcome.PROMOTED),
        (FOUND, DEAR, {"looked": True}, Outcome.PROMOTED),
        (EDIT, DEAR, {"unseen": "no live Triton"}, Outcome.PROPOSED),
        (EDIT, DEAR, {"looked": True}, Outcome.PROMOTED),
    ],
    ids=["found still", "found no more", "looked at", "unseen", "undone"],
)
def test_an_edit_of_an_earlier_night_is_left_while_nothing_says_that_it_is_gone(
    bench: Bench, edit: Edited, champion: Trial, seen: dict[str, Any], becomes: Outcome
) -> None:
    schedule = bench.schedule(Policy.AUTO)
    between: dict[str, Any] = {"unseen": "busy"}
    for saw in ({"edited": edit, "measured": True}, between):
        bench.night(FakeWork([DEAR, trial(1, FOUR, 70.0)], **saw), schedule).carry_out()
        bench.clock.pass_(86_400)
    work = FakeWork([champion, CHALLENGED[1]], comparisons=faster(0.0), **seen)
    assert bench.night(work, schedule).carry_out().outcome is becomes


def test_what_did_not_hold_in_service_was_rolled_back_and_is_told_by_the_promotion(
    bench: Bench,
) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0), becomes=PromotionState.FAILED)
    assert bench.carry_out(work, Policy.AUTO).outcome is Outcome.ROLLED_BACK
    assert bench.told == []


def test_what_did_not_hold_and_could_not_be_undone_is_not_called_rolled_back(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0), becomes=PromotionState.APPLYING)
    with pytest.raises(AutotuneError, match="could not be undone yet"):
        bench.carry_out(work, Policy.AUTO)
    (run,) = bench.store.schedules.runs()
    assert (run.state, run.outcome) == (RunState.FAILED, None)
    assert "`autotune history m` tells what became of promotion 5" in bench.told[0][2]


def test_what_was_rolled_back_before_is_not_promoted_by_itself(bench: Bench) -> None:
    work = FakeWork(CHALLENGED, comparisons=faster(0.0), why_barred="promotion 3 was rolled back")
    ended = bench.carry_out(work, Policy.AUTO)
    assert ended.outcome is Outcome.BETTER
    assert "promote 5" not in work.did
    assert "promotion 3 was rolled back" in bench.told[0][2]


def test_a_promotion_that_is_refused_is_told_with_the_reason(bench: Bench) -> None:
    refusal = InputRefused("the target repository is gone")
    work = FakeWork(CHALLENGED, comparisons=faster(0.0), during=_raising("propose 1", refusal))
    ended = bench.carry_out(work, Policy.AUTO)
    assert (ended.state, ended.outcome) == (RunState.DONE, Outcome.BETTER)
    assert "the target repository is gone" in bench.told[0][2]


def test_a_champion_that_fails_under_load_gives_way_without_a_comparison(bench: Bench) -> None:
    dead = replace(trial(0, TWO), state=TrialState.FAILED, measurements=(), reason="it died")
    work = FakeWork([dead, trial(1, FOUR)], [before()])
    ended = bench.carry_out(work, Policy.AUTO)
    assert work.did == ["tune", "search", "propose 1", "promote 5"]
    assert ended.summary["verdict"]["ground"] == "sla"
    assert bench.events == [Event.DRIFT, Event.BETTER]
    assert bench.told[0][1] == "m: the champion fails: it died"
    assert "The champion fails: it died" in bench.told[1][2]


def test_where_nothing_meets_the_sla_any_more_it_is_told(bench: Bench) -> None:
    work = FakeWork([trial(0, ONE, 200.0), trial(1, TWO, 120.0)], [before()])
    ended = bench.carry_out(work)
    assert ended.outcome is Outcome.NO_PICK
    assert bench.events == [Event.DRIFT, Event.SLA_LOST]
    _, title, text, _ = bench.told[1]
    assert title == "m: no configuration meets the SLA any more"
    assert "The nearest miss is trial 1 (instances=2)" in text


UNCONFIRMED = replace(trial(1, TWO), measurements=(measured(40.0, instances=2),))


def test_where_only_an_unconfirmed_one_meets_the_sla_that_is_told_of_it(bench: Bench) -> None:
    ended = bench.carry_out(FakeWork([trial(0, ONE, 200.0), UNCONFIRMED], [before()]))
    assert ended.outcome is Outcome.NO_PICK
    _, title, text, _ = bench.told[1]
    assert title == "m: no configuration clearly meets the SLA"
    assert "trial 1 met it in the search, but the challenger was not confirmed from its" in text


def test_a_champion_that_met_the_sla_in_the_paired_runs_has_not_lost_it(bench: Bench) -> None:
    slow = trial(0, ONE, 120.0)
    again = measured(40.0, instances=1, purpose=Purpose.COMPARE)
    slow = replace(slow, measurements=(*slow.measurements[:1], again))
    ended = bench.carry_out(FakeWork([slow, UNCONFIRMED]))
    assert ended.outcome is Outcome.HOLDS
    assert bench.told == []


# ---------------------------------------------------------------------------------- how it ends
def test_a_champion_that_cannot_be_measured_fails_the_night(bench: Bench) -> None:
    bad = replace(
        trial(0, ONE),
        state=TrialState.INVALID,
        measurements=(made_measurement(invalid=("others took 40%",)),),
        reason="measured 3 times: others took 40%",
    )
    with pytest.raises(LoadFailed, match="others took 40%"):
        bench.carry_out(FakeWork([bad]))
    (run,) = bench.store.schedules.runs()
    assert run.state is RunState.FAILED
    assert bench.events == [Event.FAILURE]


@pytest.mark.parametrize("error", [ServerFailed("no GPU"), ZeroDivisionError("oh")])
def test_any_failure_is_recorded_and_told_and_passes(bench: Bench, error: Exception) -> None:
    with pytest.raises(type(error)):
        bench.carry_out(FakeWork([CHAMPION], during=_raising("tune", error)))
    (run,) = bench.store.schedules.runs()
    assert run.state is RunState.FAILED
    assert str(error) in run.reason
    ((event, title, text, _),) = bench.told
    assert event is Event.FAILURE
    assert str(error) in title
    assert "autotune schedule run nightly" in text


def test_a_night_whose_window_is_over_was_missed(bench: Bench) -> None:
    schedule = bench.schedule(window=30)
    run = bench.due(schedule)
    bench.clock.pass_(30 * 60)
    work = FakeWork([CHAMPION])
    assert bench.night(work, schedule, run).carry_out().state is RunState.MISSED
    assert work.did == []
    ((event, title, _, payload),) = bench.told
    assert event is Event.FAILURE
    assert title.startswith("schedule nightly: a run was missed: its window was over at")
    assert payload["run"] == run.id


def _missed(scheduled_for: float, state: RunState = RunState.MISSED) -> NightRun:
    return NightRun(
        id=int(scheduled_for), schedule_id=1, schedule="n", scheduled_for=scheduled_for, state=state
    )


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ([], True),
        ([(0, RunState.DONE)], True),
        ([(0, RunState.MISSED)], False),
        ([(170_000, RunState.DONE), (160_000, RunState.MISSED)], False),
        ([(170_000, RunState.DONE), (10_000, RunState.MISSED)], True),
    ],
    ids=["first", "after a good one", "in a row", "the same day", "the day before"],
)
def test_of_runs_that_are_missed_the_first_is_news(
    before: list[tuple[float, RunState]], told: bool
) -> None:
    this = _missed(180_000)
    assert news(this, [this, *(_missed(at, state) for at, state in before)]) is told


def test_one_that_had_begun_was_stopped_and_not_missed(bench: Bench) -> None:
    schedule = bench.schedule(window=30)
    run = bench.due(schedule)
    bench.store.schedules.update_run(run.id, state=RunState.RUNNING)
    bench.clock.pass_(30 * 60)
    work = FakeWork([CHAMPION])
    ended = bench.night(work, schedule, bench.store.schedules.run(run.id)).carry_out()
    assert (ended.state, work.did) == (RunState.STOPPED, [])


def test_one_whose_promotion_was_left_half_done_finishes_it_after_its_window(
    bench: Bench,
) -> None:
    schedule = bench.schedule(Policy.AUTO, window=30)
    run = bench.due(schedule)
    bench.store.schedules.update_run(run.id, state=RunState.RUNNING, promotion_id=5)
    bench.clock.pass_(30 * 60)
    work = FakeWork(CHALLENGED, comparisons=faster(0.0), is_begun=True)
    ended = bench.night(work, schedule, bench.store.schedules.run(run.id)).carry_out()
    assert ended.outcome is Outcome.PROMOTED
    assert bench.windows == [None]


def test_what_is_ready_only_after_the_window_waits_for_approval(bench: Bench) -> None:
    schedule = bench.schedule(Policy.AUTO, window=30)
    work = FakeWork(CHALLENGED, comparisons=faster(0.0))
    work.during = lambda what: bench.clock.pass_(1800) if what == "propose 1" else None
    ended = bench.night(work, schedule).carry_out()
    assert ended.outcome is Outcome.PROPOSED
    assert "promote 5" not in work.did
    assert "waits for your approval" in bench.told[0][1]
    assert "its window was over before it was in service" in bench.told[0][2]


def test_the_end_of_the_window_stops_the_night_cleanly(bench: Bench) -> None:
    schedule = bench.schedule(window=30)
    run = bench.due(schedule)
    work = FakeWork([CHAMPION, LOSER], during=_raising("search", WindowOver("it is over")))
    ended = bench.night(work, schedule, run).carry_out()
    assert ended.state is RunState.STOPPED
    assert ended.reason == "it is over; what was measured is kept"
    assert bench.windows == [run.scheduled_for + 1800]
    assert bench.told == []


def test_that_the_champion_misses_the_sla_is_told_though_the_window_ended_the_search(
    bench: Bench,
) -> None:
    during = _raising("search", WindowOver("the maintenance window was over"))
    bench.carry_out(FakeWork([trial(0, ONE, 200.0), LOSER], during=during))
    ((event, title, text, _),) = bench.told
    assert event is Event.SLA_LOST
    assert title == "m: the champion misses the SLA, and the window was over before an answer"
    assert "The maintenance window was over, before a search had found one" in text


def test_a_promotion_is_outside_of_the_window_that_may_interrupt(bench: Bench) -> None:
    inside: list[bool] = []
    work = FakeWork(CHALLENGED, comparisons=faster(0.0))
    night = bench.night(work, bench.schedule(Policy.AUTO))
    open_now: list[bool] = [False]

    @contextmanager
    def window(_: float | None) -> Iterator[None]:
        open_now[0] = True
        yield
        open_now[0] = False

    night.window = window
    work.during = lambda what: inside.append(open_now[0]) if "prom" in what else None
    night.carry_out()
    assert inside == [False]


def test_a_signal_from_outside_stops_it_too_and_passes(bench: Bench) -> None:
    work = FakeWork([CHAMPION], during=_raising("tune", Interrupted("stopped by SIGTERM")))
    with pytest.raises(Interrupted):
        bench.carry_out(work)
    (run,) = bench.store.schedules.runs()
    assert run.state is RunState.STOPPED
    assert "SIGTERM" in run.reason


def test_a_busy_machine_leaves_the_run_in_the_queue(bench: Bench) -> None:
    work = FakeWork([CHAMPION], during=_raising("tune", MachineBusy("another study")))
    with pytest.raises(MachineBusy):
        bench.carry_out(work)
    (run,) = bench.store.schedules.runs()
    assert run.state is RunState.QUEUED
    assert bench.told == []


def test_a_night_that_is_done_is_not_carried_out_again(bench: Bench) -> None:
    schedule = bench.schedule()
    ended = bench.night(FakeWork([CHAMPION, LOSER]), schedule).carry_out()
    work = FakeWork([CHAMPION, LOSER])
    assert bench.night(work, schedule, ended).carry_out() == ended
    assert work.did == []


# ------------------------------------------------------------------------------------ the minutes
def test_a_study_leaves_the_challenge_its_time_within_the_window(bench: Bench) -> None:
    night = bench.night(FakeWork([CHAMPION]), bench.schedule(window=60))
    minutes = night.minutes_for(STUDY)
    assert minutes == pytest.approx(60 - challenge_s(STUDY) / 60)


def test_a_study_has_half_of_what_is_left_at_least(bench: Bench) -> None:
    night = bench.night(FakeWork([CHAMPION]), bench.schedule(window=4))
    assert night.minutes_for(STUDY) == pytest.approx(2)


def test_a_study_without_a_window_has_its_budget(bench: Bench) -> None:
    assert bench.night(FakeWork([CHAMPION]), bench.schedule()).minutes_for(STUDY) is None


def test_a_window_that_ended_while_the_model_was_prepared_stops_the_night(bench: Bench) -> None:
    night = bench.night(FakeWork([CHAMPION]), bench.schedule(window=1))
    bench.clock.pass_(61)
    with pytest.raises(WindowOver):
        night.minutes_for(STUDY)
