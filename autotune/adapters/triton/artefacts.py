"""Variants in a model repository: which file a configuration serves, and in what words.

While a study runs, every variant's artefact stands in the model's version directories beside the
source file, and a candidate's configuration names the one it serves; an export holds that one
alone, under the name that its backend looks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.core.variants import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A built variant: ``path`` is its file in the cache, ``beside`` the files of weights that
    belong to it, in the same directory."""

    variant: Variant
    path: Path
    beside: tuple[Path, ...] = ()

    @property
    def standing(self) -> str:
        """Its file's name in a version directory while a study runs."""
        return f"{self.variant}{self.path.suffix}"
