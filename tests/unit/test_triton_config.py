"""Configurations read, printed and changed: properties over generated ones, and single rules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
)

from autotune.adapters.triton.config import (
    check_targets,
    instance_count,
    override_json,
    parse,
    present,
    read,
    render,
    with_candidate,
)
from autotune.core.errors import CandidateFailed, InputRefused
from search_spaces.candidate import Candidate

TARGETS = ("max_batch_size", "queue_delay_us", "preferred_batch_sizes", "instances")
BATCHING = TARGETS[:3]


# ------------------------------------------------------------------ any message of the schema
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32, allow_nan=False),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
}


def value(draw: st.DrawFn, field: FieldDescriptor, depth: int) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return draw(st.sampled_from([each.number for each in field.enum_type.values]))
    return draw(SCALARS[field.cpp_type])


def fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    alternatives = {
        draw(st.sampled_from([field.name for field in oneof.fields])) for oneof in descriptor.oneofs
    }
    for field in descriptor.fields:
        if field.containing_oneof and field.name not in alternatives:
            continue
        if draw(st.integers(0, 2)) == 0:
            fill_field(draw, message, field, depth)


def fill_field(draw: st.DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    nested = field.message_type
    if nested is not None and depth == 0:
        return
    target = getattr(message, field.name)
    if nested is not None and nested.GetOptions().map_entry:
        for _ in range(draw(st.integers(1, 2))):
            key = value(draw, nested.fields_by_name["key"], depth)
            inner = nested.fields_by_name["value"]
            if inner.message_type is not None:
                fill(draw, target[key], depth - 1)
            else:
                target[key] = value(draw, inner, depth)
    elif nested is not None and field.is_repeated:
        for _ in range(draw(st.integers(1, 2))):
            fill(draw, target.add(), depth - 1)
    elif nested is not None:
        target.SetInParent()
        fill(draw, target, depth - 1)
    elif field.is_repeated:
        target.extend(value(draw, field, depth) for _ in range(draw(st.integers(1, 3))))
    else:
        setattr(message, field.name, value(draw, field, depth))


@st.composite
def any_config(draw: st.DrawFn) -> Any:
    config = ModelConfig()
    fill(draw, config, depth=4)
    return config


many = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@many
@given(any_config())
def test_any_configuration_goes_out_as_text_and_in_again_with_its_meaning(config: Any):
    text = render(config)
    again = parse(text, "generated")
    assert again == config
    assert render(again) == text


@many
@given(any_config())
def test_any_configuration_survives_the_json_of_an_override(config: Any):
    assert json_format.Parse(override_json(config), ModelConfig()) == config


# ------------------------------------------------------------- configurations that Triton loads
@st.composite
def served_config(draw: st.DrawFn) -> Any:
    config = ModelConfig(name="m", backend=draw(st.sampled_from(["python", "onnxruntime"])))
    config.max_batch_size = draw(st.sampled_from([1, 2, 4, 7, 8, 16]))
    scheduling = draw(st.sampled_from(["none", "dynamic", "sequence"]))
    if scheduling == "dynamic":
        config.dynamic_batching.SetInParent()
        fill_batcher(draw, config.dynamic_batching, config.max_batch_size)
    elif scheduling == "sequence":
        config.sequence_batching.direct.max_queue_delay_microseconds = draw(st.integers(0, 9))
    for _ in range(draw(st.integers(0, 3))):
        config.instance_group.add(
            count=draw(st.integers(0, 4)),
            kind=draw(st.sampled_from(["KIND_CPU", "KIND_AUTO", "KIND_GPU"])),
            host_policy=draw(st.sampled_from(["", "numa_0"])),
            passive=draw(st.booleans()),
        )
    for key in draw(st.sets(st.sampled_from("abc"))):
        config.parameters[key].string_value = draw(st.text("xyz01", max_size=3))
    config.version_policy.latest.num_versions = draw(st.integers(1, 3))
    return config


def fill_batcher(draw: st.DrawFn, batcher: ModelDynamicBatching, maximum: int) -> None:
    batcher.preferred_batch_size.extend(draw(st.lists(st.integers(1, maximum), max_size=3)))
    batcher.max_queue_delay_microseconds = draw(st.integers(0, 1000))
    batcher.preserve_ordering = draw(st.booleans())
    batcher.default_queue_policy.max_queue_size = draw(st.integers(0, 3))


def settable(config: Any) -> list[str]:
    found = []
    for target in (*TARGETS, "parameters.a", "parameters.b"):
        try:
            check_targets(config, [target, "max_batch_size"])
        except InputRefused:
            continue
        found.append(target)
    return found


def as_triton_sees_it(config: Any) -> Any:
    """What `NormalizeModelConfig`, `SetDefaultInstanceCount` and the backend's auto-completion
    make of it, as far as the tuned fields go."""
    seen = ModelConfig()
    seen.CopyFrom(config)
    scheduled = seen.WhichOneof("scheduling_choice")
    if seen.backend == "onnxruntime" and seen.max_batch_size > 1 and scheduled is None:
        seen.dynamic_batching.SetInParent()
    if seen.HasField("dynamic_batching"):
        sizes = sorted(set(seen.dynamic_batching.preferred_batch_size)) or [seen.max_batch_size]
        del seen.dynamic_batching.preferred_batch_size[:]
        seen.dynamic_batching.preferred_batch_size.extend(sizes)
    if not seen.instance_group:
        seen.instance_group.add()
    for group in seen.instance_group:
        on_cpu = group.kind in (group.KIND_CPU, group.KIND_AUTO)
        group.count = group.count or (2 if seen.backend == "onnxruntime" and on_cpu else 1)
    return seen


@many
@given(served_config(), st.data())
def test_applying_the_values_in_service_changes_nothing_that_triton_would_notice(
    config: Any, data: st.DataObject
):
    targets = data.draw(st.sets(st.sampled_from(settable(config))))
    changed = with_candidate(config, present(config, targets))
    assert as_triton_sees_it(changed) == as_triton_sees_it(config)


@many
@given(served_config(), st.data())
def test_a_candidate_is_presented_again_once_it_is_applied(config: Any, data: st.DataObject):
    targets = [target for target in settable(config) if target != "preferred_batch_sizes"]
    values: dict[str, Any] = {
        "max_batch_size": data.draw(st.integers(2, 64)),
        "queue_delay_us": data.draw(st.integers(0, 5000)),
        "instances": data.draw(st.integers(1, 9)),
        "parameters.a": data.draw(st.sampled_from([None, "", "4"])),
        "parameters.b": "7",
    }
    candidate = Candidate({target: values[target] for target in targets})
    assert present(with_candidate(config, candidate), targets) == candidate


@many
@given(served_config(), st.integers(1, 64), st.integers(1, 9))
def test_what_is_not_tuned_is_kept(config: Any, maximum: int, instances: int):
    values: dict[str, Any] = {"max_batch_size": maximum}
    if "instances" in settable(config):
        values["instances"] = instances
    changed = with_candidate(config, Candidate(values))
    kept = [without_tuned(each) for each in (config, changed)]
    assert kept[0] == kept[1]


def without_tuned(config: Any) -> Any:
    bare = ModelConfig()
    bare.CopyFrom(config)
    bare.ClearField("max_batch_size")
    for field in ("max_queue_delay_microseconds", "preferred_batch_size"):
        if bare.HasField("dynamic_batching"):
            bare.dynamic_batching.ClearField(field)
    if bare.HasField("dynamic_batching") and not bare.dynamic_batching.ByteSize():
        bare.ClearField("dynamic_batching")
    for group in bare.instance_group:
        if not group.passive:
            group.ClearField("count")
    if not config.instance_group:
        bare.instance_group.add()
    return bare


# ---------------------------------------------------------------------------------- single rules
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batch_size: 4\nfrom_the_future: 3", r"m/config.pbtxt:2:1: .*from_the_future"),
        ("max_batch_size: many", r"m/config.pbtxt:1:17: .*integer: many"),
        ("\n\ninput [ { name: 'x'", r"m/config.pbtxt:3"),
        ("instance_group [ { kind: KIND_TPU } ]", "no value named KIND_TPU"),
        ("max_batch_size: 4\nmax_batch_size: 5", "multiple"),
        ("dynamic_batching { }\nsequence_batching { }", "Keep one of dynamic_batching"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_place(text: str, words: str):
    with pytest.raises(InputRefused, match=words):
        parse(text, "m/config.pbtxt")


def test_a_field_of_a_newer_triton_is_refused_because_it_would_be_lost():
    with pytest.raises(InputRefused, match="would be lost"):
        parse("from_the_future: 3", "config.pbtxt")


@pytest.mark.parametrize("nested", [False, True])
def test_a_message_with_a_field_that_text_would_lose_is_refused(nested: bool):
    config = ModelConfig(name="m")
    unknown = b"\xfa\x3e\x03abc"  # field 1007, three bytes
    if nested:
        config.instance_group.add().MergeFromString(unknown)
    else:
        config.MergeFromString(unknown)
    with pytest.raises(InputRefused, match=r"does not know.*1007"):
        render(config)
    with pytest.raises(InputRefused, match=r"does not know.*1007"):
        override_json(config)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    file = tmp_path / "config.pbtxt"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputRefused, match="cannot read"):
        read(file)


def test_override_json_uses_the_names_of_the_schema():
    config = parse("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 7 }", "")
    assert json.loads(override_json(config)) == {
        "max_batch_size": 4,
        "dynamic_batching": {"max_queue_delay_microseconds": "7"},
    }


def config_of(text: str) -> Any:
    return parse(text, "test")


def test_a_maximum_without_the_batcher_is_presented_as_no_batching():
    config = config_of("backend: 'python' max_batch_size: 8")
    assert present(config, BATCHING).to_json() == {
        "max_batch_size": 1,
        "queue_delay_us": 0,
        "preferred_batch_sizes": None,
    }


def test_without_the_batcher_and_the_maximum_not_swept_the_delay_is_presented_as_unset():
    config = config_of("backend: 'python' max_batch_size: 8")
    assert present(config, ["queue_delay_us"])["queue_delay_us"] is None


def test_the_batcher_that_a_backend_adds_by_itself_is_presented_as_on_and_written_out():
    config = config_of("platform: 'onnxruntime_onnx' max_batch_size: 8")
    assert present(config, ["max_batch_size"])["max_batch_size"] == 8
    assert with_candidate(config, Candidate({"instances": 2})).HasField("dynamic_batching")


def test_a_delay_that_is_unset_takes_the_batcher_out():
    config = config_of("max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 5 }")
    changed = with_candidate(config, Candidate({"queue_delay_us": None}))
    assert changed == config_of("max_batch_size: 8")


def test_preferred_sizes_follow_a_new_maximum():
    text = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 8 ] }"
    changed = with_candidate(config_of(text), Candidate({"max_batch_size": 4}))
    assert list(changed.dynamic_batching.preferred_batch_size) == [2, 4]


def test_the_user_s_configuration_is_not_changed_in_place():
    config = config_of("max_batch_size: 8")
    with_candidate(config, Candidate({"max_batch_size": 4, "instances": 3, "parameters.a": 1}))
    assert config == config_of("max_batch_size: 8")


def test_server_flags_leave_the_configuration_alone():
    config = config_of("max_batch_size: 8")
    assert with_candidate(config, Candidate({"server.log-verbose": 1})) == config


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (4, "4"), (0.5, "0.5"), ("x", "x")])
def test_a_backend_parameter_is_written_as_text(value: Any, text: str):
    changed = with_candidate(ModelConfig(), Candidate({"parameters.k": value}))
    assert changed.parameters["k"].string_value == text


def test_a_backend_parameter_that_is_unset_is_taken_out():
    config = config_of("parameters { key: 'k' value: { string_value: '1' } }")
    assert with_candidate(config, Candidate({"parameters.k": None})) == ModelConfig()


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("", 0, 1),
        ("", 2, 2),
        ("backend: 'onnxruntime'", 0, 2),
        ("backend: 'onnxruntime'", 1, 1),
        ("instance_group { kind: KIND_CPU count: 3 }", 4, 3),
        ("instance_group { kind: KIND_GPU count: 2 gpus: [ 0, 3 ] }", 4, 4),
        ("instance_group { kind: KIND_GPU count: 2 }", 4, 8),
        ("instance_group { count: 2 } instance_group { count: 1 passive: true }", 0, 3),
        ("platform: 'ensemble' ensemble_scheduling { }", 0, 0),
        ("instance_group { count: 2 gpus: [ 1 ] }", 4, 2),
        ("instance_group { count: 2 }", 2, 4),
        ("instance_group { kind: KIND_MODEL }", 4, 1),
        ("backend: 'python'", 4, 4),
        ("backend: 'openvino'", 4, 1),
        ("backend: 'openvino' instance_group { count: 2 }", 4, 8),
        (
            "instance_group { kind: KIND_GPU gpus: [ 0 ] } instance_group { kind: KIND_CPU"
            " count: 3 }",
            2,
            4,
        ),
    ],
)
def test_instances_are_counted_as_triton_makes_them(text: str, gpus: int, expected: int):
    assert instance_count(config_of(text), gpus) == expected


def test_the_gpus_of_a_group_are_kept_and_exported():
    text = "instance_group { kind: KIND_GPU count: 1 gpus: [ 0, 2 ] secondary_devices { } }"
    changed = with_candidate(config_of(text), Candidate({"instances": 3}))
    (group,) = parse(render(changed), "exported").instance_group
    assert (group.count, list(group.gpus), len(group.secondary_devices)) == (3, [0, 2], 1)


@pytest.mark.parametrize(("backend", "kind"), [("openvino", "KIND_CPU"), ("python", "KIND_AUTO")])
def test_instances_of_a_silent_configuration_stay_where_its_backend_puts_them(
    backend: str, kind: str
):
    config = config_of(f"backend: '{backend}'")
    (group,) = with_candidate(config, Candidate({"instances": 2})).instance_group
    assert group.kind == ModelInstanceGroup.Kind.Value(kind)


@pytest.mark.parametrize(
    ("text", "targets", "words"),
    [
        ("max_batch_size: 0", ["max_batch_size"], "takes no batch dimension"),
        ("max_batch_size: 1", ["queue_delay_us"], "no effect"),
        ("max_batch_size: 4 sequence_batching { }", ["queue_delay_us"], "sequence batching"),
        ("max_batch_size: 4 ensemble_scheduling { }", ["instances"], "composing"),
        ("instance_group { passive: true }", ["instances"], "passive"),
        ("", ["instance_count"], "These can: instances, max_batch_size"),
        ("", ["variant"], "cannot be tuned"),
    ],
)
def test_a_space_that_sweeps_what_has_no_effect_is_refused(
    text: str, targets: list[str], words: str
):
    with pytest.raises(InputRefused, match=words):
        check_targets(config_of(text), targets)


def test_a_space_of_what_can_be_set_is_accepted():
    check_targets(config_of("max_batch_size: 1"), [*TARGETS, "parameters.x", "server.y"])


def test_a_candidate_that_cannot_be_applied_is_a_failure_of_the_candidate_alone():
    with pytest.raises(CandidateFailed):
        with_candidate(ModelConfig(), Candidate({"max_batch_size": 2}))
