"""Exports: a deployable model repository, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from autotune.adapters.durable import exchange, sync_directory, sync_tree, write_synced
from autotune.adapters.triton.artefacts import EXPORTED_FILES
from autotune.adapters.triton.config import ModelConfig, render
from autotune.adapters.triton.native import RUNNER_PARAMETERS_ONLY, native_names
from autotune.adapters.triton.onnx_graph import read_graph
from autotune.adapters.triton.pipeline import configs
from autotune.adapters.triton.placing import add
from autotune.adapters.triton.repository import (
    CONFIG_FILE,
    DEFAULT_FILES,
    ONNX_FILE,
    ServedModel,
    adapt_for_embedded,
    backend_of,
    copy_tree,
    files_of,
    from_repository,
    loaded_versions,
)
from autotune.adapters.triton.runners import ANY_HOST, EmbeddedHost
from autotune.core.errors import ExportFailed, InputRefused
from autotune.ports import ExportFile, Server
from search_spaces.candidate import (
    BACKEND_PREFIX,
    VARIANT,
    Candidate,
    Value,
    split_target,
)

PROVENANCE = "provenance.json"
REPORT_BYTES = 6_000_000
"""What the files beside the models take: report.html carries its own plotting library."""

StrictServerFactory: TypeAlias = Callable[[Path, str], Server]
"""Makes a server, not started, over a repository and a model's name, with auto-completion off."""

_RUNNER_ONLY = tuple(BACKEND_PREFIX + key for key in RUNNER_PARAMETERS_ONLY)


class RepositoryExporter:
    """Writes the tuned model as a repository that stands alone: every file that it needs is copied.

    The root holds the model's directory (and those of an ensemble's composing models, each with its
    own tuned configuration), and beside them plain files only, since Triton takes every directory
    there for a model. A directory is this study's own if its provenance.json names the study. Of a
    model's variants it holds the candidate's alone, under the name that its backend looks for.

    A model that a runner stands in for is exported in the user's own form: own backend, own files,
    with the tuned fields; `strict_server` then serves the exported files through the runner, from
    a copy in ``workdir``, because the server at hand lacks the backend; ``host`` as
    `adapt_for_embedded` says.
    """

    def __init__(
        self,
        model: ServedModel,
        strict_server_factory: StrictServerFactory,
        *,
        workdir: Path,
        host: EmbeddedHost = ANY_HOST,
    ) -> None:
        self._model = model
        self._exported = model.native or model
        self._strict_server_factory = strict_server_factory
        self._workdir = workdir
        self._host = host

    def preflight(self, out: Path, study: str) -> None:
        """InputRefused unless ``out`` can be written and is new, empty, or this study's export."""
        if out.resolve().is_relative_to(self._exported.source.resolve()):
            raise InputRefused("the output path lies inside the model", value=str(out))
        refuse_unwritable(out, study)

    def write(
        self, candidate: Candidate, out: Path, study: str, files: Sequence[ExportFile]
    ) -> Path:
        """Write the repository, replacing an older export of the same study in one step; returns
        the config.pbtxt's path. Killed at any moment, it leaves the old export or the new one.
        """
        out = out.absolute()
        self.preflight(out, study)
        models = {**self._model.composing, self._model.name: self._model}
        files = [*files, *_own_provenance(files, study)]
        _require_plain_files(files, list(models))
        configs = exported_configs(self._model, candidate)
        with _writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            with _beside(out) as fresh:
                for name, model in models.items():
                    variant = candidate.of("" if model is self._model else name).get(VARIANT)
                    _write_model(model, variant, configs[name], fresh / name)
                for file in files:
                    write_synced(fresh / file.name, file.text)
                sync_tree(fresh)
                _swap(fresh, out)
        return out / self._exported.name / CONFIG_FILE

    def strict_server(self, out: Path) -> Server:
        """A server, not started, over the exported files alone, with auto-completion off."""
        out = out.absolute()
        name = self._exported.name
        if self._model.native is not None:
            exported = from_repository(out, name, self._workdir / "exported")
            workdir = self._workdir / "exported"
            out = adapt_for_embedded(exported, workdir, host=self._host).repository
        return self._strict_server_factory(out, name)


def exported_config(model: ServedModel, candidate: Candidate) -> ModelConfig:
    """The configuration of the tuned model that is exported."""
    return exported_configs(model, candidate)[model.name]


def exported_configs(model: ServedModel, candidate: Candidate) -> dict[str, ModelConfig]:
    """The configurations that are exported, by model, the tuned one last: of the user's own model
    where a runner stands in for it, with the runner's parameters in the words of its backend."""
    return configs(_as_exported(model), _exported_words(model, candidate))


def _as_exported(model: ServedModel) -> ServedModel:
    """In the user's own form, its variants' artefacts under the names that backends look for."""
    return replace(
        model.native or model,
        composing={name: _as_exported(step) for name, step in model.composing.items()},
        artefacts={name: replace(each, exported=True) for name, each in model.artefacts.items()},
    )


def _exported_words(model: ServedModel, candidate: Candidate) -> Candidate:
    words: dict[str, Value] = {}
    for target, value in candidate.values.items():
        step, name = split_target(target)
        served = model.composing.get(step, model) if step else model
        if served.native is None:
            words[target] = value
        else:
            words |= _native_words(target, name, value, native_names(served))
    return Candidate(words)


def _native_words(
    target: str, name: str, value: Value, names: Mapping[str, str]
) -> dict[str, Value]:
    """A target of a model that a runner stands in for, in the words of its own backend."""
    if name in _RUNNER_ONLY:
        return {}
    native = names.get(name.removeprefix(BACKEND_PREFIX))
    if native is None or not name.startswith(BACKEND_PREFIX):
        return {target: value}
    # Unset, the runner goes by the native name itself.
    return {} if value is None else {target.removesuffix(name) + BACKEND_PREFIX + native: value}


def _write_model(model: ServedModel, variant: Value, config: ModelConfig, target: Path) -> None:
    own = model.native or model
    standing = {each.standing for each in model.artefacts.values() if not each.own}
    copy_tree(own.source, target, link=False, without=() if model.native else standing)
    artefact = model.artefacts.get(str(variant))
    if artefact is not None and not artefact.own:
        version = target / loaded_versions(own)[-1].name
        _remove_own_files(own, version)
        add(artefact, version, name=EXPORTED_FILES[artefact.variant.engine], link=False)
    if config != own.config or not (target / CONFIG_FILE).exists():
        write_synced(target / CONFIG_FILE, render(config))


def _remove_own_files(own: ServedModel, version: Path) -> None:
    """Take the model's own file, which a variant stands for, out of a copied version directory."""
    source = loaded_versions(own)[-1]
    named = own.config.default_model_filename
    files = [named] if named else list(DEFAULT_FILES.get(backend_of(own.config, own.source), ()))
    if own.runner:
        files = [ONNX_FILE]
    paths = [source / file for file in files]
    if own.onnx is not None:
        paths += [own.onnx.parent / each for each in read_graph(own.onnx).external]
    for path in paths:
        copied = version / path.relative_to(source)
        if copied.is_dir():
            shutil.rmtree(copied)
        copied.unlink(missing_ok=True)


def put_in_place(fill: Callable[[Path], None], out: Path, study: str) -> None:
    """An export that was written elsewhere: ``fill`` puts it into an empty folder, which takes the
    place of ``out`` in one step, as `RepositoryExporter.write` does."""
    refuse_unwritable(out, study)
    with _writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with _beside(out) as fresh:
            fill(fresh)
            sync_tree(fresh)
            _swap(fresh, out)


# -------------------------------------------------------------------------------------- refusals
def refuse_unwritable(out: Path, study: str) -> None:
    """InputRefused unless ``out`` can be written and is new, empty, or an export of ``study``."""
    out = out.absolute()
    with _refused(out):
        _recover(out)
        _fresh(out).exists()  # OSError for a name that is too long, as its own may not be
        if out.exists():
            if not out.is_dir():
                raise InputRefused("the output path is a file, not a directory", value=str(out))
            _refuse_foreign(out, study)
            _probe(out)
    beside = _nearest_directory(out.parent)
    with _refused(out, at=beside):
        _probe(beside)


def refuse_without_room(model: ServedModel, out: Path) -> None:
    """InputRefused where the disk of ``out`` has no room for the model's files and the report."""
    refuse_no_room(model.name, export_bytes(model), out)


def export_bytes(model: ServedModel) -> int:
    """About what an export takes: the model's files, and the report."""
    models = [each.native or each for each in (*model.composing.values(), model)]
    sizes = (file.stat().st_size for each in models for file in files_of(each.source))
    return REPORT_BYTES + sum(sizes)


def refuse_no_room(name: str, needed: int, out: Path) -> None:
    """InputRefused where the disk of ``out`` has not so many bytes free."""
    free = shutil.disk_usage(_nearest_directory(out.absolute())).free
    if free < needed:
        raise InputRefused(
            f"an export of {name} takes about {needed / 1e6:.0f} MB, and the output"
            f" directory's disk has {free / 1e6:.0f} MB free",
            value=str(out),
            next_step="Make room there, or give another --out.",
        )


def _refuse_foreign(out: Path, study: str) -> None:
    if not any(out.iterdir()):
        return
    owner = _owner(out)
    if owner == study:
        return
    if owner is None:
        raise InputRefused(
            "the output directory is not empty and holds no export of autotune",
            value=str(out),
            next_step="Give --out a new or an empty directory: an export replaces all of it.",
        )
    raise InputRefused(
        f"the output directory holds the export of another study, {owner!r}",
        value=str(out),
        next_step="Give another --out, or move that export away first.",
    )


def _owner(out: Path) -> str | None:
    try:
        provenance: Any = json.loads((out / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    study = provenance.get("study") if isinstance(provenance, dict) else None
    return study if isinstance(study, str) else None


def _own_provenance(files: Sequence[ExportFile], study: str) -> list[ExportFile]:
    """A provenance.json where the caller gives none: it marks a directory as the study's own."""
    given = [file for file in files if file.name == PROVENANCE]
    if not given:
        return [ExportFile(name=PROVENANCE, text=json.dumps({"study": study}, indent=2) + "\n")]
    if json.loads(given[0].text).get("study") != study:
        raise InputRefused(f"{PROVENANCE} must name its study", value=study)
    return []


def _require_plain_files(files: Sequence[ExportFile], directories: Sequence[str]) -> None:
    for file in files:
        if Path(file.name).name != file.name or file.name in ("", *directories):
            raise InputRefused("a file beside the model needs a plain name", value=file.name)


def _nearest_directory(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _probe(directory: Path) -> None:
    """Write and remove a file: permission bits tell nothing of a read-only file system or root."""
    with tempfile.TemporaryFile(dir=directory):
        pass


@contextmanager
def _refused(out: Path, *, at: Path | None = None) -> Iterator[None]:
    """InputRefused where the system does, with where it did if that is elsewhere."""
    try:
        yield
    except OSError as error:
        where = "" if at is None else f", at {at}"
        raise InputRefused(
            f"the output directory cannot be written: {error.strerror}{where}",
            value=str(out),
            next_step="Give --out a directory that can.",
        ) from error


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, shutil.Error) as error:
        raise ExportFailed(
            f"the export cannot be written: {_why(error)}",
            value=str(out),
            next_step="Nothing was changed there. Is there space left? Can the model's files be"
            " read?",
        ) from error


def _why(error: OSError) -> str:
    """One reason: `shutil.Error` holds a triple (source, target, text) for each file."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        source, _, text = error.args[0][0]
        reason = re.sub(r"^\[Errno \d+\] ([^:]*).*", r"\1", text, flags=re.DOTALL)
        others = len(error.args[0]) - 1
        return f"{reason}, at {source}" + (f" and {others} more" if others else "")
    return (error.strerror or str(error)) + (f", at {error.filename}" if error.filename else "")


# ------------------------------------------------------------------------------------- atomicity
@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A new directory beside ``out``, gone afterwards if it was not swapped in."""
    fresh = _fresh(out)
    fresh.mkdir()
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _fresh(out: Path) -> Path:
    return out.parent / f".{out.name}.new-{os.getpid()}-{secrets.token_hex(4)}"


def _swap(fresh: Path, out: Path) -> None:
    """Put ``fresh`` in the place of ``out``; what was there is left under ``fresh``'s name."""
    if not out.exists():
        fresh.rename(out)
    elif not exchange(fresh, out):
        # No exchange on this file system: killed between the two, `_recover` puts the old one back.
        aside = out.parent / f".{out.name}.old"
        out.rename(aside)
        fresh.rename(out)
        aside.rename(fresh)
    sync_directory(out.parent)


def _recover(out: Path) -> None:
    """Clear up after a writer that was killed: put back what it had set aside, and remove what it
    had not finished.
    """
    aside = out.parent / f".{out.name}.old"
    if aside.is_dir() and not out.exists():
        aside.rename(out)
    shutil.rmtree(aside, ignore_errors=True)
    prefix = f".{out.name}.new-"
    if not out.parent.is_dir():
        return
    for entry in out.parent.iterdir():
        pid = entry.name.removeprefix(prefix).split("-")[0]
        if entry.name.startswith(prefix) and pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(entry, ignore_errors=True)
