"""Rules that several keys of a study file must satisfy together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import PurePosixPath

from autotune.core.accuracy import METRICS as ACCURACY_METRICS
from autotune.core.measurement import METRICS
from autotune.core.sla import enough_samples
from autotune.studyfile.schema import (
    PYTHON_FUNCTION,
    InputsSection,
    PackageSection,
    StudySection,
    WorkloadSection,
)
from autotune.studyfile.source import Place, Problem, nearest

_PINNED = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]*\])?\s*==\s*[A-Za-z0-9][A-Za-z0-9.!+_-]*"
)

SATURATION, COST = "saturation_qps", "cost_per_1000"
LATENCIES = {50.0: "p50_ms", 90.0: "p90_ms", 95.0: "p95_ms", 99.0: "p99_ms"}


def contradictions(study: StudySection) -> Iterator[Problem]:
    """Every problem of a well-formed file that no single value shows."""
    yield from meaningless(study)
    yield from _devices(study)
    yield from _settling(study)
    yield from _samples(study)
    yield from _pins(study)
    yield from _price(study)
    yield from _burst(study)
    yield from _budget(study)


def meaningless(study: StudySection) -> Iterator[Problem]:
    """Those that leave no study to speak of. The others say that a run would waste its time: that
    advice changes with what is learnt about measuring, and a study that has run is read without."""
    yield from _model(study)
    yield from _server(study)
    yield from _sla(study)
    yield from _workload(study)
    yield from _objectives(study)
    yield from _robust(study)
    yield from _accuracy(study)
    yield from _calibration(study)


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
    yield from _model_files(study)


def _model_files(study: StudySection) -> Iterator[Problem]:
    if study.model.files and study.model.repository is None:
        yield Problem(
            place=("model", "files"),
            rule="go into a model repository: they have no effect without model.repository",
        )
    for name in study.model.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
            yield Problem(
                place=("model", "files", name),
                rule="is the file's path in the repository, such as recognize/1/model.onnx",
                value=name,
            )


def _pins(study: StudySection) -> Iterator[Problem]:
    """A package that is not pinned is another one some day, and its file no longer the one that the
    hash says."""
    places: dict[Place, PackageSection] = {
        ("model", "files", name): package for name, package in study.model.files.items()
    }
    if study.model.package is not None:
        places[("model", "package")] = study.model.package
    for place, package in places.items():
        if not _PINNED.fullmatch(package.requirement):
            yield Problem(
                place=(*place, "requirement"),
                rule="pins a package's version: name==version",
                value=package.requirement,
                next_step="rapidocr==3.10.0, say",
            )


def _devices(study: StudySection) -> Iterator[Problem]:
    """Studies were once stored with an empty list in place of none."""
    if "devices" in study.server.model_fields_set and not study.server.devices:
        yield Problem(
            place=("server", "devices"),
            rule="names no GPU",
            value=[],
            next_step="leave the key out for every GPU",
        )


def _server(study: StudySection) -> Iterator[Problem]:
    server = study.server
    needed = {"binary": ("binary",), "docker": ("image",), "remote": ("http", "grpc")}
    allowed = {
        "binary": {"binary", "ports", "flags", "devices"},
        "docker": {"image", "gpus", "ports", "flags", "devices"},
        "remote": {"http", "grpc", "metrics"},
        "embedded": {"ports", "flags", "requirements", "devices"},
    }[server.launch]
    for key in needed.get(server.launch, ()):
        if getattr(server, key) is None:
            yield Problem(place=("server",), rule=f"launch '{server.launch}' needs server.{key}")
    every = ("binary", "image", "gpus", "http", "grpc", "metrics", "ports", "flags")
    for key in (*every, "requirements", "devices"):
        if getattr(server, key) and key not in allowed:
            yield Problem(
                place=("server", key), rule=f"has no effect with launch '{server.launch}'"
            )
    if server.gpus and server.devices:
        yield Problem(
            place=("server", "gpus"),
            rule="says the same as server.devices: give one of them",
            value=server.gpus,
        )
    if len(server.devices) > 1 and any(name.startswith("MIG-") for name in server.devices):
        yield Problem(
            place=("server", "devices"),
            rule="CUDA shows a process one MIG slice, and no other GPU beside it",
            value=list(server.devices),
            next_step="name one slice, or whole GPUs",
        )
    if len(set(server.devices)) != len(server.devices):
        yield Problem(
            place=("server", "devices"), rule="names a GPU twice", value=list(server.devices)
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
        if study.workload.timeout_s * 1000 <= limit:
            yield Problem(
                place=("sla", LATENCIES[percentile]),
                rule="must be below the time-out, "
                f"workload.timeout_s = {study.workload.timeout_s:g}",
                value=limit,
            )


def _settling(study: StudySection) -> Iterator[Problem]:
    longest_ms = max(limits(study).values(), default=0.0)
    if study.workload.warmup_s * 1000 < longest_ms:
        yield Problem(
            place=("workload", "warmup_s"),
            rule="is the longest that the warm-up may take, and must be at least the longest"
            f" latency that is allowed, {longest_ms:g} ms: else the window opens before the queue"
            " has settled",
            value=study.workload.warmup_s,
        )


def _samples(study: StudySection) -> Iterator[Problem]:
    """A window goes on for as long as its verdict is undecided, so the longest one counts."""
    offered_qps = study.workload.target_qps * study.workload.headroom
    slower = 1 - study.robust.qps if study.robust is not None else 1.0
    words = f" × {slower:g} (robust.qps)" if slower < 1 else ""
    cases = [
        (("workload", "measure_max_s"), longest_s(study.workload), offered_qps * slower, words)
    ]
    if study.finals.candidates and study.finals.measure_s is not None:
        cases.append((("finals", "measure_s"), study.finals.measure_s, offered_qps, ""))
    for (place, window_s, qps, rate_words), percentile in product(cases, limits(study)):
        needed = enough_samples(percentile)
        if qps * window_s < needed:
            yield Problem(
                place=place,
                rule=f"{LATENCIES[percentile]} needs {needed} requests in a window; target_qps ×"
                f" headroom{rate_words} gives {qps * window_s:.0f} in {window_s:g} s",
                next_step=_longer(place, needed / qps),
            )


def longest_s(work: WorkloadSection) -> float:
    """As `autotune.core.workload.Workload.longest_s`."""
    return min(3 * work.measure_s, 3600.0) if work.measure_max_s is None else work.measure_max_s


def _longer(place: tuple[str, str], seconds: float) -> str:
    enough = math.ceil(1.1 * seconds)
    if enough > 3600:
        return "that takes longer than an hour: judge a lower percentile, or a higher rate"
    return f"set {'.'.join(place)} to {enough} or more"


def _workload(study: StudySection) -> Iterator[Problem]:
    work = study.workload
    if work.measure_max_s is not None and work.measure_max_s < work.measure_s:
        yield Problem(
            place=("workload", "measure_max_s"),
            rule=f"must be at least measure_s, {work.measure_s:g}",
            value=work.measure_max_s,
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
    yield from _inputs(work.inputs, ("workload", "inputs"))


def _inputs(inputs: InputsSection, place: Place) -> Iterator[Problem]:
    """The rules of request inputs, wherever in the file they stand."""
    if (inputs.kind == "random") == (inputs.path is not None):
        yield Problem(
            place=place,
            rule="'random', the path of a .json or .npz file or of a folder/, or FILE.py:FUNCTION",
            value=inputs.path or inputs.kind,
        )
    elif inputs.kind == "python" and inputs.function is None:
        yield Problem(
            place=place,
            rule="name the function that makes the requests",
            value=inputs.path,
            next_step=f"{inputs.path}:FUNCTION",
        )
    elif inputs.kind != "python" and inputs.function is not None:
        yield Problem(
            place=(*place, "function"),
            rule="goes with a Python file",
            value=inputs.function,
            next_step="FILE.py:FUNCTION, or kind: python with a path",
        )
    for name, (low, high) in inputs.ranges.items():
        if low >= high:
            yield Problem(
                place=(*place, "ranges", name),
                rule="the low end must be below the high end",
                value=[low, high],
            )


def _accuracy(study: StudySection) -> Iterator[Problem]:
    accuracy = study.accuracy
    if accuracy is None:
        if study.sla.accuracy_drop is not None:
            yield Problem(
                place=("sla", "accuracy_drop"),
                rule="limits what the section accuracy measures, and there is none",
                value=study.sla.accuracy_drop,
                next_step="accuracy: {metric: top1, data: samples.npz}",
            )
        return
    if accuracy.data is not None:
        yield from _inputs(accuracy.data, ("accuracy", "data"))
    if accuracy.metric not in ACCURACY_METRICS and not PYTHON_FUNCTION.fullmatch(accuracy.metric):
        yield Problem(
            place=("accuracy", "metric"),
            rule="no such metric",
            value=accuracy.metric,
            next_step=nearest(accuracy.metric, [*ACCURACY_METRICS, "FILE.py:FUNCTION"]),
        )


def _calibration(study: StudySection) -> Iterator[Problem]:
    if study.calibration is None:
        return
    yield from _inputs(study.calibration.data, ("calibration", "data"))
    if study.calibration.data.kind == "random":
        yield Problem(
            place=("calibration", "data"),
            rule="must be samples like those in service: random ones have other ranges",
            value="random",
            next_step="a .npz file, a folder/ of .npy or .npz files, or FILE.py:FUNCTION",
        )
    methods = study.calibration.methods
    if len(set(methods)) < len(methods):
        yield Problem(place=("calibration", "methods"), rule="names a method twice", value=methods)


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


def _price(study: StudySection) -> Iterator[Problem]:
    for index, objective in enumerate(study.objectives):
        if objective.metric == COST and study.server.price_per_hour is None:
            yield Problem(
                place=("objectives", index),
                rule=f"{COST} needs a price, and none is given",
                next_step="server: {price_per_hour: 2.5}, what an hour of the hardware costs that"
                " serves",
            )


def _burst(study: StudySection) -> Iterator[Problem]:
    named = [each.metric for each in study.objectives]
    needing = [metric for metric in (SATURATION, COST) if metric in named]
    if study.workload.saturation_s != 0 or not (needing or study.pick == "max_throughput"):
        return
    if study.pick == "max_throughput":
        whose, else_ = "pick: max_throughput goes by", "choose another pick"
    elif "objectives" in study.model_fields_set:
        whose = f"{COST} follows from" if needing == [COST] else "objectives name"
        else_ = "drop that objective"
    else:
        others = [metric for metric in named if metric != SATURATION]
        whose = "without a section of their own the objectives have"
        else_ = f"name objectives without it: objectives: [{', '.join(others)}]"
    yield Problem(
        place=("workload", "saturation_s"),
        rule=f"{whose} {SATURATION}, so its burst needs time",
        value=0,
        next_step=f"set workload.saturation_s above 0, or {else_}",
    )


def _robust(study: StudySection) -> Iterator[Problem]:
    robust, kind = study.robust, study.workload.arrival.kind
    if robust is None:
        return
    if robust.qps == 0 and not robust.cv:
        yield Problem(
            place=("robust",),
            rule="names a share of the rate, values of cv, or both",
            next_step="robust: {qps: ±20%, cv: [1, 2]}, or leave it out",
        )
    if robust.cv and kind not in ("poisson", "gamma"):
        yield Problem(
            place=("robust", "cv"),
            rule=f"needs arrivals that are poisson or gamma, not {kind}",
            value=robust.cv,
        )
    if len(set(robust.cv)) < len(robust.cv):
        yield Problem(place=("robust", "cv"), rule="names a value twice", value=robust.cv)


def _budget(study: StudySection) -> Iterator[Problem]:
    """The warm-up ends when a steady state is seen, perhaps at once; a candidate that meets the
    SLA may take ``measure_s``."""
    one_s = study.workload.measure_s + study.workload.saturation_s
    if study.budget.minutes * 60 < one_s:
        yield Problem(
            place=("budget", "minutes"),
            rule=f"is less than one trial's load time: measure_s + saturation_s is {one_s:g} s",
            value=study.budget.minutes,
        )
    finals = study.finals
    if finals.candidates and "finals" in study.model_fields_set:
        window_s = finals.measure_s or study.workload.measure_s
        runs = 2 * finals.rounds * finals.candidates
        if study.budget.minutes * 60 < runs * window_s:
            yield Problem(
                place=("budget", "minutes"),
                rule=f"is less than the finals alone take: {runs} runs of {window_s:g} s",
                value=study.budget.minutes,
                next_step="raise it, lower finals.rounds or finals.measure_s, or set finals: none",
            )
