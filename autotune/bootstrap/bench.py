"""What every run needs to measure on this machine: the model, a server, load, telemetry."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.telemetry import choose
from autotune.adapters.triton.pipeline import check_model_targets
from autotune.adapters.triton.reference import output_check
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.servers import Servers
from autotune.bootstrap.models import served_model
from autotune.bootstrap.stored import refuse_changed_model
from autotune.bootstrap.variants import Place, Prepared, prepare_variants
from autotune.bootstrap.variants_before import Before
from autotune.core.errors import AutotuneError, Busy, MachineBusy
from autotune.core.model_interface import ModelInterface, Sample
from autotune.core.records import StudyRecord
from autotune.core.study import Launch, Study
from autotune.ports import (
    LoadDriver,
    OutputCheck,
    Progress,
    ProgressListener,
    Server,
    Telemetry,
    TrialStore,
)
from autotune.settings import Settings
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from loadgen.sizing import Sizing
from search_spaces.candidate import MAX_BATCH_SIZE, Candidate

MODELS = "models"
MACHINE_LOCK = "\0triton-autotune.measuring"


def lock_name() -> str:
    """Of this machine's lock, or that of the slot of it that the settings name."""
    slot = Settings.from_environment().slot
    return f"{MACHINE_LOCK}.{slot}" if slot else MACHINE_LOCK


@contextmanager
def alone() -> Iterator[None]:
    """One study at a time on a machine, or on a slot of it, whoever runs it: two would measure each
    other."""
    busy = MachineBusy(
        "another study is measuring on this machine; two would measure each other",
        next_step="wait until it has ended",
    )
    with exclusive(lock_name(), busy):
        yield


@contextmanager
def exclusive(name: str, busy: Busy) -> Iterator[None]:
    """``busy`` is raised where another has the name.

    The lock is an abstract socket name (Linux): no file to leave behind or to have rights on, and
    gone with its process.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        try:
            lock.bind(name)
        except OSError as exc:
            raise busy from exc
        yield


def fresh_folder(folder: Path) -> Path:
    """An empty scratch folder; the logs of the last run of that name are kept beside it, without
    the copies of models that it left if it was killed."""
    logs = folder.with_name(folder.name + ".previous")
    if folder.exists():
        shutil.rmtree(logs, ignore_errors=True)
        folder.rename(logs)
        shutil.rmtree(logs / MODELS, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a run finds things and leaves them; ``stack`` ends what it starts."""

    settings: Settings
    stack: ExitStack
    store: TrialStore
    work: Path
    listen: ProgressListener

    def say(self, text: str) -> None:
        self.listen(Progress(stage="prepare", text=text))


def prepare_model(study: Study, at: Surroundings, before: StudyRecord | None) -> ServedModel:
    """The model as the server will find it, in copies that go when the run ends (logs stay)."""
    models = at.work / MODELS
    models.mkdir()
    at.stack.callback(shutil.rmtree, models, ignore_errors=True)
    model = served_model(
        study,
        cache_dir=at.settings.cache_dir,
        work_dir=models,
        say=at.say,
        python=lambda: _servers(at).python(study.server),
    )
    if before is not None:
        refuse_changed_model(before, model.digest)
    check_model_targets(model, study.space.targets)
    return model


def with_variants(
    study: Study,
    model: ServedModel,
    at: Surroundings,
    before: StudyRecord | None,
    *,
    only: Sequence[Candidate] | None = None,
) -> Prepared:
    """The study and its model with the variants that may be measured: those of the run ``before``,
    if there was one; see `prepare_variants`."""
    place = Place(
        cache_dir=at.settings.cache_dir,
        work=at.work,
        models=at.work / MODELS,
        say=at.say,
        server_dir=at.settings.server_dir,
    )
    stored = () if before is None else at.store.variants(before.id)
    return prepare_variants(study, model, place, before=Before(variants=stored, only=only))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What measures a study's candidates; nothing of it is started yet."""

    servers: Servers
    server: Server
    load: LoadDriver
    telemetry: Telemetry
    check: OutputCheck
    samples_for: Callable[[ModelInterface], Sequence[Sample]]


def set_up(study: Study, model: ServedModel, at: Surroundings) -> Bench:
    """Whatever of it is started ends with ``at.stack``."""
    servers = _servers(at)
    server = servers.tuned(study.server, model)
    at.stack.enter_context(_ended(server))
    load = LocustDriver(processes=Sizing())
    at.stack.callback(load.close)
    return Bench(
        servers=servers,
        server=server,
        load=load,
        telemetry=choose(
            remote=study.server.launch is Launch.REMOTE,
            models_apart=study.server.launch is Launch.EMBEDDED,
        ),
        check=_output_check(study, model, servers),
        samples_for=lambda interface: build_samples(
            interface, study.workload.inputs, seed=study.seed
        ),
    )


@contextmanager
def _ended(server: Server) -> Iterator[None]:
    """Close a server at the end. If that fails too, what went wrong first is what is told, and
    the rest beside it."""
    try:
        yield
    except BaseException as error:
        try:
            server.close()
        except AutotuneError as also:
            error.add_note(str(also))
        raise
    server.close()


def _servers(at: Surroundings) -> Servers:
    return Servers(
        cache_dir=at.settings.cache_dir,
        work_dir=at.work,
        progress=at.say,
        server_dir=at.settings.server_dir,
    )


def _output_check(study: Study, model: ServedModel, servers: Servers) -> OutputCheck:
    joins = MAX_BATCH_SIZE in study.space.targets or model.config.max_batch_size > 1
    return output_check(
        model, study.tolerance, joins=joins, python=lambda: servers.python(study.server)
    )
