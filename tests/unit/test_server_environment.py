"""The decisions that prepare the embedded server, without building anything."""

from __future__ import annotations

import sysconfig
from importlib import resources
from pathlib import Path

import pytest

from autotune.adapters.triton import libpython
from autotune.adapters.triton.environment import refuse_platform
from autotune.adapters.triton.interpreter import Interpreter, installed_paths, probe, ranked
from autotune.core.errors import ServerFailed


def python(minor: int, name: str = "own", *, prefix: Path = Path("/nowhere")) -> Interpreter:
    return Interpreter(
        path=Path("/opt") / name / "python",
        version=(3, minor, 1),
        base_prefix=prefix,
        libdir=None,
    )


def names(own: int, others: set[int]) -> list[str]:
    def find(minor: tuple[int, int]) -> Interpreter | None:
        return python(minor[1], f"other-3.{minor[1]}") if minor[1] in others else None

    return [found.path.parent.name for found in ranked(python(own), find)]


# ------------------------------------------------------------------------------------ interpreters
@pytest.mark.parametrize("minor", [11, 12])
def test_the_tools_own_python_comes_first_where_numpy_1_has_a_wheel_for_it(minor: int) -> None:
    assert names(minor, {11, 12, 13})[0] == "own"


def test_a_python_with_numpy_1_comes_before_the_tools_own_3_13() -> None:
    assert names(13, {11}) == ["other-3.11", "own"]


def test_python_3_13_serves_where_there_is_no_other() -> None:
    assert names(13, set()) == ["own"]


def test_a_python_that_is_too_new_is_never_chosen() -> None:
    assert names(14, {12, 13}) == ["other-3.12", "other-3.13"]
    assert names(14, set()) == []


def test_no_other_python_is_looked_for_while_the_first_will_do() -> None:
    def find(_: tuple[int, int]) -> Interpreter | None:
        raise AssertionError("searched")

    assert next(ranked(python(12), find)).path.parent.name == "own"


def test_interpreters_beside_the_one_that_runs_are_found_whatever_home_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("sys.base_prefix", str(tmp_path / "versions" / "3.11.7"))
    for version in ("3.77.1", "cpython-3.77.2-linux", "3.7.7"):
        folder = tmp_path / "versions" / version / "bin"
        folder.mkdir(parents=True)
        (folder / "python3.77").touch()
    found = {path.parents[1].name for path in installed_paths((3, 77))}
    assert found == {"3.77.1", "cpython-3.77.2-linux"}


def test_what_does_not_run_is_no_interpreter(tmp_path: Path) -> None:
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert probe(broken) is None
    assert probe(tmp_path / "absent") is None


# ---------------------------------------------------------------------------------------- platform
def test_linux_on_x86_64_with_a_recent_glibc_is_accepted() -> None:
    refuse_platform("Linux", "x86_64", ("glibc", "2.35"))
    refuse_platform("Linux", "x86_64", ("glibc", "2.41"))


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [
        ("Darwin", "arm64", ("", "")),
        ("Linux", "aarch64", ("glibc", "2.40")),
        ("Linux", "x86_64", ("glibc", "2.31")),
        ("Linux", "x86_64", ("", "")),
    ],
)
def test_another_platform_is_refused_with_the_other_launches(
    system: str, machine: str, libc: tuple[str, str]
) -> None:
    with pytest.raises(ServerFailed, match="docker, binary or remote"):
        refuse_platform(system, machine, libc)


# --------------------------------------------------------------------------------------- libpython
@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose loader has no libpython and that has neither other Pythons nor apt."""
    monkeypatch.setattr(libpython, "system_folders", list)
    monkeypatch.setattr(libpython, "installed_paths", lambda _: [])
    monkeypatch.setattr("autotune.adapters.triton.libpython.shutil.which", lambda _: None)


@pytest.mark.usefixtures("bare")
def test_the_library_beside_the_interpreter_is_taken(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "libpython3.12.so.1.0"
    library.parent.mkdir()
    library.touch()
    assert libpython.locate(python(12, prefix=tmp_path), tmp_path) == library


@pytest.mark.usefixtures("bare")
def test_the_library_of_another_version_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libpython3.11.so.1.0").touch()
    with pytest.raises(libpython.NoLibpython):
        libpython.locate(python(12, prefix=tmp_path), tmp_path)


@pytest.mark.usefixtures("bare")
def test_where_there_is_none_the_packages_to_install_are_named(tmp_path: Path) -> None:
    with pytest.raises(libpython.NoLibpython) as failure:
        libpython.locate(python(12), tmp_path)
    text = str(failure.value)
    assert "apt-get install libpython3.12" in text
    assert "dnf install python3.12-libs" in text


def test_a_library_that_was_fetched_before_is_taken_without_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "autotune.adapters.triton.libpython.shutil.which", lambda name: f"/usr/bin/{name}"
    )
    monkeypatch.setattr(libpython, "_runs", lambda *_, **__: pytest.fail("ran a command"))
    file = tmp_path / "libpython/3.12/files/usr/lib/libpython3.12.so.1.0"
    file.parent.mkdir(parents=True)
    file.touch()
    assert libpython.fetch_debian("libpython3.12.so.1.0", (3, 12), tmp_path, print) == file


def test_apt_is_asked_first_with_its_own_lists_then_with_private_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def fails(command: list[str], *, cwd: Path) -> bool:
        commands.append(command)
        return command[-1] == "update"

    monkeypatch.setattr(
        "autotune.adapters.triton.libpython.shutil.which", lambda name: f"/usr/bin/{name}"
    )
    monkeypatch.setattr(libpython, "_runs", fails)
    assert libpython.fetch_debian("libpython3.12.so.1.0", (3, 12), tmp_path, lambda _: None) is None
    asked = [(command[-1], "-o" in command) for command in commands]
    assert asked == [
        ("libpython3.12", False),
        ("libpython3.12t64", False),
        ("update", True),
        ("libpython3.12", True),
        ("libpython3.12t64", True),
    ]


def test_the_loaders_folders_hold_the_multi_architecture_one() -> None:
    triplet = sysconfig.get_config_var("MULTIARCH")
    assert Path("/usr/lib64") in libpython.system_folders()
    if triplet:
        assert libpython.system_folders()[0] == Path("/usr/lib") / triplet


# ------------------------------------------------------------------------------------ requirements
def test_every_server_requirement_is_pinned_with_hashes_and_names_no_host() -> None:
    package = resources.files("autotune.adapters.triton")
    text = package.joinpath("server-requirements.txt").read_text("utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(pins) >= 6
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert "://" not in text
    assert text.count("numpy==1.") == 1
