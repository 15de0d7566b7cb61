"""Rules that several keys of a study file must satisfy together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from autotune.core.measurement import METRICS
from autotune.core.sla import enough_samples
from autotune.studyfile.schema import StudySection
from autotune.studyfile.source import Problem, nearest

LATENCIES = {50.0: "p50_ms", 90.0: "p90_ms", 95.0: "p95_ms", 99.0: "p99_ms"}


def contradictions(study: StudySection) -> Iterator[Problem]:
    """Every problem of a well-formed file that no single value shows."""
    yield from _model(study)
    yield from _server(study)
    yield from _sla(study)
    yield from _workload(study)
    yield from _objectives(study)
    yield from _budget(study)


def limits(study: StudySection) -> dict[float, float]:
    """The SLA's latency limits: percentile → ms."""
    pairs = ((p, getattr(study.sla, key)) for p, key in LATENCIES.items())
    return {p: value for p, value in pairs if value is not None}


def _model(study: StudySection) -> Iterator[Problem]:
    model = study.model
    given = [key for key in ("repository", "onnx", "package") if getattr(model, key) is not None]
    remote = study.server.launch == "remote"
    if remote and given:
        yield Problem(
            place=("model", given[0]),
            rule="a remote server has its own repository: give model.name alone",
        )
    elif not remote and len(given) != 1:
        yield Problem(
            place=("model",),
            rule="give exactly one of repository, onnx and package",
            value=", ".join(given) or "none",
        )
    if model.name is None and (remote or "repository" in given):
        yield Problem(place=("model",), rule="name the model that clients call: model.name")


def _server(study: StudySection) -> Iterator[Problem]:
    server = study.server
    needed = {"binary": ("binary",), "docker": ("image",), "remote": ("http", "grpc")}
    allowed = {
        "binary": {"binary", "ports", "flags"},
        "docker": {"image", "gpus", "ports", "flags"},
        "remote": {"http", "grpc", "metrics"},
        "embedded": {"ports", "flags"},
    }[server.launch]
    for key in needed.get(server.launch, ()):
        if getattr(server, key) is None:
            yield Problem(place=("server",), rule=f"launch '{server.launch}' needs server.{key}")
    for key in ("binary", "image", "gpus", "http", "grpc", "metrics", "ports", "flags"):
        if getattr(server, key) and key not in allowed:
            yield Problem(
                place=("server", key), rule=f"has no effect with launch '{server.launch}'"
            )
    if server.ports and len(set(server.ports)) != 3:
        yield Problem(
            place=("server", "ports"),
            rule="three different ports: http, grpc, metrics",
            value=server.ports,
        )


def _sla(study: StudySection) -> Iterator[Problem]:
    given = limits(study)
    if not given:
        yield Problem(
            place=("sla",),
            rule="name at least one latency percentile",
            next_step=f"one of {', '.join(LATENCIES.values())}, in milliseconds",
        )
    ordered = sorted(given)
    for low, high in pairwise(ordered):
        if given[low] > given[high]:
            yield Problem(
                place=("sla", LATENCIES[low]),
                rule=f"a lower percentile cannot have the higher limit: {LATENCIES[high]} is"
                f" {given[high]:g}",
                value=given[low],
            )
    if 1 - study.sla.error_rate < study.sla.min_achieved - 1e-9:
        yield Problem(
            place=("sla",),
            rule=f"an error_rate of {study.sla.error_rate:g} leaves less than"
            f" min_achieved = {study.sla.min_achieved:g} answered well",
            next_step=f"set min_achieved to {1 - study.sla.error_rate:g} or less, or lower the"
            " error_rate",
        )
    for percentile, limit in given.items():
        if study.workload.warmup_s * 1000 < limit:
            yield Problem(
                place=("workload", "warmup_s"),
                rule=f"must be at least the longest latency that is allowed, {limit:g} ms: else the"
                " window opens before the queue has settled",
                value=study.workload.warmup_s,
            )
        if study.workload.timeout_s * 1000 <= limit:
            yield Problem(
                place=("sla", LATENCIES[percentile]),
                rule="must be below the time-out, "
                f"workload.timeout_s = {study.workload.timeout_s:g}",
                value=limit,
            )


def _workload(study: StudySection) -> Iterator[Problem]:
    work = study.workload
    expected = work.target_qps * work.headroom * work.measure_s
    for percentile in limits(study):
        needed = enough_samples(percentile)
        if expected < needed:
            seconds = needed / (work.target_qps * work.headroom)
            yield Problem(
                place=("workload",),
                rule=f"{LATENCIES[percentile]} needs {needed} requests in the measured window; "
                f"target_qps × headroom × measure_s gives {expected:.0f}",
                next_step=f"set workload.measure_s to {seconds * 1.1:.0f} or more",
            )
    if (work.arrival.kind == "trace") != (work.arrival.trace is not None):
        yield Problem(
            place=("workload", "arrival"),
            rule="kind 'trace' and a trace file go together",
            next_step="arrival: {kind: trace, trace: arrivals.txt}",
        )
    if work.arrival.cv != 1 and work.arrival.kind != "gamma":
        yield Problem(
            place=("workload", "arrival", "cv"), rule="only gamma arrivals have a cv to set"
        )
    if (work.inputs.kind == "random") == (work.inputs.path is not None):
        yield Problem(
            place=("workload", "inputs"),
            rule="'random', or the path of a .json or .npz file",
            value=work.inputs.path or work.inputs.kind,
        )
    for name, (low, high) in work.inputs.ranges.items():
        if low >= high:
            yield Problem(
                place=("workload", "inputs", "ranges", name),
                rule="the low end must be below the high end",
                value=[low, high],
            )


def _objectives(study: StudySection) -> Iterator[Problem]:
    names = [objective.metric for objective in study.objectives]
    for index, name in enumerate(names):
        place = ("objectives", index)
        if name not in METRICS:
            yield Problem(
                place=place,
                rule="no such metric",
                value=name,
                next_step=nearest(name, list(METRICS)),
            )
        elif name in names[:index]:
            yield Problem(place=place, rule="is named twice", value=name)
    if study.workload.saturation_s == 0 and (
        "saturation_qps" in names or study.pick == "max_throughput"
    ):
        yield Problem(
            place=("workload", "saturation_s"),
            rule="saturation_qps is asked for, so its burst needs time",
            value=0,
            next_step="set workload.saturation_s above 0, or drop the objective",
        )


def _budget(study: StudySection) -> Iterator[Problem]:
    work = study.workload
    one = work.warmup_s + work.measure_s + work.saturation_s
    if study.budget.minutes * 60 < one:
        yield Problem(
            place=("budget", "minutes"),
            rule=f"is less than one trial's load time of {one:g} s",
            value=study.budget.minutes,
        )
