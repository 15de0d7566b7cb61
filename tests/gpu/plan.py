"""What the check is made of, how its minutes are shared out, and how large everything is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""What `tests` is imported from: a checkout, or an unpacked bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``share``: its part of the whole, in seconds of the eight minutes; ``tiny_share``: the same
    where everything is tiny, and most of a part goes into starting a server."""

    letter: str
    name: str
    title: str
    share: float
    tiny_share: float


PARTS = (
    Part(
        letter="a",
        name="telemetry",
        title="Telemetry: which counters move",
        share=40,
        tiny_share=50,
    ),
    Part(
        letter="b",
        name="outputs",
        title="Served outputs against PyTorch itself",
        share=75,
        tiny_share=40,
    ),
    Part(
        letter="c",
        name="curves",
        title="Service time by batch and busy instances",
        share=75,
        tiny_share=80,
    ),
    Part(letter="d", name="study", title="A study", share=170, tiny_share=150),
    Part(
        letter="e",
        name="truth",
        title="The exhaustive truth, and the pick's regret",
        share=80,
        tiny_share=70,
    ),
    Part(
        letter="f",
        name="use",
        title="Utilization before and after",
        share=40,
        tiny_share=90,
    ),
)
RESERVE_S = 12.0
"""Kept back at the end: for ending a part that ran out of time, and for the last table."""
LEAST_S = 3.0
"""A part that could only have less than this is not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``device``: cuda or cpu. ``tiny``: small enough for two cores and a minute and a half."""

    out: Path
    minutes: float = 8.0
    device: str = "cuda"
    tiny: bool = False


def limit_s(place: int, left_s: float, options: Options) -> float:
    """How long the part at that place may take, ``left_s`` before the end of the check: all that is
    left, less the shares of the parts after it."""
    shares = [part.tiny_share if options.tiny else part.share for part in PARTS]
    whole_s = max(0.0, options.minutes * 60 - RESERVE_S)
    later_s = whole_s * sum(shares[place + 1 :]) / sum(shares)
    return max(0.0, left_s - RESERVE_S - later_s)


@dataclass(frozen=True, slots=True)
class Deadline:
    """``seconds`` from now."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _began: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_began", self.clock())

    @property
    def left_s(self) -> float:
        return max(0.0, self._began + self.seconds - self.clock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of the network. It takes ``size`` × ``size`` images of bytes, enlarges them ``enlarged``
    times on the device (so that the load generator has little to send and the device much to do),
    and has ``blocks`` of bottlenecks in each stage, the first ``width`` wide."""

    size: int
    enlarged: int
    width: int
    blocks: tuple[int, ...]
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large everything is.

    ``batches`` are the sizes of the curve of one instance, ``few_batches`` those of the curves of
    more ``instances``; each point is loaded for ``settle_s`` and then measured for ``point_s``.
    ``load_s`` is how long a counter is watched under a load, ``matrix``, ``copy_mb`` and
    ``held_mb`` how large the loads are. ``space_batches``, ``delays_us`` and ``instances`` span the
    study's space; its windows are ``measure_s`` long and its bursts ``burst_s``. ``most_qps`` is
    the highest rate that is asked of the load generator, ``least_p95_ms`` the lowest limit of the
    SLA. ``foreign_cpu`` is the study's trust.
    """

    shape: Shape
    batches: tuple[int, ...]
    few_batches: tuple[int, ...]
    instances: tuple[int, ...]
    settle_s: float
    point_s: float
    load_s: float
    matrix: int
    copy_mb: int
    held_mb: int
    space_batches: tuple[int, ...]
    delays_us: tuple[int, ...]
    warmup_s: float
    measure_s: float
    burst_s: float
    most_qps: float
    least_p95_ms: float
    foreign_cpu: float

    @property
    def largest_batch(self) -> int:
        return max(*self.batches, *self.space_batches)


RESNET = Shape(size=112, enlarged=3, width=64, blocks=(3, 4, 6, 3), classes=1000)
"""The shape of a ResNet-50, of images of 336 × 336."""
SMALL = Shape(size=32, enlarged=1, width=8, blocks=(1, 1, 1), classes=10)

FULL = Scale(
    shape=RESNET,
    batches=(1, 2, 4, 8, 16, 32, 64),
    few_batches=(1, 8, 32),
    instances=(1, 2, 4),
    settle_s=0.6,
    point_s=1.0,
    load_s=1.6,
    matrix=8192,
    copy_mb=1024,
    held_mb=2048,
    space_batches=(1, 8, 32),
    delays_us=(0, 2000),
    warmup_s=4.0,
    measure_s=2.0,
    burst_s=1.0,
    most_qps=2000.0,
    least_p95_ms=5.0,
    foreign_cpu=0.3,
)
ON_CPU = replace(
    FULL,
    shape=SMALL,
    batches=(1, 2, 4, 8, 16),
    few_batches=(1, 4, 16),
    matrix=1024,
    copy_mb=256,
    held_mb=512,
    space_batches=(1, 4, 16),
    most_qps=300.0,
    least_p95_ms=20.0,
)
"""The whole check on a processor: the same in everything but its size."""
TINY = replace(
    ON_CPU,
    batches=(1, 2, 4, 8),
    few_batches=(1, 8),
    instances=(1, 2),
    settle_s=0.2,
    point_s=0.5,
    load_s=0.8,
    matrix=512,
    copy_mb=64,
    held_mb=256,
    space_batches=(1, 8),
    delays_us=(0, 1000),
    warmup_s=1.0,
    measure_s=1.0,
    burst_s=0.5,
    most_qps=120.0,
    least_p95_ms=100.0,
    foreign_cpu=1.0,
)


def scale_of(options: Options) -> Scale:
    if options.tiny:
        return TINY
    return FULL if options.device == "cuda" else ON_CPU
