from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import library
from search_spaces.candidate import Candidate
from search_spaces.space import SpaceRefused, parse_space

EXAMPLE = {
    "about": "everything at once",
    "max_batch_size": [1, 2, 4, 8],
    "queue_delay_us": {"values": [0, 1000], "when": {"max_batch_size": {"above": 1}}},
    "preferred_batch_sizes": {
        "values": [None, [2, 4], [8]],
        "when": {"max_batch_size": {"in": [4, 8]}, "queue_delay_us": 0},
    },
    "instances": {"range": [1, 4]},
    "variant": ["fp32", "int8"],
    "decode.workers": [1, 2],
    "parameters.threads": {"values": [None, 1, 2, 4], "when": {"variant": {"not": "int8"}}},
    "server.pinned-memory": [0, 256],
    "prune": [
        {"product": ["instances", "parameters.threads"], "above": "cores", "because": "crowded"},
        {"sum": ["instances", "decode.workers"], "above": 5},
        {"when": {"max_batch_size": 1, "instances": 4}, "because": "no batch to share"},
    ],
}
SPACE = parse_space(EXAMPLE, "example")


def refused(mapping) -> SpaceRefused:
    with pytest.raises(SpaceRefused) as caught:
        parse_space(mapping, "bad")
    return caught.value


# ------------------------------------------------------------------------------------ candidates
def test_candidates_that_differ_only_in_an_ineffective_setting_are_the_same():
    full = {"max_batch_size": 1, "instances": 1, "variant": "int8", "decode.workers": 1,
            "server.pinned-memory": 0}  # fmt: skip
    one = SPACE.active({**full, "queue_delay_us": 0})
    other = SPACE.active({**full, "queue_delay_us": 1000, "parameters.threads": 4})
    assert one == other
    assert "queue_delay_us" not in one


def test_a_setting_that_depends_on_an_absent_one_is_absent_too():
    space = parse_space(
        {
            "variant": ["a", "b"],
            "parameters.x": {"values": [1, 2], "when": {"variant": "a"}},
            "parameters.y": {"values": [1, 2], "when": {"parameters.x": {"not": 1}}},
        },
        "chain",
    )
    values = {"variant": "b", "parameters.x": 2, "parameters.y": 1}
    assert space.active(values) == Candidate({"variant": "b"})


def test_an_assignment_without_an_active_parameter_is_refused_by_its_name():
    with pytest.raises(SpaceRefused, match="instances"):
        SPACE.active({"max_batch_size": 1, "variant": "int8"})


def test_an_assignment_of_an_unknown_target_is_refused_with_the_nearest():
    with pytest.raises(SpaceRefused, match="did you mean instances"):
        SPACE.active({"instance": 1})


def test_the_grid_varies_server_flags_slowest_and_then_variants():
    assert SPACE.targets[:2] == ("server.pinned-memory", "variant")
    flags = [candidate["server.pinned-memory"] for candidate in SPACE.candidates()]
    assert flags == sorted(flags)


def test_the_grid_has_no_candidate_twice_and_all_are_in_the_space():
    grid = list(SPACE.candidates())
    assert len(set(grid)) == len(grid) == SPACE.size()
    assert all(SPACE.contains(candidate) for candidate in grid)


@given(seed=st.integers(0, 2**32))
def test_a_sample_is_a_candidate_of_the_space(seed):
    assert SPACE.contains(SPACE.sample(np.random.default_rng(seed)))


def test_a_value_of_another_type_is_another_setting():
    space = parse_space({"parameters.x": [1, "1", True, 1.5]}, "types")
    assert space.size() == 4
    assert not space.contains(Candidate({"parameters.x": 1.0}))


def test_a_configuration_in_service_is_recognised_in_the_space():
    space = parse_space({"max_batch_size": [1, 4], "parameters.threads": [1, 2],
                         "parameters.on": [True, False]}, "s")  # fmt: skip
    served = Candidate({
        "max_batch_size": 1, "parameters.threads": "2", "parameters.on": "true",
        "parameters.other": "kept", "queue_delay_us": 0,
    })  # fmt: skip
    assert space.project(served) == Candidate(
        {"max_batch_size": 1, "parameters.threads": 2, "parameters.on": True}
    )


def test_a_configuration_outside_the_space_has_no_counterpart_in_it():
    assert (
        parse_space({"max_batch_size": [4]}, "s").project(Candidate({"max_batch_size": 5})) is None
    )


# ---------------------------------------------------------------------------------------- ranges
@pytest.mark.parametrize(
    ("spec", "grid"),
    [
        ({"range": [1, 4]}, (1, 2, 3, 4)),
        ({"range": [0, 100], "step": 30}, (0, 30, 60, 90)),
        ({"range": [1, 32], "scale": "log"}, (1, 2, 4, 8, 16, 32)),
        ({"range": [3, 20], "scale": "log"}, (3, 6, 12, 20)),
    ],
)
def test_a_range_is_walked_in_sensible_points(spec, grid):
    space = parse_space({"parameters.x": spec}, "s")
    assert space.parameters[0].domain.grid() == grid


def test_a_continuous_range_has_no_size_and_a_finite_grid_with_both_ends():
    space = parse_space({"parameters.x": {"range": [0.1, 10.0], "scale": "log"}}, "s")
    points = [candidate["parameters.x"] for candidate in space.candidates()]
    assert space.size() is None
    assert (points[0], points[-1], len(points)) == (0.1, 10.0, 8)


def test_a_float_range_with_a_step_is_countable():
    space = parse_space({"parameters.x": {"range": [0.0, 1.0], "step": 0.1}}, "s")
    assert space.size() == 11
    assert space.contains(Candidate({"parameters.x": 0.3}))
    assert not space.contains(Candidate({"parameters.x": 0.35}))


def test_the_size_of_a_conditional_space_is_counted_without_walking_it():
    space = parse_space(
        {
            "max_batch_size": {"range": [1, 60_000]},
            "queue_delay_us": {"range": [0, 10_000_000], "when": {"max_batch_size": {"above": 1}}},
        },
        "huge",
    )
    assert space.size() == 1 + 59_999 * 10_000_001


@settings(max_examples=60, deadline=None)
@given(
    low=st.integers(1, 500),
    width=st.integers(1, 5000),
    log=st.booleans(),
    step=st.one_of(st.none(), st.integers(1, 5000)),
    seed=st.integers(0, 99),
)
def test_every_grid_point_and_sample_of_a_range_lies_in_it(low, width, log, step, seed):
    spec = {"range": [low, low + width], "scale": "log" if log else "linear"}
    if step is not None and step <= width and not log:
        spec["step"] = step
    domain = parse_space({"parameters.x": spec}, "s").parameters[0].domain
    rng = np.random.default_rng(seed)
    grid = domain.grid()
    assert list(grid) == sorted(set(grid))
    assert all(domain.contains(v) for v in (*grid, *(domain.sample(rng) for _ in range(5))))


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
    delays=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    above=st.integers(0, 8),
    instances=st.integers(2, 3),
)
def test_the_count_is_the_number_of_distinct_candidates(batches, delays, above, instances):
    mapping = {
        "max_batch_size": batches,
        "instances": {"range": [1, instances]},
        "queue_delay_us": {"values": delays, "when": {"max_batch_size": {"above": above}}},
    }
    if max(batches) <= above:
        refused(mapping)
        return
    space = parse_space(mapping, "s")
    assert space.size() == len(set(space.candidates()))


# ----------------------------------------------------------------------------------------- prune
def settled(**changes) -> Candidate:
    values = {"max_batch_size": 1, "instances": 1, "variant": "fp32", "decode.workers": 1,
              "parameters.threads": 1, "server.pinned-memory": 0}  # fmt: skip
    return SPACE.active({**values, **changes})


def test_a_combination_above_the_cores_is_ruled_out_with_its_reason():
    crowded = settled(instances=2, **{"parameters.threads": 4})
    assert SPACE.pruned(crowded, cores=8) is None
    assert SPACE.pruned(crowded, cores=4) == (
        "instances x parameters.threads = 8 is above the 4 cores: crowded"
    )


def test_a_rule_about_a_setting_that_is_unset_or_absent_says_nothing():
    assert SPACE.pruned(settled(instances=2, **{"parameters.threads": None}), cores=1) is None
    assert SPACE.pruned(settled(instances=2, variant="int8"), cores=1) is None


def test_a_rule_can_bound_a_sum_by_a_number():
    assert SPACE.pruned(settled(instances=3, **{"decode.workers": 2}), cores=64) is None
    assert "above 5" in SPACE.pruned(
        settled(instances=4, max_batch_size=2, queue_delay_us=0, **{"decode.workers": 2}), cores=64
    )


def test_a_rule_can_name_a_combination_by_conditions_alone():
    assert SPACE.pruned(settled(instances=4), cores=64) == "no batch to share"


def test_a_bound_can_be_another_parameter():
    space = parse_space(
        {
            "max_batch_size": [1, 8],
            "instances": [1, 4],
            "prune": [{"sum": ["instances"], "above": "max_batch_size"}],
        },
        "s",
    )
    ruled_out = [c for c in space.candidates() if space.pruned(c, cores=1)]
    assert ruled_out == [Candidate({"max_batch_size": 1, "instances": 4})]


def test_preferred_sizes_above_the_maximum_are_ruled_out_without_a_rule():
    odd = Candidate({"max_batch_size": 4, "preferred_batch_sizes": (2, 8)})
    assert "Triton refuses it" in parse_space({"instances": [1]}, "s").pruned(odd, cores=1)


# --------------------------------------------------------------------------------------- refusal
@pytest.mark.parametrize(
    ("mapping", "path", "words"),
    [
        ({}, (), "at least one parameter"),
        ({"max_batchsize": [1]}, ("max_batchsize",), "did you mean max_batch_size"),
        ({"instance": [1]}, ("instance",), "did you mean instances"),
        ({"max_batch_size": [0]}, ("max_batch_size", 0), "from 1"),
        ({"max_batch_size": [1, True]}, ("max_batch_size", 1), "whole number"),
        ({"max_batch_size": [None]}, ("max_batch_size", 0), "cannot be null"),
        ({"max_batch_size": []}, ("max_batch_size",), "at least one value"),
        ({"max_batch_size": [4, 4]}, ("max_batch_size", 1), "once"),
        ({"max_batch_size": 4}, ("max_batch_size",), "list of values"),
        ({"queue_delay_us": [-1]}, ("queue_delay_us", 0), "from 0"),
        ({"queue_delay_us": [10_000_001]}, ("queue_delay_us", 0), "10000000"),
        ({"queue_delay_us": [1.5]}, ("queue_delay_us", 0), "whole number"),
        ({"instances": {"values": ["two"]}}, ("instances", "values", 0), "whole number"),
        ({"preferred_batch_sizes": [[0]]}, ("preferred_batch_sizes", 0, 0), "from 1"),
        ({"preferred_batch_sizes": [[4, 2]]}, ("preferred_batch_sizes", 0), "ascending"),
        ({"preferred_batch_sizes": [4]}, ("preferred_batch_sizes", 0), "list of sizes"),
        ({"variant": [8]}, ("variant", 0), "names"),
        ({"parameters.x": [float("nan")]}, ("parameters.x", 0), "finite"),
        ({"server.--log": [1]}, ("server.--log",), "without its dashes"),
        ({"server.http-port": [1]}, ("server.http-port",), "own to set"),
        ({"instances": {"vales": [1]}}, ("instances", "vales"), "did you mean values"),
        ({"instances": {"values": [1], "range": [1, 2]}}, ("instances",), "either"),
        ({"instances": {"when": {}}}, ("instances",), "either"),
        ({"instances": {"values": [1], "step": 2}}, ("instances", "step"), "goes with a `range`"),
        ({"instances": {"range": [4, 1]}}, ("instances", "range"), "below its high end"),
        ({"instances": {"range": [1]}}, ("instances", "range"), "two numbers"),
        ({"instances": {"range": [0, 4]}}, ("instances", "range", 0), "from 1"),
        ({"instances": {"range": [1, 4], "scale": "lin"}}, ("instances", "scale"), "linear"),
        ({"instances": {"range": [1, 4], "step": 9}}, ("instances", "step"), "not wider"),
        ({"instances": {"range": [1, 4], "step": 0.5}}, ("instances",), "whole step"),
        ({"instances": {"range": [1, 4], "type": "float"}}, ("instances", "type"), "whole"),
        ({"queue_delay_us": {"range": [0, 9], "scale": "log"}}, ("queue_delay_us",), "above 0"),
        ({"variant": {"range": [1, 2]}}, ("variant", "range"), "not a range"),
        (
            {"instances": {"values": [1], "when": {"max_batch": 1}}, "max_batch_size": [1]},
            ("instances", "when", "max_batch"),
            "did you mean max_batch_size",
        ),
        (
            {"instances": {"values": [1], "when": {"max_batch_size": {"abve": 1}}},
             "max_batch_size": [1]},
            ("instances", "when", "max_batch_size", "abve"),
            "did you mean above",
        ),
        (
            {"instances": {"values": [1], "when": {"max_batch_size": {"above": 8}}},
             "max_batch_size": [1, 8]},
            ("instances", "when", "max_batch_size"),
            "no value of max_batch_size is ever",
        ),
        ({"instances": [1], "prune": {}}, None, None),
        ({"instances": [1], "prune": {"product": 1}}, ("prune",), "list of rules"),
        ({"instances": [1], "prune": [{"above": 3}]}, ("prune", 0), "one of product or sum"),
        (
            {"instances": [1], "prune": [{"product": ["instnces"], "above": 3}]},
            ("prune", 0, "product", 0),
            "did you mean instances",
        ),
        (
            {"instances": [1], "prune": [{"product": ["instances"], "above": "core"}]},
            ("prune", 0, "above"),
            "did you mean cores",
        ),
        (
            {"variant": ["a"], "prune": [{"product": ["variant"], "above": 3}]},
            ("prune", 0, "product", 0),
            "only numbers",
        ),
    ],
)  # fmt: skip
def test_a_space_that_cannot_be_searched_is_refused_at_its_place(mapping, path, words):
    if path is None:
        assert parse_space(mapping, "fine").prune == ()
        return
    error = refused(mapping)
    assert error.path == path
    assert words in str(error)


def test_conditions_that_wait_for_one_another_are_refused():
    error = refused({
        "max_batch_size": {"values": [1, 2], "when": {"instances": 1}},
        "instances": {"values": [1, 2], "when": {"max_batch_size": 1}},
    })  # fmt: skip
    assert "wait for one another" in error.rule


def test_a_condition_on_itself_is_refused():
    assert "wait for" in refused({"instances": {"values": [1], "when": {"instances": 1}}}).rule


# ----------------------------------------------------------------------------------- ready-made
@pytest.mark.parametrize("name", ["batching", "cpu", "quick"])
def test_every_ready_made_space_can_be_searched(name):
    assert name in library.ready_made()
    space = parse_space(library.load(name), name)
    assert space.about
    assert space.size() == len(list(space.candidates()))


def test_the_batching_space_holds_powers_of_two_up_to_32():
    space = parse_space(library.load("batching"), "batching")
    assert space.parameter("max_batch_size").domain.grid() == (1, 2, 4, 8, 16, 32)


def test_the_cpu_space_leaves_at_least_twelve_candidates_on_two_cores():
    space = parse_space(library.load("cpu"), "cpu")
    left = [c for c in space.candidates() if space.pruned(c, cores=2) is None]
    assert len(left) >= 12
    assert {(c["instances"], c["parameters.intra_op_threads"]) for c in left} == {
        (1, 1), (1, 2), (2, 1)
    }  # fmt: skip


def test_an_unknown_ready_made_space_is_refused_with_the_nearest():
    with pytest.raises(SpaceRefused, match="did you mean batching"):
        library.load("bacthing")
