"""Whether Triton has anything to complete in a model's configuration as it loads it.

For that the Python backend starts a process of its own, which asks the model, and is a second and
more of each load; other backends read the model's file twice. ``--disable-auto-complete-config``
saves it, where the answer is known to be "nothing".
"""

from __future__ import annotations

import ast
from pathlib import Path

from autotune.adapters.triton.repository import ServedModel, backend_of, loaded_versions

HOOK = "auto_complete_config"
"""The method by which a model of the Python backend completes its configuration."""
_CLASS = "TritonPythonModel"
_FILE = "model.py"


def needs_no_completion(model: ServedModel) -> bool:
    """Whether neither the model nor, of a pipeline, any step has something to complete: what
    autotune's own runner serves, and what plainly has no such method. Of any other it is not
    known."""
    return all(map(_is_complete, (*model.composing.values(), model)))


def _is_complete(model: ServedModel) -> bool:
    if model.runner or model.config.HasField("ensemble_scheduling"):
        return True
    if backend_of(model.config, model.source) != "python" or model.config.default_model_filename:
        return False
    versions = loaded_versions(model)
    return bool(versions) and all(_has_no_hook(version / _FILE) for version in versions)


def _has_no_hook(path: Path) -> bool:
    """Of the model's class as it is written: what a base class, a decorator or a metaclass would
    bring is not looked for, so that one which has any is not known."""
    try:
        text = path.read_text(encoding="utf-8")
        found = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return False
    classes = [each for each in found.body if isinstance(each, ast.ClassDef)]
    plain = [each.name for each in classes if not (each.bases or each.keywords)]
    decorated = any(each.decorator_list for each in classes if each.name == _CLASS)
    return plain.count(_CLASS) == 1 and not decorated and HOOK not in text
