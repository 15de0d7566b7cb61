"""Where the time of a request through a pipeline goes, which step limits, and what would help.

Everything comes from the server's statistics of each step over the measured window, by the
operational laws of queueing (Lazowska et al., "Quantitative System Performance", 1984, ch. 3): a
step's ``work_ms`` is its service demand, the time that one of its instances gives to one request
(a batch's time is shared by its requests); its utilization is rate × demand / instances, and its
instances together can take instances / demand requests per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.core.measurement import Measurement, ServerWindow
from autotune.core.plain import finite
from autotune.core.sla import Finding, Outcome, Verdict
from autotune.core.validity import saturated
from search_spaces.candidate import INSTANCES, MAX_BATCH_SIZE, Candidate, split_target
from search_spaces.domain import Range
from search_spaces.space import Space

FULL = 0.95
"""A step whose instances are busy for this share of the window, or more, is saturated."""
ALIKE = 0.02
"""Steps whose utilization differs by no more than this are told apart by their queues."""
AHEAD = 0.1
"""A step that is ahead of another by less than this share of its own figure is not clearly so: the
means of a window vary by as much from one window to the next."""
SEEN = 3
"""A batch size that was executed less often says little about how long it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step's part in a request, as means in ms: ``queue_ms`` waiting, ``compute_ms`` in its
    batch, ``work_ms`` of an instance's time (`compute_ms` shared by the batch).

    ``utilization`` is the busy share of its ``instances`` (0: unknown). ``capacity_qps`` is what
    they can take per second at the batch sizes that were seen; ``at_least``: it may batch more than
    was seen, and then takes more. None is unknown.
    """

    name: str
    instances: int
    queue_ms: float
    compute_ms: float
    work_ms: float | None
    utilization: float | None
    mean_batch: float | None
    capacity_qps: float | None
    at_least: bool = False

    @property
    def latency_ms(self) -> float:
        return self.queue_ms + self.compute_ms

    @property
    def own_ms(self) -> float:
        """What it works for one request; its whole compute time where the batches are unknown."""
        return self.compute_ms if self.work_ms is None else self.work_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The steps of one measurement of a pipeline, in their order.

    ``saturated``: it fell ``behind``, or a step's instances were busy all the time. ``limiting`` is
    the step that limits: the busiest where it is saturated (of several, the one with the longest
    queue), else the one with the largest part of a request's time, be it by no more than the noise
    (see `clear`). ``mean_ms`` is a request's mean latency, ``outside_ms`` what of it was spent in
    no step; None where it is unknown, as it is of a pipeline that fell behind, or whose steps
    overlap.
    """

    steps: tuple[Step, ...]
    limiting: str
    saturated: bool
    behind: bool
    offered_qps: float
    mean_ms: float | None
    outside_ms: float | None

    def of(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    @property
    def limit(self) -> Step:
        return self.of(self.limiting)

    @property
    def longest(self) -> tuple[Step, ...]:
        """The step with the largest part of a request's time, and those that noise does not let be
        told from it, the largest first."""
        ordered = sorted(self.steps, key=lambda step: -step.latency_ms)
        least_ms = (1 - AHEAD) * ordered[0].latency_ms
        return tuple(step for step in ordered if step.latency_ms >= least_ms)

    @property
    def clear(self) -> bool:
        """Whether one step limits by more than the noise."""
        return self.saturated or len(self.longest) == 1

    def limits(self, name: str) -> bool:
        """Whether it is clearly that step which limits."""
        return self.clear and name == self.limiting

    @property
    def first_full(self) -> Step | None:
        """The step that would saturate first if the rate rose; None where that is unknown, or
        another would at about the same rate."""
        known = [(step.capacity_qps, step) for step in self.steps if step.capacity_qps is not None]
        ordered = sorted(known, key=lambda one: one[0])
        if len(ordered) > 1 and ordered[0][0] >= (1 - AHEAD) * ordered[1][0]:
            return None
        return ordered[0][1] if ordered else None

    @property
    def too_slow(self) -> tuple[Step, ...]:
        """The steps that cannot take the rate that was offered."""
        return tuple(
            step
            for step in self.steps
            if step.capacity_qps is not None
            and step.capacity_qps < self.offered_qps
            and not step.at_least
        )

    @property
    def heaviest(self) -> Step:
        """The step that works longest for one request: the one to shorten where a latency is to
        fall. A batch may take longer, but its time serves many: a step that works for one request
        at a time has more to give, and needs the fewer instances for it."""
        return max(self.steps, key=lambda step: step.own_ms)

    def to_json(self) -> dict[str, Any]:
        first = self.first_full
        plain: dict[str, Any] = finite({
            "limiting": self.limiting if self.clear else None,
            "saturated": self.saturated,
            "saturates_first": None if first is None else first.name,
            "offered_qps": self.offered_qps,
            "mean_ms": self.mean_ms,
            "outside_ms": self.outside_ms,
            "steps": [
                {
                    "name": step.name,
                    "instances": step.instances or None,
                    "queue_ms": step.queue_ms,
                    "compute_ms": step.compute_ms,
                    "work_ms": step.work_ms,
                    "utilization": step.utilization,
                    "mean_batch": step.mean_batch,
                    "capacity_qps": step.capacity_qps,
                    "capacity_at_least": step.at_least,
                    "limiting": self.limits(step.name),
                }
                for step in self.steps
            ],
        })  # fmt: skip
        return plain


def breakdown(measurement: Measurement, candidate: Candidate) -> Breakdown | None:
    """None where it is not of a pipeline, or none of its requests was answered."""
    server, load = measurement.server, measurement.load
    if server is None or not any(window.requests for _, window in _leaves(server)):
        return None
    behind = saturated(load)
    steps = tuple(
        _step(name, window, load.window_s, candidate.of(name)) for name, window in _leaves(server)
    )
    full = behind or any((step.utilization or 0.0) >= FULL for step in steps)
    mean_ms = None if load.latency is None or behind else load.latency.mean_ms
    outside_ms = None if mean_ms is None else mean_ms - sum(step.latency_ms for step in steps)
    return Breakdown(
        steps=steps,
        limiting=_limiting(steps, full).name,
        saturated=full,
        behind=behind,
        offered_qps=load.offered_qps,
        mean_ms=mean_ms,
        outside_ms=outside_ms if outside_ms is not None and outside_ms >= 0 else None,
    )


def _leaves(server: ServerWindow) -> Iterator[tuple[str, ServerWindow]]:
    """The steps that execute something: a pipeline within a pipeline is told by its own."""
    for name, window in server.steps.items():
        if window.steps:
            yield from _leaves(window)
        else:
            yield name, window


def _step(name: str, window: ServerWindow, window_s: float, candidate: Candidate) -> Step:
    instances, busy_s = window.instances, window.busy_s
    passed = window.requests / window.calls
    busy = busy_s / (instances * window_s) if instances and window_s > 0 and busy_s else None
    capacity, at_least = _capacity(window, candidate)
    return Step(
        name=name,
        instances=instances,
        queue_ms=window.queue_ms * window.calls,
        compute_ms=window.compute_ms * window.calls,
        work_ms=busy_s * 1000 / passed if passed and busy_s else None,
        # A batch that began before the window counts in whole where it ended within it.
        utilization=None if busy is None else min(busy, 1.0),
        mean_batch=window.mean_batch,
        capacity_qps=capacity,
        at_least=at_least,
    )


def _capacity(window: ServerWindow, candidate: Candidate) -> tuple[float | None, bool]:
    """Requests per second at the best of the batch sizes that were seen, and whether a larger one
    is allowed."""
    batches = {size: stat for size, stat in window.batches.items() if stat.compute_ms > 0}
    often = {size: stat for size, stat in batches.items() if stat.executions >= SEEN} or batches
    if not often or not window.instances or not window.requests:
        return None, False
    items = sum(size * stat.executions for size, stat in window.batches.items())
    each = items / window.requests * window.calls
    best = max(size / stat.compute_ms for size, stat in often.items()) * 1000
    allowed = candidate.get(MAX_BATCH_SIZE)
    more = max(often) < allowed if isinstance(allowed, int) else max(often) > 1
    return window.instances * best / each, more


def _limiting(steps: Sequence[Step], full: bool) -> Step:
    if not full:
        return max(steps, key=lambda step: step.latency_ms)
    busiest = max(step.utilization or 0.0 for step in steps)
    alike = [step for step in steps if (step.utilization or 0.0) >= busiest - ALIKE]
    return max(alike, key=lambda step: step.queue_ms)


# ------------------------------------------------------------------------------- what would help
class Means(StrEnum):
    INSTANCES = "more_instances"
    SHORTEN = "shorten"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What one step would have to become for the SLA to be met, by estimate.

    INSTANCES: the ``step`` saturates, and with at least ``instances`` it would hold the rate.

    SHORTEN: its compute time must fall from ``from_ms`` to ``to_ms`` per request (of a batch: the
    batch's), by a ``factor``. Either so that its rate can be held (``excess_ms`` is None; then
    ``instances`` would do the same, more than the ``most`` that the space has), or because latency
    ``metric`` is ``excess_ms`` above its limit (``sure_ms`` by the upper end of its interval):
    shortening a step by so much takes at least as much off every request. ``to_ms`` and ``factor``
    are None where that step alone cannot make up for it.
    """

    means: Means
    step: str
    from_ms: float
    to_ms: float | None = None
    factor: float | None = None
    instances: int | None = None
    most: int | None = None
    metric: str | None = None
    excess_ms: float | None = None
    sure_ms: float | None = None

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = finite({
            "means": str(self.means),
            "step": self.step,
            "from_ms": self.from_ms,
            "to_ms": self.to_ms,
            "factor": self.factor,
            "instances": self.instances,
            "most": self.most,
            "metric": self.metric,
            "excess_ms": self.excess_ms,
            "sure_ms": self.sure_ms,
        })  # fmt: skip
        return plain


def remedy(found: Breakdown, verdict: Verdict, most: Mapping[str, int]) -> Remedy | None:
    """For a pipeline that does not meet the SLA. ``most`` is the largest number of instances of
    each step that the space has (see `most_instances`); None where neither a rate nor a latency is
    what is missed."""
    if verdict.meets:
        return None
    relief = _relief(found, most) if found.saturated else None
    return relief or _shortening(found, verdict)


def most_instances(space: Space) -> dict[str, int]:
    """The largest number of instances of each step in a space, where it is a parameter."""
    found: dict[str, int] = {}
    for target in space.targets:
        step, name = split_target(target)
        if step and name == INSTANCES:
            domain = space.parameter(target).domain
            ends = (domain.high,) if isinstance(domain, Range) else domain.values
            counts = [int(end) for end in ends if isinstance(end, int | float)]
            found[step] = max([found.get(step, 0), *counts])
    return found


def _relief(found: Breakdown, most: Mapping[str, int]) -> Remedy | None:
    """Of the step that is saturated; None where it can just take the rate, so that what is missed
    is a latency."""
    step = found.limit
    if step.capacity_qps is None or not found.offered_qps:
        return None
    full = found.behind and (step.utilization or 0.0) >= FULL
    each = step.capacity_qps / step.instances
    if full and step.work_ms:
        # With requests enough waiting it was not the batches that could have been larger.
        each = min(each, 1000 / step.work_ms)
    needed = math.floor(found.offered_qps / each) + 1
    if full:
        needed = max(needed, step.instances + 1)
    there = max(most.get(step.name, 0), step.instances)
    if needed <= step.instances:
        return None
    if needed <= there:
        return Remedy(
            means=Means.INSTANCES, step=step.name, from_ms=step.compute_ms, instances=needed
        )
    factor = found.offered_qps / (each * there)
    if factor <= 1:
        return None
    return Remedy(
        means=Means.SHORTEN,
        step=step.name,
        from_ms=step.compute_ms,
        to_ms=step.compute_ms / factor,
        factor=factor,
        instances=needed,
        most=there,
    )


def _shortening(found: Breakdown, verdict: Verdict) -> Remedy | None:
    worst = max(filter(_missed, verdict.findings), key=_excess_ms, default=None)
    if worst is None:
        return None
    step = found.limit if found.saturated else found.heaviest
    excess_ms = _excess_ms(worst)
    left_ms = step.compute_ms - excess_ms
    return Remedy(
        means=Means.SHORTEN,
        step=step.name,
        from_ms=step.compute_ms,
        to_ms=left_ms if left_ms > 0 else None,
        factor=step.compute_ms / left_ms if left_ms > 0 else None,
        metric=worst.metric,
        excess_ms=excess_ms,
        sure_ms=None if worst.interval is None else worst.interval.high - worst.limit,
    )


def _missed(finding: Finding) -> bool:
    """A latency that is above its limit, or may be."""
    latency = finding.metric.endswith("_ms") and finding.value is not None
    return latency and finding.outcome is not Outcome.MEETS and _excess_ms(finding) > 0


def _excess_ms(finding: Finding) -> float:
    """Of one that straddles its limit from below, what it may be above it."""
    assert finding.value is not None
    above = finding.value - finding.limit
    if above > 0 or finding.interval is None:
        return above
    return finding.interval.high - finding.limit
