"""Chooses the concrete classes and wires them: the only place that knows them all."""

from autotune.bootstrap.comparing import Compared, compare_stored
from autotune.bootstrap.demo import Demo, demo
from autotune.bootstrap.executors import OnRay, open_study
from autotune.bootstrap.machine import Check, engines_here, examine_machine
from autotune.bootstrap.models import demo_study
from autotune.bootstrap.session import StudySession
from autotune.bootstrap.stored import StoredStudy, as_it_stands, export_stored, open_store

__all__ = [
    "Check",
    "Compared",
    "Demo",
    "OnRay",
    "StoredStudy",
    "StudySession",
    "as_it_stands",
    "compare_stored",
    "demo",
    "demo_study",
    "engines_here",
    "examine_machine",
    "export_stored",
    "open_store",
    "open_study",
]
