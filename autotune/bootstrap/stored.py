"""Stored studies: opening the database, reading one back, exporting from it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.adapters import machine
from autotune.adapters.triton.export import refuse_unwritable, refuse_without_room
from autotune.adapters.triton.repository import CONFIG_FILE
from autotune.adapters.triton.servers import Servers
from autotune.bootstrap.documents import documents
from autotune.bootstrap.exports import exporter
from autotune.bootstrap.models import exported_natively, served_model
from autotune.bootstrap.variants import Place
from autotune.bootstrap.variants_before import Before
from autotune.bootstrap.variants_exported import prepare_one
from autotune.core.comparison import Comparison
from autotune.core.decision import Decision, without_unconfirmed
from autotune.core.errors import InputRefused, NotFound
from autotune.core.judged import judge_trial
from autotune.core.records import PLANNED, DecisionRecord, StudyRecord, StudyState
from autotune.core.searched import Searched
from autotune.core.sla import Outcome, Sla
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState, numbered
from autotune.core.variants import VariantRecord
from autotune.core.wording import IN_DOUBT, unjudged
from autotune.ports import TrialStore
from autotune.settings import Settings
from autotune.studyfile import read_definition
from autotune.tuner.deciding import decision_of
from storage.store import SqlTrialStore

HARDWARE = ("processor", "cores", "gpus")
"""What of a machine's description makes its numbers another machine's."""
_MOST_NAMED = 50


@contextmanager
def open_store(db: str, *, create: bool) -> Iterator[TrialStore]:
    """The trial store of a URL or path; a missing one is refused unless ``create``."""
    store = SqlTrialStore(db, create=create)
    try:
        yield store
    finally:
        store.close()


def unfinished(store: TrialStore, study: Study) -> StudyRecord:
    """The study's latest run if that has not come to an answer; a run of another definition
    under the same name is refused."""
    runs = [record for record in store.studies() if record.name == study.name]
    if not runs or runs[0].state is StudyState.DONE:
        raise InputRefused(
            f"study {study.name} has no interrupted run to go on with",
            value=runs[0].state if runs else None,
            next_step="run it without --resume",
        )
    latest = runs[0]
    if _runs_here(latest):
        raise InputRefused(
            f"run {latest.id} of study {study.name} is still going on",
            value=f"process {(latest.environment or {})['process']}",
            next_step="wait until it has ended, or interrupt it",
        )
    if latest.digest != study.digest:
        raise InputRefused(
            f"the interrupted run {latest.id} of study {study.name} asked something else: "
            f"{_changed(latest, study)} changed",
            next_step="undo the change to go on with it, or run without --resume",
        )
    return latest


def _changed(record: StudyRecord, study: Study) -> str:
    before, after = record.definition, study.definition
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return ", ".join(sorted(keys))


def as_it_stands(record: StudyRecord) -> StudyRecord:
    """A study that is stored as running, but whose process on this machine is gone, was
    interrupted: by kill -9, or a power cut."""
    if record.state is not StudyState.RUNNING or not _known_here(record) or _runs_here(record):
        return record
    reason = "its process is gone; --resume goes on"
    return replace(record, state=StudyState.INTERRUPTED, reason=reason)


def _known_here(record: StudyRecord) -> bool:
    """Whether it was a process of this machine, of which it can be told whether it lives."""
    environment = record.environment or {}
    here = environment.get("host") == machine.describe()["host"]
    return here and environment.get("process") is not None


def _runs_here(record: StudyRecord) -> bool:
    running = record.state is StudyState.RUNNING and _known_here(record)
    return running and machine.process_lives(str((record.environment or {})["process"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudy:
    """A study read back, its decision taken anew from what is stored."""

    study: Study
    record: StudyRecord
    trials: Sequence[Trial]
    decision: Decision
    exported_to: str | None
    variants: Sequence[VariantRecord] = ()

    @classmethod
    def load(cls, store: TrialStore, reference: str, *, samples: bool = False) -> StoredStudy:
        record = as_it_stands(store.study(reference))
        study = read_definition(record.definition)
        trials = store.trials(record.id, samples=samples)
        decided = store.decision(record.id)
        ended = [trial for trial in trials if trial.state is not TrialState.RUNNING]
        if decided is not None and decided.pick is None:
            ended = without_unconfirmed(ended, study.sla)
        return cls(
            study=study,
            record=record,
            trials=trials,
            decision=decision_of(
                study,
                ended,
                _decided_by(store, record.id, decided),
                _searched(study, record, trials),
            ),
            exported_to=None if decided is None else decided.exported_to,
            variants=store.variants(record.id),
        )


def _searched(study: Study, record: StudyRecord, trials: Sequence[Trial]) -> Searched | None:
    """None of a study from before it was stored how many candidates it had."""
    planned = (record.environment or {}).get(PLANNED)
    minutes = study.budget.minutes if record.state is StudyState.DONE else None
    return None if planned is None else Searched.of(trials, planned, minutes)


def _decided_by(
    store: TrialStore, study_id: int, decided: DecisionRecord | None
) -> list[Comparison]:
    """The comparisons that the study's decision was taken on, not those made since."""
    last = math.inf if decided is None else decided.taken_at
    return [each for each in store.comparisons(study_id) if each.taken_at <= last]


def export_stored(
    store: TrialStore, reference: str, *, trial: int | None, out: Path, native: bool = False
) -> dict[str, Any]:
    """Write a stored study's pick, or the given trial, to ``out``; says what was written. With
    ``native``, for a Triton that has the ONNX Runtime backend, a model that autotune's own runner
    served."""
    stored = StoredStudy.load(store, reference, samples=True)
    refuse_unwritable(out, stored.study.name)
    chosen = _chosen(stored, trial)
    settings = Settings.from_environment()
    with tempfile.TemporaryDirectory(prefix="autotune-export-") as folder:
        work = Path(folder)
        model = served_model(
            stored.study, cache_dir=settings.cache_dir, work_dir=work / "models", say=lambda _: None
        )
        refuse_changed_model(stored.record, model.digest)
        refuse_without_room(model, out)
        model = prepare_one(
            stored.study,
            model,
            Place(
                cache_dir=settings.cache_dir,
                work=work,
                models=work / "models",
                say=lambda _: None,
                server_dir=settings.server_dir,
            ),
            candidate=chosen.candidate,
            before=Before(variants=stored.variants),
        )
        if native:
            model = exported_natively(model, work / "native")
        decided = DecisionRecord(
            study_id=stored.record.id,
            taken_at=stored.record.ended_at or stored.record.created_at,
            rule=stored.study.pick,
            pick=chosen.number,
            detail=stored.decision.to_json(),
            exported_to=str(out.absolute()),
        )
        servers = Servers(
            cache_dir=settings.cache_dir, work_dir=work, server_dir=settings.server_dir
        )
        files = documents(
            stored.study, model, stored.record, stored.trials, decided, variants=stored.variants
        )
        exporter(stored.study, model, servers, work).write(
            chosen.candidate, out, stored.study.name, files
        )
    tuned = chosen.candidate.steps or (model.name,)
    return {
        "study": stored.record.name,
        "study_id": stored.record.id,
        "trial": chosen.number,
        "confirmed": chosen.confirmation is not None,
        "sla": str(_outcome(chosen, stored.study.sla)),
        "files": [
            *(str(out / name / CONFIG_FILE) for name in tuned),
            *(str(out / file.name) for file in files),
        ],
    }


def _chosen(stored: StoredStudy, number: int | None) -> Trial:
    nothing = stored.decision.without_verdict
    if number is None and stored.decision.pick is None:
        raise InputRefused(
            f"study {stored.record.name}, run {stored.record.id}, has no pick: "
            + ("nothing was measured" if nothing else "no candidate meets its SLA"),
            next_step="name a trial: --trial N; `autotune show` lists them",
        )
    wanted = stored.decision.pick if number is None else number
    found = numbered(stored.trials, wanted)
    if found is None:
        raise NotFound(
            "the study has no such trial",
            value=number,
            next_step=f"it has {_numbers(stored.trials)}",
        )
    if found.measurement is None:
        state, why = unjudged(found)
        what = "was measured, but that is" if state == IN_DOUBT else "was not measured:"
        raise InputRefused(
            f"trial {found.number} {what} {state}" + (f": {why}" if why else ""),
            next_step="export one that was, and is believed; `autotune show` lists them",
        )
    return found


def _numbers(trials: Sequence[Trial]) -> str:
    if len(trials) > _MOST_NAMED:
        return f"{trials[0].number} to {trials[-1].number}"
    return ", ".join(str(trial.number) for trial in trials) or "none"


def _outcome(trial: Trial, sla: Sla) -> Outcome:
    judged = judge_trial(trial, sla)
    return Outcome.UNDECIDED if judged is None else judged.outcome


def refuse_changed_model(record: StudyRecord, digest: str) -> None:
    """InputRefused if the study measured another model than the one that is there now."""
    measured = (record.environment or {}).get("model_digest")
    if measured is not None and measured != digest:
        raise InputRefused(
            "the model's files or configuration have changed since the study measured them",
            next_step="put them back, or tune again without --resume: the study's numbers are not"
            " this model's (on a remote server: load the model from its file again)",
        )


def refuse_other_machine(record: StudyRecord, here: Mapping[str, Any]) -> None:
    """InputRefused if the study measured on other hardware than ``here`` describes, as far as
    both tell."""
    there = record.environment or {}
    other = [key for key in HARDWARE if key in there and key in here and there[key] != here[key]]
    if other:
        raise InputRefused(
            f"the interrupted run {record.id} measured on another machine: "
            + ", ".join(f"{key} {there[key]}, here {here.get(key)}" for key in other),
            next_step="go on there, or run without --resume: numbers of two machines are not"
            " comparable",
        )
