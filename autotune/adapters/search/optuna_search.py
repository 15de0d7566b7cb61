"""A search that learns: Optuna's multi-objective TPE, with the SLA as its constraints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.samplers import TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from autotune.adapters.search.axes import Axis, sampled, within
from autotune.adapters.search.history import SearchHistory
from autotune.adapters.search.mirror import DashboardMirror
from autotune.core.study import Objective
from autotune.core.trial import TrialState
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.space import Space

optuna.logging.set_verbosity(optuna.logging.ERROR)

STARTUP_TRIALS = 8
"""So many trials are drawn at random before the sampler models anything."""
ATTEMPTS = 24
"""How often the sampler may suggest what is known or ruled out, before a draw replaces it."""
HOPELESS = 1e6
"""The violation of what a prune rule takes out, or memory: worse than any measured one."""
RULED_OUT = "ruled out"
"""The name of that constraint."""

STATES = {
    TrialState.OK: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.FAILED: OptunaState.FAIL,
    TrialState.INVALID: OptunaState.FAIL,
    TrialState.RUNNING: OptunaState.FAIL,
}
"""Failed and invalid trials teach Optuna's TPE nothing; they are only not suggested again. One that
is infeasible is told as pruned, and how far from possible it is."""


class OptunaSearch:
    """Suggests by `optuna.samplers.TPESampler` under `FrozenTrial.set_constraint` constraints.

    For each suggestion the study is built anew in memory from what was told, with a sampler whose
    seed comes from the search's seed and the number of trials told: so it needs no state but the
    history (see `SearchHistory`).

    - A baseline outside the space is told with those of its settings that lie within it.
    - An objective that is unknown of every ok trial is not an objective of the Optuna study; where
      only some trials lack it, they are told the worst value seen.
    - What is pending, or is suggested though it is known already, is a running trial of that Optuna
      study, which TPE's constant liar takes for a poor one; a suggestion that a prune rule takes
      out is told as pruned and infeasible. After `ATTEMPTS` of these a random open candidate is
      suggested.

    ``storage_path`` is an SQLite file for optuna-dashboard, written beside; see `DashboardMirror`.
    """

    def __init__(  # noqa: PLR0913 - all but the space are named at the call
        self,
        space: Space,
        *,
        baseline: Candidate,
        objectives: Sequence[Objective],
        seed: int,
        cores: int,
        storage_path: Path | None = None,
        study_name: str = "autotune",
        constraints: Sequence[str] = (),
    ) -> None:
        """``constraints`` names the violations, in their order; StoreFailed if ``storage_path``
        cannot be written."""
        self._history = SearchHistory(
            space, baseline=baseline, objectives=objectives, seed=seed, cores=cores
        )
        self._axes = {p.target: Axis.of(p) for p in space.parameters}
        self._names = tuple(constraints)
        self._mirror = None
        if storage_path is not None:
            self._mirror = DashboardMirror(
                storage_path, study_name=study_name, space=space, objectives=objectives
            )

    @property
    def pruned(self) -> list[tuple[Candidate, str]]:
        """The grid's candidates that are never suggested, each with the prune rule's reason."""
        return self._history.pruned

    @property
    def mirror_problem(self) -> str:
        """Why the dashboard's file is not written any more; empty while it is."""
        return "" if self._mirror is None else self._mirror.problem

    def ask(self, pending: Sequence[Candidate] = ()) -> Candidate | None:
        """The most promising candidate that is neither told nor pending, or None when none is
        left."""
        history = self._history
        history.expect(pending)
        ordered = history.ordered()
        if ordered is not None:
            return ordered
        if history.first_open() is None:
            return history.draw(history.rng())
        study = self._study()
        for _ in range(ATTEMPTS):
            trial = study.ask()
            candidate = sampled(history.space, trial, self._axes)
            if history.open(candidate):
                return candidate
            if history.space.pruned(candidate, history.cores) is not None:
                trial.set_constraint(RULED_OUT, HOPELESS)
                study.tell(trial, state=OptunaState.PRUNED)
        return history.draw(history.rng())

    def tell(self, candidate: Candidate, outcome: TrialOutcome) -> None:
        self._history.tell(candidate, outcome)
        if self._mirror is not None:
            self._mirror.write(self._history.told, self._constraints)

    def recall(
        self, known: Sequence[tuple[Candidate, TrialOutcome]], first: Sequence[Candidate]
    ) -> None:
        """It is told to the sampler; the dashboard's file shows this study's trials alone."""
        self._history.recall(known, first)

    def _study(self) -> optuna.Study:
        known = self._known_objectives()
        directions = [
            StudyDirection.MAXIMIZE if o.maximize else StudyDirection.MINIMIZE for _, o in known
        ]
        seed = int(self._history.rng().integers(2**32))
        study = optuna.create_study(
            directions=directions or [StudyDirection.MINIMIZE],
            sampler=TPESampler(
                seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=False, constant_liar=True
            ),
        )
        worst = [self._worst(place, objective) for place, objective in known]
        places = [place for place, _ in known]
        study.add_trials([
            self._frozen(candidate, outcome, places, worst)
            for candidate, outcome in self._history.known().items()
        ])  # fmt: skip
        study.add_trials([self._running(candidate) for candidate in self._history.pending])
        return study

    def _running(self, candidate: Candidate) -> FrozenTrial:
        settings = within(self._history.space, candidate)
        return create_trial(
            state=OptunaState.RUNNING,
            params={t: self._axes[t].encode(value) for t, value in settings.items()},
            distributions={t: self._axes[t].distribution for t in settings},
        )

    def _frozen(
        self, candidate: Candidate, outcome: TrialOutcome, places: list[int], worst: list[float]
    ) -> FrozenTrial:
        settings = within(self._history.space, candidate)
        values: list[float] | None = None
        if outcome.state is TrialState.OK:
            own = (outcome.values[place] for place in places)
            values = [w if v is None else v for v, w in zip(own, worst, strict=True)] or [0.0]
        return create_trial(
            state=OptunaState.PRUNED if outcome.infeasible else STATES[outcome.state],
            values=values,
            params={t: self._axes[t].encode(value) for t, value in settings.items()},
            distributions={t: self._axes[t].distribution for t in settings},
            constraints=self._constraints(outcome),
        )

    def _constraints(self, outcome: TrialOutcome) -> dict[str, float] | None:
        """By name; None for a trial that was not measured. Optuna takes no NaN: unknown is bad."""
        if outcome.infeasible:
            return {RULED_OUT: HOPELESS}
        if outcome.violations is None:
            return None
        names = [*self._names, *(f"limit {i}" for i in range(len(outcome.violations)))]
        return {
            name: HOPELESS if math.isnan(violation) else min(violation, HOPELESS)
            for name, violation in zip(names, outcome.violations, strict=False)
        }

    def _known_objectives(self) -> list[tuple[int, Objective]]:
        return [
            (place, objective)
            for place, objective in enumerate(self._history.objectives)
            if self._seen(place)
        ]

    def _seen(self, place: int) -> list[float]:
        ok = (o for o in self._history.known().values() if o.state is TrialState.OK)
        return [value for o in ok if (value := o.values[place]) is not None]

    def _worst(self, place: int, objective: Objective) -> float:
        return min(self._seen(place)) if objective.maximize else max(self._seen(place))
