"""A file that optuna-dashboard can open. The truth stays in autotune's own database."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from autotune.adapters.search.axes import label, readable, within
from autotune.core.errors import StoreFailed
from autotune.core.study import Objective
from autotune.core.trial import TrialState
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.space import Space

_Constraints: TypeAlias = Callable[[TrialOutcome], "dict[str, float] | None"]
_log = logging.getLogger(__name__)

_STATES = {TrialState.OK: OptunaState.COMPLETE, TrialState.PRUNED: OptunaState.PRUNED}


class DashboardMirror:
    """Writes what a search is told as an Optuna study into an SQLite file.

    The study of that name is made anew when the search begins, and filled again from the stored
    trials when a run is resumed; other studies in the file are left alone. It shows the objectives
    that are known of every ok trial so far (the total violation where there is none): the study is
    rebuilt when that changes. A file that can no longer be written later on is given up with a
    warning, since a run does not depend on it.

    optuna-dashboard 0.21 does not read Optuna 5's named constraints (only the list of older
    versions), so the violations are user attributes too, and the front that it draws is blind to
    the SLA; Optuna's own `best_trials` is not.
    """

    def __init__(
        self, path: Path, *, study_name: str, space: Space, objectives: Sequence[Objective]
    ) -> None:
        """StoreFailed if the file cannot be made or is not Optuna's."""
        self._path = path
        self._name = study_name
        self._space = space
        self._objectives = tuple(objectives)
        self._shown: tuple[Objective, ...] | None = None
        self._written = 0
        self.problem = ""
        try:
            # Without a pool no connection outlives a call, so there is nothing to close at the end.
            self._storage = RDBStorage(f"sqlite:///{path}", engine_kwargs={"poolclass": NullPool})
            self._rebuild(self._objectives, [])
        except (OptunaError, SQLAlchemyError, OSError, RuntimeError) as exc:
            raise StoreFailed(
                "the file for optuna-dashboard cannot be written",
                value=str(path),
                next_step=f"give another path: {_first_line(exc)}",
            ) from exc

    def write(self, told: Mapping[Candidate, TrialOutcome], constraints: _Constraints) -> None:
        """Bring the file up to what was told, in its order."""
        if self.problem:
            return
        shown = self._known(told)
        try:
            again = shown != self._shown or len(told) <= self._written
            new = islice(told.items(), 0 if again else self._written, None)
            trials = [self._frozen(c, o, shown, constraints(o)) for c, o in new]
            if again:
                self._rebuild(shown, trials)
            else:
                self._study.add_trials(trials)
            self._written = len(told)
        except (OptunaError, SQLAlchemyError, OSError, RuntimeError, KeyError) as exc:
            self.problem = f"{self._path} is not written any more: {_first_line(exc)}"
            _log.warning("the file for optuna-dashboard is given up: %s", self.problem)

    def _rebuild(self, shown: tuple[Objective, ...], trials: Sequence[FrozenTrial]) -> None:
        directions = [
            StudyDirection.MAXIMIZE if objective.maximize else StudyDirection.MINIMIZE
            for objective in shown
        ]
        if self._name in optuna.get_all_study_names(self._storage):
            optuna.delete_study(study_name=self._name, storage=self._storage)
        self._study = optuna.create_study(
            storage=self._storage,
            study_name=self._name,
            directions=directions or [StudyDirection.MINIMIZE],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study.set_metric_names([o.metric for o in shown] or ["violation"])
        self._study.add_trials(trials)
        self._shown = shown

    def _known(self, told: Mapping[Candidate, TrialOutcome]) -> tuple[Objective, ...]:
        ok = [outcome for outcome in told.values() if outcome.state is TrialState.OK]
        return tuple(
            objective
            for place, objective in enumerate(self._objectives)
            if all(outcome.values[place] is not None for outcome in ok)
        )

    def _frozen(
        self,
        candidate: Candidate,
        outcome: TrialOutcome,
        shown: tuple[Objective, ...],
        constraints: dict[str, float] | None,
    ) -> FrozenTrial:
        settings = within(self._space, candidate)
        return create_trial(
            state=_STATES.get(outcome.state, OptunaState.FAIL),
            values=self._values(outcome, shown) if outcome.state is TrialState.OK else None,
            params={target: label(value) for target, value in settings.items()},
            distributions={t: readable(self._space.parameter(t).domain) for t in settings},
            constraints=constraints,
            user_attrs={
                "candidate": str(candidate),
                "state": str(outcome.state),
                **{f"violation {name}": value for name, value in (constraints or {}).items()},
            },
        )

    def _values(self, outcome: TrialOutcome, shown: tuple[Objective, ...]) -> list[float]:
        if not shown:
            return [sum(max(0.0, violation) for violation in outcome.violations or ())]
        pairs = zip(self._objectives, outcome.values, strict=True)
        return [value for objective, value in pairs if objective in shown and value is not None]


def _first_line(exc: Exception) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0]
