"""The embedded server's environment with the packages of a requirements file."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from autotune.adapters.triton.environment import prepare
from autotune.adapters.triton.extras import prepare_with_packages
from autotune.core.errors import InputRefused

pytestmark = pytest.mark.server


def wheel(folder: Path, name: str, *requires: str) -> None:
    info = f"{name}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 41\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory):
    """A folder that is all of pip's package index."""
    folder = tmp_path_factory.mktemp("index")
    wheel(folder, "tinystep", "tinyneed", "numpy")
    wheel(folder, "tinyneed")
    wheel(folder, "tinynew", "numpy>=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        yield folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    """A cache of its own that has the server's environment already."""
    prepared = prepare(cache_dir).root
    cache = tmp_path_factory.mktemp("cache")
    (cache / "server").mkdir(parents=True)
    (cache / "server" / prepared.name).symlink_to(prepared)
    return cache


def needing(folder: Path, text: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text(text)
    return path


def answer(python: Path, code: str) -> str:
    return subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def has(python: Path, name: str) -> bool:
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}) is not None)"
    return answer(python, code) == "True"


@pytest.mark.usefixtures("index")
def test_packages_are_installed_with_their_needs_beside_the_servers_own(
    tmp_path: Path, cache: Path
) -> None:
    said: list[str] = []
    requirements = needing(tmp_path, "tinystep  # with what it needs\n")
    environment = prepare_with_packages(requirements, cache, said.append)
    code = "import tinystep, tinyneed, numpy, onnxruntime; print(tinystep.VALUE, numpy.__version__)"
    assert answer(environment.python, code).startswith("41 1.")
    assert environment.tritonserver.is_file()
    assert len(said) == 1
    base = prepare(cache)
    assert not has(base.python, "tinystep"), "the environment that every study shares is touched"

    again = prepare_with_packages(requirements, cache, said.append)
    assert (again, len(said)) == (environment, 1)
    other = prepare_with_packages(needing(tmp_path, "tinyneed\n"), cache, said.append)
    assert other.root != environment.root
    assert not has(other.python, "tinystep")


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tinynew\n", "numpy==1"),
        ("nosuchpackage\n", "No matching distribution found for nosuchpackage"),
        ("tinystep\n-r more.txt\n", r"requirements.txt:2: .*each in this file.*-r more.txt"),
        ("-e .\n", "each in this file"),
        ("./own-package\n", "each in this file"),
    ],
)
def test_packages_that_cannot_be_had_are_refused(
    tmp_path: Path, cache: Path, text: str, words: str
) -> None:
    with pytest.raises(InputRefused, match=f"(?s){words}"):
        prepare_with_packages(needing(tmp_path, text), cache)
