"""The host's side of a bundle: its scripts, and what they prepare. Nothing is packed here."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.bundle import own, start
from autotune.adapters.bundle.staged import Component, Staged
from autotune.adapters.bundle.target import Target
from autotune.adapters.triton import interpreter, libpython, unpacked
from autotune.adapters.triton.environment import GLIBC, prepare
from autotune.adapters.triton.interpreter import Interpreter, probe
from autotune.core.errors import ServerFailed

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
ABOUT = {"python": VERSION, "glibc": list(GLIBC)}
OUTSIDE = Component(name="triton-autotune", version="", folder=".")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """An unpacked bundle without packages: one module in ``site/``, one beside it."""
    root = tmp_path / "a bundle"
    staged = Staged(root=root)
    own._add_scripts(staged, OUTSIDE, Target(minor=sys.version_info[:2]))
    staged.add_text(OUTSIDE, "bundle.json", json.dumps(ABOUT))
    staged.add_text(OUTSIDE, "site/brought.py", "VALUE = 'of the bundle'\n")
    for package in ("site/autotune", "tests", "tests/gpu"):
        staged.add_text(OUTSIDE, f"{package}/__init__.py", "")
    staged.add_text(
        OUTSIDE, "site/autotune/__main__.py", "import sys; print('ran', sys.argv[1:])\n"
    )
    for name in ("python", "autotune"):
        (root / name).chmod(0o755)
    return root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


def ran(
    bundle: Path, *arguments: str, script: str = "python", **variables: str
) -> subprocess.CompletedProcess[str]:
    """A script of the bundle with no other environment than this."""
    return subprocess.run(
        [str(bundle / script), *arguments],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answered(bundle: Path, code: str, **variables: str) -> Any:
    """What Python code prints as JSON, run by the bundle's `python`."""
    done = ran(bundle, "-c", f"import json\n{code}", **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


HOST = {"AUTOTUNE_PYTHON": sys.executable}


# ---------------------------------------------------------------------------------------- scripts
def test_the_bundles_packages_are_found_also_by_a_python_that_heeds_no_variables(
    bundle: Path, home: Path
) -> None:
    code = (
        "import subprocess, sys, brought, tests.gpu\n"
        "inner = [sys.executable, '-I', '-c', 'import brought; print(brought.VALUE)']\n"
        "print(json.dumps(subprocess.check_output(inner, text=True).strip()))"
    )
    assert answered(bundle, code, HOME=str(home), **HOST) == "of the bundle"


def test_the_bundles_packages_come_before_the_hosts(bundle: Path, home: Path) -> None:
    (bundle / "site" / "click.py").write_text("BROUGHT = True\n")
    code = "import click, psutil; print(json.dumps([click.__file__, psutil.__file__]))"
    brought, hosts = answered(bundle, code, HOME=str(home), **HOST)
    assert brought == str(bundle / "site" / "click.py")
    assert not hosts.startswith(str(bundle))


def test_autotune_is_run_with_its_arguments_from_anywhere_and_through_a_link(
    bundle: Path, home: Path
) -> None:
    (home / "autotune").symlink_to(bundle / "autotune")
    done = ran(home, "show", "a study", script="autotune", HOME=str(home), **HOST)
    assert done.stdout == "ran ['show', 'a study']\n", done.stderr


def test_the_variables_of_a_host_that_would_mislead_python_are_dropped(
    bundle: Path, home: Path
) -> None:
    code = (
        "import os; print(json.dumps({n: os.environ.get(n) for n in"
        " ('PYTHONPATH', 'PYTHONHOME', 'PYTHONNOUSERSITE', 'AUTOTUNE_SERVER', 'AUTOTUNE_CACHE')}))"
    )
    told = answered(bundle, code, HOME=str(home), PYTHONPATH="/x", PYTHONHOME="/nowhere", **HOST)
    assert told == {
        "PYTHONPATH": None,
        "PYTHONHOME": None,
        "PYTHONNOUSERSITE": "1",
        "AUTOTUNE_SERVER": str(bundle / "server"),
        "AUTOTUNE_CACHE": str(home / ".cache" / "triton-autotune"),
    }


@pytest.mark.parametrize("variables", [{}, {"HOME": ""}, {"HOME": "/proc/nowhere"}])
def test_without_a_home_what_is_written_goes_to_the_temporary_directory(
    bundle: Path, tmp_path: Path, variables: dict[str, str]
) -> None:
    code = (
        "import os; print(json.dumps([os.environ['AUTOTUNE_CACHE'], os.environ['AUTOTUNE_WORK']]))"
    )
    folders = answered(bundle, code, TMPDIR=str(tmp_path), **HOST, **variables)
    own_folder = tmp_path / f"triton-autotune-{os.getuid()}"
    assert all(Path(each).is_relative_to(own_folder) for each in folders)
    assert own_folder.stat().st_mode & 0o077 == 0


def test_a_temporary_directory_that_another_user_prepared_is_not_taken(
    bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"triton-autotune-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    done = ran(bundle, "-c", "", TMPDIR=str(tmp_path), HOME="", **HOST)
    assert done.returncode == 1
    assert "AUTOTUNE_CACHE" in done.stderr
    assert "Traceback" not in done.stderr


def fake_python(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"python{VERSION}"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return folder


def test_a_python_on_path_that_does_not_run_is_passed_over(
    bundle: Path, tmp_path: Path, home: Path
) -> None:
    broken = fake_python(tmp_path / "broken", "exit 127")
    good = fake_python(tmp_path / "good", f'exec "{sys.executable}" "$@"')
    (good / "python3").symlink_to(good / f"python{VERSION}")
    done = ran(bundle, "-c", "print('ran')", HOME=str(home), PATH=f"{broken}:{good}:/usr/bin:/bin")
    assert done.stdout == "ran\n", done.stderr


def test_a_host_without_that_python_is_told_so_and_what_to_install(
    bundle: Path, tmp_path: Path, home: Path
) -> None:
    text = (bundle / "python").read_text().replace(VERSION, "3.77")
    (bundle / "python").write_text(text.replace(repr(sys.version_info[:2]), "(3, 77)"))
    done = ran(bundle, "-c", "", HOME=str(home))
    assert done.returncode == 1
    assert "this host lacks Python 3.77" in done.stderr
    assert "libpython3.77" in done.stderr
    assert "AUTOTUNE_PYTHON" in done.stderr


@pytest.mark.parametrize(
    ("script", "gone"),
    [
        ("python", "bundle.json"),
        ("python", "start.py"),
        ("python", "site"),
        ("python", "site/brought.py"),
        ("autotune", "python"),
    ],
)
def test_a_damaged_bundle_says_what_is_gone_and_to_unpack_it_again(
    bundle: Path, home: Path, script: str, gone: str
) -> None:
    entries = {".": ["python", "site", "start.py"], "site": ["autotune", "brought.py"]}
    (bundle / "bundle.json").write_text(json.dumps({**ABOUT, "entries": entries}))
    assert ran(bundle, "-c", "", script="python", HOME=str(home), **HOST).returncode == 0
    (bundle / gone).rename(home / "taken")
    done = ran(bundle, "-c", "", script=script, HOME=str(home), **HOST)
    assert done.returncode == 1
    assert "the bundle is damaged: unpack it again" in done.stderr
    assert gone in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_description_that_was_cut_short_is_a_damaged_bundle(
    bundle: Path, home: Path, text: str
) -> None:
    (bundle / "bundle.json").write_text(text)
    done = ran(bundle, "-c", "", HOME=str(home), **HOST)
    assert "the bundle is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_python_that_was_named_but_is_another_is_refused(
    bundle: Path, tmp_path: Path, home: Path
) -> None:
    other = fake_python(tmp_path / "other", "exit 1") / f"python{VERSION}"
    done = ran(bundle, "-c", "", HOME=str(home), AUTOTUNE_PYTHON=str(other))
    assert done.returncode == 1
    assert str(other) in done.stderr


def test_a_second_start_makes_nothing_new(bundle: Path, home: Path) -> None:
    for _ in range(2):
        assert ran(bundle, "-c", "", HOME=str(home), **HOST).returncode == 0
    assert len(list((home / ".cache" / "triton-autotune" / "bundle").iterdir())) == 1


def test_a_python_that_is_gone_is_no_hindrance_to_the_one_that_is_there(
    bundle: Path, home: Path
) -> None:
    assert ran(bundle, "-c", "", HOME=str(home), **HOST).returncode == 0
    (made,) = (home / ".cache" / "triton-autotune" / "bundle").iterdir()
    (made / "bin" / "python").unlink()
    (made / "bin" / "python").symlink_to("/nowhere/python")
    assert ran(bundle, "-c", "", HOME=str(home), **HOST).returncode == 0


def test_starts_at_once_all_run_and_leave_one_environment(bundle: Path, home: Path) -> None:
    """One after another finds that of a Python that is gone, as after the host's was renewed."""
    assert ran(bundle, "-c", "", HOME=str(home), **HOST).returncode == 0
    (made,) = (home / ".cache" / "triton-autotune" / "bundle").iterdir()
    (made / "bin" / "python").unlink()
    started = [
        subprocess.Popen(
            [str(bundle / "python"), "-c", ""],
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), **HOST},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    said = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 6, said
    assert list((home / ".cache" / "triton-autotune" / "bundle").iterdir()) == [made]


def test_another_environment_that_came_first_is_taken(tmp_path: Path) -> None:
    made, root = tmp_path / "made", tmp_path / "root"
    for folder in (made, root):
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
    (root / "first").touch()
    start.put(made, root)
    assert (root / "first").exists()


def test_a_folder_that_cannot_be_written_is_an_error_and_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(OSError, match="Read-only"):
        start.linked(tmp_path / "bundle", ABOUT)
    assert list((tmp_path / "bundle").iterdir()) == []


def test_a_model_that_was_packed_is_found_where_fetched_ones_are(bundle: Path, home: Path) -> None:
    (bundle / "packaged" / "abc").mkdir(parents=True)
    (bundle / "packaged" / "abc" / "m.onnx").write_bytes(b"the model")
    assert ran(bundle, "-c", "", HOME=str(home), **HOST).returncode == 0
    cache = home / ".cache" / "triton-autotune"
    assert (cache / "packaged" / "abc" / "m.onnx").read_bytes() == b"the model"


# ----------------------------------------------------------------------------------- what it lacks
def test_a_host_that_has_all_lacks_nothing() -> None:
    assert list(start.lacking(ABOUT)) == []


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"python": "3.77"}, "CPython 3.77 (this is cpython"),
        ({"glibc": [9, 99]}, "glibc 9.99 or newer (this host has 2."),
    ],
)
def test_what_a_host_lacks_is_said_with_what_it_has(about: dict[str, Any], words: str) -> None:
    (said,) = start.lacking({**ABOUT, **about})
    assert words in said


def test_a_python_built_without_sqlite_is_said_to_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MODULES", ("json", "no_such_module"))
    (said,) = start.lacking(ABOUT)
    assert said.endswith("of the standard library: no_such_module")


def test_a_shared_library_that_the_host_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "LIBRARIES", ("libc.so.6", "libnowhere.so.9"))
    assert list(start.lacking(ABOUT)) == ["the shared libraries libnowhere.so.9"]


def test_another_c_library_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda _: None)
    (said,) = start.lacking(ABOUT)
    assert "this host has another C library" in said


# ----------------------------------------------------------------------------- the unpacked server
@pytest.fixture
def server_dir(tmp_path: Path) -> Path:
    """The folder of a server that was unpacked, of which nothing runs."""
    folder = tmp_path / "server"
    for name in ("bin", "backends", "site"):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / "tritonserver").write_text("#!/bin/sh\n")
    (folder / "bin" / "tritonserver").chmod(0o755)
    (folder / "site" / "its_own.py").write_text("")
    (folder / unpacked.DESCRIPTION).write_text(
        unpacked.describe(
            sys.version_info[:2],
            "libpython-of-the-stub.so",
            tritonserver="bin/tritonserver",
            backends="backends",
            packages="site",
            spare=f"libpython/libpython{VERSION}.so.1.0",
        )
    )
    return folder


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has a Python, and no library of it, neither shared nor static."""
    monkeypatch.setattr(libpython, "find", lambda _: None)
    monkeypatch.setattr(libpython, "static_library", lambda _: None)


def with_library(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    library = folder / "libpython.so"
    library.touch()
    monkeypatch.setattr(libpython, "find", lambda _: library)
    return library


def test_an_unpacked_server_is_served_as_it_stands_by_the_hosts_python(
    server_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = with_library(monkeypatch, tmp_path)
    before = sorted(server_dir.rglob("*"))
    environment = prepare(tmp_path / "cache", server_dir=server_dir)
    assert sorted(server_dir.rglob("*")) == before
    assert environment.tritonserver == server_dir / "bin" / "tritonserver"
    assert environment.backends == server_dir / "backends"
    assert [each.resolve() for each in environment.libraries.iterdir()] == [library]
    command = [str(environment.bin / "python3"), "-I", "-c", "import its_own, psutil"]
    assert subprocess.run(command, check=False).returncode == 0
    assert prepare(tmp_path / "cache", server_dir=server_dir) == environment


def test_an_unpacked_server_is_found_in_a_folder_whose_name_is_not_ascii(
    server_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a Python that can name no such folder, as the one in the stub."""
    with_library(monkeypatch, tmp_path)
    moved = server_dir.rename(tmp_path / "ausgepackt für später")
    environment = prepare(tmp_path / "cache", server_dir=moved)
    command = [str(environment.bin / "python3"), "-c", "import its_own"]
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("bare")
def test_a_host_without_a_libpython_is_told_which_package_has_it(
    server_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ServerFailed, match=f"apt-get install libpython{VERSION}"):
        prepare(tmp_path / "cache", server_dir=server_dir)
    with pytest.raises(ServerFailed, match=f"apt-get install libpython{VERSION}"):
        unpacked.read(server_dir).examine()


@pytest.mark.usefixtures("bare")
def test_the_bundles_own_libpython_serves_where_the_host_has_none_and_it_is_said(
    server_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = server_dir / "libpython" / f"libpython{VERSION}.so.1.0"
    spare.parent.mkdir()
    spare.touch()
    monkeypatch.setattr(libpython, "suits", lambda library, _: library.is_file())
    monkeypatch.setattr(libpython, "version_of", lambda _: "3.12.1")
    assert "the bundle's own, of Python 3.12.1" in unpacked.read(server_dir).examine()
    environment = prepare(tmp_path / "cache", server_dir=server_dir)
    assert (environment.libraries / "libpython-of-the-stub.so").resolve() == spare


@pytest.mark.usefixtures("bare")
def test_a_spare_libpython_that_does_not_load_here_is_as_good_as_none(
    server_dir: Path, tmp_path: Path
) -> None:
    spare = server_dir / "libpython" / f"libpython{VERSION}.so.1.0"
    spare.parent.mkdir()
    spare.write_text("no library")
    with pytest.raises(ServerFailed, match="needs a shared libpython"):
        prepare(tmp_path / "cache", server_dir=server_dir)


@pytest.mark.parametrize(
    ("built_in", "verdict"),
    [({"sys", "math", "time"}, True), ({"sys", "math"}, True), ({"sys", "time"}, False)],
)
def test_a_libpython_suits_if_it_has_all_that_is_built_into_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_in: set[str], verdict: bool
) -> None:
    """Debian's Python has `math` built in and no file of it: another build's library has none."""
    library = tmp_path / "libpython.so"
    library.touch()
    monkeypatch.setattr(libpython, "_told", lambda _: ("3.12.1", frozenset(built_in)))
    python = replace(python_with(tmp_path), builtins=frozenset({"sys", "math", "xxsubtype"}))
    assert libpython.suits(library, python) is verdict


def test_a_folder_that_holds_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"server/ folder of an unpacked bundle"):
        prepare(tmp_path / "cache", server_dir=tmp_path)


def test_a_server_for_a_python_that_is_not_here_is_refused(
    server_dir: Path, tmp_path: Path
) -> None:
    text = (server_dir / unpacked.DESCRIPTION).read_text()
    told = {**json.loads(text), "python": [3, 77]}
    (server_dir / unpacked.DESCRIPTION).write_text(json.dumps(told))
    with pytest.raises(ServerFailed, match=r"needs Python 3\.77"):
        prepare(tmp_path / "cache", server_dir=server_dir)


def test_the_server_sees_the_packages_of_the_python_that_the_bundle_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyvenv.cfg").write_text(f"home = /usr/bin\nhost-python = {sys.executable}\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = interpreter.host()
    assert found is not None
    assert found.path == Path(sys.executable)
    assert any(each.name == "site-packages" for each in found.packages)


# ------------------------------------------------------------------------------ linking a libpython
def python_with(archives: Path, *link: str) -> Interpreter:
    return Interpreter(
        path=Path("/opt/python"),
        version=(*sys.version_info[:2], 1),
        base_prefix=Path("/nowhere"),
        libdir=None,
        archives=archives,
        link=link,
    )


def test_without_a_static_library_or_a_compiler_nothing_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert libpython.link_static(python_with(tmp_path), tmp_path) is None
    (tmp_path / f"libpython{VERSION}.a").touch()
    monkeypatch.setattr(libpython, "_COMPILERS", ())
    assert libpython.link_static(python_with(tmp_path), tmp_path) is None


def test_a_static_library_that_cannot_be_linked_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / f"libpython{VERSION}.a").write_text("no archive")
    assert libpython.link_static(python_with(tmp_path), tmp_path / "cache") is None
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_the_static_library_of_position_independent_code_is_preferred(tmp_path: Path) -> None:
    for name in (f"libpython{VERSION}.a", f"libpython{VERSION}-pic.a"):
        (tmp_path / name).touch()
    found = libpython.static_library(python_with(tmp_path))
    assert found == tmp_path / f"libpython{VERSION}-pic.a"


def test_what_is_no_libpython_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "libpython.so").write_text("no library")
    assert libpython.version_of(tmp_path / "libpython.so") is None


def test_a_real_libpython_tells_its_version() -> None:
    own_python = probe(Path(sys.executable))
    library = libpython.find(own_python) if own_python else None
    if library is None:
        pytest.skip("this Python has no shared library")
    version = libpython.version_of(library)
    assert version is not None
    assert version.startswith(f"{VERSION}.")
