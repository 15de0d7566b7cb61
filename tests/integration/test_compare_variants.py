"""``autotune compare`` of variants in a pipeline, whose source only a server can be asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from tests.integration.studies import Tool, next_turn, tool
from tests.integration.test_study_variants import CONFIG, INT8, convolutions

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]

PIPELINE = """
platform: "ensemble" max_batch_size: 4
input { name: "image" data_type: TYPE_FP32 dims: [ 3, 16, 16 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] }
ensemble_scheduling { step {
  model_name: "net"
  model_version: -1
  input_map { key: "x" value: "image" }
  output_map { key: "y" value: "scores" }
} }
"""


def data(cli: Tool, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(32, 3, 16, 16)).astype("float32")
    np.savez(cli.folder / "data.npz", image=values)


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, server_environment: ServerEnvironment
) -> Iterator[Tool]:
    """Trial 0 is the pipeline as it was found, in fp32; trial 1 serves its step in int8."""
    for cli in tool(tmp_path_factory.mktemp("compare"), cache_dir):
        repository = cli.folder / "models"
        for name, config in (("net", CONFIG), ("pipe", PIPELINE)):
            (repository / name / "1").mkdir(parents=True)
            (repository / name / "config.pbtxt").write_text(config)
        convolutions(repository / "net" / "1" / "model.onnx")
        data(cli, 2)
        study = cli.study(
            "pipe",
            model={"repository": str(repository), "name": "pipe"},
            workload={"target_qps": 30, "inputs": "data.npz"},
            sla={"p50_ms": 300, "accuracy_drop": "5%"},
            space={"net.variant": [INT8], "net.instances": [1]},
            accuracy={"metric": "relative_error", "data": "data.npz"},
            calibration={"data": "data.npz", "methods": ["minmax"], "exclude": "none"},
        )
        cli.tune(study).finish().expect(0)
        yield cli


def compare(cli: Tool, *trials: int) -> Any:
    return cli.measure("compare", "pipe", *trials, "--json").finish()


def drops(trial: Any, purpose: str) -> list[float]:
    taken = trial["measurements"]
    return [m["metrics"]["accuracy_drop"] for m in taken if m["purpose"] == purpose]


def test_the_source_s_answers_are_the_measure_whichever_trial_is_compared_first(
    ended: Tool,
) -> None:
    compare(ended, 1, 0).expect(0)
    found, int8 = ended.shown("pipe")["trials"]
    assert int8["candidate"]["net.variant"] == INT8
    assert drops(found, "compare") == pytest.approx([0, 0], abs=1e-5)
    (before,) = drops(int8, "trial")
    assert drops(int8, "compare") == pytest.approx([before] * 2, rel=0.01)
    assert 1e-4 < before < 0.05


def test_what_is_built_from_other_data_is_not_compared_with_what_was_measured(
    ended: Tool,
) -> None:
    data(ended, 3)
    with next_turn():
        refused = ended.run("compare", "pipe", 1, 0)
    refused.expect(2, "would not be what the study measured")
