"""After the search: has the machine changed, which of the best is better, how much can it take.

All of it on the server that was tuned. Each step stores what it measured before the next, and
takes what an interrupted run of the study has stored already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from autotune.core.canary import changed
from autotune.core.capacity import next_rate, probes_of
from autotune.core.comparison import Comparison, compare_latency, compare_rates
from autotune.core.decision import Decision, finalists
from autotune.core.errors import ServerFailed
from autotune.core.evidence import estimate
from autotune.core.measurement import Measurement, Purpose
from autotune.core.sla import Outcome
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState, numbered
from autotune.ports import Clock, Server, TrialStore
from autotune.tuner import phases
from autotune.tuner.crashes import revive
from autotune.tuner.deciding import decision_of
from autotune.tuner.phases import Phase
from autotune.tuner.recorder import NotBelieved, Recorder, Say

_Pair: TypeAlias = tuple[Measurement | None, Measurement | None]

PAIRS = 2
"""Pairs of runs in a round: A B, B A."""
DOUBTED = 3
"""How many of the best, at least, are measured again when the machine has changed."""
DOUBT = "the machine changed during the study"
"""How the reason begins for which measurements are put in doubt."""
SATURATION = "saturation_qps"
FAILS = frozenset({Purpose.TRIAL, Purpose.CANARY, Purpose.FINAL})
"""Under these a server that dies fails its trial; at rates that nobody asked for it does not."""


@dataclass(slots=True, kw_only=True)
class Finals:
    """``decision`` decides on what is stored now; ``seconds_left`` of the budget: capacity is not
    searched for beyond it. ``warn`` is told what went wrong without ending the study."""

    study: Study
    study_id: int
    store: TrialStore
    server: Server
    recorder: Recorder
    clock: Clock
    say: Say
    warn: Callable[[str], None]
    decision: Callable[[], Decision]
    seconds_left: Callable[[], float] = lambda: math.inf
    _lost: set[int] = field(default_factory=set, init=False)

    def run(self) -> None:
        """Canary, finals, capacity; nothing where the study wants no finals."""
        if not self.study.finals.candidates:
            return
        self._canary()
        numbers = finalists(self.decision(), self.study.finals.candidates)
        if len(numbers) > 1:
            self.compare(numbers)
            numbers = self._with_the_pick(numbers)
        decided = self.decision()
        meeting = [number for number in numbers if number in decided.meeting]
        if not meeting and decided.nearest_miss is not None:
            meeting = [decided.nearest_miss]
        for number in meeting:
            self._capacity(number)

    def _with_the_pick(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The finalists, the pick first. Where the finals leave a trial on top that was none of
        them, it runs in turns with the first of them: once."""
        pick = self.decision().pick
        if pick is None or pick in numbers or self.seconds_left() <= 0:
            return numbers
        self.compare((pick, numbers[0]), first_pair=PAIRS * self.study.finals.rounds)
        return (pick, *numbers)[: self.study.finals.candidates]

    # -------------------------------------------------------------------------------- the canary
    def _canary(self) -> None:
        """Measure the configuration found in service once more. Where it is not what it was, twice
        over, what was measured before cannot be compared with what comes: the best are measured
        anew."""
        if not any(map(_doubted, self.store.trials(self.study_id))):
            difference = self._canary_differs()
            # Once more: a neighbour may have come by for a moment.
            difference = self._canary_differs() if difference is not None else None
            if difference is None:
                return
            reason = f"{DOUBT}: the configuration found in service went from {difference}"
            self.warn(f"{reason}; the best were measured again")
            self.store.doubt_measurements(self.study_id, reason)
        self._measure_doubted()
        difference = self._canary_differs()
        if difference is not None:
            self.warn(
                "this machine does not hold still: the configuration found in service went from"
                f" {difference} a second time; do not trust small differences"
            )

    def _canary_differs(self) -> str | None:
        before = self._trial(0)
        if before is None or before.measurement is None:
            return None
        self.say("canary", "the configuration found in service once more: is the machine the same?")
        after = self._take(0, Purpose.CANARY, phases.canary(self.study))
        if after is None:
            return None
        difference = changed(before.measurement, after)
        self.say("canary", f"it went from {difference}" if difference else "no difference is seen")
        return difference

    def _measure_doubted(self) -> None:
        """Measure the best of what was put in doubt again, as it stood before it was, less what an
        interrupted run has measured again."""
        trials = self.store.trials(self.study_id)
        decided = decision_of(self.study, [_undoubted(trial) for trial in trials])
        best = finalists(decided, max(DOUBTED, self.study.finals.candidates))
        for number in dict.fromkeys((0, *best)):
            trial = numbered(trials, number)
            if trial is not None and _doubted(trial):
                self.say("canary", f"trial {number} again, since the machine has changed")
                self._take(number, Purpose.TRIAL, phases.at_target(self.study))

    # -------------------------------------------------------------------------------- the finals
    def compare(
        self, numbers: Sequence[int], first_pair: int = 0, purpose: Purpose = Purpose.FINAL
    ) -> None:
        """Measure the trials interleaved, there and back again (A B B A), and compare the first
        with each of the others. ``first_pair`` names the arrivals: pairs of the same name that are
        stored already are not measured twice."""
        pairs = range(first_pair, first_pair + PAIRS * self.study.finals.rounds)
        runs = self._stored_runs(numbers, pairs, purpose)
        before = len(runs)
        for pair in pairs:
            for number in numbers if (pair - first_pair) % 2 == 0 else tuple(reversed(numbers)):
                if (number, pair) in runs:
                    continue
                run = f"run {len(runs) + 1} of {len(pairs) * len(numbers)}"
                self.say("finals", f"trial {number}, interleaved with the others: {run}")
                measured = self._take(number, purpose, phases.final(self.study, pair))
                if measured is not None:
                    runs[number, pair] = measured
        known = {(c.first, c.second) for c in self.store.comparisons(self.study_id)}
        for second in numbers[1:]:
            if len(runs) == before and (numbers[0], second) in known:
                continue  # an interrupted run had come to this already
            both = [(runs.get((numbers[0], pair)), runs.get((second, pair))) for pair in pairs]
            self.store.add_comparisons(self.study_id, self._compared(numbers[0], second, both))

    def _stored_runs(
        self, numbers: Sequence[int], pairs: Sequence[int], purpose: Purpose
    ) -> dict[tuple[int, int], Measurement]:
        """The runs that an interrupted study had taken, by trial and pair."""
        named = {phases.final(self.study, pair).traffic: pair for pair in pairs}
        return {
            (trial.number, named[measured.traffic]): measured
            for trial in self.store.trials(self.study_id, samples=True)
            if trial.number in numbers
            for measured in trial.of(purpose)
            if measured.traffic in named
        }

    def _compared(self, first: int, second: int, runs: Sequence[_Pair]) -> list[Comparison]:
        """What the pairs say of which both runs were taken."""
        both = [(a, b) for a, b in runs if a is not None and b is not None]
        samples = [
            (a.load.samples, b.load.samples)
            for a, b in both
            if a.load.samples is not None and b.load.samples is not None
        ]
        if not samples:
            return []
        metric, now = self.study.sla.tightest_metric, self.clock.now()
        latency = compare_latency(
            first,
            second,
            float(metric[1:-3]),
            samples,
            timeout_s=self.study.workload.timeout_s,
            taken_at=now,
        )
        rates = [
            (a_rate, b_rate)
            for a, b in both
            if (a_rate := estimate([a], SATURATION)) and (b_rate := estimate([b], SATURATION))
        ]
        if not rates:
            return [latency]
        return [latency, compare_rates(first, second, SATURATION, rates, taken_at=now)]

    # ------------------------------------------------------------------------------ the capacity
    def _capacity(self, number: int) -> None:
        """Bracket the highest rate at which the trial meets the SLA."""
        for _ in range(self.study.finals.capacity):
            trial = self._trial(number)
            if trial is None or number in self._lost:
                return
            if len(trial.of(Purpose.CAPACITY)) >= self.study.finals.capacity:
                return  # an interrupted run has taken some of them
            if self.seconds_left() <= 0:
                if self._misses(number):
                    return  # of one that is no choice it is not missed
                self.warn(
                    f"the capacity of trial {number} was not searched for to the end: the budget of"
                    f" {self.study.budget.minutes:g} min is used up"
                )
                return
            rate = next_rate(probes_of(trial.measurements, self.study.sla))
            if rate is None:
                return
            self.say("capacity", f"trial {number}: does it hold the SLA at {rate:.1f}/s?")
            if self._take(number, Purpose.CAPACITY, phases.rate_probe(self.study, rate)) is None:
                return

    def _misses(self, number: int) -> bool:
        judged = self.decision().of(number)
        return judged is None or judged.outcome is Outcome.MISSES

    # ------------------------------------------------------------------------------------- inner
    def _trial(self, number: int) -> Trial | None:
        return numbered(self.store.trials(self.study_id), number)

    def _take(self, number: int, purpose: Purpose, phase: Phase) -> Measurement | None:
        """None where it could not be measured: a warning says so, and where the server did not
        serve it any more, the trial has failed."""
        trial = self._trial(number)
        if trial is None or number in self._lost:
            return None
        try:
            return self.recorder.take(self.server, trial, purpose, phase)
        except NotBelieved as exc:
            self.warn(f"trial {number}, {purpose}: {exc}")
        except ServerFailed as exc:
            reason = f"failed when it was measured again ({purpose}): {exc.rule}"
            self.warn(f"trial {number} {reason}")
            if purpose in FAILS:
                self.store.end_trial(self.study_id, number, TrialState.FAILED, reason)
            self._lost.add(number)
            revive(self.server, partial(self.say, "again"))
        return None


def _doubted(trial: Trial) -> bool:
    """Measured, and none of it believed since the machine changed."""
    return (
        trial.state is TrialState.OK
        and trial.measurement is None
        and any(map(_is_doubted, trial.measurements))
    )


def _is_doubted(measured: Measurement) -> bool:
    return any(reason.startswith(DOUBT) for reason in measured.invalid_because)


def _undoubted(trial: Trial) -> Trial:
    """The trial as it stood before the doubt."""
    before = [
        replace(measured, invalid_because=()) if _is_doubted(measured) else measured
        for measured in trial.measurements
    ]
    return replace(trial, measurements=before)
