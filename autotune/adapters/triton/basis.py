"""What a model is apart from what is tuned of it."""

from __future__ import annotations

import hashlib
from contextlib import suppress

from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.config import render
from autotune.adapters.triton.pipeline import configs
from autotune.adapters.triton.repository import CONFIG_FILE, ServedModel, files_of
from autotune.core.errors import CandidateFailed
from search_spaces.candidate import VARIANT, Candidate, split_target
from search_spaces.space import Space


def basis_of(model: ServedModel, space: Space) -> str:
    """SHA-256 over all files of the model (of a pipeline, of its steps too) and its configuration
    under one candidate of the space: two that differ only in what the space sets have the same, so
    that a promotion does not make it another model. Where the configuration takes none of the
    space's candidates, as it is found."""
    whole = hashlib.sha256()
    for name, text in sorted(_texts(model, space).items()):
        whole.update(f"{name}\n{text}\n".encode())
    for each in (*model.composing.values(), model):
        for file in sorted(files_of(each.source)):
            relative = file.relative_to(each.source).as_posix()
            if relative != CONFIG_FILE:
                whole.update(f"\n{each.name} {relative} {sha256_of(file)}".encode())
    return whole.hexdigest()


def _texts(model: ServedModel, space: Space) -> dict[str, str]:
    """Under the last value of every parameter, be it one that goes with others only: whatever
    stands in the file for it is written over, and what only large batches have, such as the
    batcher, is in all. Else under the grid's first candidate."""
    every = {p.target: p.domain.grid()[-1] for p in space.parameters}
    first = next(space.candidates(), Candidate({}))
    for values in (every, first.values):
        plain = {t: value for t, value in values.items() if split_target(t)[1] != VARIANT}
        with suppress(CandidateFailed):
            return {name: render(made) for name, made in configs(model, Candidate(plain)).items()}
    return {each.name: render(each.config) for each in (*model.composing.values(), model)}
