"""Which variant runs where, and what the doctor says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import rich.console
from click.testing import CliRunner

from autotune.adapters import hardware
from autotune.bootstrap import machine
from autotune.cli import cli
from autotune.cli.console import Console
from autotune.core.capability import (
    Answer,
    Hardware,
    capability,
    impossible,
    table,
)
from autotune.core.variants import ALL, Engine, Precision, Variant

CPU = Hardware()


def gpu(
    major: int, minor: int, *, tensorrt: tuple[int, ...] = (11, 4, 0), **more: object
) -> Hardware:
    return Hardware(
        compute_capability=(major, minor),
        tensorrt=tensorrt,
        torch=(2, 15, 0),
        **more,  # type: ignore[arg-type]
    )


TURING, AMPERE, ADA, HOPPER = gpu(7, 5), gpu(8, 6), gpu(8, 9), gpu(9, 0)


def runs(here: Hardware, engine: Engine) -> set[Precision]:
    return {
        each.variant.precision
        for each in table(here)
        if each.variant.engine is engine and each.answer is not Answer.NO
    }


def test_a_cpu_runs_fp32_fp16_and_int8_by_onnx_runtime_and_nothing_else() -> None:
    assert runs(CPU, Engine.ONNXRUNTIME) == {Precision.FP32, Precision.FP16, Precision.INT8}
    for engine in (Engine.ONNXRUNTIME_CUDA, Engine.ONNXRUNTIME_TENSORRT, Engine.TENSORRT):
        assert runs(CPU, engine) == set()


def test_half_precision_on_a_cpu_is_said_to_gain_nothing() -> None:
    note = capability(Variant.parse("onnxruntime-fp16"), CPU).note
    assert "no speed" in note


@pytest.mark.parametrize(
    ("here", "precisions"),
    [
        (TURING, {"fp32", "fp16", "int8"}),
        (gpu(8, 0), {"fp32", "tf32", "fp16", "bf16", "int8"}),
        (AMPERE, {"fp32", "tf32", "fp16", "bf16", "int8"}),
        (ADA, {"fp32", "tf32", "fp16", "bf16", "int8", "fp8"}),
        (HOPPER, {"fp32", "tf32", "fp16", "bf16", "int8", "fp8"}),
    ],
)
def test_tensorrt_runs_what_the_gpu_computes_in(here: Hardware, precisions: set[str]) -> None:
    assert runs(here, Engine.TENSORRT) == {Precision(each) for each in precisions}


def test_volta_is_gone_from_tensorrt_10_5_on() -> None:
    variant = Variant.parse("tensorrt-fp16")
    assert impossible(variant, gpu(7, 0, tensorrt=(10, 4, 0))) is None
    reason = impossible(variant, gpu(7, 0, tensorrt=(10, 5, 0), gpu="Tesla V100"))
    assert reason == "TensorRT 10.5.0 needs compute capability 7.5, and Tesla V100 has 7.0"


def test_tensorrt_before_10_is_too_old() -> None:
    reason = impossible(Variant.parse("tensorrt-fp16"), gpu(9, 0, tensorrt=(8, 6, 1)))
    assert reason == "TensorRT 8.6.1 is too old: 10 or newer is needed"


def test_what_is_not_installed_is_named_with_whose_python_needs_it() -> None:
    bare = Hardware(compute_capability=(9, 0))
    assert "needs its package tensorrt" in str(impossible(Variant.parse("tensorrt-fp16"), bare))
    assert "needs its package torch" in str(impossible(Variant.parse("pytorch-fp16"), bare))


def test_onnx_runtimes_tensorrt_provider_needs_no_tensorrt_here() -> None:
    bare = Hardware(compute_capability=(9, 0))
    assert impossible(Variant.parse("onnxruntime-tensorrt-fp16"), bare) is None


def test_the_cuda_provider_is_not_given_quantized_graphs() -> None:
    assert runs(HOPPER, Engine.ONNXRUNTIME_CUDA) == {
        Precision.FP32,
        Precision.TF32,
        Precision.FP16,
        Precision.BF16,
    }


def test_an_fp32_that_would_be_tf32_is_not_offered_as_fp32() -> None:
    variant = Variant.parse("onnxruntime-tensorrt-fp32")
    assert "onnxruntime-tensorrt-tf32" in str(impossible(variant, AMPERE))
    assert impossible(variant, TURING) is None


def test_fp8_by_the_tensorrt_provider_needs_tensorrt_11() -> None:
    variant = Variant.parse("onnxruntime-tensorrt-fp8")
    assert impossible(variant, HOPPER) is None
    assert "TensorRT 11" in str(impossible(variant, gpu(9, 0, tensorrt=(10, 13, 0))))
    assert "8.9" in str(impossible(variant, gpu(8, 6, tensorrt=(10, 13, 0))))


def test_pytorch_runs_floats_on_a_cpu_and_no_quantized_model_anywhere() -> None:
    floats = {Precision.FP32, Precision.FP16, Precision.BF16}
    assert runs(Hardware(torch=(2, 15, 0)), Engine.PYTORCH) == floats
    assert runs(HOPPER, Engine.PYTORCH) == {*floats, Precision.TF32}


def test_pytorch_has_been_tried_on_a_cpu() -> None:
    answers = {here: capability(Variant.parse("pytorch-fp32"), here).answer for here in (CPU, ADA)}
    assert answers == {CPU: Answer.NO, ADA: Answer.UNTRIED}
    with_torch = Hardware(torch=(2, 15, 0))
    assert capability(Variant.parse("pytorch-fp32"), with_torch).answer is Answer.YES


def test_pytorch_in_tf32_is_the_embedded_servers_alone() -> None:
    variant = Variant.parse("pytorch-tf32")
    embedded, other = (gpu(9, 0, backends=frozenset({name})) for name in ("python", "pytorch"))
    assert impossible(variant, embedded) is None
    assert "the embedded server" in str(impossible(variant, other))
    assert "the embedded server alone" in capability(variant, HOPPER).note


def test_pytorchs_convolutions_in_tf32_are_said_where_the_gpu_has_it() -> None:
    variant = Variant.parse("pytorch-fp32")
    assert "NVIDIA_TF32_OVERRIDE" in capability(variant, AMPERE).note
    assert capability(variant, TURING).note == ""


def test_a_server_without_the_backend_rules_its_engines_out() -> None:
    embedded = gpu(9, 0, backends=frozenset({"python"}), providers=frozenset())
    assert {each.variant.engine for each in table(embedded) if each.answer is not Answer.NO} == {
        Engine.ONNXRUNTIME,
        Engine.PYTORCH,
    }
    able = replace(embedded, providers=frozenset({"CUDAExecutionProvider"}))
    assert runs(able, Engine.ONNXRUNTIME_CUDA)


def test_a_provider_that_the_server_lacks_rules_its_engine_out() -> None:
    here = gpu(9, 0, providers=frozenset({"CUDAExecutionProvider", "CPUExecutionProvider"}))
    assert runs(here, Engine.ONNXRUNTIME_TENSORRT) == set()
    assert runs(here, Engine.ONNXRUNTIME_CUDA)


def test_what_this_project_has_not_run_on_a_gpu_is_never_called_yes() -> None:
    for each in table(HOPPER):
        tried = each.variant.engine is Engine.ONNXRUNTIME
        assert (each.answer is Answer.YES) <= tried
    assert str(Answer.UNTRIED) == "not yet run on hardware"


def test_every_impossible_variant_says_why() -> None:
    for here in (CPU, TURING, AMPERE, ADA, HOPPER):
        assert [each.variant for each in table(here)] == list(ALL)
        assert all(each.note for each in table(here) if each.answer is Answer.NO)


def test_the_documented_table_is_the_codes() -> None:
    known = [
        (5, 2),
        (5, 3),
        (6, 1),
        (7, 0),
        (7, 5),
        (8, 0),
        (8, 6),
        (8, 9),
        (9, 0),
        (10, 0),
        (12, 0),
    ]

    def cell(variant: Variant) -> str:
        on_cpu = impossible(variant, Hardware(torch=(2, 15, 0))) is None
        on_gpu = [cc for cc in known if impossible(variant, gpu(*cc)) is None]
        if not on_gpu or on_gpu == known:
            return "CPU" if on_cpu else "any GPU" if on_gpu else "no"
        least = ".".join(map(str, on_gpu[0]))
        only = " only" if on_gpu == [on_gpu[0]] else ""
        return ("CPU, " if on_cpu else "") + least + only

    documented = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    for engine in Engine:
        cells = [cell(Variant(engine, precision)) for precision in Precision]
        assert f"| {engine} | {' | '.join(cells)} |" in documented


def test_a_version_is_read_without_its_local_part() -> None:
    assert hardware.numbers("2.15.0+cu130") == (2, 15, 0)
    assert hardware.installed_version("no_such_module") is None
    assert hardware.installed_version("numpy")


@pytest.mark.parametrize("width", [60, 80])
def test_the_doctor_prints_a_row_per_engine_that_fits(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(machine.hardware, "seen", lambda **_: ADA)
    monkeypatch.setattr(Console, "out", rich.console.Console(width=width, highlight=False))
    output = CliRunner().invoke(cli, ["doctor", "--no-load"]).stdout
    rows = output[output.index("variants") :].splitlines()
    assert [row.split()[0] for row in rows[1:6]] == [str(engine) for engine in Engine]
    assert rows[4].split()[1:] == ["yes?"] * 6
    assert rows[-1].startswith("yes? by the vendors' documentation; not yet run on hardware")
    assert max(map(len, rows)) <= width


def test_the_doctor_tells_programs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.hardware, "seen", lambda **_: CPU)
    document = json.loads(CliRunner().invoke(cli, ["doctor", "--no-load", "--json"]).stdout)
    entries = {each["name"]: each for each in document}
    assert entries["onnxruntime"]["detail"] == "runs fp32, fp16, int8"
    assert entries["tensorrt"]["precisions"]["fp8"] == {
        "answer": "no",
        "note": "it needs an NVIDIA GPU, and none is seen",
    }
