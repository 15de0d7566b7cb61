"""What stands beside an exported model: provenance.json and report.html."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.config import render
from autotune.adapters.triton.export import PROVENANCE, exported_config
from autotune.adapters.triton.repository import ServedModel
from autotune.core.measurement import METRICS, Measurement
from autotune.core.plain import finite
from autotune.core.records import DecisionRecord, StudyRecord
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from autotune.ports import ExportFile
from dashboards.report import render_report
from search_spaces.candidate import VARIANT, Candidate

REPORT = "report.html"
_NOT_SERVED = ("file", "refused")
"""Of a variant's record: a path of this machine, and why it would not be served."""


def documents(  # noqa: PLR0913 - everything that is known of a study
    study: Study,
    model: ServedModel,
    record: StudyRecord,
    trials: Sequence[Trial],
    decided: DecisionRecord,
    *,
    variants: Sequence[VariantRecord] = (),
) -> list[ExportFile]:
    """The report, and the provenance of the trial that ``decided`` names as exported, if any."""
    by_number = {trial.number: trial for trial in trials}
    native = model.native or model
    picked = decided.detail.get("pick", decided.pick)
    pick = None if picked is None else by_number.get(picked)
    report = render_report(
        study=record,
        trials=trials,
        decision=decided.detail,
        objectives=study.objectives,
        sla=study.sla,
        workload=study.workload,
        config_text=None if pick is None else render(exported_config(model, pick.candidate)),
        default_config_text=render(native.config),
        warnings=(record.environment or {}).get("warnings", ()),
        variants=variants,
    )
    files = [ExportFile(name=REPORT, text=report)]
    if decided.pick is not None:
        exported = by_number[decided.pick]
        provenance = {
            **_provenance(study, model, record, exported, decided),
            "variants": [_variant(each) for each in variants if _is_served(each, exported)],
        }
        text = json.dumps(provenance, indent=2, default=str, allow_nan=False) + "\n"
        files.append(ExportFile(name=PROVENANCE, text=text))
    return files


def _provenance(
    study: Study,
    model: ServedModel,
    record: StudyRecord,
    trial: Trial,
    decided: DecisionRecord,
) -> Mapping[str, Any]:
    return {
        "study": record.name,
        "study_id": record.id,
        "definition_digest": record.digest,
        "trial": trial.number,
        "candidate": trial.candidate.to_json(),
        "pick": decided.detail.get("pick"),
        "rule": decided.rule,
        "taken_at": decided.taken_at,
        "reasons": decided.detail.get("reasons"),
        "judged": _judged(decided.detail, trial.number),
        "measurements": [_numbers(each) for each in trial.measurements if each.valid],
        "comparisons": [
            each
            for each in decided.detail.get("comparisons", ())
            if trial.number in (each["first"], each["second"])
        ],
        "workload": _jsonable(asdict(study.workload)),
        "sla": _jsonable(asdict(study.sla)),
        "model": _model(model, trial.candidate),
        "environment": finite(dict(record.environment or {})),
    }


def _model(model: ServedModel, candidate: Candidate) -> Mapping[str, Any]:
    """``digest`` covers all of the model's files and its configuration as found, ``onnx_sha256``
    the file that is served."""
    described = {"name": model.name, "digest": model.digest}
    artefact = model.artefacts.get(str(candidate.get(VARIANT)))
    file = model.onnx if artefact is None or artefact.own else artefact.path
    if file is not None and file.suffix == ".onnx":
        described["onnx_sha256"] = sha256_of(file)
    return described


def _is_served(record: VariantRecord, trial: Trial) -> bool:
    return trial.candidate.get(record.target) == str(record.variant)


def _variant(record: VariantRecord) -> Mapping[str, Any]:
    """What is served, how it was come by, and what it costs in accuracy."""
    plain = {**asdict(record), "variant": str(record.variant), "tools": dict(record.tools)}
    return {key: _jsonable(value) for key, value in plain.items() if key not in _NOT_SERVED}


def _judged(detail: Mapping[str, Any], number: int) -> Mapping[str, Any] | None:
    """What the decision rests on: the trial's findings with their intervals, its capacity, what its
    probes and its confirmation came to."""
    return next((each for each in detail.get("judged", ()) if each["trial"] == number), None)


def _numbers(measurement: Measurement) -> Mapping[str, Any]:
    return {
        "purpose": measurement.purpose,
        "started_at": measurement.started_at,
        "offered_qps": measurement.load.offered_qps,
        "requests": measurement.load.scheduled,
        "window_s": measurement.load.window_s,
        "ended": measurement.load.ended,
        **finite({name: measurement.metric(name) for name in METRICS}),
        "intervals": finite({k: [v.low, v.high] for k, v in measurement.intervals.items()}),
        "utilization_source": measurement.telemetry.source,
        "memory_source": measurement.telemetry.memory_source,
    }


def _jsonable(data: Any) -> Any:
    return json.loads(json.dumps(data, default=str))
