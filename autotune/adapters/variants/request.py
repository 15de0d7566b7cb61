"""What a builder of variants is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.model_interface import Sample
from autotune.core.study import CalibrationSpec
from autotune.core.variants import Variant

Outputs: TypeAlias = Mapping[str, NDArray[np.generic]]
"""One request's outputs by name, without the batch dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One variant of one model.

    ``source`` is the model's file: ONNX, or TorchScript for the pytorch engine. ``samples`` are the
    evaluation requests; ``drop`` tells from a variant's outputs on them, in order, by how much it
    answers worse than the source (0: as well; see `autotune.core.accuracy`). A variant whose drop
    is above ``limit`` is refused (None: none is). ``calibration_samples`` feed the calibrators, as
    ``calibration`` says; both are None or empty where the study gives none. ``batch_sizes`` are
    those of the space, ascending; ``shapes`` those of the workload's inputs, without the batch
    dimension, by input, each once: an engine's optimization profile is made from both.
    ``gate`` names what ``drop`` computes (metric, expected answers, the user's function as text):
    what was built and judged by another one is not taken from the cache. ``outputs`` are the
    configuration's, in its order: TorchScript does not name its own.
    """

    source: Path
    variant: Variant
    samples: Sequence[Sample]
    drop: Callable[[Sequence[Outputs]], float]
    limit: float | None
    gate: str = ""
    step: str = ""
    calibration: CalibrationSpec | None = None
    calibration_samples: Sequence[Sample] = ()
    batch_sizes: tuple[int, ...] = (1,)
    shapes: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
