"""The variants of one candidate of a stored study, for its export."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from autotune.adapters.triton.artefacts import Artefact
from autotune.adapters.triton.placing import place
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.variants.cache import VariantCache
from autotune.bootstrap.variants import (
    Place,
    Wanted,
    Workshop,
    artefacts_of,
    builder_at,
    part_of,
    source_of,
    variants_asked,
)
from autotune.bootstrap.variants_before import Before
from autotune.core.study import Study
from autotune.core.variants import VariantRecord
from search_spaces.candidate import Candidate


def prepare_one(
    study: Study,
    model: ServedModel,
    at: Place,
    *,
    candidate: Candidate,
    before: Before,
) -> ServedModel:
    """The model with the variants that one candidate of a stored study names, for its export: from
    the cache, or built again. InputRefused where that does not give what was measured."""
    asked_for = list(variants_asked(study.space))
    if not asked_for:
        return model
    wanted = [each for each in asked_for if each.is_of([candidate])]
    with ExitStack() as stack:
        builder = builder_at(at, study.server)
        workshop = Workshop(study=study, model=model, at=at, stack=stack, builder=builder)
        records = [_cached(at, before, each, model) or workshop.record(each) for each in wanted]
    for record in records:
        before.refuse_another(record)
    steps = {each.step for each in asked_for}
    made = place(model, artefacts_of(study, model, steps, records), at.models / "variants")
    return with_names(made, before.variants)


def with_names(model: ServedModel, stored: Sequence[VariantRecord], step: str = "") -> ServedModel:
    """With all variants that the study had, by name alone where they are not at hand: the evidence
    beside an export shows the configurations of other trials too."""
    named = {
        str(each.variant): Artefact(variant=each.variant, path=Path(each.file))
        for each in stored
        if each.step == step and each.usable
    }
    steps = {name: with_names(part, stored, name) for name, part in model.composing.items()}
    return replace(model, artefacts={**named, **model.artefacts}, composing=steps)


def _cached(at: Place, before: Before, wanted: Wanted, model: ServedModel) -> VariantRecord | None:
    """What was built for the study, if it is still whole: its source and its data need not be read
    again then. What is the source file itself is no file of the cache, which can vouch for its own
    alone: it is taken from the model, whose digest has been compared with the study's."""
    known = before.known(wanted.target, wanted.variant)
    if known is None or not known.file:
        return None
    root = at.cache_dir / "variants"
    try:
        found = VariantCache(root=root).get(known.digest, _missing)
    except _Missing:
        return None
    file: Path | None = Path(found.file)
    if not Path(found.file).is_relative_to(root):
        file = source_of(part_of(model, wanted.step), wanted.variant)
    if file is None or not file.is_file():
        return None
    return replace(found, variant=wanted.variant, step=wanted.step, file=str(file))


class _Missing(Exception):
    """The cache does not have it any more."""


def _missing(_folder: Path) -> VariantRecord:
    raise _Missing
