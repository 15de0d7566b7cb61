"""What autotune's runners serve of native configurations, and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.adapters.triton.config import ModelConfig, parse
from autotune.adapters.triton.runners import ANY_HOST, EmbeddedHost, onnx_config, torch_config
from autotune.adapters.triton.server_python import ServerPython, Torch
from autotune.core.errors import InputRefused

Adapt = Callable[[ModelConfig, EmbeddedHost], ModelConfig]

CUDA = frozenset({"CUDAExecutionProvider", "CPUExecutionProvider"})
ON_GPU = "instance_group { count: 2 kind: KIND_GPU gpus: 1 }"
ONNX, TORCH = "backend: 'onnxruntime'", "platform: 'pytorch_libtorch'"


class Python(ServerPython):
    """With what it is said to have."""

    __slots__ = ("has", "seen")

    def __init__(self, torch: Torch | None, providers: frozenset[str]) -> None:
        super().__init__(path=Path("python"), where="the server's Python", install="Install it.")
        object.__setattr__(self, "has", torch)
        object.__setattr__(self, "seen", providers)

    def torch(self) -> Torch | None:
        return self.has  # type: ignore[no-any-return]

    def providers(self) -> frozenset[str]:
        return self.seen  # type: ignore[no-any-return]


ABLE = Python(Torch(version="2.9.0", gpu=True), CUDA)
WITHOUT = Python(Torch(version="2.9.0+cpu", gpu=False), frozenset({"CPUExecutionProvider"}))


def host(python: Python, said: list[str], gpus: int = 2) -> EmbeddedHost:
    return EmbeddedHost(gpus=gpus, python=lambda: python, say=said.append)


def config(text: str) -> ModelConfig:
    return parse(f"name: 'm' {text}", "test")


def groups(made: ModelConfig) -> list[tuple[str, int, list[int]]]:
    kinds = type(made.instance_group[0]).Kind
    return [(kinds.Name(g.kind), g.count, list(g.gpus)) for g in made.instance_group]


def parameters(made: ModelConfig) -> dict[str, str]:
    return {key: each.string_value for key, each in made.parameters.items()}


@pytest.mark.parametrize(("adapt", "backend"), [(onnx_config, ONNX), (torch_config, TORCH)])
def test_what_triton_would_put_on_a_gpu_stays_there_where_the_server_can(
    adapt: Adapt, backend: str
) -> None:
    said: list[str] = []
    able = host(ABLE, said)
    assert groups(adapt(config(f"{backend} {ON_GPU}"), able)) == [("KIND_GPU", 2, [1])]
    assert groups(adapt(config(backend), able)) == [("KIND_GPU", 1, [])]
    kept = f"{backend} instance_group {{ count: 3 kind: KIND_CPU }}"
    assert groups(adapt(config(kept), able)) == [("KIND_CPU", 3, [])]
    assert said == []


@pytest.mark.parametrize(
    ("adapt", "backend", "reason", "silent"),
    [
        (onnx_config, ONNX, "has no CUDAExecutionProvider, as onnxruntime-gpu has", 2),
        (torch_config, TORCH, "PyTorch 2.9.0+cpu of the server's Python sees none", 1),
    ],
)
def test_where_the_server_cannot_it_runs_on_the_cpu_and_says_why(
    adapt: Adapt, backend: str, reason: str, silent: int
) -> None:
    said: list[str] = []
    unable = host(WITHOUT, said)
    assert groups(adapt(config(f"{backend} {ON_GPU}"), unable)) == [("KIND_CPU", 2, [])]
    assert groups(adapt(config(backend), unable)) == [("KIND_CPU", silent, [])]
    assert len(said) == 2
    assert said[0].startswith("m is served on the CPU, where Triton would use a GPU: ")
    assert reason in said[0]


@pytest.mark.parametrize(("adapt", "backend"), [(onnx_config, ONNX), (torch_config, TORCH)])
def test_without_a_gpu_only_one_that_is_asked_for_is_missed(adapt: Adapt, backend: str) -> None:
    said: list[str] = []
    bare = host(WITHOUT, said, gpus=0)
    assert groups(adapt(config(backend), bare))[0][0] == "KIND_AUTO"
    assert said == []
    assert groups(adapt(config(f"{backend} {ON_GPU}"), bare)) == [("KIND_CPU", 2, [])]
    assert said[0].endswith("no GPU is seen")


def test_each_runner_is_told_what_its_backend_does_where_a_configuration_is_silent() -> None:
    assert parameters(onnx_config(config(ONNX), ANY_HOST)) == {
        "intra_op_thread_count": "0",
        "inter_op_thread_count": "0",
    }
    told = "parameters { key: 'INTRA_OP_THREAD_COUNT' value: { string_value: '2' } }"
    assert parameters(torch_config(config(f"{TORCH} {told}"), ANY_HOST)) == {
        "INTRA_OP_THREAD_COUNT": "2",
        "INTER_OP_THREAD_COUNT": "0",
    }


@pytest.mark.parametrize(("said", "tf32"), [("", "1"), ("0", "0")])
def test_tf32_is_what_onnx_runtimes_own_backend_would_use_on_a_gpu(said: str, tf32: str) -> None:
    accelerator = (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'cuda'"
        f" parameters {{ key: 'use_tf32' value: '{said}' }} }} }} }}"
    )
    made = onnx_config(config(f"{ONNX} {ON_GPU} {accelerator if said else ''}"), host(ABLE, []))
    assert parameters(made)["use_tf32"] == tf32


def test_another_accelerator_of_the_configuration_is_missed_aloud() -> None:
    said: list[str] = []
    accelerator = (
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' } } }"
    )
    onnx_config(config(f"{ONNX} {ON_GPU} {accelerator}"), host(ABLE, said))
    assert "without the accelerator tensorrt" in said[0]


def test_inputs_on_a_gpu_are_left_there_for_the_pytorch_runner_unless_the_user_says_otherwise() -> (
    None
):
    key = "FORCE_CPU_ONLY_INPUT_TENSORS"
    assert parameters(torch_config(config(f"{TORCH} {ON_GPU}"), host(ABLE, [])))[key] == "no"
    assert key not in parameters(torch_config(config(TORCH), ANY_HOST))
    told = f"parameters {{ key: '{key}' value: {{ string_value: 'yes' }} }}"
    made = torch_config(config(f"{TORCH} {ON_GPU} {told}"), host(ABLE, []))
    assert parameters(made)[key] == "yes"


def test_without_pytorch_in_the_servers_python_the_model_is_refused_with_what_to_do() -> None:
    lacking = Python(None, frozenset())
    with pytest.raises(InputRefused, match="no PyTorch can be loaded by the server's") as refused:
        torch_config(config(TORCH), host(lacking, [], gpus=0))
    assert refused.value.next_step.startswith("Install it. Or use launch: docker or binary")


def test_an_onnx_model_that_needs_no_gpu_asks_nothing_of_the_servers_python() -> None:
    def never() -> ServerPython:
        raise AssertionError("the server would be prepared for that")

    onnx_config(config(ONNX), EmbeddedHost(gpus=0, python=never))
    kept = f"{ONNX} instance_group {{ kind: KIND_CPU }}"
    onnx_config(config(kept), EmbeddedHost(gpus=2, python=never))
