"""The driver of a study on a Ray cluster, as far as that needs no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters.ray import cluster, errand, trials
from autotune.adapters.ray.cluster import At, Devices
from autotune.adapters.ray.slots import Slot
from autotune.bootstrap.executors import OnRay
from autotune.bootstrap.ray_node import PLACE, Order
from autotune.bootstrap.ray_session import RayVenue, measured_on, open_on_ray
from autotune.bootstrap.shipping import Shipment
from autotune.core.errors import AutotuneError, Busy, InputRefused
from autotune.core.kinds import Kind
from autotune.core.measurement import Measurement, Purpose
from autotune.ports import TrialSource
from autotune.tuner.venue import Overseer, Readied
from storage.store import SqlTrialStore
from tests import onnx_models
from tests.runner_bench import ONE, study
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


def test_a_cluster_without_what_a_trial_needs_is_refused_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    monkeypatch.setattr(cluster, "connected", nullcontext)
    small = cluster.Node(id="a", host="lab-3", resources={"CPU": 1.0})
    monkeypatch.setattr(cluster, "nodes", lambda: [small])
    onnx_models.linear(tmp_path / "m.onnx")
    said: list[str] = []
    opened = open_on_ray(
        study(model={"onnx": str(tmp_path / "m.onnx"), "name": "m"}),
        OnRay(address="head:6379", cpus=64),
        db=str(tmp_path / "a.db"),
        out=tmp_path / "out",
        resume=False,
        listen=lambda step: said.append(step.text),
    )
    with pytest.raises(InputRefused, match="what a trial needs, 64 CPU") as refused, opened:
        pass
    assert refused.value.value == "lab-3: 1 CPU"
    assert "--slot-cpus N" in refused.value.next_step
    assert said == [f"connect{how} the Ray cluster (head:6379)" for how in ("ing to", "ed to")]
    assert not SqlTrialStore(str(tmp_path / "a.db")).studies()


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


KIND = Kind(processor="p", cores=1)


class Begun(Exception):
    """As far as the end of a study is looked at here."""


def venue(tmp_path: Path, **sections: Any) -> RayVenue:
    """Of a study whose two trials were measured on two machines by an earlier run."""
    tmp_path.mkdir(exist_ok=True)
    planned = study(**sections)
    store = SqlTrialStore(str(tmp_path / "a.db"))
    study_id = store.create_study("s", planned.definition, planned.digest)
    for number, host in enumerate("ab"):
        store.begin_trial(study_id, number, ONE)
        store.add_measurement(study_id, number, at(f"{host}, process 1"))
    slot = Slot(cpus=1)
    return RayVenue(
        order=Order(
            shipment=Shipment(study=planned, names={}, archive=b""),
            slot=slot,
            kind=KIND,
            out=tmp_path,
            study_id=study_id,
        ),
        devices=Devices(slot=slot, kind=KIND, nodes={"a": 1}, many=1, alive=lambda: {"a"}),
        store=store,
        readied=Readied(compared="", instances=1, identity={}),
        work=tmp_path,
    )


def told_at_the_end(
    venue: RayVenue, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[str, str]], list[str], list[At]]:
    """What is said and warned before the end of the study begins on a device, and on which not."""
    said, warned, avoided = list[tuple[str, str]](), list[str](), list[At]()

    def begun(*_: object, unlike: Sequence[At]) -> None:
        avoided.extend(unlike)
        raise Begun

    monkeypatch.setattr(errand, "run", begun)
    overseer = Overseer(
        say=lambda stage, text: said.append((stage, text)),
        warn=warned.append,
        decision=lambda: pytest.fail("nobody decides here"),
        seconds_left=lambda: 0.0,
        planned=2,
    )
    with pytest.raises(Begun):
        venue.settle(overseer)
    return said, warned, avoided


def test_what_a_device_is_made_ready_for_is_said_as_the_study_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, *_ = told_at_the_end(venue(tmp_path / "0"), monkeypatch)
    with_finals = venue(tmp_path / "1", finals={"candidates": 2})
    assert without == [("confirm", "making one device ready to confirm the pick")]
    said, *_ = told_at_the_end(with_finals, monkeypatch)
    assert said == [("finals", "making one device ready to compare the best")]


def test_trials_of_machines_that_were_not_held_against_one_another_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, warned, _ = told_at_the_end(venue(tmp_path), monkeypatch)
    (warning,) = warned
    assert "(1 on a, 1 on b), which were not all held against one another" in warning


def test_the_end_of_a_study_is_told_which_devices_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = At(node="a", address="10.0.0.1", place="a, process 1, GPU 3", device="GPU 3")

    def searched(bridge: trials.Bridge, *_: object) -> None:
        bridge.idle["tune-1"] = odd

    monkeypatch.setattr(trials, "run", searched)
    over = venue(tmp_path)
    over.run(cast("TrialSource", None))
    *_, avoided = told_at_the_end(over, monkeypatch)
    assert avoided == [odd]


def test_how_many_are_measured_at_once_is_said_in_good_english(tmp_path: Path) -> None:
    said: list[str] = []
    ready = venue(tmp_path)
    ready.prepare(lambda _stage, text: said.append(text))
    replace(ready, devices=replace(ready.devices, many=2)).prepare(
        lambda *told: said.append(told[1])
    )
    assert said == [
        "one trial at a time on 1 core of p",
        "2 trials side by side, each on 1 core of p",
    ]
    with pytest.raises(AutotuneError, match="it does not load"):
        replace(ready, readied=AutotuneError("it does not load")).prepare(lambda *_: None)
