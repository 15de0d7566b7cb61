"""A study over variants: built, gated, served, judged as served, exported, confirmed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.adapters.triton.config import read
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.precision import precision_of
from autotune.core.variants import Precision
from tests.integration.studies import Finished, Tool, tool

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]

INT8 = "onnxruntime-int8"
CONFIG = """
backend: "onnxruntime" max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU }
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
input { name: "x" data_type: TYPE_FP32 dims: [ 3, 16, 16 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 10 ] }
"""


def convolutions(path: Path) -> Path:
    """Two convolutions and a classifier with random weights."""
    rng = np.random.default_rng(1)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype("float32"), name)

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
            helper.make_node("Relu", ["c1"], ["r1"]),
            helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
            helper.make_node("Relu", ["c2"], ["r2"]),
            helper.make_node("Flatten", ["r2"], ["f"]),
            helper.make_node("Gemm", ["f", "w3"], ["y"], transB=1),
        ],
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [weights("w1", 16, 3, 3, 3), weights("w2", 32, 16, 3, 3), weights("w3", 10, 512)],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def sections(cli: Tool, **changes: Any) -> dict[str, Any]:
    """Found in service: fp32 on two instances. To be measured: others, on one."""
    model = cli.folder / "models" / "net"
    if not model.exists():
        convolutions(model / "1" / "model.onnx")
        (model / "config.pbtxt").write_text(CONFIG)
        values = np.random.default_rng(2).normal(size=(32, 3, 16, 16)).astype("float32")
        np.savez(cli.folder / "data.npz", x=values)
    return {
        "model": {"repository": str(model.parent), "name": "net"},
        "workload": {"target_qps": 30, "inputs": "data.npz"},
        "sla": {"p50_ms": 300, "accuracy_drop": "5%"},
        "space": {"variant": [INT8], "instances": [1]},
        "accuracy": {"metric": "relative_error", "data": "data.npz"},
        "calibration": {"data": "data.npz", "methods": ["minmax"], "exclude": "none"},
        **changes,
    }


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, server_environment: ServerEnvironment
) -> Iterator[tuple[Tool, Finished]]:
    """A study whose int8 variant is the cheapest: it makes do with one instance."""
    for cli in tool(tmp_path_factory.mktemp("variants"), cache_dir):
        finished = cli.tune(cli.study("net", **sections(cli))).finish().expect(0)
        yield cli, finished


def test_int8_is_measured_picked_and_confirmed_from_its_exported_files(
    done: tuple[Tool, Finished],
) -> None:
    cli, _ = done
    shown = cli.shown("net")
    now, pick = shown["trials"]
    assert now["candidate"] == {"variant": "onnxruntime-fp32", "instances": 2}
    assert pick["candidate"] == {"variant": INT8, "instances": 1}
    assert [m["purpose"] for m in pick["measurements"]] == ["trial", "confirm"]
    assert Path(shown["exported_to"]) == cli.out


def test_each_measurement_says_how_much_worse_the_served_answers_are(
    done: tuple[Tool, Finished],
) -> None:
    cli, _ = done
    now, pick = cli.shown("net")["trials"]
    (found,) = (m["metrics"]["accuracy_drop"] for m in now["measurements"])
    assert found == pytest.approx(0, abs=1e-5)
    for measured in pick["measurements"]:
        assert 1e-4 < measured["metrics"]["accuracy_drop"] < 0.05


def test_the_export_holds_int8_alone_for_the_user_s_own_backend(
    done: tuple[Tool, Finished],
) -> None:
    cli, _ = done
    version = cli.out / "net" / "1"
    assert [path.name for path in version.iterdir()] == ["model.onnx"]
    assert precision_of(version / "model.onnx") is Precision.INT8
    config = read(cli.out / "net" / "config.pbtxt")
    assert (config.backend, config.instance_group[0].count) == ("onnxruntime", 1)
    source = cli.folder / "models" / "net" / "1" / "model.onnx"
    assert precision_of(source) is Precision.FP32, "it was not touched"
    assert [path.name for path in source.parent.iterdir()] == ["model.onnx"]


def test_the_provenance_names_the_variant_its_accuracy_and_what_was_tried(
    done: tuple[Tool, Finished],
) -> None:
    cli, _ = done
    (variant,) = json.loads((cli.out / "provenance.json").read_text())["variants"]
    assert variant["variant"] == INT8
    assert len(variant["digest"]) == 64
    assert variant["served_drop"] == pytest.approx(variant["accuracy_drop"], rel=0.2)
    assert [each["what"] for each in variant["attempts"] if each["kept"]]


def test_a_stored_trial_s_variant_is_exported_again_from_the_cache(
    done: tuple[Tool, Finished],
) -> None:
    cli, _ = done
    for trial, precision in ((0, Precision.FP32), (1, Precision.INT8)):
        out = cli.folder / f"later-{trial}"
        cli.run("export", "net", "--trial", trial, "--out", out).expect(0)
        assert precision_of(out / "net" / "1" / "model.onnx") is precision


def test_a_variant_that_fails_the_gate_costs_no_load_and_the_refusal_says_why(
    done: tuple[Tool, Finished],
) -> None:
    cli, _ = done
    tight = sections(cli, sla={"p50_ms": 300, "accuracy_drop": 1e-5})
    refused = cli.refuse(cli.study("tight", **tight), "--out", cli.folder / "tight")
    refused.expect(
        2, "none of the values of variant can be measured here", f"{INT8}: accuracy drop"
    )
    assert "starting the server" not in refused.stderr
