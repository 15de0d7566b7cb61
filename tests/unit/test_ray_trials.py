"""The bridge between a study's search and Ray Tune's; Tune itself is in tests/integration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters.ray.cluster import PROBE_S, Devices
from autotune.adapters.ray.slots import Slot
from autotune.adapters.ray.trials import (
    READY_S,
    Bridge,
    Canary,
    Outcome,
    Stopping,
    Suggesting,
    Worker,
    run,
)
from autotune.core.errors import (
    AutotuneError,
    InputRefused,
    Interrupted,
    OutputsDiffer,
    StoreFailed,
)
from autotune.core.kinds import Kind
from autotune.core.measurement import Measurement
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate
from tests.fake_ray import FakeBench, FakeTune, at, canary_of
from tests.unit.made_trials import made_measurement


@dataclass
class Source:
    left: int
    told: list[tuple[object, ...]] = field(default_factory=list)
    given: int = 0

    def next(self) -> Trial | None:
        if self.given == self.left:
            return None
        self.given += 1
        candidate = Candidate({"instances": self.given})
        return Trial(number=self.given - 1, candidate=candidate, state=TrialState.RUNNING)

    def so_far(self) -> Sequence[Trial]:
        return ()

    def again(self, number: int, reason: str) -> None:
        self.told.append(("again", number, reason))

    def measured(self, number: int, measurement: Measurement) -> None:
        self.told.append(("measured", number))

    def ended(
        self, number: int, state: TrialState, reason: str = "", took_s: float | None = None
    ) -> None:
        self.told.append(("ended", number, state, reason))


def begun(bridge: Bridge, name: str, canary: Canary | None = None) -> None:
    """A trial, on a device that has measured the configuration in service."""
    bridge.suggest(name)
    bridge.begun(name, at(name))
    bridge.looked(name, canary or Canary())


def test_nothing_is_begun_twice_by_looking_whether_there_is_anything() -> None:
    source = Source(2)
    bridge = Bridge(source)
    assert bridge.more()
    asked = [bridge.suggest("a"), bridge.suggest("b"), bridge.suggest("c")]
    assert [each and each.trial.number for each in asked] == [0, 1, None]
    assert not Bridge(Source(0)).more()


def test_a_trial_ends_under_its_own_number_in_whatever_order() -> None:
    source = Source(2)
    bridge = Bridge(source)
    for name in ("a", "b"):
        begun(bridge, name)
    outcome = Outcome(measurements=[made_measurement()], again=["it lagged"], state=TrialState.OK)
    bridge.ended("b", outcome)
    assert source.told == [
        ("measured", 1),
        ("again", 1, "it lagged"),
        ("ended", 1, TrialState.OK, ""),
    ]
    assert list(bridge.under_way) == ["a"]


def test_a_trial_that_is_lost_with_its_device_is_the_next_to_be_begun() -> None:
    source = Source(3)
    bridge = Bridge(source)
    bridge.suggest("a")
    bridge.suggest("b")
    bridge.lost("a")
    assert source.told == [("again", 0, "its device was lost, before it was ready")]
    asked = [bridge.suggest("c"), bridge.suggest("d")]
    assert [each and each.trial.number for each in asked] == [0, 2]
    assert set(bridge.under_way) == {"b", "c", "d"}


def test_a_trial_whose_devices_are_lost_again_and_again_is_invalid_and_not_blamed() -> None:
    source = Source(1)
    bridge = Bridge(source)
    for name in ("a", "b", "c"):
        assert bridge.suggest(name) is not None
        bridge.lost(name)
    assert bridge.suggest("d") is None
    assert [kind for kind, *_ in source.told] == ["again", "again", "ended"]
    assert source.told[-1] == ("ended", 0, TrialState.INVALID, "its device was lost 3 times")


def test_an_error_that_ends_the_study_is_kept_and_ends_no_trial() -> None:
    source = Source(1)
    bridge = Bridge(source)
    bridge.suggest("a")
    bridge.ended("a", Outcome(error=OutputsDiffer("other answers")))
    assert isinstance(bridge.error, OutputsDiffer)
    assert source.told == []


def test_what_ends_with_a_study_that_cannot_go_on_is_not_blamed() -> None:
    source = Source(2)
    bridge = Bridge(source)
    bridge.suggest("a")
    bridge.suggest("b")
    bridge.ended("a", Outcome(error=OutputsDiffer("other answers")))
    bridge.lost("b")
    assert source.told == []


def test_a_device_that_is_lost_is_named_then_and_at_the_end() -> None:
    source = Source(1)
    bridge = Bridge(source)
    bridge.suggest("a")
    bridge.begun("a", at("lab-3"))
    bridge.lost("a")
    named = "its device was lost: lab-3, process 1 (10.0.0.1)"
    assert source.told == [("again", 0, named)]
    assert bridge.warnings == [f"trial 0: {named}"]


# ---------------------------------------------------------------------- held against one another
def canary(rate: float) -> Canary:
    return Canary(measured=canary_of(rate))


def devices(*benches: FakeBench) -> Devices:
    names = {bench.name: 1 for bench in benches}
    return Devices(
        slot=Slot(cpus=1),
        kind=Kind(processor="p", cores=1),
        nodes=names,
        many=len(names),
        alive=lambda: names,
    )


def searched(
    source: Source,
    *benches: FakeBench,
    before: Callable[[int], None] = lambda _: None,
    late: int = 0,
) -> Bridge:
    """All of a search, on these devices side by side; all but the first come up ``late``."""
    there = devices(*benches)
    bridge = Bridge(source, many=there.many, there=there.there)
    workers = [Worker(bench, at(bench.name), pause=lambda _: None) for bench in benches]

    def tuner(*_: object) -> FakeTune:
        return FakeTune(Suggesting(bridge), Stopping(bridge, there), workers, before, late)

    run(bridge, benches[0], there, Path("unused"), tuner)
    return bridge


def ended(source: Source) -> dict[object, object]:
    return {told[1]: told[2] for told in source.told if told[0] == "ended"}


def all_ok(many: int) -> dict[object, object]:
    return dict.fromkeys(range(many), TrialState.OK)


def test_devices_that_measure_alike_all_measure_trials_and_their_canary_once() -> None:
    one, other, source = FakeBench("one", [100]), FakeBench("other", [102]), Source(6)
    bridge = searched(source, one, other)
    assert (len(one.measured), len(other.measured)) == (3, 3)
    assert (one.canaries, other.canaries) == (1, 1)
    assert ended(source) == all_ok(6)
    assert not bridge.warnings
    assert bridge.alike == {"one, process 1, core 0", "other, process 1, core 0"}


def test_what_a_device_of_the_kind_that_measures_otherwise_measures_is_not_taken() -> None:
    one, odd, source = FakeBench("one", [100]), FakeBench("odd", [50]), Source(5)
    bridge = searched(source, one, odd)
    assert sorted(one.measured) == [0, 1, 2, 3, 4]
    assert ended(source) == all_ok(5)
    assert source.told.count(("measured", 1)) == 1, "what the odd one measured of it is not stored"
    assert odd.canaries == 2, "a neighbour may have come by for a moment"
    (warning,) = bridge.warnings
    assert warning.startswith("odd, process 1, core 0 (10.0.0.1) measures otherwise than the study")
    assert "100.0 to 50.0/s (-50%)" in warning
    assert bridge.unlike == {"odd": 1}
    assert bridge.alike == {"one, process 1, core 0"}


def test_a_device_that_was_disturbed_for_a_moment_measures_trials_later() -> None:
    one, other, source = FakeBench("one", [100]), FakeBench("other", [50, 100]), Source(5)
    bridge = searched(source, one, other)
    assert ended(source) == all_ok(5)
    assert len(other.measured) > 1
    assert not bridge.warnings


def test_what_most_devices_measure_counts_though_another_was_ready_first() -> None:
    odd, one, other = FakeBench("odd", [50]), FakeBench("one", [100]), FakeBench("other", [100])
    source = Source(6)
    bridge = searched(source, odd, one, other)
    assert ended(source) == all_ok(6)
    assert {*one.measured, *other.measured} == set(range(6))
    assert bridge.unlike == {"odd": 1}


def test_a_device_whose_candidate_fails_at_once_is_not_the_measure_alone() -> None:
    odd = FakeBench("odd", [200], broken=(0,))
    others, source = [FakeBench(name, [100]) for name in ("b", "c", "d")], Source(8)
    bridge = searched(source, odd, *others, late=2)
    assert ended(source) == all_ok(8), "what the odd one told of trial 0 is not taken"
    assert sorted(n for bench in others for n in bench.measured) == list(range(8))
    assert bridge.unlike == {"odd": 1}


def test_what_ends_is_held_until_every_device_under_way_has_measured_what_is_in_service() -> None:
    source = Source(3)
    bridge = Bridge(source)
    begun(bridge, "odd", canary(200))
    begun(bridge, "b", canary(100))
    bridge.suggest("c")
    bridge.ended("odd", Outcome(state=TrialState.FAILED))
    bridge.begun("c", at("c"))
    assert source.told == []
    bridge.looked("c", canary(100))
    (told,) = source.told
    assert told[:2] == ("again", 0)
    assert "odd, process 1" in str(told[2])


def test_a_device_that_is_lost_before_it_measures_holds_nothing_up() -> None:
    source = Source(2)
    bridge = Bridge(source)
    begun(bridge, "a", canary(100))
    bridge.suggest("b")
    bridge.begun("b", at("b"))
    bridge.ended("a", Outcome(state=TrialState.OK))
    assert ended(source) == {}
    bridge.lost("b")
    assert ended(source) == all_ok(1)


@pytest.mark.parametrize(("has_a_slot", "waits_s"), [(True, READY_S), (False, PROBE_S)])
def test_a_device_that_never_measures_holds_the_study_up_for_a_while_only(
    has_a_slot: bool, waits_s: float
) -> None:
    now, source = [50.0], Source(3)
    bridge = Bridge(source, clock=lambda: now[0])
    stopping = Stopping(bridge, devices(FakeBench("a", [100]), FakeBench("b", [100])))
    begun(bridge, "a", canary(100))
    bridge.suggest("b")
    if has_a_slot:
        bridge.begun("b", at("b"))
    bridge.ended("a", Outcome(state=TrialState.OK))
    now[0] += waits_s - 1
    assert not stopping.stop_all()
    assert ended(source) == {}
    now[0] += 1
    assert not stopping.stop_all()
    assert ended(source) == all_ok(1)
    begun(bridge, "c", canary(100))
    bridge.ended("c", Outcome(state=TrialState.OK))
    assert ended(source) == {0: TrialState.OK, 2: TrialState.OK}, "it is waited for once"


def test_what_goes_wrong_in_taking_what_was_held_ends_the_study() -> None:
    class Full(Source):
        def ended(self, *_: object, **__: object) -> None:
            raise StoreFailed("the disk is full")

    now = [0.0]
    bridge = Bridge(Full(2), clock=lambda: now[0])
    stopping = Stopping(bridge, devices(FakeBench("a", [100])))
    begun(bridge, "a", canary(100))
    bridge.suggest("b")
    bridge.ended("a", Outcome(state=TrialState.OK))
    now[0] = PROBE_S
    assert stopping.stop_all()
    assert isinstance(bridge.error, StoreFailed)


def test_a_device_of_which_nothing_can_be_told_is_not_held_against_the_others() -> None:
    one, other, source = FakeBench("one", [100]), FakeBench("other", [None]), Source(4)
    bridge = searched(source, one, other)
    assert other.measured
    assert ended(source) == all_ok(4)
    assert bridge.alike == {"one, process 1, core 0"}, "of the other it is not known"


def test_no_more_trials_are_under_way_than_there_are_devices_for_them() -> None:
    bridge = Bridge(Source(9), many=3, there=3)
    for name in ("a", "b", "c"):
        assert not bridge.full
        bridge.suggest(name)
        bridge.begun(name, at(name))
    assert bridge.full
    bridge.idles("a")
    bridge.ended("b", Outcome(state=TrialState.OK))
    assert not bridge.full
    bridge.suggest("d")
    assert bridge.full, "the first one's slot measures nothing"


def test_where_only_devices_are_left_that_measure_otherwise_the_study_ends() -> None:
    bridge = Bridge(Source(9), many=2, there=2)
    bridge.suggest("a")
    bridge.begun("a", at("odd"))
    bridge.idles("a")
    there = devices(FakeBench("odd", [1]))
    stopping = Stopping(bridge, there)
    stopping.look_again_at = 0.0
    assert stopping.stop_all()
    assert "but those that measure otherwise" in str(bridge.error)


def test_a_device_that_cannot_be_made_ready_ends_the_study() -> None:
    sick = FakeBench("sick", [100], fails=Canary(error=InputRefused("sick cannot be made ready")))
    source = Source(3)
    with pytest.raises(AutotuneError, match="sick cannot be made ready"):
        searched(source, FakeBench("one", [100]), sick)
    assert ("measured", 1) not in source.told


def test_ctrl_c_on_a_cluster_ends_the_search_in_words_and_what_was_measured_is_told() -> None:
    def pressed(reports: int) -> None:
        if reports == 8:
            raise KeyboardInterrupt  # Ray's own, without a word

    source = Source(9)
    with pytest.raises(Interrupted, match="stopped by a signal"):
        searched(source, FakeBench("one", [100]), FakeBench("other", [100]), before=pressed)
    assert ended(source) == all_ok(2)
