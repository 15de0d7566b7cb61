"""What is recorded with a study of where and on what it measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.bootstrap.recorded import traffic_files
from autotune.core.workload import Arrival, ArrivalKind, InputKind, InputSpec, Workload

NOTHING_READ = Workload(target_qps=40)


def test_the_hashes_of_what_traffic_is_read_from_change_with_its_contents(tmp_path: Path) -> None:
    inputs, trace = tmp_path / "inputs.json", tmp_path / "trace.txt"
    inputs.write_text("{}")
    trace.write_text("0\n1\n")
    work = replace(
        NOTHING_READ,
        inputs=InputSpec(kind=InputKind.JSON, path=inputs),
        arrival=Arrival(kind=ArrivalKind.TRACE, trace=trace),
    )
    before = traffic_files(work)
    assert traffic_files(work) == before
    trace.write_text("0\n2\n")
    after = traffic_files(work)
    assert after["inputs"] == before["inputs"]
    assert after["trace"] != before["trace"]


@pytest.mark.parametrize("change", [("b.npy", "other"), ("below/c.npy", "more")])
def test_so_does_that_of_a_folder(tmp_path: Path, change: tuple[str, str]) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a.npy", "b.npy"):
        (tmp_path / name).write_text(name)
    work = replace(NOTHING_READ, inputs=InputSpec(kind=InputKind.FOLDER, path=tmp_path))
    before = traffic_files(work)
    name, content = change
    (tmp_path / name).write_text(content)
    assert traffic_files(work) != before


def test_of_what_is_made_or_cannot_be_read_nothing_is_recorded(tmp_path: Path) -> None:
    gone = InputSpec(kind=InputKind.NPZ, path=tmp_path / "gone.npz")
    assert traffic_files(NOTHING_READ) == traffic_files(replace(NOTHING_READ, inputs=gone)) == {}
