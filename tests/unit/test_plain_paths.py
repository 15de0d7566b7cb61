"""Paths that the Python backend's shell would take apart."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from autotune.adapters.triton import plain_paths
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.launchers import BinaryLauncher, EmbeddedLauncher
from autotune.adapters.triton.plain_paths import PlainPaths
from autotune.adapters.triton.ports import Ports
from autotune.adapters.triton.process import Command

PORTS = Ports(http=8000, grpc=8001, metrics=8002)


def through_a_shell(path: Path) -> list[str]:
    """What is left of a path in a line of shell that does not quote it."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {path}"], capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


def removed(command: Command) -> None:
    subprocess.run(command.after, check=True)


@pytest.mark.parametrize(
    "name", ["with space", "with $HOME", "a'quote", "semi;colon", "paren(s)", "back\\slash", "é *"]
)
def test_a_path_that_a_shell_would_take_apart_is_given_by_a_link(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "file").write_text("found")
    plain = PlainPaths()
    given = plain.of(folder)
    assert through_a_shell(given) == [str(given)]
    assert (given / "file").read_text() == "found"
    subprocess.run(plain.after, check=True)
    assert not given.parent.exists()
    assert (folder / "file").read_text() == "found", "what the link led to stays"


def test_a_path_of_one_word_stays_as_it_is(tmp_path: Path) -> None:
    plain = PlainPaths()
    assert plain.of(Path("/srv/models-1/a_b.c")) == Path("/srv/models-1/a_b.c")
    assert plain.after == ()


def test_a_folder_for_temporary_files_with_a_space_in_its_name_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "a b"))
    plain = PlainPaths()
    assert plain_paths.is_plain(plain.of(tmp_path / "a b"))
    subprocess.run(plain.after, check=True)


def test_an_embedded_server_is_told_of_no_path_that_its_stubs_shell_would_take_apart(
    tmp_path: Path,
) -> None:
    root = tmp_path / "un packed"
    environment = ServerEnvironment(
        root=root, tritonserver=root / "t", backends=root / "b", libraries=root / "l"
    )
    command = EmbeddedLauncher(lambda: environment).command(tmp_path / "my models", PORTS, {})
    told = dict(each.lstrip("-").split("=", 1) for each in command.argv[1:])
    assert Path(told["backend-directory"]).readlink() == root / "b"
    assert Path(told["model-repository"]).readlink() == tmp_path / "my models"
    assert all(" " not in value for value in told.values())
    first_on_path = Path(command.variables["PATH"].split(":")[0])
    assert first_on_path.parent.readlink() == root, "its Python's own folder, which may be no ASCII"
    removed(command)


def test_a_server_that_is_installed_here_is_told_of_none_either(tmp_path: Path) -> None:
    launcher = BinaryLauncher(Path("/bin/true"))
    command = launcher.command(tmp_path / "my models", PORTS, {})
    assert not any(" " in argument for argument in command.argv)
    removed(command)
