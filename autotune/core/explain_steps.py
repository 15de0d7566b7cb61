"""The steps of a pipeline in sentences for people."""

from __future__ import annotations

from autotune.core.bottleneck import Breakdown, Means, Remedy, Step
from autotune.core.measurement import label
from autotune.core.wording import listed, rate_words

SLIGHT = 0.02
"""A queue that takes less than this share of a step's time is not spoken of."""

EACH_BY_ITSELF = (
    "each step by itself, at the batch times seen; steps that share a processor take less together"
)
"""What the rates are that steps can take, beside the one at which their pipeline saturates."""
STILL_WAITING = (
    "of the requests that each step finished within the window: those that still waited then count"
    " in the trial's latency alone"
)
"""Why the steps of a pipeline that fell behind do not add up to its latency."""


def by_step(number: int, found: Breakdown) -> str:
    """Where a request's time goes, step by step."""
    parts = [_part(step) for step in found.steps]
    if found.outside_ms is not None:
        parts.append(f"{ms(found.outside_ms)} outside of them")
    if found.behind:
        return f"trial {number} by step: {listed(parts)}, {STILL_WAITING}"
    if found.mean_ms is None:
        return f"trial {number} by step: {listed(parts)}"
    return f"a request of trial {number} takes {ms(found.mean_ms)} on average: {listed(parts)}"


def _part(step: Step) -> str:
    queues = step.queue_ms > SLIGHT * step.latency_ms
    queued = f" ({ms(step.queue_ms)} of it in its queue)" if queues else ""
    return f"{step.name} {ms(step.latency_ms)}{queued}"


def limiting(found: Breakdown) -> str:
    """Which step limits, and why it is that one."""
    step = found.limit
    if found.saturated:
        return f"{step.name} limits: {_busy(step)}; {_taken(found)}"
    told = _longest(found)
    first = found.first_full
    if first is None:
        return told
    which = "it would also" if found.clear and first is step else f"{first.name} would"
    return f"{told}; {which} be the first to saturate, at {capacity(first)}"


def _longest(found: Breakdown) -> str:
    """Which step takes the most of a request's time, or that none clearly does."""
    if not found.clear:
        alike = listed([f"{step.name} ({ms(step.latency_ms)})" for step in found.longest])
        return f"no step clearly limits: {alike} take about as long"
    step = found.limit
    whole = found.mean_ms or sum(each.latency_ms for each in found.steps)
    share = f"{step.latency_ms / whole:.0%} of a request's time" if whole else "most of the time"
    return f"{step.name} limits: it takes {share}"


def _busy(step: Step) -> str:
    if step.utilization is None:
        return f"requests wait {ms(step.queue_ms)} for it"
    many = step.instances > 1
    which = f"its {step.instances} instances are" if many else "its only instance is"
    return f"{which} busy for {step.utilization:.0%} of the time"


def _taken(found: Breakdown) -> str:
    """What the limiting step can take, and the others that cannot take the rate either."""
    step, offered = found.limit, f"{found.offered_qps:.1f}/s"
    told = f"it takes {capacity(step)} of the {offered} offered"
    if step.capacity_qps is None or step.capacity_qps >= found.offered_qps:
        told = f"it takes {capacity(step)}, where {offered} are offered"
    others = [each for each in found.too_slow if each is not step]
    if not others:
        return told
    return f"{told}, and {listed([f'{each.name} {capacity(each)}' for each in others])}"


def capacity(step: Step) -> str:
    """What it can take: ``21.6/s``, ``26.7/s or more``."""
    if step.capacity_qps is None:
        return "an unknown rate"
    return rate_words(step.capacity_qps) + (" or more" if step.at_least else "")


def help_words(found: Breakdown, remedy: Remedy) -> str:
    """What would help, and by how much; estimates are called so."""
    if remedy.means is Means.INSTANCES:
        return (
            f"more instances of {remedy.step} would help: at {ms(remedy.from_ms)} each it needs at"
            f" least {remedy.instances} to hold {found.offered_qps:.1f}/s"
        )
    if remedy.excess_ms is None:
        return _too_slow_words(found, remedy)
    metric = label(remedy.metric or "")
    sure = ""
    if remedy.sure_ms is not None and remedy.sure_ms > remedy.excess_ms:
        sure = f" ({ms(remedy.sure_ms)} by its interval)"
    text = f"{metric} is {ms(remedy.excess_ms)}{sure} above its limit"
    if remedy.to_ms is None or remedy.factor is None:
        return (
            f"{text}: more than all of the {ms(remedy.from_ms)} that {remedy.step} computes, so"
            " that shortening one step alone is not enough"
        )
    return (
        f"{text}: to meet it, shorten {remedy.step} by about {ms(remedy.excess_ms)}, from"
        f" {ms(remedy.from_ms)} to {ms(remedy.to_ms)} ({times(remedy.factor)} as fast)"
        f"{_why(found, remedy)}"
    )


def _too_slow_words(found: Breakdown, remedy: Remedy) -> str:
    assert remedy.to_ms is not None
    assert remedy.factor is not None
    most = "1 instance" if remedy.most == 1 else f"{remedy.most} instances"
    return (
        f"{most} of {remedy.step}, the most that the space has, cannot hold"
        f" {found.offered_qps:.1f}/s: shorten it from {ms(remedy.from_ms)} to less than"
        f" {ms(remedy.to_ms)} ({times(remedy.factor)} as fast), or allow at least"
        f" {remedy.instances} instances"
    )


def _why(found: Breakdown, remedy: Remedy) -> str:
    """Why this step, where it is not the one that takes the largest part of a request's time."""
    if found.saturated:
        return "; less may do, since its queue shrinks too"
    longest = max(found.steps, key=lambda step: step.latency_ms)
    if longest.name == remedy.step:
        return ""
    step = found.of(remedy.step)
    return (
        f"; {longest.name} takes longer, {ms(longest.latency_ms)}, but works only"
        f" {ms(longest.own_ms)} for one request, {remedy.step} {ms(step.own_ms)}"
    )


def of_steps(number: int, found: Breakdown, helping: Remedy | None) -> list[str]:
    told = [by_step(number, found), limiting(found)]
    return told if helping is None else [*told, help_words(found, helping)]


def times(factor: float) -> str:
    """``1.67 times``; never 1.00, which would ask for nothing."""
    return f"{max(factor, 1.01):.2f} times"


def ms(value: float) -> str:
    """``2.3 ms``, ``37 ms``, ``2,950 ms``."""
    return f"{value:,.{0 if value >= 10 else 1}f} ms"
