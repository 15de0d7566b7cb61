"""Puts the artefacts of a study's variants into the repository that its server serves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.adapters.triton.artefacts import ONNX_FILE, Artefact
from autotune.adapters.triton.repository import ServedModel, copy_tree, loaded_versions
from autotune.core.errors import InputRefused


def place(
    model: ServedModel, artefacts: Mapping[str, Sequence[Artefact]], workdir: Path
) -> ServedModel:
    """The model with its variants, served from ``workdir``: of all its files links, and beside
    each source file the artefacts. Nothing of the repository that it was served from is touched.

    ``artefacts`` are those of each step of a pipeline by its name, and of the tuned model itself by
    the empty one; what is the model's own file needs no new one. The digest stays that of what was
    given. InputRefused for a model that is served in several versions at once.
    """
    for step in artefacts:
        refuse_several_versions(model.composing[step] if step else model)
    steps = {
        name: _placed(step, artefacts.get(name, ()), workdir)
        for name, step in model.composing.items()
    }
    return replace(_placed(model, artefacts.get("", ()), workdir), composing=steps)


def refuse_several_versions(model: ServedModel) -> None:
    versions = loaded_versions(model)
    if len(versions) > 1:
        raise InputRefused(
            f"model {model.name} is served in several versions at once, so which one a variant is"
            " of cannot be told",
            value=", ".join(version.name for version in versions),
            next_step="Tune a repository that serves one: version_policy { latest { } }.",
        )


def add(artefact: Artefact, version: Path, *, name: str, link: bool = True) -> None:
    """Put an artefact into a version directory, under ``name``: a file, or where ``name`` has no
    suffix a folder that holds it as model.onnx. Its files of weights stand where it looks for them.
    """
    target = version / name
    if artefact.beside and not target.suffix:
        target /= ONNX_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    _put(artefact.path, target, link=link)
    for file in artefact.beside:
        beside = target.parent / file.relative_to(artefact.path.parent)
        beside.parent.mkdir(parents=True, exist_ok=True)
        _put(file, beside, link=link)


def _placed(model: ServedModel, artefacts: Sequence[Artefact], workdir: Path) -> ServedModel:
    source = workdir / model.name
    try:
        shutil.rmtree(source, ignore_errors=True)
        copy_tree(model.source, source, link=True)
        placed = replace(model, repository=workdir, source=source)
        for artefact in artefacts:
            if not artefact.own:
                add(artefact, loaded_versions(placed)[-1], name=artefact.standing)
    except OSError as error:
        raise InputRefused(
            f"cannot put the variants of {model.name} into a repository in {workdir}: {error}",
            next_step="Is the directory writable, and is there space left?",
        ) from error
    return replace(
        placed,
        onnx=model.onnx and source / model.onnx.relative_to(model.source),
        torch=model.torch and source / model.torch.relative_to(model.source),
        artefacts={str(artefact.variant): artefact for artefact in artefacts},
    )


def _put(source: Path, target: Path, *, link: bool) -> None:
    target.unlink(missing_ok=True)  # a link to another file, which must not be written through
    if link:
        try:
            target.hardlink_to(source.resolve())
        except OSError:
            pass
        else:
            return
    shutil.copyfile(source, target)
