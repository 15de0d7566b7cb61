"""A small pipeline on the Python backend, for tests on the real server."""

from __future__ import annotations

from pathlib import Path

STEPS = {"first": "+ 1", "second": "* 2", "third": "- 3"}
"""What each step does to a row, in order: y = (x + 1) * 2 - 3."""

_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            y = pb_utils.Tensor("y", (x {does}).astype(np.float32))
            answers.append(pb_utils.InferenceResponse([y]))
        return answers
"""
_CONFIG = """
backend: "python" max_batch_size: 8 {more}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
_ENSEMBLE = """
platform: "ensemble" max_batch_size: {size}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
ensemble_scheduling {{ step [ {steps} ] }}
"""
_STEP = """{{ model_name: "{name}" model_version: -1
  input_map {{ key: "x" value: "{taken}" }} output_map {{ key: "y" value: "{given}" }} }}"""


def put_step(repository: Path, name: str, does: str, more: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(_MODEL.replace("{does}", does))
    (repository / name / "config.pbtxt").write_text(_CONFIG.format(more=more))


def put_ensemble(repository: Path, name: str, steps: list[str], size: int = 8) -> None:
    """One model after another, from ``x`` to ``y``."""
    tensors = ["x", *(f"between_{index}" for index in range(1, len(steps))), "y"]
    text = ", ".join(
        _STEP.format(name=step, taken=tensors[index], given=tensors[index + 1])
        for index, step in enumerate(steps)
    )
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(_ENSEMBLE.format(size=size, steps=text))


def put_pipeline(repository: Path, size: int = 8) -> Path:
    """``pipe``: ``first``, then ``second`` (with a batcher), then ``third``."""
    for name, does in STEPS.items():
        put_step(repository, name, does, "dynamic_batching { }" if name == "second" else "")
    put_ensemble(repository, "pipe", list(STEPS), size)
    return repository
