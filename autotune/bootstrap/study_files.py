"""Files of a stored trial: config.pbtxt, its repository as a ZIP archive, the study's report."""

from __future__ import annotations

import difflib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from autotune.adapters.triton.config import render
from autotune.adapters.triton.export import exported_configs
from autotune.adapters.triton.repository import ServedModel
from autotune.bootstrap.models import served_model
from autotune.bootstrap.stored import StoredStudy, export_stored, refuse_changed_model
from autotune.bootstrap.variants_exported import with_names
from autotune.core.errors import AutotuneError, NotFound
from autotune.core.records import StudyRecord
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from autotune.ports import TrialStore
from autotune.service_ports import ConfigTexts
from autotune.settings import Settings
from dashboards.report import render_report
from search_spaces.candidate import Candidate

PIECE_BYTES = 256 * 1024
_STORED = {".onnx", ".plan", ".pt", ".data"}
"""Weights hardly get smaller: they are put into an archive as they are."""


def config_texts(
    study: Study,
    record: StudyRecord,
    trial: Trial,
    *,
    variants: tuple[VariantRecord, ...],
    settings: Settings,
) -> ConfigTexts:
    """InputRefused if the model is not there any more, or has changed since it was measured."""
    with tempfile.TemporaryDirectory(prefix="autotune-config-") as folder:
        model = served_model(
            study, cache_dir=settings.cache_dir, work_dir=Path(folder), say=lambda _: None
        )
        refuse_changed_model(record, model.digest)
        named = with_names(model, variants)
        config = _rendered(named, trial.candidate)
        in_service = _in_service(model, config)
    return ConfigTexts(config=config, in_service=in_service, diff=_diff(in_service, config))


def _rendered(model: ServedModel, candidate: Candidate) -> dict[str, str]:
    return {name: render(each) for name, each in exported_configs(model, candidate).items()}


def _in_service(model: ServedModel, config: Mapping[str, str]) -> dict[str, str]:
    """As they stand in the user's own repository."""
    parts = {**model.composing, model.name: model}
    return {name: render((parts[name].native or parts[name]).config) for name in config}


def _diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    return "".join(
        line
        for name in after
        for line in difflib.unified_diff(
            before[name].splitlines(keepends=True),
            after[name].splitlines(keepends=True),
            f"{name}/config.pbtxt (in service)",
            f"{name}/config.pbtxt",
        )
    )


def repository_zip(store: TrialStore, study_id: int, number: int) -> Iterator[bytes]:
    """The exported repository of a trial. It is written before the first piece is asked for, so
    that what is refused is refused at once."""
    archive = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the last piece is read
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-zip-") as folder:
            out = Path(folder) / "repository"
            export_stored(store, str(study_id), trial=number, out=out)
            _pack(out, archive)
    except BaseException:
        archive.close()
        raise
    archive.seek(0)
    return _pieces(archive)


def _pack(folder: Path, archive: BinaryIO) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as packed:
        for path in sorted(folder.rglob("*")):
            stored = path.suffix in _STORED
            kind = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            packed.write(path, path.relative_to(folder), compress_type=kind)


def _pieces(archive: BinaryIO) -> Iterator[bytes]:
    with archive:
        while piece := archive.read(PIECE_BYTES):
            yield piece


def report(store: TrialStore, study_id: int, settings: Settings) -> str:
    """The study's report; without configurations where its model is not there any more."""
    stored = StoredStudy.load(store, str(study_id), samples=True)
    decision = stored.decision
    picked = next((t for t in stored.trials if t.number == (decision.pick or 0)), None)
    texts = None if picked is None else _texts_if_any(stored, picked, settings)
    name = stored.study.model.name
    return render_report(
        study=stored.record,
        trials=stored.trials,
        decision=decision.to_json(),
        objectives=stored.study.objectives,
        sla=stored.study.sla,
        workload=stored.study.workload,
        config_text=None if texts is None or decision.pick is None else texts.config.get(name),
        default_config_text=None if texts is None else texts.in_service.get(name),
        warnings=(stored.record.environment or {}).get("warnings", ()),
        variants=stored.variants,
    )


def _texts_if_any(stored: StoredStudy, trial: Trial, settings: Settings) -> ConfigTexts | None:
    try:
        return config_texts(
            stored.study,
            stored.record,
            trial,
            variants=tuple(stored.variants),
            settings=settings,
        )
    except AutotuneError:
        return None


def no_trial(study_id: int, number: int) -> NotFound:
    return NotFound(f"study {study_id} has no such trial", value=number)
