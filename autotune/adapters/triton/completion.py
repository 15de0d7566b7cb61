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
    """Of the model's class as it is written: one with a base class, a decorator or a metaclass, or
    whose name is used anywhere else in the module, may have it from there and is not known."""
    try:
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return False
    classes = [each for each in ast.walk(module) if isinstance(each, ast.ClassDef)]
    named = [each for each in classes if each.name == _CLASS]
    if len(named) != 1 or named[0] not in module.body or text.count(_CLASS) != 1:
        return False
    if any(isinstance(each, ast.ImportFrom) and each.names[0].name == "*" for each in module.body):
        return False
    (model,) = named
    return not (model.bases or model.keywords or model.decorator_list) and HOOK not in text
