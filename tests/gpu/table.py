"""The results as Markdown, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from search_spaces.candidate import INSTANCES, MAX_BATCH_SIZE, QUEUE_DELAY_US
from tests.gpu.plan import PARTS
from tests.gpu.precisions import precision_of
from tests.gpu.report import State

UNKNOWN = "–"
STORIES = ("18% → 72%", "12% → 67%", "22% → 71%")
"""Published cases of GPUs that were tuned: the utilization before and after."""
Figures = Mapping[str, Any]


def table(results: Mapping[str, Any]) -> str:
    """The whole document; of parts that have nothing yet, their state."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    yield f"# GPU check, {results['date']}: {device_name(results)}"
    yield ""
    yield from _conditions(results)
    yield ""
    yield from rows(
        ("part", "state", "seconds", "of at most", "why"),
        (
            (
                f"({part.letter}) {part.title}",
                entry["state"],
                number(entry.get("seconds"), "{:.0f}"),
                number(entry.get("limit_s"), "{:.0f}"),
                first_line(entry.get("reason")),
            )
            for part in PARTS
            if (entry := results["parts"].get(part.name))
        ),
    )
    for part in PARTS:
        entry = results["parts"].get(part.name, {})
        figures = entry.get("figures") or {}
        if not figures:
            continue
        yield from ("", f"## ({part.letter}) {part.title}", "")
        yield from _section(part.name, figures)
        for note in figures.get("notes", ()):
            yield f"\nNote: {first_line(note)}"


def _section(name: str, figures: Figures) -> list[str]:
    """A table that cannot be drawn must not end the check that it is of."""
    try:
        return list(_SECTIONS[name](figures))
    except Exception as error:  # noqa: BLE001 - figures of a part that was ended may lack anything
        return [f"Not shown: {type(error).__name__}: {error}; see results.json."]


def device_name(results: Mapping[str, Any]) -> str:
    gpu = results.get("gpu")
    return str(gpu["name"]) if gpu and results["device"] == "cuda" else "CPU, no GPU used"


def _conditions(results: Mapping[str, Any]) -> Iterator[str]:
    gpu, host = results.get("gpu"), results["machine"]
    if gpu:
        yield (
            f"- GPU: {gpu['name']}, compute capability {gpu['compute_capability']},"
            f" driver {gpu['driver']}"
        )
    yield (
        f"- Host: {host['processor']}, {host['cores']} cores, {host['memory_mb'] / 1024:.0f} GiB,"
        f" {host['system']}"
    )
    versions = (f"{name} {version}" for name, version in sorted(results["versions"].items()))
    yield f"- Versions: {', '.join(versions)}"
    size = ", the tiny model" if results["tiny"] else ""
    took = number(results.get("seconds"), "{:.0f} s")
    yield f"- Asked for: {results['minutes']:g} minutes{size}; took {took}; {results['ended']}"


# ---------------------------------------------------------------------------------------- the parts
def _telemetry(figures: Figures) -> Iterator[str]:
    if "counters" in figures:
        yield from _counters(figures)
    yield from _doctor(figures.get("doctor", ()))


def _counters(figures: Figures) -> Iterator[str]:
    yield from rows(
        ("counter", "load", "before", "under it", "moved", "source"),
        (
            (
                each["counter"],
                each["load"]
                if each["since"] == "before"
                else f"{each['load']}, after {each['since']}",
                number(each["before"]),
                number(each["after"]),
                each["moved"],
                each["source"] or UNKNOWN,
            )
            for each in figures.get("counters", ())
        ),
    )
    refused = {
        load: found["refused"]
        for load, found in figures.get("loads", {}).items()
        if "refused" in found
    }
    for load, why in refused.items():
        yield f"\nThe load {load} could not be run: {first_line(why)}"
    unknown = {
        name: why
        for found in figures.get("loads", {}).values()
        for name, why in found.get("unknown", {}).items()
    }
    for name, why in sorted(unknown.items()):
        yield f"\n{name}: {first_line(why)}"
    yield ""


def _doctor(checks: Sequence[Mapping[str, str]] | str) -> Iterator[str]:
    if isinstance(checks, str):
        yield checks
        return
    yield from rows(
        ("autotune doctor", "state", "what it says"),
        ((each["name"], each["state"], first_line(each["detail"])) for each in checks),
    )


def _outputs(figures: Figures) -> Iterator[str]:
    yield from rows(
        (
            *("precision", "right", "largest difference from PyTorch", "relative", "cosine"),
            *("relative to fp32", "ran on", "PyTorch alone, ms by batch", "why not"),
        ),
        (
            _output_row(precision, each, figures)
            for precision, each in figures.get("precisions", {}).items()
        ),
    )


def _output_row(precision: str, each: Mapping[str, Any], figures: Figures) -> tuple[str, ...]:
    own, plain = each.get("against_torch", {}), each.get("against_fp32", {})
    own_name = precision.rpartition(" ")[2]
    times = figures.get("direct", {}).get(own_name, {}).get("ms", {})
    return (
        precision,
        "yes" if each.get("right") else "no",
        number(own.get("absolute"), "{:.2g}"),
        number(own.get("relative"), "{:.2g}"),
        number(own.get("cosine"), "{:.6f}"),
        number(plain.get("relative"), "{:.2g}"),
        each.get("ran_on", UNKNOWN),
        ", ".join(f"{size}: {ms:.2f}" for size, ms in times.items()) or UNKNOWN,
        first_line(each.get("reason")),
    )


def _curves(figures: Figures) -> Iterator[str]:
    yield f"Served by {_runner(figures)}. Each cell: ms of one execution · images/s of all."
    yield ""
    curves = figures.get("curves", ())
    sizes = sorted({point["batch"] for curve in curves for point in curve["points"]})
    yield from rows(
        ("precision", "busy instances", *(f"batch {size}" for size in sizes)),
        (
            (
                curve["precision"],
                str(curve["instances"]),
                *(_cell(curve["points"], size) for size in sizes),
            )
            for curve in curves
        ),
    )


def _cell(points: Sequence[Mapping[str, Any]], size: int) -> str:
    point = next((each for each in points if each["batch"] == size), None)
    if point is None or point["ms"] is None:
        return UNKNOWN
    least = "≥ " if point["at_least"] else ""
    return f"{point['ms']:.2f} · {least}{point['images_s']:.0f}"


def _runner(figures: Figures) -> str:
    pytorch = figures.get("model") == "pytorch"
    return "the PyTorch runner" if pytorch else "the ONNX runner, on the processor"


def _study(figures: Figures) -> Iterator[str]:
    target = figures.get("target")
    if target is None:
        return
    yield (
        f"Asked: {target['target_qps']:.4g}/s × headroom, measured at {target['offered_qps']:g}/s,"
        f" p95 within {target['p95_ms']:g} ms ({target['because']})."
    )
    if "trials" not in figures:
        return
    yield ""
    chosen = figures.get("chosen")
    yield from rows(
        ("", "configuration", "verdict", "p95 ms", "saturates at /s", "busy", "SM active", "W"),
        (
            (
                _mark(each, chosen, picked=figures["pick"] is not None),
                configuration(each["candidate"]),
                each["outcome"] or first_line(each["reason"]) or each["state"],
                number(each["p95_ms"], "{:.1f}"),
                number(each["saturation_qps"], "{:.0f}"),
                number(each["utilization"], "{:.0%}"),
                number(each["sm_active"], "{:.0%}"),
                number(each["power_w"], "{:.0f}"),
            )
            for each in figures["trials"]
        ),
    )
    for reason in figures.get("reasons", ()):
        yield f"\n- {first_line(reason)}"
    confirmed = figures.get("confirmed")
    if confirmed:
        yield f"\n- served from its exported files: p95 {number(confirmed['p95_ms'], '{:.1f}')} ms"


def _mark(each: Mapping[str, Any], chosen: Mapping[str, Any] | None, *, picked: bool) -> str:
    if chosen is None or each["number"] != chosen["number"]:
        return "in service" if each["number"] == 0 else ""
    return "**pick**" if picked else "nearest miss"


def _truth(figures: Figures) -> Iterator[str]:
    yield from rows(
        ("configuration", "verdict", "p95 ms", "saturates at /s", "95% interval"),
        (
            (
                configuration(each["candidate"]),
                each["outcome"] or first_line(each.get("reason")),
                number(each.get("p95_ms"), "{:.1f}"),
                number(each.get("saturation_qps"), "{:.0f}"),
                _interval(each.get("saturation_interval")),
            )
            for each in figures.get("candidates", ())
        ),
    )
    if figures.get("regret") is None:
        yield "\nRegret: unknown; the pick misses the SLA here, or everything does."
        return
    noise = " (within the noise)" if figures["within_noise"] else ""
    yield (
        f"\nRegret: {figures['regret']:.1%} of the best's throughput at saturation{noise}. Best:"
        f" {configuration(figures['best'])}."
    )


def _interval(ends: Sequence[float | None] | None) -> str:
    return f"{number(ends[0], '{:.0f}')}–{number(ends[1], '{:.0f}')}" if ends else UNKNOWN


def _use(figures: Figures) -> Iterator[str]:
    yield from rows(
        (
            *("configuration", "load", "answered /s", "p95 ms", "batch", "busy"),
            *("SM active", "tensor active", "DRAM active", "W"),
        ),
        (
            (
                f"{each['configuration']}: {configuration(each['candidate'])}",
                each["load"] or first_line(each.get("reason")),
                _answered(each),
                number(each.get("p95_ms"), "{:.1f}"),
                number(each.get("mean_batch"), "{:.1f}"),
                number(each.get("utilization"), "{:.0%}"),
                number(each.get("sm_active"), "{:.0%}"),
                number(each.get("tensor_active"), "{:.0%}"),
                number(each.get("dram_active"), "{:.0%}"),
                number(each.get("power_w"), "{:.0f}"),
            )
            for each in figures.get("rows", ())
        ),
    )
    sources = {each["source"] for each in figures.get("rows", ()) if each.get("source")}
    yield (
        f"\nBusy is by {', '.join(sorted(sources)) or 'no source'}; the study's rate is"
        f" {number(figures.get('offered_qps'))}/s. Published: {', '.join(STORIES)}."
    )


def _answered(each: Mapping[str, Any]) -> str:
    least = "≥ " if each.get("at_least") else ""
    behind = ", falls behind" if each.get("fell_behind") else ""
    return f"{least}{number(each.get('achieved_qps'), '{:.0f}')}{behind}"


_SECTIONS: Mapping[str, Callable[[Figures], Iterator[str]]] = {
    "telemetry": _telemetry,
    "outputs": _outputs,
    "curves": _curves,
    "study": _study,
    "truth": _truth,
    "use": _use,
}


# ----------------------------------------------------------------------------------------- in words
def configuration(candidate: Mapping[str, Any]) -> str:
    """Of a candidate's values: ``fp16, batch 8, 2000 µs, 2 instances``."""
    batch = candidate.get(MAX_BATCH_SIZE) or 1
    delay = candidate.get(QUEUE_DELAY_US)
    instances = candidate.get(INSTANCES) or 1
    words = [precision_of(candidate), f"batch {batch}"]
    words += [] if delay is None else [f"{delay} µs"]
    return ", ".join([*words, f"{instances} instance{'' if instances == 1 else 's'}"])


def rows(head: Sequence[str], body: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for cells in body:
        yield f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def number(value: float | None, form: str = "{:.4g}") -> str:
    return UNKNOWN if value is None else form.format(value)


def first_line(text: str | None) -> str:
    return " ".join((text or "").split())[:300]


def summary(results: Mapping[str, Any]) -> str:
    """A line for an index."""
    states = [entry["state"] for entry in results["parts"].values()]
    done = sum(state == State.OK for state in states)
    size = ", tiny" if results["tiny"] else ""
    return f"{done} of {len(states)} parts run{size}"
