"""How measured things are said, on the command line and in the report alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.core.intervals import Interval
from autotune.core.measurement import Ended, Measurement, Purpose
from autotune.core.trial import Trial

ENDED = {
    Ended.MAXIMUM: "at its longest",
    Ended.DECIDED: "clear",
    Ended.HOPELESS: "hopeless",
    Ended.OUTCLASSED: "outclassed",
    Ended.FELL_BEHIND: "fell behind",
}
"""Why a window closed, in a word or two."""


def span(interval: Interval) -> str:
    """An interval beside its value, with as many digits as tell its ends apart: ``58–73``."""
    width = interval.high - interval.low
    digits = 0 if width >= 2 else 1 if width >= 0.2 else 2
    return f"{interval.low:.{digits}f}–{interval.high:.{digits}f}"


def percent(effect: float, digits: int = 1) -> str:
    """A relative change with its sign: ``+12.0%``, ``−4.2%``."""
    return f"{effect:+.{digits}%}".replace("-", "−")


def change_span(interval: Interval) -> str:
    """The interval of a relative change: ``−9.0% to +1.2%``."""
    return f"{percent(interval.low)} to {percent(interval.high)}"


def window_words(measurement: Measurement) -> str:
    """How long the window was and why it closed: ``after 4.1 s: clear``."""
    return f"after {measurement.load.window_s:.1f} s: {ENDED[measurement.load.ended]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disbelieved:
    """A reason why measurements were not believed, with those that it struck: ``trial 3``,
    ``trial 5, final (2 times)``; ``count`` of them in all."""

    reason: str
    struck: tuple[str, ...]
    count: int


def disbelieved(trials: Iterable[Trial]) -> list[Disbelieved]:
    """Every reason once, in the order of the trials."""
    struck: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trial in trials:
        for measurement in trial.measurements:
            if not measurement.valid:
                reason = "; ".join(measurement.invalid_because)
                struck[reason][_whose(trial.number, measurement)] += 1
    return [
        Disbelieved(
            reason=reason,
            struck=tuple(name if n == 1 else f"{name} ({n} times)" for name, n in names.items()),
            count=names.total(),
        )
        for reason, names in struck.items()
    ]


def _whose(number: int, measurement: Measurement) -> str:
    """And what for, where it is not the search's own."""
    purpose = measurement.purpose
    return f"trial {number}" if purpose is Purpose.TRIAL else f"trial {number}, {purpose}"
