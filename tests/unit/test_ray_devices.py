"""Which of a Ray cluster's slots a study uses, from what was seen of them."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters.ray.cluster import SAID_S, Node, Patience, judged, slot_for
from autotune.adapters.ray.slots import UNKNOWN_GPU, Slot, Taken, autotune_version
from autotune.core.kinds import Kind

NODE = Node(id="a", host="a", resources={"CPU": 16, "GPU": 2})


def seen(*gpus: str, version: str = "") -> list[Taken]:
    return [
        Taken(
            kind=Kind(processor="p", cores=8, gpus=(gpu,), driver="570"),
            gpu=str(index),
            version=version or autotune_version(),
        )
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
        (seen("H100", version="0.0.1"), "it has autotune 0.0.1, and this machine"),
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
