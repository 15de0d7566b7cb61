"""A study with its files, made to run in another folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.bootstrap import shipping
from autotune.bootstrap.shipping import shipped
from autotune.core.errors import InputRefused
from autotune.core.study import Study
from autotune.studyfile import study_from_options
from tests import onnx_models


def study(model: dict[str, str], **changes: Any) -> Study:
    return study_from_options(
        {
            "study": "s",
            "model": model,
            "workload": {"target_qps": 50.0, **changes.pop("workload", {})},
            "sla": {"p95_ms": 80.0},
            "space": {"instances": [1, 2, 4]},
            **changes,
        }
    )


def test_a_repository_goes_with_what_its_links_point_to(tmp_path: Path) -> None:
    home = tmp_path / "home"
    version = home / "models" / "m" / "1"
    version.mkdir(parents=True)
    (home / "weights").write_bytes(b"weights")
    (version / "model.onnx").symlink_to(home / "weights")
    given = study({"repository": str(home / "models"), "name": "m"})
    shipment = shipped(given)
    shutil.rmtree(home)
    there = shipment.unpacked(tmp_path / "there")
    assert there.model.repository is not None
    assert (there.model.repository / "m" / "1" / "model.onnx").read_bytes() == b"weights"
    assert there.digest == given.digest


def test_a_python_file_goes_with_what_stands_beside_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    onnx_models.linear(home / "m.onnx")
    (home / "lines.py").write_text("def sample(count, seed): ...\n")
    (home / "words.txt").write_text("words")
    given = study(
        {"onnx": str(home / "m.onnx")}, workload={"inputs": f"{home / 'lines.py'}:sample"}
    )
    there = shipped(given).unpacked(tmp_path / "there")
    path = there.workload.inputs.path
    assert path is not None
    assert path.is_relative_to(tmp_path / "there")
    assert (path.parent / "words.txt").read_text() == "words"
    assert there.model.onnx is not None
    assert there.model.onnx.read_bytes() == (home / "m.onnx").read_bytes()


def test_what_is_hidden_and_what_the_run_writes_is_not_shipped(tmp_path: Path) -> None:
    onnx_models.linear(tmp_path / "m.onnx")
    (tmp_path / "lines.py").write_text("def sample(count, seed): ...\n")
    for name in ("words", ".env", "a.db", "a.db-wal", ".git/config", "out/report.html", "data/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    given = study(
        {"onnx": str(tmp_path / "m.onnx")},
        workload={"inputs": f"{tmp_path / 'lines.py'}:sample"},
    )
    shipment = shipped(given, kept=(tmp_path / "a.db", tmp_path / "out"))
    there = shipment.unpacked(tmp_path / "there")
    assert there.workload.inputs.path is not None
    folder = there.workload.inputs.path.parent
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert found == {"lines.py", "m.onnx", "words", "data/x"}


def test_a_python_file_among_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "BESIDE_BYTES", 10)
    onnx_models.linear(tmp_path / "m.onnx")
    (tmp_path / "lines.py").write_text("def sample(count, seed): ...\n")
    given = study(
        {"onnx": str(tmp_path / "m.onnx")},
        workload={"inputs": f"{tmp_path / 'lines.py'}:sample"},
    )
    with pytest.raises(InputRefused, match="shipped with what stands beside it") as refused:
        shipped(given)
    assert "a folder of its own" in refused.value.next_step
