"""What was tried on the way to a quantized graph, and which of it is the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.variants.gate import Judged
from autotune.adapters.variants.quantize import Quantization
from autotune.core.study import CalibrationMethod
from autotune.core.variants import Attempt

Group = tuple[str, ...]
"""Nodes that are quantized, or left out, together: a heavy one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to quantize a graph: ``groups`` of nodes are left in the source's precision."""

    method: CalibrationMethod
    how: Quantization
    groups: tuple[Group, ...] = ()

    @property
    def words(self) -> str:
        how = self.how
        words = [str(self.method), "per channel" if how.per_channel else "per tensor"]
        words += ["Conv, MatMul and Gemm only"] if how.heavy_only else []
        words += ["7-bit weights"] if how.narrow else []
        left = f"{layers(len(self.groups))} left in the source's precision"
        return ", ".join([*words, left] if self.groups else words)

    @property
    def quantization(self) -> Quantization:
        nodes = tuple(name for group in self.groups for name in group)
        return dataclasses.replace(self.how, left_out=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A quantized graph and what the gate found, ``optimized`` with graph optimizations on (None:
    not looked at)."""

    way: Way
    path: Path
    judged: Judged
    seconds: float
    optimized: Judged | None = None

    @property
    def final(self) -> Judged:
        return self.optimized or self.judged

    @property
    def measured(self) -> bool:
        return self.judged.drop is not None

    @property
    def served_drop(self) -> float:
        """As a server would have it, with graph optimizations on."""
        drop = self.final.optimized_drop
        return float("inf") if drop is None else drop

    def told(self, *, kept: bool) -> Attempt:
        left = ", ".join(group[0] for group in self.way.groups)
        notes = (left, self.final.refused, *self.final.notes)
        return Attempt(
            what=self.way.words,
            accuracy_drop=self.judged.drop,
            seconds=self.seconds,
            kept=kept,
            note="; ".join(words for words in notes if words),
        )


class Ledger:
    """All attempts, in order.

    ``limited``: there is a limit to pass. ``optimize`` judges a graph with graph optimizations on
    too, where it will be served so (None: it will not). ``narrow`` is whether weights are kept to 7
    bits: only attempts of that width count.
    """

    def __init__(self, *, limited: bool, optimize: Callable[[Tried], Judged] | None) -> None:
        self._limited, self._optimize = limited, optimize
        self._all: list[Tried | Attempt] = []
        self.narrow = False

    def __len__(self) -> int:
        return len(self._all)

    def add(self, one: Tried | Attempt) -> None:
        """Graphs that can no longer be the best are deleted: a model's own size each."""
        self._all.append(one)
        best = {self._first(self._of(narrow=narrow)) for narrow in (False, True)}
        for tried in self.tried:
            may_be = self._limited and tried.judged.passed
            if tried not in best and not may_be:
                for file in tried.path.parent.glob(f"{tried.path.name}*"):  # its weights, too
                    file.unlink()

    @property
    def tried(self) -> list[Tried]:
        return [one for one in self._all if isinstance(one, Tried)]

    @property
    def failed(self) -> list[Attempt]:
        return [one for one in self._all if isinstance(one, Attempt)]

    def leading(self, count: int) -> list[Tried]:
        """The best of the settled width, the very best first."""
        return sorted(self._of(narrow=self.narrow), key=self._order)[:count]

    def best(self) -> Tried | None:
        """Of those that pass a limit the one with fewest layers left out, of those the least drop;
        else the least drop. What is served with graph optimizations has to pass with them too,
        which is measured when it matters."""
        while True:
            best = self._first(self._of(narrow=self.narrow))
            if best is None or best.optimized is not None or not best.judged.passed:
                return best
            if self._optimize is None:
                return best
            self.optimized(best)

    def optimized(self, tried: Tried) -> Tried:
        """The same, judged with graph optimizations on."""
        if tried.optimized is not None or self._optimize is None:
            return tried
        found = dataclasses.replace(tried, optimized=self._optimize(tried))
        self._all[self._all.index(tried)] = found
        return found

    def attempts(self, kept: Tried | None) -> tuple[Attempt, ...]:
        return tuple(
            one if isinstance(one, Attempt) else one.told(kept=one is kept) for one in self._all
        )

    def _of(self, *, narrow: bool) -> list[Tried]:
        return [one for one in self.tried if one.measured and one.way.how.narrow is narrow]

    def _first(self, tried: list[Tried]) -> Tried | None:
        return min(tried, key=self._order, default=None)

    def _order(self, tried: Tried) -> tuple[bool, float, float]:
        drop, left_out = tried.judged.drop or 0.0, len(tried.way.groups)
        if self._limited and tried.final.passed:
            return (False, left_out, drop)
        return (self._limited, drop, left_out)


def layers(count: int) -> str:
    return f"{count} layer" if count == 1 else f"{count} layers"
