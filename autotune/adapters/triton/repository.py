"""Model repositories: the model that is tuned, wherever its files come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.triton.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as a server finds it: ``repository/name`` holds ``config.pbtxt`` and versions.

    ``config`` is complete (inputs and outputs declared) and carries ``name``. ``digest``: SHA-256
    over the model's files and configuration. ``source``: the model's directory. ``onnx``: the ONNX
    file that served outputs can be compared with, None where there is none. ``runner``: served by
    autotune's own Python-backend runner. ``native``: the user's own model that a runner stands in
    for, because the server at hand lacks its backend; None for any other model.
    """

    name: str
    repository: Path
    config: ModelConfig
    digest: str
    source: Path
    onnx: Path | None = None
    runner: bool = False
    native: ServedModel | None = None
