"""Configurations that do not do what they seem to: said to the user, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from autotune.adapters.triton.config import ModelConfig, instance_count, with_candidate
from autotune.core.errors import CandidateFailed
from search_spaces.candidate import Candidate

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
    return tuple(text for text in _found(config, candidate, cores).values() if text)


def study_traps(
    config: ModelConfig, candidates: Iterable[Candidate], *, cores: int
) -> tuple[str, ...]:
    """The warnings over many candidates (a whole space, or a sample of one): each trap once, in the
    words of the first candidate that falls into it, with how many do.
    """
    texts: dict[_Rule, str] = {}
    counts: dict[_Rule, int] = {}
    total = 0
    for candidate in candidates:
        total += 1
        for rule, text in _found(config, candidate, cores).items():
            if text:
                texts.setdefault(rule, text)
                counts[rule] = counts.get(rule, 0) + 1
    return tuple(
        f"{texts[rule]} [{counts[rule]} of {total} candidates]" for rule in _RULES if rule in texts
    )


def _found(config: ModelConfig, candidate: Candidate, cores: int) -> dict[_Rule, str]:
    try:
        changed = with_candidate(config, candidate)
    except CandidateFailed:
        return {}
    setting = _Setting(own=config, changed=changed, cores=cores)
    return {rule: rule(setting) for rule in _RULES}


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
