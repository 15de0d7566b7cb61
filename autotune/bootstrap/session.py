"""A study, wired to real servers, load and storage, for the time of one run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autotune.adapters import machine
from autotune.adapters.search import GridSearch, OptunaSearch, RandomSearch
from autotune.adapters.telemetry import choose
from autotune.adapters.triton.config import check_targets, present
from autotune.adapters.triton.export import refuse_unwritable
from autotune.adapters.triton.reference import BasicOutputCheck, OnnxOutputCheck
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.servers import Servers
from autotune.adapters.triton.traps import study_traps
from autotune.bootstrap.documents import documents
from autotune.bootstrap.exports import exporter
from autotune.bootstrap.models import served_model
from autotune.bootstrap.stored import open_store, unfinished
from autotune.core.errors import AutotuneError
from autotune.core.study import Launch, SearchKind, Study
from autotune.ports import OutputCheck, Progress, ProgressListener, Search, TrialStore
from autotune.settings import Settings
from autotune.tuner.answer import Answer
from autotune.tuner.run import Documents, StudyRunner
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from search_spaces.candidate import SERVER_PREFIX, Candidate

SHOWN_TRAPS = 2000
"""Candidates of a space that are looked through for traps."""
OPTUNA = "optuna.db"
COUNTED = 100_000
"""A larger space is not counted for the progress display."""


@dataclass(frozen=True, slots=True)
class StudySession:
    """A study ready to run; what it started is ended when `open`'s context is left."""

    runner: StudyRunner
    warnings: tuple[str, ...]

    def run(self) -> Answer:
        return self.runner.run()

    @staticmethod
    @contextmanager
    def open(
        study: Study, *, db: str, out: Path, resume: bool, listen: ProgressListener
    ) -> Iterator[StudySession]:
        """Refuse first what can be refused, then prepare: output directory, database, model,
        space, server."""
        settings = Settings.from_environment()
        refuse_unwritable(out, study.name)
        with ExitStack() as stack:
            store = stack.enter_context(open_store(db, create=True))
            stack.enter_context(_alone(settings.work_dir))
            before = unfinished(store, study) if resume else None
            work = _fresh_folder(settings.work_dir / study.name)
            yield _assemble(study, settings, stack, store, before, out, work, listen)


@contextmanager
def _alone(work_dir: Path) -> Iterator[None]:
    """One study at a time on a machine: two would measure each other."""
    work_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work_dir / "measuring.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as exc:
        raise AutotuneError(
            "another study is measuring on this machine; two would measure each other",
            next_step="wait until it has ended; `autotune studies` shows what runs",
        ) from exc
    try:
        yield
    finally:
        lock.release()


def _fresh_folder(folder: Path) -> Path:
    """An empty scratch folder; the logs of the last run of that name are kept beside it."""
    logs = folder.with_name(folder.name + ".previous")
    if folder.exists():
        shutil.rmtree(logs, ignore_errors=True)
        folder.rename(logs)
    folder.mkdir(parents=True)
    return folder


def _assemble(
    study: Study,
    settings: Settings,
    stack: ExitStack,
    store: TrialStore,
    before: int | None,
    out: Path,
    work: Path,
    listen: ProgressListener,
) -> StudySession:
    def say(text: str) -> None:
        listen(Progress(stage="prepare", text=text))

    models = work / "models"
    models.mkdir()
    model = served_model(study, cache_dir=settings.cache_dir, work_dir=models, say=say)
    # The copies of model files go when the run ends; the logs stay.
    stack.callback(shutil.rmtree, models, ignore_errors=True)
    check_targets(model.config, study.space.targets)
    cores = machine.cores()
    baseline = configuration_in_service(study, model)
    candidates = islice(study.space.candidates(), SHOWN_TRAPS)
    allowed = [c for c in candidates if study.space.pruned(c, cores) is None]
    warnings = study_traps(model.config, allowed, cores=cores)
    servers = Servers(cache_dir=settings.cache_dir, work_dir=work, progress=say)
    server = servers.tuned(study.server, model)
    stack.callback(server.close)
    load = LocustDriver()
    stack.callback(load.close)
    study_id = before or store.create_study(study.name, study.definition, study.digest)
    search = _search(study, baseline, cores, work / OPTUNA)
    runner = StudyRunner(
        study=study,
        study_id=study_id,
        store=store,
        search=search,
        server=server,
        load=load,
        telemetry=choose(remote=study.server.launch is Launch.REMOTE),
        check=_output_check(study, model),
        exporter=exporter(study, model, servers, work),
        baseline=baseline,
        samples_for=lambda interface: build_samples(
            interface, study.workload.inputs, seed=study.seed
        ),
        documents=Documents(
            write=lambda record, trials, decided, _: documents(
                study, model, record, trials, decided
            )
        ),
        environment=_environment,
        clock=machine.SystemClock(),
        listen=listen,
        out=out,
        work=work,
        search_log=work / OPTUNA,
        planned=_planned(study, baseline, cores),
        warnings=warnings,
    )
    return StudySession(runner=runner, warnings=warnings)


def configuration_in_service(study: Study, model: ServedModel) -> Candidate:
    """The present configuration in the space's words: a candidate of the space where it amounts
    to one, else as it is found."""
    found = present(model.config, study.space.targets)
    flags = {
        SERVER_PREFIX + name: value
        for name, value in study.server.flags.items()
        if SERVER_PREFIX + name in study.space.targets
    }
    found = found.replacing(**flags)
    return study.space.project(found) or found


def _search(study: Study, baseline: Candidate, cores: int, mirror: Path) -> Search:
    if study.search is SearchKind.OPTUNA:
        return OptunaSearch(
            study.space,
            baseline=baseline,
            objectives=study.objectives,
            seed=study.seed,
            cores=cores,
            storage_path=mirror,
            study_name=study.name,
            constraints=[*(limit.metric for limit in study.sla.limits), "achieved"],
        )
    plain = GridSearch if study.search is SearchKind.GRID else RandomSearch
    return plain(study.space, baseline=baseline, seed=study.seed, cores=cores)


def _output_check(study: Study, model: ServedModel) -> OutputCheck:
    if model.onnx is None:
        return BasicOutputCheck(study.tolerance)
    return OnnxOutputCheck(model.onnx, study.tolerance)


def _environment() -> Mapping[str, Any]:
    return machine.describe()


def _planned(study: Study, baseline: Candidate, cores: int) -> int:
    size = study.space.size()
    if size is None or size > COUNTED:
        return study.budget.trials
    allowed = sum(study.space.pruned(c, cores) is None for c in study.space.candidates())
    outside = 0 if study.space.contains(baseline) else 1
    return min(study.budget.trials, allowed + outside)
