"""What every recipe works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.variants.gate import Judged, Source, judge, judge_optimized, share
from autotune.adapters.variants.made import Say
from autotune.adapters.variants.request import BuildRequest

_EVERY_S = 10.0
_WRECKED = 0.1
"""A drop that nobody means to serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One variant to be built. ``scratch`` is a folder that is gone afterwards; ``search_s`` the
    longest that layers to leave in the source's precision are looked for."""

    request: BuildRequest
    source: Source
    scratch: Path
    tell: Say
    search_s: float
    clock: Callable[[], float] = time.monotonic

    def say(self, words: str) -> None:
        self.tell(f"{self.request.variant}: {words}")

    def paced(self) -> Say:
        """Says how far a long loop is, every `_EVERY_S` and not more often."""
        last = time.monotonic()

        def say(words: str) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY_S:
                last = time.monotonic()
                self.say(words)

        return say

    def say_drop(self, what: str, judged: Judged) -> None:
        drop = "not measured" if judged.drop is None else share(judged.drop)
        self.say(f"{what}: accuracy drop {drop}")

    def satisfied(self, judged: Judged) -> bool:
        """Whether nothing more need be tried: it passes, and where there is no limit to pass it is
        no wreck."""
        wrecked = self.request.limit is None and (judged.drop or 0.0) > _WRECKED
        return judged.passed and not wrecked

    def judge(self, path: Path) -> Judged:
        """The gate's finding on a graph, optimizations off."""
        return judge(self.request, path, self.source)

    def judge_optimized(self, path: Path, plain: Judged) -> Judged:
        """The same, with what graph optimizations change."""
        return judge_optimized(self.request, path, self.source, plain)
