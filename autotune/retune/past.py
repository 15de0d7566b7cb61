"""What earlier studies of the same question tell the one of tonight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.decision import decide
from autotune.core.drift import model_changed, same
from autotune.core.evidence import evidence
from autotune.core.records import CUT, HELD, StudyRecord, StudyState
from autotune.core.schedules import Outcome
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState, numbered
from search_spaces.candidate import Candidate

ASKED = ("model", "server", "workload", "space", "accuracy", "calibration")
"""The sections of a study's definition that decide what a trial of it measures."""
HARDWARE = ("processor", "cores", "gpus")
VERSIONS = ("triton", "launch", "driver", "cuda", "packages", "system", "python", "versions")
"""What else must be as it was for an earlier search to be still true."""
TAKEN_UP = 5
"""So many of the best known candidates are asked for first."""
STUDIES = 30
"""So many studies that searched are looked back on, and as many that only held the champion: those
of a quiet month would else hide what was known before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """An earlier study of the same model, with its trials. ``kept`` is the candidate that it left
    in service, or was to be; None where it came to none."""

    record: StudyRecord
    trials: Sequence[Trial]
    kept: Candidate | None

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.record.environment or {}

    @property
    def searched(self) -> bool:
        """Whether it came to its answer by a search, however far that got."""
        return self.record.state is StudyState.DONE and HELD not in self.environment

    def asks(self, definition: Mapping[str, Any]) -> bool:
        """Whether its trials measure what those of that definition do."""
        there = self.record.definition
        return all(there.get(key) == definition.get(key) for key in ASKED)

    def same_ground(self, here: Mapping[str, Any]) -> bool:
        """Whether its numbers are of the same model on the same hardware."""
        there = self.environment
        known = "model_digest" in there and "model_digest" in here
        return known and not model_changed(there, here) and same(there, here, HARDWARE)

    def same_versions(self, here: Mapping[str, Any]) -> bool:
        return same(self.environment, here, VERSIONS)


def kept_by(
    trials: Sequence[Trial], pick: int | None, outcome: Outcome | None, *, night: bool
) -> Candidate | None:
    """What a study left in service: its pick, unless it was a night's, and that came to something
    else, or to nothing."""
    if outcome is Outcome.NO_PICK or (night and outcome is None):
        return None
    stays = outcome in (Outcome.HOLDS, Outcome.ROLLED_BACK)
    trial = numbered(trials, 0 if stays else pick)
    return None if trial is None else trial.candidate


# -------------------------------------------------------------------------------------- the drift
def looked_back_on(records: Iterable[StudyRecord]) -> list[StudyRecord]:
    """The latest of those that searched and of those that only held, newest first, as they come."""
    found: list[StudyRecord] = []
    left = {True: STUDIES, False: STUDIES}
    for record in records:
        held = HELD in (record.environment or {})
        if left[held]:
            left[held] -= 1
            found.append(record)
    return found


def last_seen(
    candidate: Candidate,
    definition: Mapping[str, Any],
    pasts: Sequence[Past],
    here: Mapping[str, Any],
) -> tuple[Past, Trial] | None:
    """Where the candidate was measured last under the same workload: on the same hardware, so that
    machines which share a database are not taken for one that drifts to and fro; else on whatever
    it was."""
    alike = sorted(pasts, key=lambda past: not same(past.environment, here, HARDWARE))
    for past in alike:
        there = past.record.definition
        if there.get("workload") != definition.get("workload"):
            continue
        trial = next((t for t in past.trials if t.candidate == candidate and evidence(t)), None)
        if trial is not None:
            return past, trial
    return None


# -------------------------------------------------------------------------------- the warm start
def known_trials(
    definition: Mapping[str, Any], pasts: Sequence[Past], here: Mapping[str, Any]
) -> list[Trial]:
    """The latest trial of each candidate on the same ground, the oldest first: what a search can
    learn from. Newest first come the ``pasts``."""
    latest: dict[Candidate, Trial] = {}
    for past in pasts:
        if past.asks(definition) and past.same_ground(here):
            for trial in past.trials:
                if trial.state not in (TrialState.RUNNING, TrialState.INVALID):
                    latest.setdefault(trial.candidate, trial)
    return list(reversed(latest.values()))


def worth_asking_first(
    study: Study, known: Sequence[Trial], champion: Candidate
) -> tuple[Candidate, ...]:
    """The best of what is known, but the champion: what would be the pick, those that it cannot be
    told from, then the others of the front."""
    numbers = dict(enumerate(known))
    renumbered = [
        Trial(
            number=number,
            candidate=trial.candidate,
            state=trial.state,
            measurements=trial.measurements,
        )
        for number, trial in numbers.items()
    ]
    decision = decide(renumbered, study.sla, study.objectives, study.pick, workload=study.workload)
    nearest = () if decision.nearest_miss is None else (decision.nearest_miss,)
    pick = () if decision.pick is None else (decision.pick,)
    best = dict.fromkeys((*pick, *decision.contenders, *nearest, *decision.front))
    found = (numbers[number].candidate for number in best)
    return tuple(candidate for candidate in found if candidate != champion)[:TAKEN_UP]


# ------------------------------------------------------------------------------ is it still true?
def settled(
    champion: Candidate, study: Study, pasts: Sequence[Past], here: Mapping[str, Any]
) -> bool:
    """Whether the champion came out of a search that is still true: the latest one that came to an
    answer, on the same ground and under the same versions, left it in service, and the space had
    been searched as far as the study's budget goes."""
    true = [
        past
        for past in pasts
        if past.asks(study.definition) and past.same_ground(here) and past.same_versions(here)
    ]
    latest = next((past for past in true if past.searched), None)
    if latest is None or latest.kept != champion:
        return False
    whole = latest.record.digest == study.digest and CUT not in latest.environment
    return whole or _tried(true) >= study.budget.trials


def _tried(pasts: Iterable[Past]) -> int:
    """How many candidates were measured, in all these studies together."""
    return len(
        {
            trial.candidate
            for past in pasts
            for trial in past.trials
            if trial.state in (TrialState.OK, TrialState.FAILED)
        }
    )
