"""Which devices a study measures on: never on two kinds."""

from __future__ import annotations

import pytest

from autotune.core.kinds import Kind, chosen, counted, typical
from autotune.core.measurement import Measurement
from tests.unit.made_trials import made_measurement

SMALL = Kind(processor="p", cores=2)
LARGE = Kind(processor="p", cores=4)
H100 = Kind(processor="p", cores=8, gpus=("NVIDIA H100",), driver="570")
SLICE = Kind(processor="p", cores=8, gpus=("NVIDIA H100 MIG 1g.10gb",), driver="570")
NEWER = Kind(processor="p", cores=8, gpus=("NVIDIA H100",), driver="580")


def test_the_most_numerous_kind_is_used() -> None:
    assert chosen([H100, SLICE, SLICE, NEWER]) == SLICE


def test_of_equally_many_it_is_the_first_by_name_whatever_their_order() -> None:
    assert chosen([SMALL, LARGE]) == chosen([LARGE, SMALL]) == SMALL


def test_a_study_goes_on_with_the_kind_that_it_was_begun_on() -> None:
    assert chosen([H100, SLICE, SLICE], H100.recorded) == H100


@pytest.mark.parametrize("other", [LARGE, H100, SLICE, NEWER])
def test_a_study_of_another_kind_is_not_gone_on_with(other: Kind) -> None:
    assert chosen([other], SMALL.recorded) is None


def test_an_environment_that_tells_less_is_compared_as_far_as_it_tells() -> None:
    assert chosen([SMALL], {"processor": "p", "host": "elsewhere"}) == SMALL
    assert chosen([H100], {"driver": "580"}) is None


def test_the_driver_of_a_gpu_that_cores_are_not_measured_on_is_nothing_to_them() -> None:
    assert chosen([SMALL], {**SMALL.recorded, "driver": "570"}) == SMALL


def test_without_devices_there_is_none() -> None:
    assert chosen([]) is None


def at_most(rate: float) -> Measurement:
    within = {"saturation_qps": (0.99 * rate, 1.01 * rate)}
    return made_measurement(saturation=rate, within=within)


def test_what_most_devices_measure_is_the_measure() -> None:
    odd, one, other = at_most(200), at_most(100), at_most(101)
    assert typical([odd, one, other]) is one
    assert typical([one, odd, other]) is one


def test_of_as_many_that_differ_the_first_is_the_measure() -> None:
    first, second = at_most(100), at_most(200)
    assert typical([first, second]) is first
    assert typical([second, first]) is second
    assert typical([]) is None


def test_one_is_no_plural() -> None:
    assert [counted(many, "core") for many in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
    assert str(Kind(processor="p", cores=1)) == "1 core of p"
