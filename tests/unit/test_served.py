"""Whether what a server has loaded is what a configuration says."""

from __future__ import annotations

import pytest

from autotune.adapters.deploy.served import SENT, differences
from autotune.adapters.triton.config import ModelConfig, parse

FILE = """
name: "ocr" backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching { max_queue_delay_microseconds: 1000 }
parameters { key: "threads" value: { string_value: "1" } }
"""
LOADED = """
name: "ocr" backend: "python" max_batch_size: 4
version_policy { latest { num_versions: 1 } }
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
instance_group { name: "ocr_0" count: 2 kind: KIND_CPU }
default_model_filename: "model.py"
optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
dynamic_batching { max_queue_delay_microseconds: 1000 preferred_batch_size: 4 }
parameters { key: "threads" value: { string_value: "1" } }
"""
BARE = """name: "ocr" backend: "python" max_batch_size: 4"""


def loaded(was: str = "", becomes: str = "") -> ModelConfig:
    """As Triton completes it, with a part that is another."""
    assert was in LOADED
    return parse(LOADED.replace(was, becomes) if was else LOADED, "loaded")


def test_what_a_server_completes_is_no_difference() -> None:
    assert not differences(parse(FILE, "file"), loaded())


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        ("max_batch_size: 4", "max_batch_size: 8", "max_batch_size is 8, not 4"),
        ("count: 2", "count: 3", "instance_group[0].count is 3, not 2"),
        ('string_value: "1"', 'string_value: "2"', "parameters.threads.string_value is 2, not 1"),
        ('key: "threads"', 'key: "others"', "parameters.threads is not set"),
        ("dims: 4", "dims: 5", "input[0].dims is [5], not [4]"),
        (
            "max_queue_delay_microseconds: 1000",
            "",
            "dynamic_batching.max_queue_delay_microseconds is 0, not 1000",
        ),
        (
            'instance_group { name: "ocr_0" count: 2 kind: KIND_CPU }',
            "instance_group { count: 1 kind: KIND_CPU } instance_group { count: 1 kind: KIND_CPU }",
            "instance_group has 2 entries, not 1",
        ),
    ],
)
def test_a_field_that_the_configuration_sets_is_held_to_it(
    was: str, becomes: str, told: str
) -> None:
    assert told in differences(parse(FILE, "file"), loaded(was, becomes))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("dynamic_batching { max_queue_delay_microseconds: 5 }", "queue_delay_us is 5, not 0"),
        ("instance_group { count: 3 kind: KIND_CPU }", "instances is 3, not 1"),
        ('parameters { key: "x" value: { string_value: "1" } }', "parameters.x is set"),
    ],
)
def test_what_somebody_adds_to_a_field_that_is_tuned_is_a_difference(more: str, told: str) -> None:
    assert told in differences(parse(BARE, "file"), parse(f"{BARE} {more}", "loaded"))


def test_the_mark_of_files_that_were_sent_is_none() -> None:
    sent = parse(f'{BARE} parameters {{ key: "{SENT}" value: {{ string_value: "1" }} }}', "loaded")
    assert not differences(parse(BARE, "file"), sent)
