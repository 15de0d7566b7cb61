"""How measured things are said, on the command line and in the report alike."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.core.intervals import Interval
from autotune.core.measurement import GAUGES, Ended, Measurement, Purpose
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate, Value

ENDED = {
    Ended.MAXIMUM: "at its longest",
    Ended.DECIDED: "clear",
    Ended.HOPELESS: "hopeless",
    Ended.OUTCLASSED: "outclassed",
    Ended.FELL_BEHIND: "fell behind",
}
"""Why a window closed, in a word or two."""
IN_DOUBT = "in doubt"
_MOST_DIGITS = 9


def listed(phrases: Sequence[str]) -> str:
    """``a, b and c``."""
    return ", ".join(phrases[:-1]) + " and " + phrases[-1] if len(phrases) > 1 else phrases[0]


def span(interval: Interval) -> str:
    """An interval beside its value, with as many digits as tell its ends apart: ``58–73``."""
    width = interval.high - interval.low
    apart = 0 < width < math.inf
    digits = min(max(math.ceil(math.log10(2 / width)), 0), _MOST_DIGITS) if apart else 0
    return f"{interval.low:.{digits}f}–{interval.high:.{digits}f}"


def cost_words(cost: float) -> str:
    """Money, with the digits that count: ``0.000412``, ``3.07``, ``1,250``."""
    if not 0 < cost < 1000:
        return f"{cost:,.0f}"
    digits = max(2 - math.floor(math.log10(cost)), 0)
    return f"{cost:.{digits}f}"


def share_words(share: float) -> str:
    """A small share with three digits that count: ``0.4%``, ``12.3%``, ``0%``."""
    return f"{100 * share + 0.0:.3g}%"


def percent(effect: float, digits: int = 1) -> str:
    """A relative change with its sign: ``+12.0%``, ``−4.2%``."""
    return f"{effect:+.{digits}%}".replace("-", "−")


def change_span(interval: Interval) -> str:
    """The interval of a relative change: ``−9.0% to +1.2%``."""
    return f"{percent(interval.low)} to {percent(interval.high)}"


def window_words(measurement: Measurement) -> str:
    """How long the window was and why it closed, and whether it opened without a steady state:
    ``after 4.1 s: clear``, ``after 24.0 s: at its longest, never steady``."""
    return f"after {measurement.load.window_s:.1f} s: {ended_words(measurement)}"


def ended_words(measurement: Measurement) -> str:
    """``at its longest, never steady``: that it opened without a steady state is not said of a
    server that fell behind or was hopeless, of which none is expected."""
    load = measurement.load
    expected = load.ended in {Ended.FELL_BEHIND, Ended.HOPELESS}
    return ENDED[load.ended] + (", never steady" if load.steady is False and not expected else "")


def rate_words(qps: float, *, bounded: bool = False) -> str:
    """Requests per second: ``88.0/s``, ``2,299/s``; ``≥ 2,299/s`` where it is a lower bound."""
    return f"{'≥ ' if bounded else ''}{qps:,.{0 if qps >= 1000 else 1}f}/s"


def saturation_bound(measurements: Sequence[Measurement]) -> str:
    """Why the saturation measured is only a lower bound (the load generator could send no more);
    empty where it is the server's own."""
    known = [m.telemetry.notes.get("saturation") for m in measurements if m.saturation_qps]
    return next((note for note in reversed(known) if note), "")


def unjudged(trial: Trial) -> tuple[str, str]:
    """The state and the reason of a trial that has no verdict; one that was measured well has none
    because all its measurements were put in doubt later."""
    last = "; ".join(trial.measurements[-1].invalid_because) if trial.measurements else ""
    state = IN_DOUBT if trial.state is TrialState.OK else str(trial.state)
    return state, trial.reason or last


def unknown_words(metric: str, measurement: Measurement) -> str:
    """Why a metric is unknown of a measurement, in brackets; empty where nothing says."""
    if metric == "cost_per_1000" and measurement.price_per_hour is None:
        return " (no price is given)"
    if metric in {"cost_per_1000", "saturation_qps"}:
        return " (no saturation burst could be taken)"
    gauge = "energy_j" if metric == "energy_j_per_1000" else metric
    if gauge not in {*GAUGES, "utilization", "memory_mb"}:
        return ""
    notes = measurement.telemetry.notes
    named = (f"nvml_{gauge}", "gpm", "nvml", "triton_metrics")
    why = next((notes[name] for name in named if name in notes), "")
    return f" ({why})" if why else ""


# ---------------------------------------------------------------------------------- candidates
def the_same(candidates: Iterable[Candidate]) -> Candidate:
    """What several candidates of a pipeline have in common, to be told once: nothing of a single
    one, nor of a model that is tuned alone, whose configuration is short."""
    every = list(candidates)
    if len(every) < 2 or not any(candidate.steps for candidate in every):
        return Candidate({})
    first, *others = every
    return Candidate(
        {
            name: value
            for name, value in first.values.items()
            if all(name in other and _equal(other[name], value) for other in others)
        }
    )


def _equal(one: Value, other: Value) -> bool:
    """1 and true are different settings."""
    return type(one) is type(other) and one == other


def without(candidate: Candidate, told: Candidate) -> Candidate:
    """The candidate less what is told of all."""
    return Candidate({name: v for name, v in candidate.values.items() if name not in told})


# ------------------------------------------------------------------------------ kinds of reasons
_NUMBERS = re.compile(r"(?<!\w)\d+(?:\.\d+)?(?:, \d+(?:\.\d+)?)*")
"""A number, or several after each other; not a part of a name, such as p99."""
_NAMING = ("process ", "GPU (")
"""After these a number is a name: it has no range."""


def by_kind(reasons: Counter[str]) -> Counter[str]:
    """Reasons that differ in their numbers alone, together under the first of them."""
    firsts: dict[str, str] = {}
    together: Counter[str] = Counter()
    for reason, count in reasons.items():
        together[firsts.setdefault(_kind(reason), reason)] += count
    return together


def in_kinds(reasons: Iterable[str]) -> list[str]:
    """Reasons that differ in their numbers alone as one, with the range of each number."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for reason in reasons:
        alike[_kind(reason)].append(reason)
    return [_in_one(told) for told in alike.values()]


def _kind(reason: str) -> str:
    return _NUMBERS.sub("#", reason)


def _in_one(reasons: Sequence[str]) -> str:
    """Reasons of one kind as one: ``send lag p99 2.4–2.8 ms``, ``(process 3112, 4990)``."""
    texts = _NUMBERS.split(reasons[0])
    columns = zip(*map(_NUMBERS.findall, reasons), strict=True)
    numbers = [_spread(column, after=text) for text, column in zip(texts, columns, strict=False)]
    return "".join(text + number for text, number in zip(texts, [*numbers, ""], strict=True))


def _spread(numbers: Sequence[str], *, after: str) -> str:
    """The least and the greatest, or where they are names, all of them."""
    if len(set(numbers)) == 1:
        return numbers[0]
    distinct = sorted({one for each in numbers for one in each.split(", ")}, key=float)
    return ", ".join(distinct) if after.endswith(_NAMING) else f"{distinct[0]}–{distinct[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disbelieved:
    """A kind of reason why measurements were not believed, with those that it struck: ``trial 3``,
    ``trial 5, final (2 times)``; ``count`` of them in all."""

    reason: str
    struck: tuple[str, ...]
    count: int


def disbelieved(trials: Iterable[Trial]) -> list[Disbelieved]:
    """Every kind of reason once, in the order of the trials."""
    told: defaultdict[str, list[str]] = defaultdict(list)
    struck: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trial in trials:
        for measurement in trial.measurements:
            if not measurement.valid:
                reason = "; ".join(measurement.invalid_because)
                told[_kind(reason)].append(reason)
                struck[_kind(reason)][_whose(trial.number, measurement)] += 1
    return [
        Disbelieved(
            reason=_in_one(told[alike]),
            struck=tuple(name if n == 1 else f"{name} ({n} times)" for name, n in names.items()),
            count=names.total(),
        )
        for alike, names in struck.items()
    ]


def disbelieved_words(trials: Sequence[Trial]) -> str:
    """``Not believed: 4 of 6 measurements``; where others follow the search's own, how many of them
    are its: ``…, of the search 2 of 3``."""
    taken = [measured for trial in trials for measured in trial.measurements]
    own = [measured for measured in taken if measured.purpose is Purpose.TRIAL]
    told = f"Not believed: {_invalid(taken)} of {len(taken)} measurements"
    return (
        told if len(own) == len(taken) else f"{told}, of the search {_invalid(own)} of {len(own)}"
    )


def _invalid(measurements: Iterable[Measurement]) -> int:
    return sum(not measured.valid for measured in measurements)


def _whose(number: int, measurement: Measurement) -> str:
    """And what for, where it is not the search's own."""
    purpose = measurement.purpose
    return f"trial {number}" if purpose is Purpose.TRIAL else f"trial {number}, {purpose}"
