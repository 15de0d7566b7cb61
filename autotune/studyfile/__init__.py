"""Study files: YAML read into a `Study`, or refused with the file, the line and the nearest key."""

from autotune.studyfile.read import (
    at_its_line,
    read_definition,
    read_study_file,
    study_from_options,
    study_from_request,
)

__all__ = [
    "at_its_line",
    "read_definition",
    "read_study_file",
    "study_from_options",
    "study_from_request",
]
