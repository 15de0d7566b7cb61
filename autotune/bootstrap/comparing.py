"""``autotune compare``, wired: two trials of a stored study on the real server."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from autotune.adapters import machine
from autotune.bootstrap.bench import (
    Surroundings,
    alone,
    fresh_folder,
    prepare_model,
    set_up,
    with_variants,
)
from autotune.bootstrap.recorded import machine_here
from autotune.bootstrap.stored import StoredStudy, open_store, refuse_other_machine
from autotune.core.comparison import Comparison
from autotune.core.errors import InputRefused
from autotune.core.records import FOUND, StudyRecord
from autotune.core.study import Study
from autotune.core.trial import Trial, numbered
from autotune.ports import ProgressListener
from autotune.settings import Settings
from autotune.tuner.compare import ComparisonRunner
from autotune.tuner.rig import Rig
from search_spaces.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two trials of a study, with all that is stored of them by now, and the new comparisons."""

    study: Study
    record: StudyRecord
    trials: tuple[Trial, Trial]
    comparisons: tuple[Comparison, ...]


def compare_stored(
    db: str, reference: str, numbers: tuple[int, int], *, rounds: int, listen: ProgressListener
) -> Compared:
    """Measure two trials of a stored study interleaved, in ``rounds`` of A B B A. InputRefused for
    trials that it does not have or did not measure, another machine, or a changed model."""
    settings = Settings.from_environment()
    settings.refuse_unusable()
    with ExitStack() as stack:
        store = stack.enter_context(open_store(db, create=False))
        stored = StoredStudy.load(store, reference)
        pair = _pair(stored, numbers)
        stack.enter_context(alone())
        refuse_other_machine(stored.record, machine_here())
        study = replace(stored.study, finals=replace(stored.study.finals, rounds=rounds))
        at = Surroundings(
            settings=settings,
            stack=stack,
            store=store,
            work=fresh_folder(settings.work_dir / f"{study.name}.compare"),
            listen=listen,
        )
        comparisons = _runner(study, stored, pair, at).run()
        return Compared(
            study=study,
            record=stored.record,
            trials=_pair(StoredStudy.load(store, str(stored.record.id)), numbers),
            comparisons=comparisons,
        )


def _runner(
    study: Study, stored: StoredStudy, pair: tuple[Trial, Trial], at: Surroundings
) -> ComparisonRunner:
    record, found = stored.record, _found(stored)
    served = (found, *(trial.candidate for trial in pair))
    prepared = with_variants(study, prepare_model(study, at, record), at, record, only=served)
    bench = set_up(study, prepared.model, at)
    rig = Rig(
        study=study,
        study_id=record.id,
        store=at.store,
        server=bench.server,
        load=bench.load,
        telemetry=bench.telemetry,
        check=bench.check,
        samples_for=bench.samples_for,
        clock=machine.SystemClock(),
        baseline=found,
        gate=prepared.gate,
    )
    return ComparisonRunner(rig=rig, listen=at.listen, first=pair[0], second=pair[1])


def _found(stored: StoredStudy) -> Candidate:
    """The configuration that the model was found with: trial 0, but in a night of a champion."""
    told = (stored.record.environment or {}).get(FOUND)
    return stored.trials[0].candidate if told is None else Candidate.from_json(told)


def _pair(stored: StoredStudy, numbers: tuple[int, int]) -> tuple[Trial, Trial]:
    first, second = numbers
    if first == second:
        raise InputRefused("two different trials are compared", value=first)
    return _measured(stored, first), _measured(stored, second)


def _measured(stored: StoredStudy, number: int) -> Trial:
    found = numbered(stored.trials, number)
    if found is None or found.measurement is None:
        known = ", ".join(str(t.number) for t in stored.trials if t.measurement is not None)
        raise InputRefused(
            f"study {stored.record.name} has no measured trial of that number",
            value=number,
            next_step=f"it has {known or 'none'}",
        )
    return found
