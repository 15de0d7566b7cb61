"""A ResNet-like network (He et al., 2015) in plain PyTorch, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPANSION = 4
DAMPED = 0.1
"""What a block adds is damped by this, as in a network at the beginning of its training: at full
strength random blocks are chaotic, and rounding decides what comes out at the end."""


def network(torch: Any, shape: Mapping[str, Any], images: Any) -> Any:
    """In evaluation mode, of a shape as `tests.gpu.plan.Shape` has it. It takes bytes, computes in
    its weights' type, and gives float32, so that requests are the same in every precision.

    Its normalization is settled on ``images``, as training would: else a deep network of random
    weights answers nearly the same whatever it is asked, and no answer would tell that it belongs
    to another image.
    """
    made = _untrained(torch, shape)
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm1d):
            module.momentum = None  # the mean over all that it has seen
    with torch.no_grad():
        made.train()(images)
    return made.eval()


def _untrained(torch: Any, shape: Mapping[str, Any]) -> Any:
    nn = torch.nn

    def convolution(taken: int, given: int, size: int, stride: int) -> Any:
        made = nn.Conv2d(taken, given, size, stride, size // 2, bias=False)
        nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
        return nn.Sequential(made, nn.BatchNorm2d(given))

    class Block(nn.Module):  # type: ignore[misc]
        """A bottleneck: what it adds to its input."""

        def __init__(self, taken: int, width: int, stride: int) -> None:
            super().__init__()
            given = EXPANSION * width
            self.added = nn.Sequential(
                convolution(taken, width, 1, 1),
                nn.ReLU(),
                convolution(width, width, 3, stride),
                nn.ReLU(),
                convolution(width, given, 1, 1),
            )
            nn.init.constant_(self.added[-1][1].weight, DAMPED)
            same = stride == 1 and taken == given
            self.kept = nn.Identity() if same else convolution(taken, given, 1, stride)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.kept(x) + self.added(x))

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            width, blocks = shape["width"], []
            taken = width
            for stage, count in enumerate(shape["blocks"]):
                for place in range(count):
                    stride = 2 if stage and not place else 1
                    blocks.append(Block(taken, width << stage, stride))
                    taken = EXPANSION * (width << stage)
            self.enlarge = nn.Upsample(scale_factor=float(shape["enlarged"]))
            self.stem = nn.Sequential(convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
            self.blocks = nn.Sequential(*blocks)
            self.centred = nn.BatchNorm1d(taken, affine=False)
            self.head = nn.Linear(taken, shape["classes"])

        def forward(self, image: Any) -> Any:
            x = image.to(self.head.weight.dtype) / 127.5 - 1
            x = self.blocks(self.stem(self.enlarge(x)))
            return self.head(self.centred(x.mean(dim=[2, 3]))).to(torch.float32)

    return Network()
