"""What a builder of one engine's artefacts hands back, and what it is asked through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from autotune.adapters.variants.request import BuildRequest
from autotune.core.variants import Attempt

Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What came of building one artefact.

    ``file`` is the artefact and ``beside`` the files of weights that belong to it, all in the
    folder that was given (None: there is none, and ``refused`` says why; a refused artefact may be
    there as well). ``accuracy_drop`` is what the gate found (None: not measured). ``hurried``: the
    clock ended the search, and a longer one may find a better artefact.
    """

    file: Path | None = None
    beside: tuple[Path, ...] = ()
    accuracy_drop: float | None = None
    refused: str = ""
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[str, ...] = ()
    hurried: bool = False


class EngineBuilder(Protocol):
    """Builds for an engine that takes more than an ONNX file: TensorRT, PyTorch."""

    def tools(self) -> Mapping[str, str]:
        """Versions of everything that its artefacts depend on, by name, the GPU and its driver
        among them: part of the cache's key."""

    def build(self, request: BuildRequest, onnx: Path | None, folder: Path, say: Say) -> Made:
        """The artefact, in ``folder``, which is empty and is cached as a whole. ``onnx`` is the
        strongly typed graph that has passed the gate in ONNX Runtime (None where the source is no
        ONNX file). What fails is told in ``refused``; nothing is raised but for an interruption."""
