"""TorchScript variants by the real PyTorch, where the ``torch`` extra is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from autotune.adapters.variants.made import Made
from autotune.adapters.variants.request import BuildRequest, Outputs
from autotune.adapters.variants.torchscript import MODEL, TorchBuilder
from autotune.core.capability import Hardware
from autotune.core.model_interface import Sample
from autotune.core.variants import Variant
from tests.integration.conftest import made_apart

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed (the extra `torch`)"
)
HERE = Hardware(torch=(2, 6, 0))

MAKE_SOURCES = """
    import sys, torch
    from torch import Tensor, nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)
        def forward(self, image: Tensor, bias: Tensor):
            x = torch.relu(self.norm(self.conv(image))).mean(dim=[2, 3])
            y = self.head(x.reshape(image.size(0), 8)) + bias
            return y, y.argmax(dim=1)

    torch.manual_seed(1)
    net = Net().eval()
    torch.jit.script(net).save(sys.argv[1] + "/net.pt")
    example = (torch.zeros(2, 3, 16, 16), torch.zeros(2, 5))
    batch = torch.export.Dim("batch", min=1, max=64)
    free = torch.export.export(net, example, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(free, sys.argv[1] + "/net.pt2")
    torch.export.save(torch.export.export(net, example), sys.argv[1] + "/fixed.pt2")
    torch.jit.freeze(torch.jit.script(net)).save(sys.argv[1] + "/frozen.pt")
    torch.jit.freeze(torch.jit.script(net).half()).save(sys.argv[1] + "/frozen_half.pt")
    halves = tuple(tensor.half() for tensor in example)
    torch.jit.script(net.half()).save(sys.argv[1] + "/half.pt")
    free = torch.export.export(net, halves, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(free, sys.argv[1] + "/half.pt2")
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_apart(tmp_path_factory.mktemp("torch"), MAKE_SOURCES)


def samples() -> list[Sample]:
    random = np.random.default_rng(3)
    return [
        {
            "bias": random.normal(size=5).astype("f4"),
            "image": random.normal(size=(3, 16, 16)).astype("f4"),
        }
        for _ in range(3)
    ]


class Drop:
    """The largest difference of the first output from ``against``; keeps what it was shown."""

    def __init__(self, against: Sequence[Outputs] = ()) -> None:
        self.against = against
        self.shown: Sequence[Outputs] = ()

    def __call__(self, outputs: Sequence[Outputs]) -> float:
        self.shown = outputs
        pairs = zip(self.against, outputs, strict=False)
        return max((float(np.abs(a["y__0"] - b["y__0"]).max()) for a, b in pairs), default=0.0)


def build(source: Path, variant: str, folder: Path, drop: Drop | None = None) -> Made:
    request = BuildRequest(
        source=source,
        variant=Variant.parse(variant),
        samples=samples(),
        drop=drop or Drop(),
        limit=0.05,
        outputs=("best__1", "y__0"),
    )
    return TorchBuilder(here=HERE).build(request, None, folder, lambda _: None)


@pytest.fixture(scope="module")
def exact(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Outputs]:
    """What fp32 answers."""
    drop = Drop()
    made = build(sources / "net.pt", "pytorch-fp32", tmp_path_factory.mktemp("fp32"), drop)
    assert made.refused == ""
    return drop.shown


@pytest.mark.parametrize(("name", "precision"), [("net.pt", "fp16"), ("net.pt2", "bf16")])
def test_low_precision_keeps_float32_at_the_edges_and_nearly_the_answers(
    sources: Path, exact: Sequence[Outputs], tmp_path: Path, name: str, precision: str
) -> None:
    drop = Drop(exact)
    made = build(sources / name, f"pytorch-{precision}", tmp_path, drop)
    assert made.refused == ""
    assert made.accuracy_drop is not None
    assert 0 < made.accuracy_drop < 0.05
    assert drop.shown[0]["y__0"].dtype == np.float32
    assert drop.shown[0]["y__0"].shape == (5,)
    assert drop.shown[0]["best__1"].dtype == np.int64
    assert made.file == tmp_path / MODEL
    assert weights_of(made.file) == {"fp16": "torch.float16", "bf16": "torch.bfloat16"}[precision]


def weights_of(file: Path) -> str:
    script = (
        "import sys, torch; print(*{p.dtype for p in torch.jit.load(sys.argv[1]).parameters()})"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, file], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


@pytest.mark.parametrize("name", ["half.pt", "half.pt2", "frozen_half.pt"])
def test_a_source_in_fp16_does_not_become_fp32_by_its_name(
    sources: Path, tmp_path: Path, name: str
) -> None:
    made = build(sources / name, "pytorch-fp32", tmp_path)
    assert made.refused.startswith("the source's weights are float16")


def test_a_frozen_source_is_fp32_and_does_not_become_fp16_by_its_name(
    sources: Path, tmp_path: Path
) -> None:
    assert build(sources / "frozen.pt", "pytorch-fp32", tmp_path).refused == ""
    made = build(sources / "frozen.pt", "pytorch-fp16", tmp_path)
    assert made.refused.startswith("the source is frozen")


def test_a_program_exported_for_one_batch_size_is_refused(sources: Path, tmp_path: Path) -> None:
    made = build(sources / "fixed.pt2", "pytorch-fp32", tmp_path)
    assert made.refused.startswith("it does not run on the samples")


def test_a_file_that_is_no_model_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "broken.pt").write_bytes(b"not a model")
    made = build(tmp_path / "broken.pt", "pytorch-fp16", tmp_path)
    assert made.refused.startswith("PyTorch cannot load broken.pt")
