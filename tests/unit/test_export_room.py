"""Exports to a disk that has no room for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.adapters.triton.export import REPORT_BYTES, _writing, refuse_without_room
from autotune.adapters.triton.repository import ServedModel, from_onnx
from autotune.core.errors import ExportFailed, InputRefused
from tests import onnx_models


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    return from_onnx(onnx_models.linear(tmp_path / "m.onnx"), "m", tmp_path / "models")


def _free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size))


def test_a_disk_without_room_for_the_model_and_the_report_is_refused(
    model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = model.source / "1" / "weights.bin"
    weights.write_bytes(bytes(100_000))
    _free(monkeypatch, REPORT_BYTES + 90_000)
    with pytest.raises(InputRefused, match=r"takes about 6 MB, .* has 6 MB free"):
        refuse_without_room(model, tmp_path / "not" / "yet")
    weights.unlink()
    refuse_without_room(model, tmp_path / "not" / "yet")


def test_files_that_cannot_be_copied_are_told_in_a_sentence(tmp_path: Path) -> None:
    why = "[Errno 28] No space left on device: '/m/a' -> '/out/a'"
    with pytest.raises(ExportFailed) as failed, _writing(tmp_path):
        raise shutil.Error([("/m/a", "/out/a", why), ("/m/b", "/out/b", why)])
    assert failed.value.rule == (
        "the export cannot be written: No space left on device, at /m/a and 1 more"
    )
    assert "--resume" not in failed.value.next_step
