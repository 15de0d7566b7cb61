"""Triton model configurations: read, print, and change to what a candidate says.

What each target of a search space means in a ``config.pbtxt`` (checked against triton core
26.05, ``src/model_config_utils.cc`` and ``src/backend_model.cc``):

``max_batch_size``
    The field. Above 1 it needs the dynamic batcher to have any effect, so ``dynamic_batching`` is
    added where it is missing; at 1 the batcher's delay, which then does nothing, is taken out. A
    configuration whose maximum is above 1 but that has no batcher executes each request alone: it
    is *presented* as 1, and a candidate of 1 leaves it exactly as it is. Not so for the backends
    that add the batcher by themselves (ONNX Runtime, TensorFlow, TensorRT, by auto-completion): it
    is presented as on, and written out, so that it stays on without auto-completion.
``queue_delay_us``
    ``dynamic_batching.max_queue_delay_microseconds``; absent is 0. None means no dynamic batcher.
``preferred_batch_sizes``
    ``dynamic_batching.preferred_batch_size``. None is "unset", which Triton itself turns into
    ``[max_batch_size]`` on every load, with or without auto-completion (``NormalizeModelConfig``):
    so ``[max_batch_size]`` is presented as None, and an exported file may leave it unset. Where the
    candidate does not name them, sizes above a new maximum go, and one that was the old maximum
    becomes the new one.
``instances``
    ``instance_group.count``. With several groups it is the largest group's count, and the others
    follow in proportion (rounded, at least 1), so that the user's own split is kept; passive
    groups, which take no requests, are left alone. Kind, GPUs, host policy, profile and rate
    limiter of each group stay the user's: of a group on GPUs, Triton makes that many instances on
    each of them. Without a group of its own a model runs on every GPU that the server sees, or on
    the CPU where there is none or the backend prefers it.
``parameters.<key>``
    ``parameters[key].string_value``; None takes the key out. Triton's ONNX Runtime
    backend calls threads ``intra_op_thread_count`` and ``inter_op_thread_count``; the names of
    autotune's own runner, which takes both, are refused on it, since they would have no effect.

Everything else in the configuration is the user's and stays. Comments of the text do not survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from autotune.core.errors import CandidateFailed, InputRefused
from search_spaces.candidate import (
    BACKEND_PREFIX,
    INSTANCES,
    MAX_BATCH_SIZE,
    PREFERRED_BATCH_SIZES,
    QUEUE_DELAY_US,
    SERVER_PREFIX,
    Candidate,
    Value,
)

__all__ = [
    "ModelConfig",
    "check_targets",
    "instance_count",
    "largest_batch",
    "override_json",
    "parameter",
    "parse",
    "present",
    "read",
    "render",
    "with_candidate",
]

BATCHER_TARGETS = frozenset({QUEUE_DELAY_US, PREFERRED_BATCH_SIZES})
BATCHING_TARGETS = BATCHER_TARGETS | {MAX_BATCH_SIZE}

RUNNER_PARAMETERS = {
    "intra_op_threads": "intra_op_thread_count",
    "inter_op_threads": "inter_op_thread_count",
}
"""What autotune's ONNX runner calls a parameter, and what Triton's ONNX Runtime backend does."""
TORCH_PARAMETERS = {
    "intra_op_threads": "INTRA_OP_THREAD_COUNT",
    "inter_op_threads": "INTER_OP_THREAD_COUNT",
}
"""The same of its PyTorch runner and Triton's PyTorch backend."""

_BATCHER_BY_DEFAULT = ("onnxruntime", "tensorflow", "tensorrt")
_CPU_BY_DEFAULT = ("openvino",)
"""Backends that ask for the CPU where a configuration has no group (openvino_backend's
``TRITONBACKEND_GetBackendAttribute``; the Python backend's asks for a GPU where there is one)."""


# ----------------------------------------------------------------------------- text and messages
def parse(text: str, origin: str) -> ModelConfig:
    """Read protobuf text; ``origin`` names the file in errors.

    InputRefused with file, line and column for anything that this schema does not know: a field of
    a newer Triton is refused rather than lost on the way out.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        where = f"{origin}:{error.GetLine() or 1}:{error.GetColumn() or 1}"
        reason = str(error).split(" : ", 1)[-1]
        raise InputRefused(
            f"{where}: not a Triton model configuration: {reason}",
            next_step=_parse_advice(reason),
        ) from error


def read(path: Path) -> ModelConfig:
    """`parse` a file. InputRefused if it cannot be read as UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputRefused(f"cannot read {path}: {error}") from error
    return parse(text, str(path))


def render(config: ModelConfig) -> str:
    """Protobuf text, in the order of the schema with map keys sorted: equal messages give equal
    text. InputRefused if the message holds fields that this schema does not know (it came from a
    newer server), which text would lose.
    """
    _refuse_unknown_fields(config)
    return text_format.MessageToString(config, as_utf8=True)


def override_json(config: ModelConfig) -> str:
    """The ``config`` argument of a gRPC ``load_model``: JSON with the schema's field names."""
    _refuse_unknown_fields(config)
    return json_format.MessageToJson(config, preserving_proto_field_name=True)


# ------------------------------------------------------------------------------------ present
def present(config: ModelConfig, targets: Iterable[str], *, gpus: int = 0) -> Candidate:
    """The values in service, for the given targets; see the module's text for what they mean.

    ``server.<flag>`` is not in a model's configuration and is presented as None. Applying the
    result to ``config`` changes nothing that Triton would notice. ``gpus``: how many the server
    sees; decides the default number of instances where the configuration gives none.
    """
    wanted = set(targets)
    return Candidate({target: _present(config, target, wanted, gpus) for target in wanted})


def _present(config: ModelConfig, target: str, wanted: set[str], gpus: int) -> Value:
    if target.startswith(BACKEND_PREFIX):
        return parameter(config, target.removeprefix(BACKEND_PREFIX))
    if target == INSTANCES:
        groups = _active_groups(config) or [_silent_group(config)]
        return max(_group_count(config, group, gpus) for group in groups)
    if target == PREFERRED_BATCH_SIZES:
        return _preferred(config) or None
    if target == MAX_BATCH_SIZE:
        return 1 if _batcher_missing(config) else int(config.max_batch_size)
    if target == QUEUE_DELAY_US and (MAX_BATCH_SIZE in wanted or not _batcher_missing(config)):
        return int(config.dynamic_batching.max_queue_delay_microseconds)
    return None


def _batcher_missing(config: ModelConfig) -> bool:
    """Whether requests are executed alone although the model could take more at once."""
    unscheduled = config.WhichOneof("scheduling_choice") is None and int(config.max_batch_size) > 1
    return unscheduled and not _is_backend(config, *_BATCHER_BY_DEFAULT)


def _is_backend(config: ModelConfig, *names: str) -> bool:
    prefixes = tuple(f"{name}_" for name in names)
    return config.backend in names or str(config.platform).startswith(prefixes)


def _preferred(config: ModelConfig) -> tuple[int, ...]:
    """The preferred sizes, empty when they are what Triton takes anyway."""
    sizes = tuple(sorted(set(config.dynamic_batching.preferred_batch_size)))
    return () if sizes == (config.max_batch_size,) else sizes


def parameter(config: ModelConfig, key: str) -> str | None:
    # Looking a missing key up in a protobuf map would insert it.
    return str(config.parameters[key].string_value) if key in config.parameters else None


# ------------------------------------------------------------------------------ with_candidate
def with_candidate(config: ModelConfig, candidate: Candidate) -> ModelConfig:
    """A copy of the configuration as the candidate says; the user's other fields are kept.

    Targets that are absent keep the configuration's own value. CandidateFailed if the candidate
    names what cannot be set here, or contradicts itself or the configuration (a preferred size
    above the maximum, batching beside sequence batching, a warm-up batch larger than the maximum).
    """
    for target in candidate:
        rule, next_step = objection(config, target) or ("", "")
        if rule:
            raise CandidateFailed(rule, value=target, next_step=next_step)
    changed = ModelConfig()
    changed.CopyFrom(config)
    if not config.HasField("ensemble_scheduling"):
        _set_batching(changed, candidate)
    if INSTANCES in candidate:
        _set_instances(changed, _integer(candidate[INSTANCES], INSTANCES, lowest=1))
    for target in candidate:
        if target.startswith(BACKEND_PREFIX):
            _set_parameter(changed, target, candidate[target])
    _refuse_contradictions(changed)
    return changed


def _set_batching(config: ModelConfig, candidate: Candidate) -> None:
    sizes = tuple(config.dynamic_batching.preferred_batch_size)
    if MAX_BATCH_SIZE in candidate:
        maximum = _integer(candidate[MAX_BATCH_SIZE], MAX_BATCH_SIZE, lowest=1)
        if maximum == 1 and _batcher_missing(config):
            return
        sizes = _following(config, maximum)
        if maximum == 1 != config.max_batch_size and config.HasField("dynamic_batching"):
            config.dynamic_batching.ClearField("max_queue_delay_microseconds")
        config.max_batch_size = maximum
    if config.WhichOneof("scheduling_choice") == "sequence_batching":
        return
    if QUEUE_DELAY_US in candidate and candidate[QUEUE_DELAY_US] is None:
        _take_batcher_out(config, candidate)
    elif config.HasField("dynamic_batching") or _asks_for_batcher(config, candidate):
        _set_batcher(config, candidate, sizes)


def _following(config: ModelConfig, maximum: int) -> tuple[int, ...]:
    """The configuration's own preferred sizes under another maximum."""
    own, was = tuple(config.dynamic_batching.preferred_batch_size), config.max_batch_size
    if maximum == was or not _preferred(config):
        return own if maximum == was else ()
    kept = {maximum if size == was else size for size in own}
    return tuple(sorted(size for size in kept if size <= maximum))


def _asks_for_batcher(config: ModelConfig, candidate: Candidate) -> bool:
    """Whether a configuration without the dynamic batcher needs it to do what is asked."""
    asked = (MAX_BATCH_SIZE, QUEUE_DELAY_US, PREFERRED_BATCH_SIZES)
    given = any(candidate.get(name) is not None for name in asked)
    return config.max_batch_size > 1 and (given or not _batcher_missing(config))


def _set_batcher(config: ModelConfig, candidate: Candidate, own: tuple[int, ...]) -> None:
    """``own``: the preferred sizes of the configuration itself that the maximum leaves."""
    batcher = config.dynamic_batching
    batcher.SetInParent()
    if QUEUE_DELAY_US in candidate:
        delay = _integer(candidate[QUEUE_DELAY_US], QUEUE_DELAY_US, lowest=0)
        batcher.max_queue_delay_microseconds = delay
    if PREFERRED_BATCH_SIZES in candidate:
        own = _sizes(candidate[PREFERRED_BATCH_SIZES])
    batcher.ClearField("preferred_batch_size")
    batcher.preferred_batch_size.extend(own)


def _take_batcher_out(config: ModelConfig, candidate: Candidate) -> None:
    if config.max_batch_size > 1 and _is_backend(config, *_BATCHER_BY_DEFAULT):
        raise CandidateFailed(
            "queue_delay_us unset takes the dynamic batcher out, which this backend would put back",
            next_step="Use 0 for no delay, or max_batch_size 1 for no batching.",
        )
    if candidate.get(PREFERRED_BATCH_SIZES):
        raise CandidateFailed(
            "preferred batch sizes need the dynamic batcher, which queue_delay_us unset takes out",
            value=str(candidate),
        )
    bare = ModelConfig()
    bare.CopyFrom(config)
    bare.dynamic_batching.ClearField("max_queue_delay_microseconds")
    bare.dynamic_batching.ClearField("preferred_batch_size")
    if bare.dynamic_batching.ByteSize():
        raise CandidateFailed(
            "queue_delay_us unset takes the dynamic batcher out, but the configuration's own one"
            " holds priorities, a queue policy or an ordering",
            next_step="Use 0 for no delay, or take those fields out of the config.pbtxt first.",
        )
    config.ClearField("dynamic_batching")


def _set_instances(config: ModelConfig, count: int) -> None:
    if not config.instance_group:
        config.instance_group.add(count=count, kind=_silent_group(config).kind)
        return
    groups = _active_groups(config)
    counts = [_group_count(config, group, 0) for group in groups]
    for group, own in zip(groups, counts, strict=True):
        group.count = max(1, (2 * own * count + max(counts)) // (2 * max(counts)))


def _set_parameter(config: ModelConfig, target: str, value: Value) -> None:
    key = target.removeprefix(BACKEND_PREFIX)
    if value is None:
        if key in config.parameters:
            del config.parameters[key]
    elif isinstance(value, tuple):
        raise CandidateFailed(f"{target} takes one value, not a list", value=list(value))
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        config.parameters[key].string_value = text


# -------------------------------------------------------------------------------- what is refused
def check_targets(config: ModelConfig, targets: Iterable[str], *, step: str = "") -> None:
    """InputRefused if the space sweeps what cannot be set, or has no effect, on this model;
    ``step``: the pipeline's step that it is, for the words."""
    wanted = set(targets)
    where = f"{step}." if step else ""
    for target in sorted(wanted):
        rule, next_step = objection(config, target) or ("", "")
        if rule:
            raise InputRefused(rule, value=where + target, next_step=next_step)
    if wanted & BATCHER_TARGETS and MAX_BATCH_SIZE not in wanted and config.max_batch_size == 1:
        futile = " and ".join(where + target for target in sorted(wanted & BATCHER_TARGETS))
        raise InputRefused(
            f"{where}max_batch_size is 1 and the space does not change it, so {futile} would have"
            " no effect",
            next_step=f"Add {where}max_batch_size to the space, or take these parameters out.",
        )


def objection(config: ModelConfig, target: str) -> tuple[str, str] | None:
    """Why ``target`` cannot be set on this model, and what to do instead; None if it can."""
    if target.startswith(BACKEND_PREFIX):
        return _parameter_objection(config, target.removeprefix(BACKEND_PREFIX))
    if target.startswith(SERVER_PREFIX):
        return None
    if target not in BATCHING_TARGETS and target != INSTANCES:
        return _UNKNOWN
    if config.HasField("ensemble_scheduling"):
        return _ENSEMBLE
    if target == INSTANCES:
        return _ALL_PASSIVE if config.instance_group and not _active_groups(config) else None
    return _batching_objection(config, target)


def _parameter_objection(config: ModelConfig, key: str) -> tuple[str, str] | None:
    for backend, told, names in (
        ("onnxruntime", "ONNX Runtime", RUNNER_PARAMETERS),
        ("pytorch", "PyTorch", TORCH_PARAMETERS),
    ):
        if key in names and _is_backend(config, backend):
            return (
                f"Triton's {told} backend has no such parameter",
                f"It calls it {BACKEND_PREFIX}{names[key]}.",
            )
    return None


def _batching_objection(config: ModelConfig, target: str) -> tuple[str, str] | None:
    if config.max_batch_size == 0:
        return _NO_BATCH_DIMENSION
    if target in BATCHER_TARGETS and config.HasField("sequence_batching"):
        return _SEQUENCES
    return None


_SETTABLE = sorted(
    {*BATCHING_TARGETS, INSTANCES, f"{BACKEND_PREFIX}<key>", f"{SERVER_PREFIX}<flag>"}
)
_UNKNOWN = (
    "this parameter cannot be tuned on a Triton model",
    f"These can: {', '.join(_SETTABLE)}.",
)
_ENSEMBLE = (
    "an ensemble has no batcher and no instances of its own",
    "Tune its composing models instead.",
)
_ALL_PASSIVE = (
    "all of the model's instance groups are passive: they take no requests",
    "Give it a group that is not passive.",
)
_NO_BATCH_DIMENSION = (
    "the model's max_batch_size is 0: it takes no batch dimension, so batching has no effect on it",
    "Take the batching parameters out of the space, or give the model a batch dimension.",
)
_SEQUENCES = (
    "the model uses sequence batching, which excludes the dynamic batcher",
    "Sweep max_batch_size, instances and parameters.<key> only.",
)


def _refuse_contradictions(config: ModelConfig) -> None:
    """The rules of Triton's own ``ValidateModelConfig`` that a candidate can break, and one that it
    lacks: a warm-up batch above the maximum ended Triton 2.51 with a segmentation fault.
    """
    maximum = config.max_batch_size
    preferred = [
        *config.dynamic_batching.preferred_batch_size,
        *config.sequence_batching.oldest.preferred_batch_size,
    ]
    if too_large := [size for size in preferred if size > maximum]:
        raise CandidateFailed(
            f"a preferred batch size cannot be above max_batch_size, here {maximum}",
            value=too_large,
            next_step="Give the parameter a condition on max_batch_size.",
        )
    warmups = {w.name: w.batch_size for w in config.model_warmup if w.batch_size > max(1, maximum)}
    if warmups:
        raise CandidateFailed(
            f"a model warm-up cannot send a batch above max_batch_size, here {maximum}",
            value=warmups,
            next_step="Sweep max_batch_size from the largest warm-up batch upward, or lower those.",
        )


def _refuse_unknown_fields(message: Message) -> None:
    if path := _unknown_field(message):
        raise InputRefused(
            "the configuration holds a field that this version of tritonclient does not know",
            value=path,
            next_step="Install a newer tritonclient, of the server's release or later.",
        )


def _unknown_field(message: Message) -> str:
    """The path of the first field unknown to the schema, by its number; empty if there is none."""
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
        return f"{message.DESCRIPTOR.name}.{unknown.field_number}"
    for field, value in message.ListFields():
        for child in _children(field, value):
            if path := _unknown_field(child):
                return f"{field.name}.{path}"
    return ""


def _children(field: FieldDescriptor, value: Any) -> Iterator[Message]:
    if field.message_type is None:
        return
    if field.message_type.GetOptions().map_entry:
        yield from (value[key] for key in value if isinstance(value[key], Message))
    elif isinstance(value, Message):
        yield value
    else:
        yield from value


def _parse_advice(reason: str) -> str:
    if "has no field named" in reason or "has no value named" in reason:
        return (
            "Mend the spelling; if a newer Triton knows it, install a newer tritonclient: it is"
            " refused here because it would be lost from the exported file."
        )
    if "another member of oneof" in reason:
        return "Keep one of dynamic_batching, sequence_batching and ensemble_scheduling."
    return ""


# ---------------------------------------------------------------------------------- instances
def instance_count(config: ModelConfig, gpus: int = 0) -> int:
    """Model instances that Triton makes of this configuration on a server that sees ``gpus`` GPUs,
    passive ones included; 0 for an ensemble, which has none.
    """
    if config.HasField("ensemble_scheduling"):
        return 0
    groups = config.instance_group or [_silent_group(config)]
    return sum(_group_count(config, group, gpus) * _devices(group, gpus) for group in groups)


def largest_batch(config: ModelConfig) -> int:
    """How many samples Triton puts into one execution at most."""
    return 1 if _batcher_missing(config) else max(1, int(config.max_batch_size))


def _active_groups(config: ModelConfig) -> list[ModelInstanceGroup]:
    return [group for group in config.instance_group if not group.passive]


def _silent_group(config: ModelConfig) -> ModelInstanceGroup:
    """The group of a configuration that has none."""
    on_cpu = _is_backend(config, *_CPU_BY_DEFAULT)
    return ModelInstanceGroup(
        kind=ModelInstanceGroup.KIND_CPU if on_cpu else ModelInstanceGroup.KIND_AUTO
    )


def _devices(group: ModelInstanceGroup, gpus: int) -> int:
    """How many devices a group's count is repeated on (``NormalizeInstanceGroup``)."""
    on_gpu = group.kind == ModelInstanceGroup.KIND_GPU or (
        group.kind == ModelInstanceGroup.KIND_AUTO and gpus > 0
    )
    return max(1, len(group.gpus) or gpus) if on_gpu else 1


def _group_count(config: ModelConfig, group: ModelInstanceGroup, gpus: int) -> int:
    """A group's count; where it gives none, Triton's default (``SetDefaultInstanceCount``: 2 for
    the ONNX Runtime and TensorFlow backends on a CPU, else 1).
    """
    if group.count > 0:
        return int(group.count)
    on_cpu = group.kind == ModelInstanceGroup.KIND_CPU or (
        group.kind == ModelInstanceGroup.KIND_AUTO and gpus == 0
    )
    return 2 if on_cpu and _is_backend(config, "onnxruntime", "tensorflow") else 1


# ------------------------------------------------------------------------------------- values
def _integer(value: Value, target: str, *, lowest: int) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not lowest <= int(value) < 2**31:  # type: ignore[arg-type]
        raise CandidateFailed(f"{target} must be a whole number of at least {lowest}", value=value)
    return int(value)  # type: ignore[arg-type]


def _sizes(value: Value) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, tuple):
        raise CandidateFailed(f"{PREFERRED_BATCH_SIZES} must be a list of batch sizes", value=value)
    return tuple(sorted({_integer(size, PREFERRED_BATCH_SIZES, lowest=1) for size in value}))
