"""Hand-made configurations that use what Triton offers: in, candidate, out.

The golden files were read through by hand; write them anew with UPDATE_GOLDEN=1 and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.adapters.triton.config import parse, present, read, render, with_candidate
from autotune.core.errors import CandidateFailed
from search_spaces.candidate import Candidate

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
BATCHING = ("max_batch_size", "queue_delay_us", "preferred_batch_sizes")
ALL = (*BATCHING, "instances")

APPLIED: dict[str, dict[str, object]] = {
    "dynamic": {"max_batch_size": 6, "queue_delay_us": 0, "instances": 3, "parameters.threads": 1},
    "ensemble": {"parameters.note": "tuned", "server.log-verbose": 1},
    "sequence_direct": {"max_batch_size": 4, "instances": 2},
    "sequence_oldest": {"max_batch_size": 8, "instances": 4},
    "priorities": {"max_batch_size": 4, "queue_delay_us": 1000, "instances": 2},
    "queue_policy": {"max_batch_size": 1, "instances": 2},
    "rate_limiter": {"max_batch_size": 8, "queue_delay_us": 500, "instances": 4},
    "host_policy": {"max_batch_size": 16, "instances": 6},
    "several_groups": {"max_batch_size": 16, "preferred_batch_sizes": (8, 16), "instances": 3},
    "cuda_graphs": {"max_batch_size": 16, "queue_delay_us": 2000},
    "warmup": {"max_batch_size": 8, "queue_delay_us": 0, "preferred_batch_sizes": None},
    "versions_labels_cache": {"max_batch_size": 4, "instances": 2, "queue_delay_us": 0},
    "accelerators": {"max_batch_size": 32, "parameters.intra_op_thread_count": 4},
    "unbatched": {"instances": 2, "parameters.verbose": True},
    "no_batcher": {"max_batch_size": 8, "queue_delay_us": 0},
}

PRESENTED: dict[str, dict[str, object]] = {
    "dynamic": dict(zip(ALL, (8, 100, (4, 8), 1), strict=True)),
    "sequence_direct": {"max_batch_size": 2, "instances": 1},
    "sequence_oldest": {"max_batch_size": 16, "instances": 2},
    "priorities": dict(zip(ALL, (8, 200, None, 1), strict=True)),
    "queue_policy": dict(zip(ALL, (4, 0, None, 1), strict=True)),
    "rate_limiter": dict(zip(ALL, (1, 0, None, 2), strict=True)),
    "host_policy": dict(zip(ALL, (8, 0, None, 3), strict=True)),
    "several_groups": dict(zip(ALL, (32, 0, None, 2), strict=True)),
    "cuda_graphs": dict(zip(ALL, (8, 0, None, 1), strict=True)),
    "versions_labels_cache": dict(zip(ALL, (8, 0, None, 2), strict=True)),
    "unbatched": {"instances": 1, "parameters.verbose": None, "server.log-verbose": None},
    "no_batcher": dict(zip(ALL, (1, 0, None, 1), strict=True)),
}


def test_every_hand_made_configuration_has_a_candidate():
    assert {file.stem for file in CONFIGS.glob("*.pbtxt")} == set(APPLIED)


@pytest.mark.parametrize("name", APPLIED)
def test_a_configuration_goes_in_and_out_with_its_meaning(name: str):
    config = read(CONFIGS / f"{name}.pbtxt")
    assert parse(render(config), "out") == config


@pytest.mark.parametrize("name", APPLIED)
def test_a_candidate_changes_the_configuration_as_in_the_golden_file(name: str):
    config = read(CONFIGS / f"{name}.pbtxt")
    text = render(with_candidate(config, Candidate(APPLIED[name])))  # type: ignore[arg-type]
    golden = CONFIGS / "out" / f"{name}.pbtxt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PRESENTED)
def test_the_values_in_service_are_presented(name: str):
    expected = PRESENTED[name]
    assert present(read(CONFIGS / f"{name}.pbtxt"), expected) == Candidate(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("ensemble", {"instances": 2}, "ensemble"),
        ("ensemble", {"max_batch_size": 2}, "ensemble"),
        ("sequence_direct", {"queue_delay_us": 100}, "sequence batching"),
        ("sequence_oldest", {"preferred_batch_sizes": (4,)}, "sequence batching"),
        ("sequence_oldest", {"max_batch_size": 4}, "preferred"),
        ("unbatched", {"max_batch_size": 4}, "max_batch_size is 0"),
        ("unbatched", {"queue_delay_us": 4}, "max_batch_size is 0"),
        ("dynamic", {"max_batch_size": 4, "preferred_batch_sizes": (8,)}, "above max_batch_size"),
        ("dynamic", {"max_batch_size": 0}, "whole number"),
        ("dynamic", {"max_batch_size": 2.5}, "whole number"),
        ("dynamic", {"max_batch_size": True}, "whole number"),
        ("dynamic", {"max_batch_size": "8"}, "whole number"),
        ("dynamic", {"queue_delay_us": -1}, "whole number"),
        ("dynamic", {"instances": 0}, "whole number"),
        ("dynamic", {"preferred_batch_sizes": (0,)}, "whole number"),
        ("dynamic", {"preferred_batch_sizes": 4}, "list"),
        ("dynamic", {"queue_delay_us": None, "preferred_batch_sizes": (4,)}, "need the dynamic"),
        ("dynamic", {"parameters.threads": (1, 2)}, "one value"),
        ("dynamic", {"variant": "int8"}, "cannot be tuned"),
        ("dynamic", {"decode.workers": 2}, "cannot be tuned"),
        ("priorities", {"queue_delay_us": None}, "priorities"),
        ("warmup", {"max_batch_size": 2}, "warm-up"),
        ("accelerators", {"queue_delay_us": None}, "put back"),
        ("accelerators", {"parameters.intra_op_threads": 2}, "no such parameter"),
    ],
)
def test_a_candidate_that_contradicts_the_configuration_fails(
    name: str, values: dict[str, object], words: str
):
    with pytest.raises(CandidateFailed, match=words):
        with_candidate(read(CONFIGS / f"{name}.pbtxt"), Candidate(values))  # type: ignore[arg-type]
