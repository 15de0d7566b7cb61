"""The bridge between a study's search and Ray Tune's; Tune itself is in tests/integration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters.ray.trials import Bridge, Outcome
from autotune.core.errors import OutputsDiffer
from autotune.core.measurement import Measurement
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate
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
    bridge.suggest("a")
    bridge.suggest("b")
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
    assert source.told == [("again", 0, "its device was lost")]
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
