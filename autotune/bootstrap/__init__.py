"""Chooses the concrete classes and wires them: the only place that knows them all."""

from autotune.bootstrap.machine import examine_machine
from autotune.bootstrap.models import demo_study
from autotune.bootstrap.session import StudySession
from autotune.bootstrap.stored import StoredStudy, export_stored, open_store

__all__ = [
    "StoredStudy",
    "StudySession",
    "demo_study",
    "examine_machine",
    "export_stored",
    "open_store",
]
