"""TensorRT plans without TensorRT: profiles, the flags of each version, and a builder that dies.

The real bindings are used by tests/integration/test_tensorrt_build.py, where they are installed.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from autotune.adapters.variants.apart import build_apart
from autotune.adapters.variants.builder import VariantBuilder
from autotune.adapters.variants.half import in_steps
from autotune.adapters.variants.request import BuildRequest
from autotune.adapters.variants.running import Runner
from autotune.adapters.variants.tensorrt import PlanOptions, TensorRTBuilder, build_plan
from autotune.adapters.variants.tensorrt_build import Refused, build, extents
from autotune.bootstrap.variants import Place, builder_at
from autotune.core.capability import Hardware
from autotune.core.study import ServerSpec
from autotune.core.variants import Engine, Precision, Variant
from tests.fake_nvml import FakeNvml
from tests.onnx_models import linear

H200 = Hardware(
    compute_capability=(9, 0), gpu="NVIDIA H200", driver="580.1", tensorrt=(11, 4, 0, 106)
)


# ------------------------------------------------------------------------------------- the profile
def test_the_batch_runs_from_one_to_the_spaces_largest_and_is_best_there() -> None:
    assert extents("x", (-1, 3, 224, 224), [4, 16], [(3, 224, 224)]) == (
        (1, 3, 224, 224),
        (16, 3, 224, 224),
        (16, 3, 224, 224),
    )


def test_other_free_dimensions_run_over_what_the_workload_sends() -> None:
    sent = [(3, 48, 320), (3, 48, 160), (3, 48, 80)]
    assert extents("x", (-1, 3, 48, -1), [8], sent) == (
        (1, 3, 48, 80),
        (8, 3, 48, 320),
        (8, 3, 48, 320),
    )


def test_a_model_without_a_batch_dimension_has_none_in_its_profile() -> None:
    assert extents("x", (-1, 80), [8], [(10, 80), (30, 80)]) == ((10, 80), (30, 80), (30, 80))


def test_a_free_dimension_that_no_request_fills_is_refused() -> None:
    with pytest.raises(Refused, match=r"'x' is of shape \?×3×\?: no request says how large"):
        extents("x", (-1, 3, -1), [8], [])


def test_requests_that_do_not_fit_the_graph_are_refused() -> None:
    with pytest.raises(Refused, match="takes 224 in dimension 1, requests send 320"):
        extents("x", (-1, 3, 224, -1), [8], [(3, 320, 320)])
    with pytest.raises(Refused, match="is of shape 1×4"):
        extents("x", (1, 4), [8], [(5,)])


def test_an_old_graph_rounded_to_bf16_still_loads(tmp_path: Path) -> None:
    """Cast knows bfloat16 from opset 13 on."""
    graph = onnx.load(linear(tmp_path / "model.onnx"))
    graph.opset_import[0].version = 11
    onnx.save(in_steps(graph, Precision.BF16), tmp_path / "steps.onnx")
    outputs = Runner(tmp_path / "steps.onnx")({"x": np.ones(4, dtype="f4")})
    assert outputs["y"].shape == (3,)


# --------------------------------------------------------------------------------- the two versions
class Bindings:
    """TensorRT's Python API as far as it is used, which notes what it was told."""

    class ILogger:
        Severity = IntEnum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE", start=0)

    BuilderFlag = IntEnum("BuilderFlag", "TF32 VERSION_COMPATIBLE", start=0)
    NetworkDefinitionCreationFlag = IntEnum(
        "NetworkDefinitionCreationFlag", "EXPLICIT_BATCH STRONGLY_TYPED", start=0
    )

    def __init__(self, version: str, *, shape: tuple[int, ...] = (-1, 4), fails: str = "") -> None:
        self.__name__ = "tensorrt"
        self.__version__ = version
        self.flags: dict[int, bool] = {}
        self.creation: int | None = None
        self.profiles: list[Any] = []
        self.caches: list[bytes] = []
        self._shape = shape
        self._fails = fails

    def Builder(self, log: Any) -> Any:
        if self._fails == "start":
            log.log(self.ILogger.Severity.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("factory function returned nullptr")
        return SimpleNamespace(
            create_network=self._network,
            create_builder_config=self._config,
            create_optimization_profile=lambda: SimpleNamespace(
                set_shape=lambda *shapes: self.profiles.append(shapes)
            ),
            build_serialized_network=lambda *_: None if self._fails == "build" else b"a plan",
        )

    def OnnxParser(self, _network: Any, _log: Any) -> Any:
        error = SimpleNamespace(
            desc=lambda: "unsupported data type UINT8",
            node_name=lambda: "conv_quant",
            node_operator=lambda: "QuantizeLinear",
        )
        return SimpleNamespace(
            parse_from_file=lambda _: self._fails != "parse",
            num_errors=1,
            get_error=lambda _: error,
        )

    def _network(self, flags: int) -> Any:
        self.creation = flags
        tensor = SimpleNamespace(name="x", shape=self._shape, is_shape_tensor=False)
        return SimpleNamespace(num_inputs=1, get_input=lambda _: tensor)

    def _config(self) -> Any:
        def create_timing_cache(blob: bytes) -> Any:
            self.caches.append(blob)
            return SimpleNamespace(blob=blob, serialize=lambda: b"timings")

        return SimpleNamespace(
            set_flag=lambda flag: self.flags.update({flag: True}),
            clear_flag=lambda flag: self.flags.update({flag: False}),
            add_optimization_profile=lambda _: 0,
            create_timing_cache=create_timing_cache,
            set_timing_cache=lambda cache, _ignore: cache.blob != b"of another GPU",
        )


def order(folder: Path, **more: Any) -> dict[str, Any]:
    return {"onnx": folder / "model.onnx", "plan": folder / "model.plan", **more}


def test_tensorrt_10_is_asked_for_strong_typing_and_11_has_no_other(tmp_path: Path) -> None:
    ten, eleven = Bindings("10.13.0.35"), Bindings("11.4.0.106")
    build(order(tmp_path), ten)
    build(order(tmp_path), eleven)
    assert ten.creation == 1 << Bindings.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    assert eleven.creation == 0


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_set_or_cleared_and_no_other_flag_touched(tmp_path: Path, allowed: bool) -> None:
    trt = Bindings("11.4.0.106")
    build(order(tmp_path, tf32=allowed), trt)
    assert trt.flags == {Bindings.BuilderFlag.TF32: allowed}


def test_the_plan_is_written_and_its_profile_told(tmp_path: Path) -> None:
    trt = Bindings("11.4.0.106")
    answer = build(order(tmp_path, batch_sizes=[1, 8], shapes={"x": [[4]]}), trt)
    assert (tmp_path / "model.plan").read_bytes() == b"a plan"
    assert answer == {"tensorrt": "11.4.0.106", "profile": {"x": [[1, 4], [8, 4], [8, 4]]}}
    assert trt.profiles == [("x", (1, 4), (8, 4), (8, 4))]


def test_a_timing_cache_of_another_gpu_is_begun_anew(tmp_path: Path) -> None:
    cache, trt = tmp_path / "timing.cache", Bindings("11.4.0.106")
    cache.write_bytes(b"of another GPU")
    build(order(tmp_path, timing_cache=str(cache)), trt)
    assert trt.caches == [b"of another GPU", b""]
    assert cache.read_bytes() == b"timings"


@pytest.mark.parametrize(
    ("version", "fails", "words"),
    [
        ("11.4.0.106", "parse", "QuantizeLinear conv_quant: unsupported data type UINT8"),
        ("11.4.0.106", "build", "TensorRT built no engine"),
        ("11.4.0.106", "start", "cannot start here: CUDA initialization failure with error: 35"),
        ("8.6.1", "", "TensorRT 8.6.1 is too old: 10 or newer is needed"),
    ],
)
def test_what_tensorrt_refuses_is_told_in_its_words(
    tmp_path: Path, version: str, fails: str, words: str
) -> None:
    with pytest.raises(Refused, match=words):
        build(order(tmp_path), Bindings(version, fails=fails))
    assert not (tmp_path / "model.plan").exists()


# -------------------------------------------------------------------------- a process of its own
def test_without_tensorrt_the_process_says_what_to_install(tmp_path: Path) -> None:
    made = build_plan(tmp_path / "model.onnx", tmp_path, PlanOptions(bindings="no_tensorrt_here"))
    assert made.file is None
    assert made.refused == (
        "TensorRT is not installed: the Python that runs autotune on the GPU host needs its package"
        " tensorrt"
    )


def test_a_builder_that_crashes_is_a_refusal_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = """
        import os, signal, sys
        sys.stderr.write("Cask convolution: out of memory\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    (tmp_path / "crashing_bindings.py").write_text(textwrap.dedent(crash))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = build_plan(tmp_path / "model.onnx", tmp_path, PlanOptions(bindings="crashing_bindings"))
    assert made.refused.startswith("the builder was ended by SIGSEGV")
    assert "Cask convolution: out of memory" in made.refused


def test_a_builder_that_hangs_is_ended_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_builder.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    began = time.monotonic()
    answer = build_apart("hanging_builder", {}, tmp_path, deadline_s=1.0)
    assert answer == {"refused": "the builder was not done within 1 s without a word"}
    assert time.monotonic() - began < 20


def test_a_builder_is_told_which_gpu_it_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = """
        import json, os, sys
        with open(sys.argv[2], "w") as answer:
            json.dump({"refused": os.environ["CUDA_VISIBLE_DEVICES"]}, answer)
    """
    (tmp_path / "telling_builder.py").write_text(textwrap.dedent(builder))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    variables = {"CUDA_VISIBLE_DEVICES": "GPU-a"}
    answer = build_apart("telling_builder", {}, tmp_path, deadline_s=60, variables=variables)
    assert answer == {"refused": "GPU-a"}


def test_a_builder_that_cannot_write_says_nothing_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = """
        import sys
        from autotune.adapters.variants import tensorrt_build
        sys.exit(tensorrt_build.main([sys.argv[1], "/dev/full"]))
    """
    (tmp_path / "builder_of_a_full_disk.py").write_text(textwrap.dedent(builder))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    order = {"bindings": "no_such_bindings"}
    with pytest.raises(OSError, match=r"cannot go on: OSError: \[Errno 28\] No space left"):
        build_apart("builder_of_a_full_disk", order, tmp_path, deadline_s=60)


# ------------------------------------------------------------------------------ as a study uses it
def test_a_studys_builders_are_pinned_to_its_devices(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.set("gpus=2", "major.1=8")
    told: list[Mapping[str, str]] = []

    def built(*_: object, variables: Mapping[str, str], **__: object) -> dict[str, str]:
        told.append(variables)
        return {"refused": "no"}

    monkeypatch.setattr("autotune.adapters.variants.tensorrt.build_apart", built)
    monkeypatch.setattr("autotune.adapters.variants.torchscript.build_apart", built)
    monkeypatch.setattr("autotune.adapters.hardware.installed_version", lambda _: "11.4.0")
    at = Place(cache_dir=tmp_path, work=tmp_path, models=tmp_path, say=lambda _: None)
    builder = builder_at(at, ServerSpec(devices=("1",)))
    assert isinstance(builder, VariantBuilder)
    (tmp_path / "m.onnx").touch()
    samples = ({"x": np.zeros(2, np.float32)},)
    for engine, asked, graph in (
        (Engine.TENSORRT, request("tensorrt-fp32"), tmp_path / "m.onnx"),
        (
            Engine.PYTORCH,
            replace(request("pytorch-fp32"), source=tmp_path / "m.pt", samples=samples),
            None,
        ),
    ):
        builder._engines[engine].build(asked, graph, tmp_path, lambda _: None)
    second = "GPU-00000000-0000-0000-0001-000000000000"
    assert [each["CUDA_VISIBLE_DEVICES"] for each in told] == [second, second]


def request(variant: str) -> BuildRequest:
    return BuildRequest(
        source=Path("model.onnx"),
        variant=Variant.parse(variant),
        samples=(),
        drop=lambda _: 0.0,
        limit=None,
    )


def test_what_the_gpu_cannot_run_is_not_built(tmp_path: Path) -> None:
    turing = Hardware(compute_capability=(7, 5), gpu="Tesla T4", tensorrt=(11, 4, 0))
    made = TensorRTBuilder(tmp_path, here=turing).build(
        request("tensorrt-fp8"), tmp_path / "model.onnx", tmp_path, lambda _: None
    )
    assert made.refused == "fp8 needs a GPU of compute capability 8.9, and Tesla T4 has 7.5"


def test_plans_depend_on_the_gpu_its_driver_and_the_whole_version(tmp_path: Path) -> None:
    assert TensorRTBuilder(tmp_path, here=H200).tools() == {
        "tensorrt": "11.4.0.106",
        "gpu": "NVIDIA H200",
        "compute capability": "9.0",
        "driver": "580.1",
    }
