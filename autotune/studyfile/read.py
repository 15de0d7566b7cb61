"""From YAML, options or a stored definition to a `Study`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from autotune.core.errors import InputRefused
from autotune.core.sla import Sla
from autotune.core.study import (
    AccuracySpec,
    Budget,
    CalibrationMethod,
    CalibrationSpec,
    Finals,
    Launch,
    ModelSource,
    Objective,
    PackagedModel,
    PickRule,
    Robust,
    SearchKind,
    ServerSpec,
    Study,
    Tolerance,
    Trust,
)
from autotune.core.workload import Arrival, ArrivalKind, InputKind, InputSpec, Workload
from autotune.studyfile.contradictions import contradictions, limits, meaningless
from autotune.studyfile.schema import (
    PYTHON_FUNCTION,
    AccuracySection,
    InputsSection,
    PackageSection,
    StudySection,
)
from autotune.studyfile.source import Place, Problem, Source, nearest
from autotune.studyfile.variants import variant_problems
from search_spaces import library
from search_spaces.space import Space, SpaceRefused, parse_space

SHOWN = 60
"""Letters of a refused value that are shown."""


def read_study_file(path: Path) -> Study:
    """Read a study file. InputRefused names the file and the line of everything that is wrong."""
    return _to_run(Source.from_file(path))


def at_its_line(path: Path, refused: InputRefused) -> InputRefused:
    """What this machine has against a key of a study file, with the file and the line; the same
    where it names no key, or the file is not to be read any more."""
    if not refused.place:
        return refused
    key = ".".join(part for part in refused.place if isinstance(part, str))
    problem = Problem(
        place=refused.place,
        rule=refused.rule.removeprefix(f"{key} "),
        value=refused.value,
        next_step=refused.next_step,
    )
    try:
        return Source.from_file(path).refusal([problem])
    except InputRefused:
        return refused


def read_definition(definition: Mapping[str, Any]) -> Study:
    """Turn a stored ``Study.definition`` back into the study, which keeps it word for word. It can
    be read when its files are gone, and when newer rules would not let it run again: it was checked
    before it ran."""
    source = Source(_as_it_ran(definition), "the stored study", Path("/"))
    return replace(_study(source, meaningless, _none), definition=dict(definition))


def _as_it_ran(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Definitions are stored with every default filled in; those from before there were finals had
    windows of one length, too."""
    work = definition.get("workload")
    if "finals" in definition or not isinstance(work, Mapping) or "measure_s" not in work:
        return definition
    fixed = {**work, "measure_max_s": work["measure_s"]}
    return {**definition, "workload": fixed, "finals": {"candidates": 0}}


def study_from_options(definition: Mapping[str, Any]) -> Study:
    """A study given by command-line options, in the same words as a study file; paths are
    relative to the working directory."""
    return _to_run(Source(definition, "the command line", Path.cwd()))


def study_from_request(
    definition: Mapping[str, Any], base: Path, check: Callable[[Study], None]
) -> Study:
    """A study given over the network, in the same words; paths are relative to ``base``. ``check``
    sees it before any file that it names is looked for. A file of a space is read before that."""
    return _to_run(Source(definition, "the request", base), check)


def _to_run(source: Source, check: Callable[[Study], None] = lambda _: None) -> Study:
    study = _study(source, contradictions, variant_problems)
    check(study)
    for what, path, exists in _paths(study):
        if not exists(path):
            raise InputRefused(f"the {what} does not exist", value=str(path))
    return study


def _paths(study: Study) -> Iterator[tuple[str, Path, Callable[[Path], bool]]]:
    """What the study reads besides its model and its server, and how to tell whether it is there.
    (A model or a server that is missing is told, with more advice, by what serves it.)"""
    accuracy, calibration = study.accuracy, study.calibration
    files = (
        ("trace file", study.workload.arrival.trace),
        ("requirements file of the server", study.server.requirements),
        ("file of expected answers", None if accuracy is None else accuracy.expected),
        ("Python file of the metric", None if accuracy is None else _metric_file(accuracy.metric)),
    )
    yield from ((what, path, Path.is_file) for what, path in files if path is not None)
    inputs = (
        ("input", study.workload.inputs),
        ("accuracy.data", None if accuracy is None else accuracy.data),
        ("calibration.data", None if calibration is None else calibration.data),
    )
    for what, spec in inputs:
        if spec is None or spec.path is None:
            continue
        if spec.kind is InputKind.FOLDER:
            yield f"{what} folder", spec.path, Path.is_dir
        else:
            yield f"{what} file", spec.path, Path.is_file


def _metric_file(metric: str) -> Path | None:
    found = PYTHON_FUNCTION.fullmatch(metric)
    return None if found is None else Path(found["path"])


def _study(
    source: Source,
    rules: Callable[[StudySection], Iterator[Problem]],
    space_rules: Callable[[StudySection, Space], Iterator[Problem]],
) -> Study:
    plain = source.plain
    try:
        section = StudySection.model_validate(plain)
    except ValidationError as exc:
        problems = [_problem(error, plain) for error in exc.errors(include_url=False)]
        raise source.refusal(problems) from exc
    problems = list(rules(section))
    if problems:
        raise source.refusal(problems)
    space_mapping = _space_mapping(section, source)
    space = _space(section, space_mapping, source)
    problems = list(space_rules(section, space))
    if problems:
        raise source.refusal(problems)
    return _build(section, space, source.base, _definition(section, space_mapping, source.base))


def _none(_section: StudySection, _space: Space) -> Iterator[Problem]:
    return iter(())


# ------------------------------------------------------------------------ what pydantic refused
def _problem(error: ErrorDetails, plain: Mapping[str, Any]) -> Problem:
    place = _real_place(error["loc"], plain)
    kind = error["type"]
    if kind == "extra_forbidden":
        valid = _valid_keys(place[:-1])
        return Problem(place=place, rule="unknown key", next_step=nearest(str(place[-1]), valid))
    if kind == "missing":
        return Problem(place=place, rule="is required")
    value = error["input"]
    shown = value if isinstance(value, str | int | float | bool) else None
    if isinstance(shown, str) and len(shown) > SHOWN:
        shown = shown[:SHOWN] + "…"
    return Problem(place=place, rule=_rule(error), value=shown, next_step=_hint(place, value))


def _real_place(loc: tuple[str | int, ...], plain: Any) -> Place:
    """Drop the parts of pydantic's location that name a branch of a union, not a key."""
    place: list[str | int] = []
    node: Any = plain
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if _has(node, part):
            node = node[part]
        elif not (last and isinstance(node, Mapping)):
            continue
        place.append(part)
    return tuple(place)


def _has(node: object, part: str | int) -> bool:
    if isinstance(node, Mapping):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and part < len(node)


def _valid_keys(place: Place) -> list[str]:
    model: type[BaseModel] | None = StudySection
    for part in place:
        if model is None or part not in model.model_fields:
            continue
        model = _section_of(model.model_fields[part].annotation)
    return list(model.model_fields) if model is not None else []


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = getattr(annotation, "__args__", ())
    return next((found for part in parts if (found := _section_of(part))), None)


def _rule(error: ErrorDetails) -> str:
    names = {
        "float_type": "must be a number",
        "int_type": "must be a whole number",
        "string_type": "must be text",
        "model_type": "must be a mapping of keys",
        "list_type": "must be a list",
        "dict_type": "must be a mapping",
        "tuple_type": "must be a list",
        "finite_number": "must be a finite number",
        "too_short": "must have at least one entry",
        "string_too_long": "is too long: a hundred letters at most",
        "string_pattern_mismatch": "must be " + _pattern_words(error),
    }
    return names.get(error["type"]) or error["msg"].replace("Input should", "must")


def _pattern_words(error: ErrorDetails) -> str:
    if "0-9a-f" in str(error.get("ctx", {}).get("pattern")):
        return "64 hexadecimal digits"
    return "letters, digits, '.', '_' and '-' alone"


def _hint(place: Place, value: object) -> str:
    if place[:1] == ("trust",) or place in (("robust", "qps"), ("sla", "accuracy_drop")):
        if isinstance(value, int | float) and 1 < value <= 100:
            return f"give a share: {value:g}% or {value / 100:g}"
        return ""
    return _unit_hint(place, value)


def _unit_hint(place: Place, value: object) -> str:
    key = str(place[-1]) if place else ""
    units = {
        "_ms": "milliseconds",
        "_s": "seconds",
        "_us": "microseconds",
        "_qps": "requests per second",
    }
    unit = next((words for suffix, words in units.items() if key.endswith(suffix)), "")
    if unit and isinstance(value, str):
        return f"give a plain number, in {unit}: {key}: 80"
    return ""


# ------------------------------------------------------------------------------------- the space
def _space_mapping(section: StudySection, source: Source) -> dict[str, Any]:
    if not isinstance(section.space, str):
        return {"name": section.study, **section.space}
    if section.space in library.ready_made():
        return {**library.load(section.space), "name": section.space}
    path = source.base / section.space
    if path.suffix in {".yaml", ".yml"}:
        return {"name": path.stem, **Source.from_file(path).plain}
    valid = library.ready_made()
    problem = Problem(
        place=("space",),
        rule="no ready-made space has this name",
        value=section.space,
        next_step=f"one of {', '.join(valid)}; or a .yaml file; or the mapping itself",
    )
    raise source.refusal([problem])


def _space(section: StudySection, mapping: Mapping[str, Any], source: Source) -> Space:
    unnamed = {key: value for key, value in mapping.items() if key != "name"}
    try:
        return parse_space(unnamed, str(mapping["name"]))
    except SpaceRefused as exc:
        inline = isinstance(section.space, dict)
        place: Place = ("space", *exc.path) if inline else ("space",)
        problem = Problem(place=place, rule=exc.rule, value=exc.value, next_step=exc.next_step)
        raise source.refusal([problem]) from exc


# -------------------------------------------------------------------------------------- building
def _build(section: StudySection, space: Space, base: Path, definition: dict[str, Any]) -> Study:
    return Study(
        name=section.study,
        model=_model(section, base),
        server=_server(section, base),
        workload=_workload(section, base),
        sla=Sla(
            latency_ms=limits(section),
            error_rate=section.sla.error_rate,
            min_achieved=section.sla.min_achieved,
            accuracy_drop=section.sla.accuracy_drop,
        ),
        space=space,
        objectives=tuple(
            Objective.of(
                o.metric, maximize=None if o.direction is None else o.direction == "maximize"
            )
            for o in section.objectives
        ),
        pick=PickRule(section.pick),
        search=SearchKind(section.search),
        budget=Budget(trials=section.budget.trials, minutes=section.budget.minutes),
        tolerance=Tolerance(rtol=section.tolerance.rtol, atol=section.tolerance.atol),
        robust=_robust(section),
        finals=Finals(
            candidates=section.finals.candidates,
            rounds=section.finals.rounds,
            measure_s=section.finals.measure_s,
            capacity=section.finals.capacity,
        ),
        trust=Trust(
            send_lag=section.trust.send_lag,
            generator_cpu=section.trust.generator_cpu,
            foreign_cpu=section.trust.foreign_cpu,
        ),
        accuracy=_accuracy(section, base),
        calibration=_calibration(section, base),
        seed=section.seed,
        definition=definition,
    )


def _robust(section: StudySection) -> Robust | None:
    robust = section.robust
    return None if robust is None else Robust(qps=robust.qps, cv=tuple(robust.cv))


def _path(base: Path, text: str | None) -> Path | None:
    return None if text is None else (base / Path(text).expanduser()).absolute()


def _model(section: StudySection, base: Path) -> ModelSource:
    model = section.model
    packaged = model.package
    onnx = _path(base, model.onnx)
    file = onnx or (None if packaged is None else Path(packaged.file))
    name = model.name or ("" if file is None else file.stem)
    return ModelSource(
        name=name,
        repository=_path(base, model.repository),
        onnx=onnx,
        package=None if packaged is None else _packaged(packaged),
        files={path: _packaged(file) for path, file in model.files.items()},
    )


def _packaged(package: PackageSection) -> PackagedModel:
    return PackagedModel(requirement=package.requirement, file=package.file, sha256=package.sha256)


def _server(section: StudySection, base: Path) -> ServerSpec:
    server = section.server
    return ServerSpec(
        launch=Launch(server.launch),
        binary=_path(base, server.binary),
        image=server.image,
        gpus=server.gpus,
        http=server.http,
        grpc=server.grpc,
        metrics=server.metrics,
        ports=server.ports,
        flags={
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in server.flags.items()
        },
        requirements=_path(base, server.requirements),
        devices=tuple(map(str, server.devices)),
        price_per_hour=server.price_per_hour,
        start_timeout_s=server.start_timeout_s,
        load_timeout_s=server.load_timeout_s,
    )


def _workload(section: StudySection, base: Path) -> Workload:
    work = section.workload
    offered = work.target_qps * work.headroom
    # Room for every request that can be open before its time-out ends it, and half as much again:
    # a server that is merely too slow then times out, and does not hit the cap.
    room = math.ceil(1.5 * offered * work.timeout_s) + 64
    return Workload(
        target_qps=work.target_qps,
        headroom=work.headroom,
        arrival=Arrival(
            kind=ArrivalKind(work.arrival.kind),
            cv=work.arrival.cv,
            trace=_path(base, work.arrival.trace),
        ),
        inputs=_inputs(work.inputs, base),
        warmup_s=work.warmup_s,
        measure_s=work.measure_s,
        measure_max_s=work.measure_max_s,
        saturation_s=work.saturation_s,
        timeout_s=work.timeout_s,
        max_in_flight=work.max_in_flight or min(room, 65536),
    )


def _inputs(inputs: InputsSection, base: Path) -> InputSpec:
    return InputSpec(
        kind=InputKind(inputs.kind),
        path=_path(base, inputs.path),
        function=inputs.function or "",
        shapes={name: tuple(shape) for name, shape in inputs.shapes.items()},
        ranges=inputs.ranges,
        count=inputs.count,
    )


def _accuracy(section: StudySection, base: Path) -> AccuracySpec | None:
    accuracy = section.accuracy
    if accuracy is None:
        return None
    return AccuracySpec(
        metric=_metric(accuracy, base),
        data=None if accuracy.data is None else _inputs(accuracy.data, base),
        expected=_path(base, accuracy.expected),
        output=accuracy.output,
        samples=accuracy.samples,
    )


def _metric(accuracy: AccuracySection, base: Path) -> str:
    """The name of a built-in one; a function of the user's with its file's path made absolute."""
    found = PYTHON_FUNCTION.fullmatch(accuracy.metric)
    return f"{_path(base, found['path'])}:{found['function']}" if found else accuracy.metric


def _calibration(section: StudySection, base: Path) -> CalibrationSpec | None:
    calibration = section.calibration
    if calibration is None:
        return None
    named = {"auto": None, "none": ()}
    exclude = calibration.exclude
    return CalibrationSpec(
        data=_inputs(calibration.data, base),
        samples=calibration.samples,
        methods=tuple(CalibrationMethod(each) for each in calibration.methods),
        per_channel=calibration.per_channel,
        exclude=named[exclude] if isinstance(exclude, str) else tuple(exclude),
        max_excluded=calibration.max_excluded,
    )


def _definition(section: StudySection, space: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The file's content as it is stored: defaults filled in, the space spelled out, paths made
    absolute, so that it means the same from any directory and after an update."""
    data = section.model_dump(mode="json", exclude_none=True)
    data["space"] = dict(space)
    if not section.server.devices:  # said so, it would be refused
        del data["server"]["devices"]
    keys: Sequence[tuple[str, ...]] = (
        ("model", "repository"),
        ("model", "onnx"),
        ("server", "binary"),
        ("server", "requirements"),
        ("workload", "arrival", "trace"),
        ("workload", "inputs", "path"),
        ("accuracy", "data", "path"),
        ("accuracy", "expected"),
        ("calibration", "data", "path"),
    )
    for *parents, last in keys:
        node = data
        for parent in parents:
            node = node.get(parent, {})
        if last in node:
            node[last] = str(_path(base, node[last]))
    if section.accuracy is not None:
        data["accuracy"]["metric"] = _metric(section.accuracy, base)
    return data
