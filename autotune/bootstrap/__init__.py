"""Chooses the concrete classes and wires them: the only place that knows them all."""

from autotune.bootstrap.comparing import Compared, compare_stored
from autotune.bootstrap.machine import examine_machine
from autotune.bootstrap.models import demo_study
from autotune.bootstrap.session import StudySession
from autotune.bootstrap.stored import StoredStudy, as_it_stands, export_stored, open_store

__all__ = [
    "Compared",
    "StoredStudy",
    "StudySession",
    "as_it_stands",
    "compare_stored",
    "demo_study",
    "examine_machine",
    "export_stored",
    "open_store",
]
