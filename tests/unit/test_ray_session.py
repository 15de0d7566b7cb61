"""The driver of a study on a Ray cluster, as far as that needs no cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters.ray import cluster
from autotune.bootstrap.executors import OnRay
from autotune.bootstrap.ray_node import PLACE
from autotune.bootstrap.ray_session import measured_on, open_on_ray
from autotune.core.errors import Busy, InputRefused
from autotune.core.measurement import Measurement, Purpose
from tests import onnx_models
from tests.runner_bench import study
from tests.unit.made_trials import made_measurement, made_trial


def test_a_second_driver_of_a_study_is_told_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    monkeypatch.chdir(tmp_path)
    onnx_models.linear(tmp_path / "m.onnx")
    told: list[type[BaseException]] = []

    def begin() -> None:
        with open_on_ray(
            study(model={"onnx": str(tmp_path / "m.onnx"), "name": "m"}),
            OnRay(),
            db=str(tmp_path / "a.db"),
            out=tmp_path / "out",
            resume=False,
            listen=lambda _: None,
        ):
            pass

    def connected(_address: str) -> Any:  # where the first is under way
        with pytest.raises(Busy, match="a run of a study of this name is under way"):
            begin()
        told.append(Busy)
        raise InputRefused("no cluster here")

    monkeypatch.setattr(cluster, "connected", connected)
    with pytest.raises(InputRefused, match="no cluster here"):
        begin()
    assert told == [Busy]


def test_an_export_into_the_model_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    (tmp_path / "models" / "m").mkdir(parents=True)
    opened = open_on_ray(
        study(model={"repository": str(tmp_path / "models"), "name": "m"}),
        OnRay(),
        db=str(tmp_path / "a.db"),
        out=tmp_path / "models" / "m" / "out",
        resume=False,
        listen=lambda _: None,
    )
    with pytest.raises(InputRefused, match="lies inside the model"), opened:
        pass


def at(place: str, purpose: Purpose = Purpose.TRIAL) -> Measurement:
    measured = made_measurement(purpose=purpose)
    telemetry = replace(measured.telemetry, notes={PLACE: place})
    return replace(measured, telemetry=telemetry)


def test_it_is_counted_on_which_machines_trials_were_measured() -> None:
    trials = [
        made_trial(0, at("b, process 1"), at("b, process 1"), at("c, process 2", Purpose.CANARY)),
        made_trial(1, at("a, process 3, GPU 1")),
        made_trial(2, at("b, process 4")),
        made_trial(3, made_measurement()),  # on this machine, by an earlier run
    ]
    assert measured_on(trials) == {"a": 1, "b": 2}
