"""Whether a node has the code of the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from ray import cloudpickle

from autotune.adapters.ray import sources

LOAD = """
import pathlib, sys
from ray import cloudpickle
version, digest = cloudpickle.loads(pathlib.Path(sys.argv[1]).read_bytes())()
print(version, len(digest), *(name for name in sys.modules if name.startswith("autotune.")))
"""


def test_what_is_told_of_a_nodes_code_needs_none_of_ours_there(tmp_path: Path) -> None:
    carried = tmp_path / "carried"
    carried.write_bytes(cloudpickle.dumps(sources.looking()))
    told = subprocess.run(
        [sys.executable, "-c", LOAD, str(carried)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [sources.here()[0], "64"]


def test_another_source_file_is_another_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_package_of_a_test"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    file = package / "inner" / "a.py"
    file.write_text("one = 1")
    monkeypatch.syspath_prepend(tmp_path)
    look = sources.looking((package.name,))
    before = look()
    (package / "notes.txt").write_text("no source")
    assert look() == before
    file.write_text("one = 2")
    changed = look()
    file.rename(file.with_name("b.py"))
    assert len({before, changed, look()}) == 3


def test_another_code_is_told_in_words() -> None:
    version, digest = sources.here()
    assert not sources.other_than_here((version, digest))
    assert sources.other_than_here(("0.0.1", digest)) == (
        f"it has autotune 0.0.1, and this machine {version}"
    )
    other = sources.other_than_here((version, "f" * 64))
    assert other.startswith(
        f"it has autotune {version} as this machine has, but other source files"
    )
    assert "not installed" in sources.other_than_here(("", ""))
