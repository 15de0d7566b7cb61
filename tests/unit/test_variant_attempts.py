from __future__ import annotations

from pathlib import Path

import pytest

from autotune.adapters.variants.attempts import Ledger, Tried, Way
from autotune.adapters.variants.gate import Judged
from autotune.adapters.variants.quantize import Form, Quantization
from autotune.core.study import CalibrationMethod
from autotune.core.variants import Attempt


class Tries:
    """Adds attempts to a ledger: their drop, and whether they pass, is given."""

    def __init__(self, folder: Path, *, limit: float | None = 0.01, **optimized: float) -> None:
        self.folder, self.limit, self.optimized = folder, limit, optimized
        self.ledger = Ledger(
            limited=limit is not None, optimize=self._optimize if optimized else None
        )

    def add(self, name: str, drop: float, *, left_out: int = 0, narrow: bool = False) -> Path:
        path = self.folder / name
        path.write_text("a graph")
        way = Way(
            method=CalibrationMethod.MINMAX,
            how=Quantization(form=Form.CPU, narrow=narrow),
            groups=tuple((f"conv{index}", f"relu{index}") for index in range(left_out)),
        )
        judged = Judged(drop=drop, refused=self._refused(drop))
        self.ledger.add(Tried(way=way, path=path, judged=judged, seconds=1.0))
        return path

    def best(self) -> str:
        best = self.ledger.best()
        assert best is not None
        return best.path.name

    def _refused(self, drop: float) -> str:
        return "too much" if self.limit is not None and drop > self.limit else ""

    def _optimize(self, tried: Tried) -> Judged:
        drop = self.optimized[tried.path.name]
        return Judged(
            drop=tried.judged.drop, optimized_drop=drop, refused=self._refused(drop), changed=True
        )


def test_of_those_that_pass_the_fewest_layers_left_out_count_before_the_drop(
    tmp_path: Path,
) -> None:
    tries = Tries(tmp_path)
    tries.add("fails", 0.02)
    tries.add("exact", 0.001, left_out=4)
    tries.add("whole", 0.009, left_out=1)
    assert tries.best() == "whole"


def test_of_those_with_as_many_left_out_the_least_drop_is_the_best(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    tries.add("first", 0.009)
    tries.add("second", 0.002)
    assert tries.best() == "second"


def test_where_none_passes_the_least_drop_is_the_best(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    tries.add("whole", 0.3)
    tries.add("less", 0.1, left_out=3)
    assert tries.best() == "less"


def test_without_a_limit_the_least_drop_is_the_best(tmp_path: Path) -> None:
    tries = Tries(tmp_path, limit=None)
    tries.add("whole", 0.3)
    tries.add("less", 0.1, left_out=3)
    assert tries.best() == "less"


def test_one_that_fails_with_graph_optimizations_on_makes_way_for_the_next(tmp_path: Path) -> None:
    tries = Tries(tmp_path, first=0.2, second=0.004)
    tries.add("first", 0.001)
    tries.add("second", 0.002)
    assert tries.best() == "second"
    told = {attempt.what for attempt in tries.ledger.attempts(tries.ledger.best()) if attempt.kept}
    assert len(told) == 1


def test_only_attempts_of_the_settled_width_count(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    tries.add("wide", 0.001)
    tries.add("narrow", 0.003, narrow=True)
    assert tries.best() == "wide"
    tries.ledger.narrow = True
    assert tries.best() == "narrow"


def test_graphs_that_can_no_longer_be_the_best_are_deleted(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    worse = tries.add("worse", 0.5)
    better = tries.add("better", 0.2, left_out=1)
    narrow = tries.add("narrow", 0.4, narrow=True)
    assert not worse.exists()
    assert better.exists()
    assert narrow.exists()


def test_failures_are_told_in_their_place(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    failure = Attempt(what="entropy", accuracy_drop=None, seconds=1.0, note="it crashes")
    tries.ledger.add(failure)
    tries.add("first", 0.001, left_out=2)
    first, second = tries.ledger.attempts(tries.ledger.best())
    assert first is failure
    assert second.what == "minmax, per channel, 2 layers left in the source's precision"
    assert second.note == "conv0, conv1"


@pytest.mark.parametrize("empty", [True, False])
def test_where_nothing_was_measured_there_is_no_best(tmp_path: Path, empty: bool) -> None:
    tries = Tries(tmp_path)
    if not empty:
        tries.ledger.add(Attempt(what="minmax", accuracy_drop=None, seconds=0.1))
    assert tries.ledger.best() is None
