"""Numbers and configurations in words for people."""

from __future__ import annotations

from autotune.core.measurement import Purpose
from autotune.core.sla import Outcome, Sla, Verdict, judge
from autotune.core.trial import Trial
from autotune.core.wording import rate_words, saturation_bound, unjudged, window_words
from search_spaces.candidate import (
    BACKEND_PREFIX,
    INSTANCES,
    MAX_BATCH_SIZE,
    PREFERRED_BATCH_SIZES,
    QUEUE_DELAY_US,
    SERVER_PREFIX,
    VARIANT,
    WORKERS_SUFFIX,
    Candidate,
    Value,
)

SHORT = {
    MAX_BATCH_SIZE: "batch",
    QUEUE_DELAY_US: "delay",
    INSTANCES: "instances",
    PREFERRED_BATCH_SIZES: "preferred",
    VARIANT: "variant",
    "parameters.intra_op_threads": "threads",
}


def candidate_words(candidate: Candidate) -> str:
    """A configuration on one short line: ``batch 8 · delay 2 ms · instances 2 · threads 1``; of a
    pipeline by step: ``preprocess workers 8 · device batch 8, delay 12 ms``."""
    flags = {name: v for name, v in candidate.values.items() if name.startswith(SERVER_PREFIX)}
    alone = Candidate({**candidate.of("").values, **flags})
    steps = [f"{step} {', '.join(_step(candidate, step))}" for step in candidate.steps]
    return " · ".join([*steps, *_settings(alone)])


def _step(candidate: Candidate, step: str) -> list[str]:
    words = _settings(candidate.of(step))
    workers = f"{step}{WORKERS_SUFFIX}" in candidate
    return [word.replace("instances ", "workers ", 1) if workers else word for word in words]


def _settings(candidate: Candidate) -> list[str]:
    order = [name for name in SHORT if name in candidate]
    rest = [name for name in candidate if name not in SHORT]
    return [_setting(name, candidate[name]) for name in (*order, *rest)]


def _setting(name: str, value: Value) -> str:
    if name == QUEUE_DELAY_US and isinstance(value, int | float):
        return f"delay {value / 1000:g} ms" if value else "no delay"
    if name == MAX_BATCH_SIZE and value == 0:
        return "no batching"
    if name == VARIANT and value is not None:
        return str(value)
    label = SHORT.get(name) or name.removeprefix(BACKEND_PREFIX).removeprefix(SERVER_PREFIX)
    if isinstance(value, tuple):
        return f"{label} {','.join(map(str, value)) or 'none'}"
    return f"{label} {'unset' if value is None else value}"


def trial_words(trial: Trial, sla: Sla) -> str:
    """What a trial came to, on one line: ``p95 35.2 ms (33–38) meets 80 ms with …; saturates at
    88.0/s; after 4.1 s: clear``; why it failed where it did."""
    measurement = trial.measurement
    if measurement is None:
        return unjudged_words(trial)
    parts = [telling(judge(measurement, sla))]
    if measurement.saturation_qps is not None:
        bound = saturation_bound([measurement])
        rate = rate_words(measurement.saturation_qps, bounded=bool(bound))
        parts.append(f"saturates at {rate}{bound and f' ({bound})'}")
    parts.append(window_words(measurement))
    again = sum(not m.valid and m.purpose is Purpose.TRIAL for m in trial.measurements)
    return "; ".join([*parts, f"taken {again + 1} times"] if again else parts)


def unjudged_words(trial: Trial) -> str:
    """The state of a trial without a verdict, with the first line of why."""
    state, reason = unjudged(trial)
    return f"{state}: {reason.splitlines()[0]}" if reason else state


def telling(verdict: Verdict) -> str:
    """The reason that makes a verdict what it is; an undecided one is called so."""
    finding = next(f for f in verdict.findings if f.outcome is verdict.outcome)
    if verdict.outcome is Outcome.UNDECIDED and "undecided" not in finding.reason:
        return f"undecided: {finding.reason}"
    return finding.reason


def duration(seconds: float) -> str:
    """``1:05`` or ``2:03:10``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A number for a table cell; a dash for unknown."""
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
