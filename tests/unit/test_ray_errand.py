"""The end of a study on a node that may be lost, with the database at the driver."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from ray.exceptions import RayActorError

from autotune.adapters.ray import errand, slots
from autotune.adapters.ray.cluster import Devices
from autotune.adapters.ray.relay import Call, Distant, Offered, Relay
from autotune.adapters.ray.slots import Slot, taken
from autotune.core.errors import AutotuneError, Interrupted, StoreFailed
from autotune.core.kinds import Kind
from autotune.core.measurement import Purpose
from autotune.core.records import StudyState
from autotune.ports import TrialSource, TrialStore
from autotune.tuner.conclude import Settled
from autotune.tuner.recorder import Say
from autotune.tuner.venue import Overseer, Readied
from tests.fake_ray import FakeHand, at
from tests.runner_bench import FOUR, ONE, TWO, Bench, study

DEVICES = Devices(
    slot=Slot(cpus=1),
    kind=Kind(processor="p", cores=1),
    nodes={"a": 1, "b": 1},
    many=2,
    alive=lambda: ("a", "b"),
)


def done(_relay: Relay) -> str:
    return "done"


def hiring(*hands: FakeHand) -> Callable[[Devices], FakeHand]:
    coming = iter(hands)
    return lambda _devices: next(coming)


def at_its_begin() -> FakeHand:
    class Gone(FakeHand):
        def exchange(self, reply: Any) -> Any:
            raise RayActorError

    return Gone("gone")


def test_work_whose_device_is_lost_is_done_on_another_and_the_lost_one_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hands = at_its_begin(), FakeHand("b")
    assert errand.run(done, {}, DEVICES, hiring(*hands)) == "done"
    assert [hand.ended for hand in hands] == [True, True]
    assert caplog.messages == [
        "a device of the Ray cluster was lost (1 of 3): gone, process 1 (10.0.0.1)"
    ]


def test_work_whose_devices_are_lost_again_and_again_is_given_up() -> None:
    hands = [at_its_begin() for _ in range(errand.TRIES)]
    with pytest.raises(AutotuneError, match="3 devices of the Ray cluster were lost") as given_up:
        errand.run(done, {}, DEVICES, hiring(*hands))
    assert "--resume" in given_up.value.next_step


def test_work_is_not_begun_again_where_no_node_is_left() -> None:
    gone = replace(DEVICES, alive=tuple)
    with pytest.raises(AutotuneError, match="no device of the kind"):
        errand.run(done, {}, gone, hiring(at_its_begin()))


def test_work_is_done_on_another_device_of_the_node_than_the_one_that_measures_otherwise() -> None:
    hands = FakeHand("a", "GPU 3"), FakeHand("a", "GPU 5")
    open_then: list[bool] = []

    def looking(_relay: Relay) -> str:
        open_then.extend(hand.ended for hand in hands)
        return "done"

    machine = replace(DEVICES, nodes={"a": 8})
    unlike = [at("a", "GPU 3")]
    assert errand.run(looking, {}, machine, hiring(*hands), unlike) == "done"
    assert hands[1].began
    assert not hands[0].began
    assert open_then == [False, False], "else the odd one would be given to the next"
    assert [hand.ended for hand in hands] == [True, True]


def test_work_waits_for_no_taken_node_where_devices_beside_the_one_that_is_unlike_are_free() -> (
    None
):
    asked: list[Devices] = []

    def hire(devices: Devices) -> FakeHand:
        asked.append(devices)
        return FakeHand("a", "GPU 0")

    both = replace(DEVICES, nodes={"a": 8, "b": 1})
    assert errand.run(done, {}, both, hire, [at("a", "GPU 3")]) == "done"
    assert [each.nodes for each in asked] == [{"a": 7, "b": 1}], "Ray gives it either's"


def test_work_is_done_on_the_device_that_measures_otherwise_where_no_other_is_left() -> None:
    hand = FakeHand("a", "GPU 0")
    alone = replace(DEVICES, nodes={"a": 1, "b": 1}, alive=lambda: ("a",))
    assert errand.run(done, {}, alone, hiring(hand), [at("a", "GPU 0")]) == "done"
    assert hand.began


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_hand_keeps_its_device_from_others_until_its_work_begins_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(slots, "_CORE", f"\0a test's, {os.getpid()}")  # others may run beside it
    monkeypatch.setattr(slots, "available_cores", lambda _pid: float(len(before)))
    monkeypatch.setattr(errand, "at", lambda _place="", device="": at("a", device))
    actor, slot = errand.Errand(), Slot(cpus=1)
    try:
        with taken(slot):
            os.sched_setaffinity(0, before)
            which = actor.seen(slot)
            os.sched_setaffinity(0, before)
            with taken(Slot(cpus=len(before) - 1)) as other:
                assert other.pinned == (), "one of them is the hand's"
        actor.begin(done)
        with taken(slot) as mine:
            assert mine.device == which.device, "and not the one that is free by now"
    finally:
        slots.run_on(before)


def test_what_the_work_raises_is_no_lost_device() -> None:
    def failing(_relay: Relay) -> None:
        raise StoreFailed("the disk is full")

    hand = FakeHand()
    with pytest.raises(StoreFailed):
        errand.run(failing, {}, DEVICES, hiring(hand))
    assert hand.ended


# ------------------------------------------------------------------------------ the end of a study
@dataclass
class OnCluster:
    """Implements `Venue`: the search here, the end of the study as an errand of these hands, each
    of which has a server of its own."""

    bench: Bench
    hands: list[FakeHand]
    hired: list[FakeHand] = field(default_factory=list)

    side_by_side = 1

    def prepare(self, say: Say) -> Readied:
        self._here = self.bench.here()
        return self._here.prepare(say)

    def run(self, source: TrialSource) -> None:
        self._here.run(source)

    def settle(self, overseer: Overseer) -> Settled:
        objects = {
            "store": Offered(self.bench.store, TrialStore),
            "overseer": Offered(overseer, Overseer),
        }

        def work(relay: Relay) -> Settled:
            store, driver = Distant(relay, "store"), Distant(relay, "overseer")
            self.bench.load.server = self.bench.server
            here = replace(self.bench.here(), store=cast("TrialStore", store))
            here.prepare(lambda _stage, _text: None)
            told = replace(
                overseer,
                say=driver.say,
                warn=driver.warn,
                decision=driver.decision,
                seconds_left=driver.seconds_left,
            )
            return here.settle(told)

        settled: Settled = errand.run(work, objects, DEVICES, self._hire)
        return settled

    def _hire(self, _devices: Devices) -> FakeHand:
        self.hired.append(self.hands[len(self.hired)])
        return self.hired[-1]

    def close(self) -> None: ...


def with_finals(tmp_path: Path) -> Bench:
    tmp_path.mkdir(exist_ok=True)
    finals = {"candidates": 2, "rounds": 1, "capacity": 1}
    return Bench(tmp_path, study(finals=finals), [ONE, TWO, FOUR])


def at_measurement(number: int, purpose: Purpose) -> Callable[[Call], bool]:
    """Whether a call stores that one, counted from 1, of this purpose."""
    count = Counter[Purpose]()

    def look(call: Call) -> bool:
        if call.method == "add_measurement":
            count[call.args[2].purpose] += 1
        return call.method == "add_measurement" and count[purpose] == number

    return look


def finals_of(bench: Bench) -> Counter[tuple[int, object]]:
    return Counter(
        (trial.number, measured.traffic)
        for trial in bench.store.trials(bench.study_id)
        for measured in trial.of(Purpose.FINAL)
    )


def test_a_study_whose_node_is_lost_in_its_finals_ends_on_another_with_each_run_once(
    tmp_path: Path,
) -> None:
    undisturbed = with_finals(tmp_path / "undisturbed")
    expected = replace_venue(undisturbed, FakeHand("a")).run()
    bench = with_finals(tmp_path / "lost")
    lost = FakeHand("a", lost_at=at_measurement(3, Purpose.FINAL))
    answer = replace_venue(bench, lost, FakeHand("b")).run()
    assert lost.ended
    assert finals_of(bench) == finals_of(undisturbed)
    assert set(finals_of(bench).values()) == {1}
    assert answer.decision.pick == expected.decision.pick
    assert answer.exported_to is not None


def test_ctrl_c_at_the_end_of_a_study_on_a_cluster_ends_the_errand_and_the_study_goes_on_later(
    tmp_path: Path,
) -> None:
    bench = with_finals(tmp_path)
    pressed = FakeHand("a", lost_at=at_measurement(2, Purpose.FINAL), raises=KeyboardInterrupt)
    with pytest.raises(Interrupted, match="stopped by a signal"):
        replace_venue(bench, pressed).run()
    assert pressed.ended
    assert bench.store.study(str(bench.study_id)).state is StudyState.INTERRUPTED
    assert sum(finals_of(bench).values()) == 1
    assert replace_venue(bench, FakeHand("b")).run().exported_to is not None
    assert set(finals_of(bench).values()) == {1}


def replace_venue(bench: Bench, *hands: FakeHand) -> Any:
    return replace(bench.runner(), venue=OnCluster(bench, list(hands)))
