"""Which of a Ray cluster's slots a study uses, from what was seen of them."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters.ray import cluster
from autotune.adapters.ray.cluster import (
    SAID_S,
    Devices,
    Looked,
    Node,
    Patience,
    arranged,
    judged,
    slot_for,
)
from autotune.adapters.ray.slots import UNKNOWN_GPU, Slot, Taken
from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.kinds import Kind
from tests.fake_ray import at

NODE = Node(id="a", host="a", resources={"CPU": 16, "GPU": 2})


def seen(*gpus: str) -> list[Taken]:
    return [
        Taken(kind=Kind(processor="p", cores=8, gpus=(gpu,), driver="570"), gpu=str(index))
        for index, gpu in enumerate(gpus)
    ]


def test_a_node_whose_slots_are_alike_is_used_with_all_of_them() -> None:
    looked = judged(NODE, 2, seen("H100", "H100"), "")
    assert looked.kind is not None
    assert (looked.kind.gpus, looked.many, looked.left_alone) == (("H100",), 2, "")


def test_of_a_node_whose_other_slots_are_not_free_the_free_ones_are_used_and_that_is_told() -> None:
    looked = judged(NODE, 2, seen("H100"), "not free for 60 s")
    assert looked.kind is not None
    assert looked.many == 1
    assert looked.left_alone == "a: 1 of its 2 slots are used (not free for 60 s)"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (seen("H100", "H100 MIG 1g.10gb"), "its devices are of several kinds"),
        (seen("H100", UNKNOWN_GPU), "NVML does not tell what its GPU 1 is"),
        ([], "it gave no slot (why)"),
    ],
)
def test_a_node_on_which_a_trial_could_be_anywhere_is_left_alone(
    found: list[Taken], reason: str
) -> None:
    looked = judged(NODE, 2, found, "why")
    assert (looked.kind, looked.many) == (None, 0)
    assert looked.left_alone.startswith(f"a is left alone: {reason}")


def test_a_study_that_goes_on_has_the_slots_that_it_was_begun_with() -> None:
    found = [NODE, Node(id="b", host="b", resources={"CPU": 4, "GPU": 1})]
    assert slot_for(found, None) == Slot(cpus=4, gpu=True)
    on_gpus = Kind(processor="p", cores=8, gpus=("H100",), driver="570").recorded
    assert slot_for(found, None, on_gpus) == Slot(cpus=8, gpu=True)
    on_cores = Kind(processor="p", cores=2).recorded
    assert slot_for(found, None, on_cores) == Slot(cpus=2)
    assert slot_for(found, 4, on_cores) == Slot(cpus=4)


def test_that_no_slot_is_free_is_told_once_each_time_that_it_lasts() -> None:
    now_s, told = [0.0], list[str]()
    patience = Patience(say=told.append, clock=lambda: now_s[0])

    def waits(seconds: float) -> int:
        """How often it was told, after so long in two looks."""
        patience.waits()
        now_s[0] += seconds
        patience.waits()
        return len(told)

    assert waits(SAID_S / 2) == 0
    assert waits(SAID_S) == 1
    assert waits(SAID_S) == 1
    patience.begun()
    assert waits(SAID_S / 2) == 1
    assert waits(SAID_S) == 2
    assert "`ray status`" in told[0]


SMALL, LARGE = Kind(processor="p", cores=2), Kind(processor="q", cores=2)


def of_kind(name: str, kind: Kind, many: int) -> Looked:
    return Looked(node=Node(id=name, host=name, resources={"CPU": 8}), kind=kind, many=many)


def used(*looked: Looked, slots: int | None = None) -> Devices:
    return arranged(looked, Slot(cpus=2), None, slots, lambda _: None)


def test_of_two_kinds_at_once_the_more_numerous_is_used_and_the_other_left_alone_by_name() -> None:
    node = Node(id="b", host="lab-3", address="10.0.0.3", resources={"CPU": 8})
    other = Looked(node=node, kind=LARGE, many=2)
    devices = used(of_kind("a", SMALL, 1), other, of_kind("c", SMALL, 2))
    assert (devices.kind, devices.nodes, devices.many) == (SMALL, {"a": 1, "c": 2}, 3)
    (told,) = devices.left_alone
    assert told.startswith("lab-3 (10.0.0.3) is left alone: its devices are 2 cores of q, and this")


def test_fewer_trials_side_by_side_than_were_asked_for_are_told_with_the_reason() -> None:
    devices = used(of_kind("a", SMALL, 2), slots=5)
    assert devices.many == 2
    (told,) = devices.left_alone
    assert told.startswith("2 trials side by side, and not 5 as --slots asks for: the cluster has")
    assert used(of_kind("a", SMALL, 2), slots=1).left_alone == ()
    assert used(of_kind("a", SMALL, 2), slots=1).many == 1


def test_of_nodes_that_are_too_small_it_is_told_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have = [NODE, *(Node(id=str(n), host=f"n{n}", resources={"CPU": 1}) for n in range(8))]
    monkeypatch.setattr(cluster, "nodes", lambda: have)
    with pytest.raises(InputRefused, match="has what a trial needs, 64 CPU, 1 GPU") as refused:
        cluster.devices(cpus=64)
    assert str(refused.value.value).startswith("a: 16 CPU, 2 GPU; n0: 1 CPU; n1: 1 CPU;")
    assert str(refused.value.value).endswith("and 1 more node")


def test_cores_alone_are_given_where_there_are_gpus_too_if_that_is_asked_for() -> None:
    assert slot_for([NODE], None, gpus=0) == Slot(cpus=2)
    assert slot_for([NODE], 4, gpus=0) == Slot(cpus=4)
    assert slot_for([NODE], None, gpus=1) == slot_for([NODE], None) == Slot(cpus=8, gpu=True)
    without = Node(id="c", host="c", resources={"CPU": 4})
    assert slot_for([without], None, gpus=1) == Slot(cpus=1, gpu=True), "to be refused with words"
    on_gpus = Kind(processor="p", cores=8, gpus=("H100",), driver="570").recorded
    assert slot_for([NODE], None, on_gpus, gpus=0) == Slot(cpus=8), "of which there is no kind then"


def lives(*alive: str) -> Devices:
    nodes = {"a": 2, "b": 1}
    return Devices(slot=Slot(cpus=2), kind=SMALL, nodes=nodes, many=3, alive=lambda: alive)


def test_a_study_ends_where_no_node_lives_that_has_a_slot_for_it() -> None:
    lives("a", "b").refuse_gone({"a": 1, "b": 1})
    lives("b", "c").refuse_gone()
    with pytest.raises(AutotuneError, match="no device of the kind") as none_left:
        lives("c").refuse_gone()
    assert none_left.value.rule.endswith("is left in the Ray cluster")
    with pytest.raises(AutotuneError, match="but those that measure otherwise"):
        lives("b").refuse_gone({"b": 1})


def test_a_node_that_measures_otherwise_is_avoided_unless_no_other_lives() -> None:
    odd = [at("b", "GPU 0")]
    assert lives("a", "b").apart_from(odd).nodes == {"a": 2}
    assert lives("b").apart_from(odd).nodes == {"a": 2, "b": 1}
    assert lives("a", "b").apart_from(()).nodes == {"a": 2, "b": 1}


def test_of_a_node_only_the_devices_that_measure_otherwise_are_avoided_where_they_are_known() -> (
    None
):
    assert lives("a", "b").apart_from([at("a", "GPU 1")]).nodes == {"a": 1, "b": 1}
    assert lives("a").apart_from([at("a", "GPU 1"), at("b", "GPU 0")]).nodes == {"a": 1}
    assert lives("a", "b").apart_from([at("a")]).nodes == {"b": 1}, "either of the two may be it"
