"""What goes into a bundle: versions, distributions, files, and the archive that they make."""

from __future__ import annotations

import errno
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import Tag
from packaging.utils import canonicalize_name

from autotune.adapters.bundle import archive, own, trimming
from autotune.adapters.bundle.pins import Pin, read_pins
from autotune.adapters.bundle.sources import Fetching, gather
from autotune.adapters.bundle.staged import Component, Staged, is_elf
from autotune.adapters.bundle.target import Target
from autotune.adapters.bundle.wanted import closure
from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.environment import own_requirements
from autotune.bootstrap import bundling
from autotune.core.errors import AutotuneError, InputRefused

TARGETS = [Target(minor=(3, minor)) for minor in (11, 12, 13)]
HERE = Target(minor=sys.version_info[:2])
OTHER = Target(minor=(3, 12) if sys.version_info[:2] != (3, 12) else (3, 11))


# ------------------------------------------------------------------------------------------- pins
LOCK = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:ab
    # via
    #   triton-autotune (pyproject.toml)
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:ba
    # via onnx
pywin32==312 ; sys_platform == 'win32' \\
    --hash=sha256:ca
Ruamel_Yaml==0.19.1 \\
    --hash=sha256:da
"""


@pytest.mark.parametrize(("target", "version"), [(TARGETS[0], "2.4.6"), (TARGETS[1], "2.5.5")])
def test_a_version_is_the_one_that_the_lock_names_for_the_targets_python(
    target: Target, version: str
) -> None:
    pins = read_pins(LOCK, target)
    assert pins["numpy"].version == version
    assert sorted(pins) == ["numpy", "ruamel-yaml"]


def test_a_pin_goes_to_pip_with_all_its_hashes_and_without_its_marker() -> None:
    pin = read_pins(LOCK, TARGETS[0])["numpy"]
    assert pin.requirement() == "numpy==2.4.6 --hash=sha256:aa --hash=sha256:ab"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.version)
def test_the_locks_pin_all_that_autotune_and_its_server_need(target: Target) -> None:
    def requires(name: str) -> list[str]:
        return metadata.requires(name) or []

    pins = read_pins(own.lock(), target)
    names = closure(own.requirements(), requires, target, trimming.DISTRIBUTIONS)
    assert set(names) <= set(pins)
    assert {"numpy", "locust", "flask", "grpcio", "psutil", "plotly"} <= set(names)
    assert {"numpy", "onnxruntime", "nvidia-pytriton"} <= set(read_pins(own_requirements(), target))


def test_what_only_developers_or_other_systems_need_is_not_wanted() -> None:
    graph = {
        "tool": ["net[fast]>=1", "check; extra == 'dev'", "win; sys_platform == 'win32'"],
        "net": ["wires", "turbo; extra == 'fast'", "slow; extra == 'slow'", "heavy"],
        "turbo": ["net"],
        "heavy": ["only-of-heavy"],
    }
    names = closure(["tool"], lambda name: graph.get(name, []), HERE, without={"heavy"})
    assert names == ["net", "tool", "turbo", "wires"]


# ----------------------------------------------------------------------------------------- sources
def wheel(
    folder: Path, tag: str = "py3-none-any", files: dict[str, str] | None = None
) -> tuple[Path, Pin]:
    """A wheel of `tiny` 1.0, and the pin that wants it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tiny-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name, text in (files or {"tiny/__init__.py": "A = 1\n"}).items():
            made.writestr(name, text)
    return path, Pin(name="tiny", version="1.0", hashes=(f"sha256:{sha256_of(path)}",))


def installed(folder: Path, tag: str) -> Path:
    """A folder of site-packages with `tiny` 1.0 in it."""
    info = folder / "tiny-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "tiny.py").write_text("A = 2\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
    (info / "RECORD").write_text(
        "tiny.py,,\n../../bin/tiny,,\ngone.py,,\ntiny-1.0.dist-info/WHEEL,,\n"
    )
    return folder


def fetching(store: Path, pip: Callable[[], Path]) -> Fetching:
    return Fetching(store=store, pip=pip, say=lambda _: None)


def names_of(pin: Pin, store: Path, *sites: Path, target: Target = HERE) -> list[str]:
    def no_pip() -> Path:
        raise AssertionError("pip was asked for")

    (source,) = gather([pin], target, sites, fetching(store, no_pip))
    return sorted(name for name, _ in source.files())


def test_what_is_installed_here_is_taken_without_scripts_and_what_is_gone(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", "py3-none-any")
    pin = Pin(name="tiny", version="1.0", hashes=())
    assert names_of(pin, tmp_path, site) == ["tiny-1.0.dist-info/WHEEL", "tiny.py"]
    assert names_of(pin, tmp_path, site, target=OTHER), "a pure one suits every Python"


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        (f"{OTHER.abi}-{OTHER.abi}-manylinux_2_17_x86_64", "another Python's"),
        (f"{HERE.abi}-{HERE.abi}-linux_x86_64", "built here, on this machine's libraries"),
        (f"{HERE.abi}-{HERE.abi}-manylinux_2_39_x86_64", "for a newer C library"),
    ],
)
def test_a_wheel_is_taken_instead_of_what_is_installed_but_does_not_suit(
    tmp_path: Path, tag: str, why: str
) -> None:
    site = installed(tmp_path / "site", tag)
    _, pin = wheel(tmp_path / "store")
    assert names_of(pin, tmp_path / "store", site) == ["tiny/__init__.py"], why


def test_another_version_that_is_installed_is_not_taken(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", "py3-none-any")
    pin = Pin(name="tiny", version="1.1", hashes=())
    with pytest.raises(AssertionError, match="pip was asked for"):
        names_of(pin, tmp_path, site)


def test_a_stored_wheel_with_another_hash_is_not_taken(tmp_path: Path) -> None:
    wheel(tmp_path)
    pin = Pin(name="tiny", version="1.0", hashes=("sha256:" + "0" * 64,))
    with pytest.raises(AssertionError, match="pip was asked for"):
        names_of(pin, tmp_path)


def test_a_wheels_data_go_where_pip_would_put_them(tmp_path: Path) -> None:
    _, pin = wheel(
        tmp_path,
        files={
            "tiny.py": "",
            "tiny-1.0.data/purelib/extra.py": "",
            "tiny-1.0.data/platlib/fast.so": "",
            "tiny-1.0.data/scripts/tiny": "",
        },
    )
    assert names_of(pin, tmp_path) == ["extra.py", "fast.so", "tiny.py"]


def test_a_wheel_that_cannot_be_fetched_is_an_error_with_pips_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pin = Pin(name="nosuchpackage", version="1.0", hashes=("sha256:" + "0" * 64,))
    with pytest.raises(AutotuneError, match="No matching distribution") as failure:
        gather([pin], OTHER, [], fetching(tmp_path / "wheels", lambda: Path(sys.executable)))
    assert f"Python {OTHER.version} could not be fetched" in failure.value.rule
    assert list((tmp_path / "wheels").iterdir()) == []


def test_wheels_for_another_python_are_known_by_their_tags() -> None:
    tags = Target(minor=(3, 12)).tags()
    assert Tag("cp312", "cp312", "manylinux_2_28_x86_64") in tags
    assert Tag("cp39", "abi3", "manylinux2014_x86_64") in tags
    assert Tag("py3", "none", "any") in tags
    assert Tag("cp311", "cp311", "manylinux_2_28_x86_64") not in tags
    assert Tag("cp312", "cp312", "manylinux_2_36_x86_64") not in tags


# ---------------------------------------------------------------------------------------- trimming
@pytest.mark.parametrize(
    ("distribution", "path"),
    [
        ("numpy", "numpy/linalg/tests/test_linalg.py"),
        ("numpy", "numpy/_core/include/numpy/arrayobject.h"),
        ("grpcio", "grpc/__init__.pyi"),
        ("plotly", "plotly/graph_objs/_figure.py"),
        ("plotly", "plotly/package_data/datasets/iris.csv.gz"),
        ("onnxruntime", "onnxruntime/capi/libonnxruntime.so.1.32.0"),
        ("onnxruntime", "onnxruntime/transformers/optimizer.py"),
        ("nvidia-pytriton", "pytriton/decorators.py"),
        ("numpy", "numpy-2.4.6.dist-info/RECORD"),
    ],
)
def test_what_no_run_needs_is_left_out(distribution: str, path: str) -> None:
    assert not trimming.kept(distribution, path)


@pytest.mark.parametrize(
    ("distribution", "path"),
    [
        ("numpy", "numpy/testing/__init__.py"),
        ("numpy", "numpy-2.4.6.dist-info/licenses/LICENSE.txt"),
        ("plotly", "plotly/package_data/plotly.min.js"),
        ("onnxruntime", "onnxruntime/transformers/float16.py"),
        ("onnxruntime", "onnxruntime/capi/onnxruntime_pybind11_state.so"),
        ("nvidia-pytriton", "nvidia_pytriton.libs/libssl.so.3"),
    ],
)
def test_what_a_run_needs_stays(distribution: str, path: str) -> None:
    assert trimming.kept(distribution, path)


def test_every_rule_is_of_a_distribution_that_a_bundle_has() -> None:
    pins = {*read_pins(own.lock(), HERE), *read_pins(own_requirements(), HERE)}
    assert {canonicalize_name(name) for name in trimming.BY_NAME} <= pins
    assert set(trimming.DISTRIBUTIONS) <= pins


# ----------------------------------------------------------------------------- folder and archive
TOOL = Component(name="tiny", version="1.0", folder="site")
SERVER = Component(name="tiny", version="1.0", folder="server/site")


def staged_at(root: Path) -> Staged:
    staged = Staged(root=root)
    staged.add_text(TOOL, "tiny/a.py", "A = 1\n")
    staged.add_text(TOOL, "tiny/b.txt", "b\n")
    staged.add(TOOL, "tiny/fast.so", lambda to: to.write_bytes(b"\x7fELF" + bytes(100)))
    staged.add_text(TOOL, "run", "#!/bin/sh\n")
    return staged


def unpacked(path: Path, folder: Path) -> Path:
    with tarfile.open(path) as packed:
        packed.extractall(folder, filter="data")
    return folder


def test_the_same_content_makes_the_same_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        archive.write(staged_at(tmp_path / name), "top", tmp_path / f"{name}.tar.xz", level=0)
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()


def test_an_archive_is_unpacked_as_it_was_staged_with_fixed_owners_times_and_modes(
    tmp_path: Path,
) -> None:
    staged = staged_at(tmp_path / "staged")
    archive.write(staged, "top", tmp_path / "a.tar.xz", level=0)
    with tarfile.open(tmp_path / "a.tar.xz") as packed:
        modes = {member.name: member.mode for member in packed}
        assert {(m.uid, m.gid, m.uname, m.mtime) for m in packed} == {(0, 0, "", 1_600_000_000)}
    assert modes == {
        "top/site/run": 0o755,
        "top/site/tiny/a.py": 0o644,
        "top/site/tiny/b.txt": 0o644,
        "top/site/tiny/fast.so": 0o755,
    }
    folder = unpacked(tmp_path / "a.tar.xz", tmp_path / "out") / "top"
    for path in staged.owners:
        assert (folder / path).read_bytes() == (staged.root / path).read_bytes()


def test_every_packed_byte_is_some_components(tmp_path: Path) -> None:
    staged = staged_at(tmp_path / "staged")
    staged.add(SERVER, "noise", lambda to: to.write_bytes(bytes(range(256)) * 40_000))
    spent = archive.write(staged, "top", tmp_path / "a.tar.xz", level=0)
    assert set(spent) == {TOOL, SERVER}


@pytest.mark.parametrize("member", ["../../tiny.py", "tiny/../../../tiny.py", "/tmp/tiny.py"])
def test_a_wheels_file_that_would_stand_outside_of_its_folder_is_refused(
    tmp_path: Path, member: str
) -> None:
    staged = Staged(root=tmp_path / "deep" / "staged")
    with pytest.raises(ValueError, match="a file outside"):
        staged.add_text(SERVER, member, "")
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_both_have_is_packed_once_as_a_link(tmp_path: Path) -> None:
    staged = staged_at(tmp_path / "staged")
    for path in ("tiny/a.py", "tiny/b.txt", "tiny/fast.so"):
        staged.add(
            SERVER, path, lambda to, p=path: to.write_bytes((staged.root / "site" / p).read_bytes())
        )
    staged.add_text(SERVER, "own/c.py", "C = 3\n")
    staged.share("server/site", "site")
    archive.write(staged, "top", tmp_path / "a.tar.xz", level=0)
    folder = unpacked(tmp_path / "a.tar.xz", tmp_path / "out") / "top" / "server" / "site"
    assert (folder / "tiny").is_symlink()
    assert (folder / "tiny" / "a.py").read_text() == "A = 1\n"
    assert not (folder / "own").is_symlink()


def test_a_package_of_other_content_is_not_shared(tmp_path: Path) -> None:
    staged = staged_at(tmp_path / "staged")
    staged.add_text(SERVER, "tiny/a.py", "A = 2\n")
    staged.share("server/site", "site")
    assert not (staged.root / "server" / "site" / "tiny").is_symlink()


def test_a_component_is_described_by_its_files_and_a_hash_that_any_change_changes(
    tmp_path: Path,
) -> None:
    first, second = staged_at(tmp_path / "one"), staged_at(tmp_path / "two")
    second.add_text(TOOL, "tiny/a.py", "A = 2\n")
    (before,), (after,) = first.components(), second.components()
    assert (before["name"], before["version"], before["files"]) == ("tiny", "1.0", 4)
    assert before["bytes"] == after["bytes"]
    assert before["sha256"] != after["sha256"]


def test_a_folders_entries_are_what_stands_right_in_it(tmp_path: Path) -> None:
    staged = staged_at(tmp_path / "staged")
    assert staged.entries("site") == ["run", "tiny"]
    assert staged.entries(".") == ["site"]


def test_a_link_is_no_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    (tmp_path / "link").symlink_to(program)
    assert is_elf(program)
    assert not is_elf(tmp_path / "link")


# ----------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("text", ["3.10", "3.14", "3.14.1", "3", "3.12.x", "twelve", ""])
def test_a_python_that_the_server_has_no_wheels_for_is_refused_with_those_it_has(text: str) -> None:
    with pytest.raises(InputRefused, match=r"3\.11, 3\.12, 3\.13"):
        bundling.read_python(text)


@pytest.mark.parametrize("text", ["3.12", "3.12.1", "3.12.11"])
def test_of_a_whole_version_the_first_two_numbers_count(text: str) -> None:
    assert bundling.read_python(text) == (3, 12)


def packed(libpython: str | None) -> bundling.Packed:
    return bundling.Packed(
        path=Path("a.tar.xz"),
        bytes=1,
        sha256="",
        top="a",
        parts=(),
        left_out=(),
        untouched=False,
        libpython=libpython,
    )


def test_a_bundle_without_a_libpython_names_the_packages_that_the_host_needs() -> None:
    needs = bundling.host_needs(packed(None), (3, 12))
    assert "libpython3.12.so.1.0: package libpython3.12 (Debian, Ubuntu" in needs
    assert "python3.12-libs (Fedora, RHEL)" in needs


def test_a_bundle_with_a_libpython_names_its_version_and_whom_it_does_not_suit() -> None:
    needs = bundling.host_needs(packed("3.12.1"), (3, 12))
    assert "a libpython of 3.12.1 goes along" in needs
    assert "Debian's and Ubuntu's" in needs


def test_an_archive_that_cannot_be_written_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder.tar.xz").mkdir()
    (tmp_path / "file").touch()
    for out, words in (
        (tmp_path / "a.zip", "ends in .tar.xz"),
        (tmp_path / "missing" / "a.tar.xz", "cannot be written"),
        (tmp_path / "folder.tar.xz", "something else than a file"),
        (tmp_path / "file" / "a.tar.xz", "cannot be written"),
    ):
        with pytest.raises(InputRefused, match=words):
            bundling.refuse_out(out)


def test_a_full_disk_leaves_the_archive_that_was_there_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.tar.xz"
    out.write_text("the one before")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def stage(staged: Staged, *_: Any) -> None:
        staged.add_text(SERVER, "tiny.py", "")

    monkeypatch.setattr("autotune.adapters.bundle.pack._stage", stage)
    monkeypatch.setattr("autotune.adapters.bundle.pack.archive.write", full)
    with pytest.raises(AutotuneError, match="no room for the bundle"):
        bundling.make_bundle(HERE.minor, out, with_demo=False, level=0, say=lambda _: None)
    assert out.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("level", "minutes"), [(0, False), (9, True)])
def test_patience_is_asked_for_only_where_packing_takes_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, *, minutes: bool
) -> None:
    said: list[str] = []

    def unwritten(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("autotune.adapters.bundle.pack._stage", lambda *_: None)
    monkeypatch.setattr("autotune.adapters.bundle.pack.archive.write", unwritten)
    monkeypatch.setattr(Staged, "share", lambda *_: None)
    with pytest.raises(AutotuneError):
        bundling.make_bundle(
            HERE.minor, tmp_path / "a.tar.xz", with_demo=False, level=level, say=said.append
        )
    assert ("minutes" in said[-1]) is minutes


def test_a_directory_for_temporary_files_without_room_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(AutotuneError, match="no room for the bundle") as failure:
        bundling.make_bundle(
            HERE.minor, tmp_path / "a.tar.xz", with_demo=False, level=0, say=lambda _: None
        )
    assert "TMPDIR" in failure.value.next_step


# --------------------------------------------------------------------------------------- own files
def test_the_gpu_check_goes_along_with_the_modules_of_the_tests_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in {
        "tests/__init__.py": "",
        "tests/fakes.py": "from tests import deep\n",
        "tests/deep.py": "import json\n",
        "tests/other.py": "",
        "tests/gpu/__init__.py": "",
        "tests/gpu/__main__.py": "def f():\n    from tests.fakes import x\n",
        "tests/gpu/run.sh": "#!/bin/sh\n",
        "tests/gpu/__pycache__/a.pyc": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(own, "CHECKOUT", tmp_path)
    found = {path.as_posix() for path in own._gpu_check()}
    assert found == {
        "tests/__init__.py",
        "tests/fakes.py",
        "tests/deep.py",
        "tests/gpu/__init__.py",
        "tests/gpu/__main__.py",
        "tests/gpu/run.sh",
    }


def test_the_examples_model_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        own._save_model(tmp_path / name)
    assert sha256_of(tmp_path / "a.onnx") == sha256_of(tmp_path / "b.onnx")
