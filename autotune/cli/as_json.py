"""Answers and stored studies as plain data for programs: the documents of ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.bootstrap import StoredStudy
from autotune.core.as_json import (
    capacity_json,
    savings_json,
    study_json,
    trial_json,
    variants_json,
)
from autotune.core.plain import finite
from autotune.tuner.answer import Answer


def answer_json(answer: Answer) -> dict[str, Any]:
    return {
        "study": study_json(answer.record),
        "meets": None if answer.decision.without_verdict else answer.exported_to is not None,
        "exported_to": None if answer.exported_to is None else str(answer.exported_to.absolute()),
        "stopped_because": answer.stopped_because,
        "wall_s": round(answer.wall_s, 1),
        "load_s": round(answer.load_s, 1),
        "warnings": list(answer.warnings),
        "trials": [trial_json(trial, answer.study.sla) for trial in answer.trials],
        "capacity": capacity_json(answer.trials, answer.study.sla),
        "savings": savings_json(answer.study, answer.trials),
        "variants": variants_json(answer.variants),
        "decision": finite(answer.decision.to_json()),
    }


def stored_json(stored: StoredStudy) -> dict[str, Any]:
    return {
        "study": study_json(stored.record),
        "exported_to": stored.exported_to,
        "trials": [trial_json(trial, stored.study.sla) for trial in stored.trials],
        "capacity": capacity_json(stored.trials, stored.study.sla),
        "savings": savings_json(stored.study, stored.trials),
        "variants": variants_json(stored.variants),
        "decision": finite(stored.decision.to_json()),
    }


def exported_json(exported: Mapping[str, Any]) -> dict[str, Any]:
    """What `autotune.bootstrap.export_stored` says, its paths absolute."""
    return {**exported, "files": [str(Path(path).absolute()) for path in exported["files"]]}
