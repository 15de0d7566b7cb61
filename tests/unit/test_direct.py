"""Served answers against the same file run directly, whatever runs it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autotune.adapters.triton.config import parse
from autotune.adapters.triton.direct import SCRIPT, NotRun, TorchDirect
from autotune.adapters.triton.reference import DirectOutputCheck, TorchOutputCheck
from autotune.adapters.triton.server_python import ServerPython, Torch
from autotune.core.errors import InputRefused, OutputsDiffer
from autotune.core.model_interface import Endpoint, ModelInterface, Sample, TensorSpec

ENDPOINT = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")
MODEL = ModelInterface(
    name="m",
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(2,)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(2,)),),
    batched=True,
)
SAMPLES: list[Sample] = [{"x": np.full(2, value, np.float32)} for value in (1, 2, 3)]
CONFIG = parse(
    "name: 'm' max_batch_size: 4 input [ { name: 'x' data_type: TYPE_FP32 dims: 2 } ]"
    " output [ { name: 'y' data_type: TYPE_FP32 dims: 2 } ]",
    "test",
)


@dataclass
class Doubling:
    """Doubles; ``refuses`` the run of that index."""

    refuses: int = -1
    file: Path = Path("model.pt")
    by: str = " by PyTorch 2.9 on the CPU"

    def __call__(
        self, feeds: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> list[dict[str, Any]]:
        if 0 <= self.refuses < len(feeds):
            raise NotRun(self.refuses, "it does not fit")
        return [dict.fromkeys(names, feed["x"] * 2) for feed in feeds]


def doubled(endpoint: Endpoint, model: ModelInterface) -> Any:
    def infer(samples: Sequence[Sample], *, at_once: int) -> list[dict[str, Any]]:
        return [{"y": sample["x"][None] * 2} for sample in samples]

    return infer


def check(direct: Doubling, *, joins: bool = True) -> str:
    one = DirectOutputCheck(direct, joins=joins, connect=doubled)
    return one.check(ENDPOINT, MODEL, SAMPLES)


def test_the_line_says_what_ran_the_file() -> None:
    said = "match model.pt run directly by PyTorch 2.9 on the CPU; largest difference 0"
    assert check(Doubling()).endswith(said)


def test_a_sample_that_the_file_does_not_take_is_the_user_s_to_mend() -> None:
    with pytest.raises(InputRefused, match="does not take sample 1: it does not fit"):
        check(Doubling(refuses=1))


def test_a_file_that_takes_no_batches_is_not_to_be_batched() -> None:
    with pytest.raises(OutputsDiffer, match="does not take 3 samples in one batch") as refused:
        check(Doubling(refuses=4))
    assert "leave max_batch_size at 1" in refused.value.next_step
    assert "match" in check(Doubling(refuses=4), joins=False)


# -------------------------------------------------------------------------------------- PyTorch
@dataclass(frozen=True)
class Without:
    where: str = "the server's Python"

    def torch(self) -> Torch | None:
        return None


def test_where_there_is_no_pytorch_the_line_says_what_was_not_compared() -> None:
    without: Any = Without
    one = TorchOutputCheck(file=Path("model.pt"), config=CONFIG, python=without, connect=doubled)
    line = one.check(ENDPOINT, MODEL, SAMPLES)
    why = "no reference to compare with (the server's Python has no PyTorch to run model.pt with): "
    assert line.startswith(why)


@dataclass(frozen=True)
class Answering(ServerPython):
    """Answers with ``code`` in place of the script."""

    code: str = ""

    def run(self, arguments: Sequence[str], *, timeout_s: float) -> Any:
        return subprocess.run(
            [sys.executable, "-c", self.code, *arguments[1:]],
            capture_output=True,
            text=True,
            check=False,
        )


ANSWER = """
import json, sys
import numpy as np
order = json.load(open(sys.argv[1]))
with np.load(order["feeds"]) as feeds:
    found = {key.replace("/x", "/y"): feeds[key] * 2 for key in feeds.files}
np.savez(order["answers"], **found)
json.dump({"torch": "2.9", "device": order["device"]}, open(sys.argv[2], "w"))
"""


def direct(code: str, *, on_gpu: bool = False) -> TorchDirect:
    python = Answering(path=Path(sys.executable), where="the server's Python", code=code)
    return TorchDirect(Path("model.pt"), CONFIG, python, on_gpu=on_gpu)


FEEDS = [{"x": np.ones((1, 2), np.float32)}, {"x": np.ones((3, 2), np.float32)}]


def test_feeds_are_run_in_a_process_of_the_servers_python_once() -> None:
    one = direct(ANSWER, on_gpu=True)
    found = one(FEEDS, ["y"])
    assert [each["y"].shape for each in found] == [(1, 2), (3, 2)]
    assert one.by == " by PyTorch 2.9 on a GPU"
    one.python = direct("raise SystemExit(1)").python
    assert one(FEEDS, ["y"])[1]["y"][2, 1] == 2
    with pytest.raises(InputRefused, match="cannot be run directly"):
        one(FEEDS[:1], ["y"])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('no disk')", "cannot be run directly.*ValueError: no disk"),
        (
            "import json, sys; json.dump({'refused': 'not TorchScript'}, open(sys.argv[2], 'w'))",
            "cannot be run directly.*the server's Python: not TorchScript",
        ),
    ],
)
def test_a_process_that_cannot_run_the_file_says_why(code: str, words: str) -> None:
    with pytest.raises(InputRefused, match=f"(?s){words}"):
        direct(code)(FEEDS, ["y"])


def test_a_feed_that_the_model_does_not_take_is_told_by_its_index() -> None:
    code = "import json, sys; json.dump({'refused': 'no', 'index': 1}, open(sys.argv[2], 'w'))"
    with pytest.raises(NotRun) as refused:
        direct(code)(FEEDS, ["y"])
    assert refused.value.index == 1


@pytest.mark.parametrize(
    ("said", "devices"),
    [("CUDA out of memory. Tried to allocate", ["cuda", "cpu"]), ("no kernel", ["cuda"])],
)
def test_a_gpu_without_room_leaves_it_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, said: str, devices: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("none"))
    cuda = SimpleNamespace(is_available=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, device=str))
    monkeypatch.setitem(
        sys.modules, "torch_model", SimpleNamespace(set_switches=lambda settings: None)
    )
    script = runpy.run_path(str(SCRIPT))
    tried: list[str] = []

    def answer_on(device: str, order: Mapping[str, str]) -> dict[str, str]:
        tried.append(device)
        return {"refused": said} if device == "cuda" else {"device": device}

    script["answer_to"].__globals__["answer_on"] = answer_on
    script["answer_to"]({"device": "cuda"})
    assert tried == devices
