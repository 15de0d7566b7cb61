"""Configurations that do not do what they seem to: said to the user, each with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.adapters.triton.config import ModelConfig, instance_count, with_candidate
from autotune.adapters.triton.pipeline import (
    configs,
    is_pipeline,
    parts,
    steps,
    without_variant,
)
from autotune.adapters.triton.repository import ServedModel
from autotune.core.errors import CandidateFailed
from search_spaces.candidate import MAX_BATCH_SIZE, Candidate, split_target

THREAD_PARAMETERS = (
    "intra_op_threads",
    "intra_op_thread_count",
    "INTRA_OP_THREAD_COUNT",
    "TF_NUM_INTRA_THREADS",
    "INFERENCE_NUM_THREADS",
    "CPU_THREADS_NUM",
)
"""What autotune's own runner and Triton's ONNX Runtime, PyTorch, TensorFlow and OpenVINO backends
call the threads that one model instance computes with on a CPU."""

SHORT_DELAY_US = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A candidate's configuration beside the one that it was made from."""

    own: ModelConfig
    changed: ModelConfig
    cores: int


_Rule: TypeAlias = Callable[[_Setting], str]
"""Gives the warning's text, or an empty one."""


def traps(config: ModelConfig, candidate: Candidate, *, cores: int) -> tuple[str, ...]:
    """The warnings that one candidate deserves; none for a candidate that cannot be applied.

    ``config`` is the model's own configuration, ``cores`` how many CPU cores the server may use.
    """
    return tuple(text for text in _found(config, candidate, cores, _RULES).values() if text)


def study_traps(
    config: ModelConfig, candidates: Iterable[Candidate], *, cores: int
) -> tuple[str, ...]:
    """The warnings over many candidates (a whole space, or a sample of one): each trap once, in the
    words of the first candidate that falls into it, with how many do.
    """
    return _counted(config, Counter(candidates), cores, _RULES)


def model_traps(
    model: ServedModel, candidates: Sequence[Candidate], *, cores: int
) -> tuple[str, ...]:
    """`study_traps` of a model that is tuned alone, or of each step of a pipeline, by its name; and
    what a lowered step does to the pipeline."""
    if not is_pipeline(model):
        return study_traps(model.config, candidates, cores=cores)
    told = [
        f"{step}: {text}"
        for step, part in parts(model).items()
        for text in _counted(part.config, Counter(c.of(step) for c in candidates), cores, _OF_STEPS)
    ]
    return (*told, *_smaller_pipeline(model, candidates))


def _counted(
    config: ModelConfig, times: Mapping[Candidate, int], cores: int, rules: Sequence[_Rule]
) -> tuple[str, ...]:
    texts: dict[_Rule, str] = {}
    counts: Counter[_Rule] = Counter()
    for candidate, many in times.items():
        for rule, text in _found(config, candidate, cores, rules).items():
            if text:
                texts.setdefault(rule, text)
                counts[rule] += many
    total = sum(times.values())
    return tuple(_told(texts[rule], counts[rule], total) for rule in rules if rule in texts)


def _told(text: str, count: int, total: int) -> str:
    return f"{text} [{count} of {total} candidates]"


def _found(
    config: ModelConfig, candidate: Candidate, cores: int, rules: Sequence[_Rule]
) -> dict[_Rule, str]:
    try:
        changed = with_candidate(config, without_variant(candidate))
    except CandidateFailed:
        return {}
    setting = _Setting(own=config, changed=changed, cores=cores)
    return {rule: rule(setting) for rule in rules}


def _smaller_pipeline(model: ServedModel, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    own = model.config.max_batch_size
    texts: list[str] = []
    count = 0
    for sizes, many in Counter(map(_batch_sizes, candidates)).items():
        try:
            made = configs(model, sizes)
        except CandidateFailed:
            continue
        most = made[model.name].max_batch_size
        if most < own:
            limiting = [step for step in steps(model) if made[step].max_batch_size == most]
            texts.append(
                f"max_batch_size {most} of {' and '.join(limiting)} lowers the ensemble's own,"
                f" {own}, which Triton allows no higher than its steps': a client's own request of"
                f" more than {most} samples would be refused (triton core, ValidateEnsembleConfig)"
            )
            count += many
    return (_told(texts[0], count, len(candidates)),) if texts else ()


def _batch_sizes(candidate: Candidate) -> Candidate:
    sizes = {
        target: value
        for target, value in candidate.values.items()
        if split_target(target)[1] == MAX_BATCH_SIZE
    }
    return Candidate(sizes)


def _preferred_below_maximum(setting: _Setting) -> str:
    config = setting.changed
    batcher = config.dynamic_batching
    largest = max(batcher.preferred_batch_size, default=config.max_batch_size)
    if largest >= config.max_batch_size or not batcher.max_queue_delay_microseconds:
        return ""
    return (
        f"the largest preferred batch size, {largest}, is below max_batch_size"
        f" {config.max_batch_size} and there is a queue delay: batches grow to {largest + 1}, one"
        " past what is preferred (triton-inference-server/server#8141)"
    )


def _short_delay(setting: _Setting) -> str:
    config = setting.changed
    delay_us = config.dynamic_batching.max_queue_delay_microseconds
    if config.max_batch_size <= 1 or not 0 < delay_us <= SHORT_DELAY_US:
        return ""
    return (
        f"a queue delay of {delay_us} us can be slower than none: a batch sent when it expires sits"
        " without growing while the instance is busy (triton core, dynamic_batch_scheduler.cc;"
        " measured by autotune on an emulated accelerator, batch 8 at 220/s: p95 38.5 ms without"
        " delay, 49.5 ms at 2 ms, 46.4 ms at 8 ms)"
    )


def _no_prefetch(setting: _Setting) -> str:
    """``PriorityQueue::PriorityQueue`` in triton core's ``scheduler_utils.cc``."""
    batcher = setting.changed.dynamic_batching
    policy = batcher.default_queue_policy
    causes = [
        name
        for name, set_ in (
            ("priority_levels", batcher.priority_levels > 0),
            ("default_timeout_microseconds", policy.default_timeout_microseconds > 0),
            ("allow_timeout_override", policy.allow_timeout_override),
            ("max_queue_size", policy.max_queue_size > 0),
        )
        if set_
    ]
    if not causes:
        return ""
    return (
        f"{' and '.join(causes)} of dynamic_batching switches off the batcher's prefetch, so"
        " batches form only when an instance is free (triton core, scheduler_utils.cc); with a"
        " queue time-out, throughput decayed over time before core#509"
        " (triton-inference-server/server#8870)"
    )


def _ordering(setting: _Setting) -> str:
    if not setting.changed.dynamic_batching.preserve_ordering:
        return ""
    return (
        "preserve_ordering was broken and mended between releases"
        " (triton-inference-server/core#449, #520): measure on the release that you deploy"
    )


def _no_batch_dimension(setting: _Setting) -> str:
    config = setting.changed
    if config.max_batch_size > 0 or config.HasField("ensemble_scheduling"):
        return ""
    return (
        "max_batch_size is 0: requests carry no batch dimension and are never joined, so no"
        " batching parameter has an effect (Triton's model configuration, 'Maximum Batch Size')"
    )


def _smaller_requests(setting: _Setting) -> str:
    own, now = setting.own.max_batch_size, setting.changed.max_batch_size
    if not 0 < now < own:
        return ""
    return (
        f"max_batch_size {now} is below the {own} in service: a client's own request of more than"
        f" {now} samples would be refused (Triton's model configuration, 'Maximum Batch Size')"
    )


def _too_many_threads(setting: _Setting) -> str:
    config = setting.changed
    threads = _threads(config)
    instances = instance_count(config)
    if threads is None or instances * threads <= setting.cores:
        return ""
    return (
        f"{instances} instances of {threads} intra-op threads each are {instances * threads}"
        f" threads on {setting.cores} cores: they take the cores from one another (ONNX Runtime,"
        " 'Thread management')"
    )


def _threads(config: ModelConfig) -> int | None:
    """Threads of one instance that the configuration fixes; None if it does not, or on a GPU."""
    if any(group.kind == group.KIND_GPU for group in config.instance_group):
        return None
    for key in THREAD_PARAMETERS:
        if key in config.parameters:
            text = config.parameters[key].string_value
            return int(text) if text.isdecimal() and int(text) > 0 else None
    return None


def _response_cache(setting: _Setting) -> str:
    if not setting.changed.response_cache.enable:
        return ""
    return (
        "the response cache is on: requests that repeat are answered without the model and never"
        " queue, so inputs that repeat flatter the numbers (Triton's response cache documentation)"
    )


_RULES: tuple[_Rule, ...] = (
    _no_batch_dimension,
    _preferred_below_maximum,
    _no_prefetch,
    _short_delay,
    _too_many_threads,
    _smaller_requests,
    _ordering,
    _response_cache,
)
_OF_STEPS = tuple(rule for rule in _RULES if rule is not _smaller_requests)
"""Clients meet the maximum of the pipeline, not of its steps."""
