"""A study's trials judged, as lists show them: as it was decided, or anew where one has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.core.intervals import Interval
from autotune.core.measurement import EMULATED, METRICS
from autotune.core.memory_noise import MemoryNoise, repeats
from autotune.core.records import StudyState
from autotune.core.sla import Outcome, Sla
from autotune.core.standing import Standing
from autotune.core.trial import Trial, TrialState
from autotune.service_ports import TrialLine
from dashboards.figures import data
from storage.summaries import Mark, SqlStudyReader

_UNMEASURED = (TrialState.PRUNED,)
"""Trials that have no measurement."""


class Lines:
    """The lines of one study, kept: a trial is read and judged again only when it has changed."""

    def __init__(self, reader: SqlStudyReader, study_id: int, sla: Sla) -> None:
        self._reader = reader
        self._study_id = study_id
        self._sla = sla
        self._known: dict[int, tuple[Mark, TrialLine]] = {}
        self._repeats: dict[int, tuple[float, ...]] = {}

    def current(self) -> Sequence[TrialLine]:
        marks = self._reader.marks(self._study_id)
        changed = [n for n, mark in marks.items() if self._known.get(n, (None,))[0] != mark]
        if changed:
            wanted = None if len(changed) == len(marks) else changed
            for trial in self._reader.trials(self._study_id, wanted):
                # One that was begun since the marks were taken comes with the next ones.
                if trial.number in marks:
                    self._known[trial.number] = marks[trial.number], line_of(trial, self._sla)
                    self._repeats[trial.number] = repeats(trial)
        return tuple(self._known[n][1] for n in marks if n in self._known)

    def noise(self) -> MemoryNoise:
        """What memory varies by among the `current` trials."""
        return MemoryNoise.of_repeats(tuple(self._repeats.values()))


def decided_lines(
    reader: SqlStudyReader, study_id: int, sla: Sla, judged: Sequence[Mapping[str, Any]]
) -> Sequence[TrialLine]:
    """Of a study that is done: what its decision says of each trial; those that it did not judge
    are few, and are read."""
    trials = reader.bare_trials(study_id)
    known = {each["trial"]: each for each in judged}
    others = [t.number for t in trials if t.number not in known and t.state not in _UNMEASURED]
    read = {trial.number: trial for trial in reader.trials(study_id, others)} if others else {}
    return tuple(
        _stored_line(trial, known[trial.number])
        if trial.number in known
        else line_of(read.get(trial.number, trial), sla)
        for trial in trials
    )


def tells_all(state: StudyState, judged: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether a decision may stand for judging anew: the study is over, and it was taken by an
    autotune that wrote down all of it."""
    return state is StudyState.DONE and bool(judged) and "saturation_bound" in (judged or [{}])[0]


def line_of(trial: Trial, sla: Sla) -> TrialLine:
    (entry,) = data.entries([trial], sla)
    known = {name: entry.estimate(name) for name in METRICS}
    return TrialLine(
        number=trial.number,
        candidate=trial.candidate,
        standing=entry.standing,
        why=entry.why,
        values={name: each.value for name, each in known.items() if each is not None},
        intervals={n: each.interval for n, each in known.items() if each and each.interval},
        violation=entry.violation,
        saturation_bound=entry.saturation_bound,
        emulated=entry.emulated,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
    )


# --------------------------------------------------------------------- from what was written down
def _stored_line(trial: Trial, judged: Mapping[str, Any]) -> TrialLine:
    return TrialLine(
        number=trial.number,
        candidate=trial.candidate,
        standing=Standing(judged["outcome"]),
        why="; ".join(dict.fromkeys(_telling(judged))),
        values={name: value for name, value in judged["metrics"].items() if value is not None},
        intervals={name: Interval(*ends) for name, ends in judged["intervals"].items()},
        violation=judged["violation"],
        saturation_bound=judged["saturation_bound"],
        emulated=judged["utilization_source"] == EMULATED,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
    )


def _telling(judged: Mapping[str, Any]) -> Iterable[str]:
    """As `dashboards.figures.data` tells it of a trial judged anew."""
    if judged["outcome"] == Outcome.MEETS:
        return [f["reason"] for f in judged["findings"] if f["metric"].endswith("_ms")]
    checks = [judged["confirmation"] or [], *(probe["findings"] for probe in judged["robust"])]
    findings = [finding for each in (judged["findings"], *checks) for finding in each]
    return [f["reason"] for f in findings if f["outcome"] == judged["outcome"]]
