"""A stored trial's files, ready to be put into service at a target, and how they get there."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from autotune.adapters import machine
from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.adapters.deploy.live import LiveDeployment
from autotune.adapters.deploy.served import Known
from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.config import ModelConfig, parse, read
from autotune.adapters.triton.control import Control
from autotune.adapters.triton.repository import CONFIG_FILE, backend_of, files_of
from autotune.bootstrap.models import served_model
from autotune.bootstrap.stored import StoredStudy, export_stored
from autotune.core.errors import InputRefused
from autotune.core.model_interface import Endpoint
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.study import Launch, Study
from autotune.ports import TrialStore
from autotune.retune.promote import MACHINE, label_of
from autotune.retune.shadow import Probes, ProbingCheck
from autotune.service_ports import PromotionStore, Release
from autotune.settings import Settings
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from loadgen.sizing import Sizing
from search_spaces.candidate import VARIANT, Candidate
from storage.service import ServiceStore

BRINGS, FOUND, NATIVE, SENDS = "brings", "found", "native", "sends"
"""Keys of a promotion's detail: what it brings, and what its study found (see `Contents`); whether
a native form was exported; the models whose files are other than the study's."""

LOOKED_THROUGH = 1000
"""How many promotions are, for those that are in service or under way somewhere."""

LEFT_S = 86_400
"""So old, what is there of a proposal that was never stored is nobody's any more."""

Place: TypeAlias = DirectoryDeployment | LiveDeployment
Hashes: TypeAlias = Mapping[str, str]
"""SHA-256 of files by their paths in a model's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Models as they stand in a repository: their configurations' texts, and their files."""

    configs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Hashes] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"configs": dict(self.configs), "files": {n: dict(f) for n, f in self.files.items()}}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any] | None) -> Contents:
        return cls() if plain is None else cls(configs=plain["configs"], files=plain["files"])

    @classmethod
    def of(cls, folders: Mapping[str, Path]) -> Contents:
        configs = {name: folder / CONFIG_FILE for name, folder in folders.items()}
        return cls(
            configs={n: f.read_text(encoding="utf-8") for n, f in configs.items() if f.is_file()},
            files={name: _hashes(folder) for name, folder in folders.items()},
        )


def _hashes(folder: Path) -> Hashes:
    files = {file.relative_to(folder).as_posix(): file for file in files_of(folder)}
    return {path: sha256_of(file) for path, file in files.items() if path != CONFIG_FILE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A trial of a study, written to a folder."""

    study: Study
    study_id: int
    trial: int
    candidate: Candidate
    sla: str
    confirmed: bool
    release: Release
    brings: Contents
    found: Contents
    sends: frozenset[str]
    native: bool


# -------------------------------------------------------------------------------------- exports
def export_release(
    store: TrialStore,
    reference: str,
    *,
    trial: int | None,
    native: bool,
    out: Path,
) -> Exported:
    """InputRefused as `export_stored` says."""
    stored = StoredStudy.load(store, reference)
    told = export_stored(store, str(stored.record.id), trial=trial, out=out, native=native)
    release = release_at(out)
    chosen = next(each for each in stored.trials if each.number == told["trial"])
    return Exported(
        study=stored.study,
        study_id=stored.record.id,
        trial=chosen.number,
        candidate=chosen.candidate,
        sla=str(told["sla"]),
        confirmed=bool(told["confirmed"]),
        release=release,
        brings=Contents.of({name: out / name for name in release.names}),
        found=found_by(stored.study),
        sends=_sends(stored.study, stored.trials[0].candidate, chosen.candidate),
        native=native,
    )


def release_at(folder: Path) -> Release:
    """An export as a release: its models, each after those that it needs."""
    names = sorted(each.name for each in folder.iterdir() if (each / CONFIG_FILE).is_file())
    needs = {name: _steps(read(folder / name / CONFIG_FILE), names) for name in names}
    return Release(repository=folder, names=tuple(TopologicalSorter(needs).static_order()))


def _steps(config: ModelConfig, names: Sequence[str]) -> list[str]:
    steps = (step.model_name for step in config.ensemble_scheduling.step)
    return sorted({step for step in steps if step in names})


def found_by(study: Study) -> Contents:
    """What the study found in service: in its repository, or of a remote server the configurations
    that it has loaded. Nothing of a model that was given as a bare file: then nobody knows what is
    in service."""
    remote = study.server.launch is Launch.REMOTE
    if not remote and study.model.repository is None:
        return Contents()
    with TemporaryDirectory(prefix="autotune-found-") as scratch:
        model = served_model(
            study,
            cache_dir=Settings.from_environment().cache_dir,
            work_dir=Path(scratch),
            say=lambda _: None,
        )
        own = model.native or model
        return Contents.of({each.name: each.source for each in (*own.composing.values(), own)})


def _sends(study: Study, in_service: Candidate, chosen: Candidate) -> frozenset[str]:
    """The models of which the trial served another variant than what was in service."""
    steps = chosen.steps or ("",)
    return frozenset(
        step or study.model.name
        for step in steps
        if chosen.of(step).get(VARIANT) not in (None, in_service.of(step).get(VARIANT))
    )


# ----------------------------------------------------------------------------- proposals' folders
def folder_of(settings: Settings, promotion: Promotion) -> Path:
    """Where its release waits for it to be approved."""
    return releases(settings) / label_of(promotion)


def releases(settings: Settings) -> Path:
    return settings.service_dir / "releases"


def sweep(store: PromotionStore, settings: Settings) -> None:
    """Remove the releases of this database's promotions that have come to an end, and what killed
    proposals left."""
    for folder in releases(settings).glob("*"):
        number = re.fullmatch(r"promotion-(\d+)-\d+", folder.name)
        if number is None:
            over = time.time() - folder.stat().st_mtime > LEFT_S
        else:
            over = _ended(store, int(number[1]), folder, settings)
        if over:
            shutil.rmtree(folder, ignore_errors=True)


def _ended(store: PromotionStore, promotion_id: int, folder: Path, settings: Settings) -> bool:
    try:
        promotion = store.promotion(promotion_id)
    except InputRefused:
        return False
    return folder == folder_of(settings, promotion) and promotion.state not in WAITING


WAITING = (PromotionState.PROPOSED, PromotionState.APPROVED, PromotionState.APPLYING)


# -------------------------------------------------------------------------------------- targets
def normalized(target: Target) -> Target:
    """With its repository's real path, so that one place has one name. InputRefused for a shadow
    check without an address to send requests to."""
    if target.live and target.shadow_s > 0 and target.http is None:
        raise InputRefused(
            "the shadow check sends requests over HTTP, and the target has no such address",
            next_step="Name it (--target-http HOST:PORT), or do without the check (--shadow-s 0).",
        )
    if target.repository is None:
        return target
    return replace(target, repository=target.repository.expanduser().resolve())


def place(
    target: Target,
    stack: ExitStack,
    *,
    known: Sequence[Known] | None,
    sends: frozenset[str] = frozenset(),
    load_timeout_s: float = 120.0,
) -> Place:
    """What puts a release into service there; connections end with ``stack``."""
    directory = None
    if target.repository is not None:
        directory = DirectoryDeployment(target.repository, known=known)
    if target.grpc is None:
        assert directory is not None, "a target's rule"
        return directory
    live = LiveDeployment(
        target.grpc,
        directory=directory,
        known=known,
        states=Settings.from_environment().service_dir / "states",
        sends=sends,
        load_timeout_s=load_timeout_s,
    )
    stack.callback(live.close)
    return live


def served_natively(at: Place, target: Target, name: str) -> bool:
    """Whether the target serves the model by the ONNX Runtime backend now, and not by autotune's
    runner in its place."""
    config = at.present(name)
    if config is None:
        return False
    folder = Path() if target.repository is None else target.repository / name
    return backend_of(config, folder) == "onnxruntime"


def in_service(store: PromotionStore, target: Target) -> list[Promotion]:
    """Of whatever model, at what the target changes: the latest first."""
    done = store.promotions(states=(PromotionState.DONE,), limit=LOOKED_THROUGH)
    there = (each for each in done if each.target.meets(target))
    return sorted(there, key=lambda each: each.applied_at or 0.0, reverse=True)


def known_configs(
    found: Contents, promoted: Sequence[Promotion], *, study: Study, lasting: bool
) -> list[Known]:
    """What may be in service without anybody else having put it there: what the study found, what
    was promoted there, and, where that does not outlast a restart of the server, what had been
    found before it. Where the study finds its model in the target, what it found may be an edit:
    who promotes without being asked looks for one first."""
    remote = study.server.launch is Launch.REMOTE
    known = [known_of(found, completed=remote)]
    for each in reversed(promoted):
        known.append(known_of(Contents.from_json(each.detail.get(BRINGS))))
        before = None if lasting else each.detail.get(FOUND)
        known.append(known_of(Contents.from_json(before), completed=True))
    return [each for each in known if each.configs]


def known_of(contents: Contents, *, completed: bool = False) -> Known:
    texts = contents.configs
    configs = {name: parse(text, f"{name}/{CONFIG_FILE}") for name, text in texts.items()}
    for name, config in configs.items():
        config.name = name
    return Known(configs=configs, files=contents.files, completed=completed)


def is_shared(store: ServiceStore) -> bool:
    """Whether several machines may have this database."""
    return store.engine.dialect.name == "postgresql"


def is_another_machines(store: ServiceStore, promotion: Promotion) -> bool:
    """Whether another machine that shares the database has begun it, and there is no trace of it
    here, as there is in a directory that both have: one of the same path may be another."""
    machine = str(promotion.detail.get(MACHINE, ""))
    if not is_shared(store) or machine in ("", Settings.from_environment().machine):
        return False
    with ExitStack() as stack:
        try:
            return not place(promotion.target, stack, known=None).begun(label_of(promotion))
        except InputRefused:  # there is no such directory here at all
            return True


# --------------------------------------------------------------------------------- shadow check
def shadow_of(study: Study, target: Target, stack: ExitStack) -> ProbingCheck | None:
    """None where the target asks for none; what it starts ends with ``stack``."""
    if target.grpc is None or target.http is None or target.shadow_s == 0:
        return None
    control = Control(target.grpc, study.model.name)
    stack.callback(control.close)
    load = LocustDriver(processes=Sizing())
    stack.callback(load.close)
    return ProbingCheck(
        study=study,
        probes=Probes(
            endpoint=Endpoint(http=target.http, grpc=target.grpc, metrics_url=None),
            answered=_answered(control),
            interface=control.interface,
            samples=lambda interface: build_samples(
                interface, study.workload.inputs, seed=study.seed
            ),
        ),
        load=load,
        clock=machine.SystemClock(),
        shadow_s=target.shadow_s,
    )


def _answered(control: Control) -> Callable[[], int]:
    def read_counters() -> int:
        counters = control.statistics().counters
        return counters["success"] + counters["fail"]

    return read_counters
