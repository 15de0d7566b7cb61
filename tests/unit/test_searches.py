"""What is particular to one search; what all owe is in tests/contract/test_search.py."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from autotune.adapters.search import GridSearch, OptunaSearch, RandomSearch
from autotune.adapters.search.axes import Axis
from autotune.core.study import Objective
from autotune.core.trial import TrialState
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.domain import Range, Values
from search_spaces.parameter import Parameter
from search_spaces.space import parse_space

BASELINE = Candidate({"max_batch_size": 1, "instances": 1})
OBJECTIVES = (Objective.of("saturation_qps"), Objective.of("p95_ms"))
WIDE = parse_space(
    {
        "max_batch_size": {"range": [1, 32]},
        "instances": [1, 2, 3, 4, 6, 8],
        "queue_delay_us": {
            "range": [0, 20000],
            "step": 500,
            "when": {"max_batch_size": {"above": 1}},
        },
        "parameters.knob": {"range": [0.0, 1.0]},
    },
    "wide",
)


def accelerator(candidate: Candidate) -> TrialOutcome:
    """An emulated accelerator of 5.4 + 2.46·n ms at 230/s, SLA p95 ≤ 60 ms: met by few."""
    batch, instances = candidate["max_batch_size"], candidate["instances"]
    service = 5.4 + 2.46 * batch
    capacity = instances**0.5 * batch / service * 1000
    wait = max(1 - 230 / capacity, 0.02)
    p95 = service * 1.6 / wait + 1.2e-3 * candidate.get("queue_delay_us", 0) + 2 * instances
    return TrialOutcome(
        state=TrialState.OK, values=(capacity, p95), violations=((p95 - 60) / 60, -1.0, -0.5)
    )


def trials_to_a_feasible_one(kind, seed: int, most: int = 40) -> int:
    search = kind(WIDE, baseline=BASELINE, objectives=OBJECTIVES, seed=seed, cores=8)
    return asked_until_feasible(search, most)


def asked_until_feasible(search, most: int) -> int:
    for number in range(most):
        candidate = search.ask()
        told = accelerator(candidate)
        if all(violation <= 0 for violation in told.violations):
            return number
        search.tell(candidate, told)
    return most


def test_optuna_comes_to_a_feasible_candidate_in_fewer_trials_than_random_on_average():
    """A mean over seeds: single seeds go either way. Over seeds 100 to 163, not used here, it was
    16.9 trials against 22.8 (ratio 0.74, bootstrap 95% interval 0.60 to 0.92; the better one for 38
    seeds, the worse one for 24), so nothing stronger than "fewer" is asserted."""
    seeds = range(16)
    learnt = np.mean([trials_to_a_feasible_one(OptunaSearch, seed) for seed in seeds])
    drawn = np.mean([trials_to_a_feasible_one(RandomSearch, seed) for seed in seeds])
    assert learnt < drawn


def feasible_found(seed: int, *, violations: bool, trials: int = 30) -> int:
    search = OptunaSearch(WIDE, baseline=BASELINE, objectives=OBJECTIVES, seed=seed, cores=8)
    met = 0
    for _ in range(trials):
        candidate = search.ask()
        told = accelerator(candidate)
        met += told.violations[0] <= 0
        kept = told.violations if violations else None
        search.tell(candidate, TrialOutcome(state=told.state, values=told.values, violations=kept))
    return met


def test_optuna_finds_more_feasible_candidates_when_it_is_told_the_violations():
    """They are inside the sampler: nothing else differs. Over seeds 100 to 115: 106 against 42."""
    seeds = range(3)
    told = sum(feasible_found(seed, violations=True) for seed in seeds)
    untold = sum(feasible_found(seed, violations=False) for seed in seeds)
    assert told > untold


def test_the_grid_changes_server_flags_least_often():
    space = parse_space(
        {"max_batch_size": [1, 2, 4], "instances": [1, 2], "server.pinned-memory": [0, 1]}, "s"
    )
    search = GridSearch(space, baseline=BASELINE, cores=8)
    flags = []
    while (candidate := search.ask()) is not None:
        search.tell(candidate, TrialOutcome(state=TrialState.OK, values=(), violations=None))
        flags.append(candidate.get("server.pinned-memory"))
    restarts = sum(one != other for one, other in pairwise(flags))
    assert restarts == 2


def test_the_same_setting_found_as_text_in_service_is_not_measured_twice():
    space = parse_space({"max_batch_size": [1, 2], "parameters.threads": [1, 2]}, "s")
    served = Candidate({"max_batch_size": 1, "parameters.threads": "1", "queue_delay_us": 0})
    search = GridSearch(space, baseline=served, cores=8)
    search.tell(served, TrialOutcome(state=TrialState.OK, values=(), violations=None))
    assert search.ask() == Candidate({"max_batch_size": 1, "parameters.threads": 2})


def test_a_study_without_objectives_can_be_searched():
    search = OptunaSearch(WIDE, baseline=BASELINE, objectives=(), seed=0, cores=8)
    for _ in range(12):
        candidate = search.ask()
        search.tell(candidate, TrialOutcome(state=TrialState.OK, values=(), violations=(0.1,)))
    assert search.ask() is not None


def test_listed_numbers_keep_their_order_for_the_sampler():
    axis = Axis.of(Parameter(target="instances", domain=Values(values=(8, 1, 4))))
    assert axis.values == (1, 4, 8)
    assert [axis.encode(value) for value in (1, 4, 8)] == [0, 1, 2]


def test_a_range_is_told_as_it_is():
    axis = Axis.of(
        Parameter(target="queue_delay_us", domain=Range(low=0, high=99, integer=True, step=10))
    )
    assert axis.distribution.high == 90
    assert axis.encode(40) == 40


def test_optuna_learns_what_memory_rules_out():
    """Of the same seeds, it asks for more than two instances the less often, the more it was told
    that none of those can be had."""

    def large(infeasible: bool, seed: int) -> int:
        search = OptunaSearch(WIDE, baseline=BASELINE, objectives=OBJECTIVES, seed=seed, cores=8)
        asked = []
        for _ in range(30):
            candidate = search.ask()
            asked.append(candidate)
            too_large = candidate["instances"] > 2
            told = TrialOutcome(
                state=TrialState.PRUNED,
                values=(None, None),
                violations=None,
                infeasible=infeasible,
            )
            search.tell(candidate, told if too_large else accelerator(candidate))
        return sum(candidate["instances"] > 2 for candidate in asked[10:])

    seeds = range(6)
    assert sum(large(True, seed) for seed in seeds) < sum(large(False, seed) for seed in seeds)


def warm_trials_to_a_feasible_one(seed: int, most: int = 40) -> int:
    """After 20 trials of another night, of which none is asked first."""
    earlier = RandomSearch(
        WIDE, baseline=BASELINE, objectives=OBJECTIVES, seed=seed + 1000, cores=8
    )
    known = []
    for _ in range(20):
        candidate = earlier.ask()
        known.append((candidate, accelerator(candidate)))
        earlier.tell(*known[-1])
    search = OptunaSearch(WIDE, baseline=BASELINE, objectives=OBJECTIVES, seed=seed, cores=8)
    search.recall(known, ())
    return asked_until_feasible(search, most)


def test_what_earlier_studies_measured_brings_a_search_to_a_feasible_candidate_sooner():
    """A mean over seeds. Over seeds 100 to 139, not used here, it was 4.9 trials against 15.5
    (ratio 0.32, bootstrap 95% interval 0.22 to 0.44; sooner for 35 seeds, later for 5)."""
    seeds = range(8)
    warm = np.mean([warm_trials_to_a_feasible_one(seed) for seed in seeds])
    cold = np.mean([trials_to_a_feasible_one(OptunaSearch, seed) for seed in seeds])
    assert warm < cold
