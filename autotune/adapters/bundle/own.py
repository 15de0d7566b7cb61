"""autotune's own packages in a bundle, an example to begin with, and the GPU check."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from importlib import metadata, resources
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.adapters.bundle.staged import Component, Staged
from autotune.adapters.bundle.target import Target

DISTRIBUTION = "triton-autotune"
SITE = "site"
PACKAGES = ("autotune", "dashboards", "loadgen", "search_spaces", "storage")
CHECKOUT = Path(autotune.__file__).parents[1]
"""Where those packages are: a checkout, or a folder of site-packages."""
_LOCK = "requirements.lock"
_GPU_CHECK = Path("tests/gpu")
_INPUTS, _HIDDEN, _OUTPUTS = 64, 256, 8


def version() -> str:
    return metadata.version(DISTRIBUTION)


def requirements() -> list[str]:
    return metadata.requires(DISTRIBUTION) or []


def lock() -> str:
    """The pins of all that autotune requires, on any Python."""
    for path in (CHECKOUT / _LOCK, CHECKOUT / "autotune" / f"_{_LOCK}"):
        if path.is_file():
            return path.read_text("utf-8")
    raise FileNotFoundError(f"{_LOCK} is missing from this installation")


def commit() -> dict[str, object]:
    """Which state of the checkout this is; nothing is known of an installed package."""
    return {"commit": _git("rev-parse", "HEAD"), "changed": bool(_git("status", "--porcelain"))}


def add(staged: Staged, target: Target, demo_study: Path) -> None:
    """All of this, and the scripts that start it on the target."""
    inside = Component(name=DISTRIBUTION, version=version(), folder=SITE)
    for path in _package_files():
        staged.add(inside, path.as_posix(), partial(shutil.copyfile, CHECKOUT / path))
    staged.add(inside, "autotune/_examples/ocr/study.yaml", partial(shutil.copyfile, demo_study))
    about = metadata.distribution(DISTRIBUTION).read_text("METADATA") or ""
    staged.add_text(inside, f"triton_autotune-{version()}.dist-info/METADATA", about)
    outside = Component(name=DISTRIBUTION, version=version(), folder=".")
    _add_scripts(staged, outside, target)
    _add_example(staged, outside)
    for path in _gpu_check():
        staged.add(outside, path.as_posix(), partial(shutil.copyfile, CHECKOUT / path))


def add_model(staged: Staged, sha256: str, file: Path) -> None:
    """A model that is else fetched from a package; `start` puts it where that is looked for."""
    owner = Component(name="demo model", version="", folder="packaged")
    staged.add(owner, f"{sha256}/{file.name}", partial(shutil.copyfile, file))


# ----------------------------------------------------------------------------------------- files
def _package_files() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.name != f"_{_LOCK}":
                yield path.relative_to(CHECKOUT)


def _add_scripts(staged: Staged, owner: Component, target: Target) -> None:
    files = resources.files("autotune.adapters.bundle")
    for name, source in (("autotune", "autotune.sh"), ("python", "python.sh")):
        text = files.joinpath(source).read_text("utf-8")
        filled = text.replace("@VERSION@", target.version).replace("@MINOR@", repr(target.minor))
        staged.add_text(owner, name, filled)
    for name, source in (("start.py", "start.py"), ("README.txt", "unpacked.txt")):
        text = files.joinpath(source).read_text("utf-8")
        staged.add_text(owner, name, text.replace("@VERSION@", target.version))


def _add_example(staged: Staged, owner: Component) -> None:
    study = resources.files("autotune.adapters.bundle").joinpath("example.yaml").read_text("utf-8")
    staged.add_text(owner, "examples/first/study.yaml", study)
    staged.add(owner, "examples/first/model.onnx", _save_model)


def _save_model(path: Path) -> None:
    """A small network with fixed weights: 64 numbers in, 8 out."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(0, 0.1, (_INPUTS, _HIDDEN)).astype(np.float32),
        "w2": rng.normal(0, 0.1, (_HIDDEN, _OUTPUTS)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["y"]),
        ],
        "first",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", _INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", _OUTPUTS])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )


# ----------------------------------------------------------------------------------- the GPU check
def _gpu_check() -> list[Path]:
    """Its files in this checkout, with the modules of the tests that it imports; none elsewhere."""
    folder = CHECKOUT / _GPU_CHECK
    files = [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    found = {path.relative_to(CHECKOUT) for path in files}
    asked = [path for path in files if path.suffix == ".py"]
    while asked:
        for path in _imported(asked.pop()):
            if path not in found:
                found.add(path)
                asked.append(CHECKOUT / path)
    return sorted(found)


def _imported(module: Path) -> Iterator[Path]:
    """The files of the modules of ``tests`` that a module names in its imports."""
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.split(".")[0] == _GPU_CHECK.parts[0]:
                yield from _files_of(name)


def _files_of(name: str) -> Iterator[Path]:
    """Of a module, with the packages that it is in."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        base = Path(*parts[:end])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if (CHECKOUT / path).is_file():
                yield path


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None or not (CHECKOUT / ".git").exists():
        return None
    done = subprocess.run(
        [git, "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None
