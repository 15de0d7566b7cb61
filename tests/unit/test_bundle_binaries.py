"""What is taken off programs and shared libraries that go into a bundle."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.adapters.bundle import binaries, libraries
from autotune.adapters.bundle.staged import Component, Staged, is_elf

SCIPY = Component(name="scipy", version="1.17.1", folder="site")
NUMPY = Component(name="numpy", version="2.4.6", folder="site")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of a real one that Python loads."""
    (source,) = Path(psutil.__file__).parent.glob("_psutil_linux*.so")
    return Path(shutil.copyfile(source, tmp_path / source.name))


def imports(library: Path) -> bool:
    module = library.name.partition(".")[0]
    code = f"import sys; sys.path[:0] = [{str(library.parent)!r}]; import {module}"
    return subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0


def test_a_library_that_the_loader_accepts_is_told_from_one_whose_segments_lie_wrong(
    library: Path,
) -> None:
    assert binaries.loads(library)
    content = bytearray(library.read_bytes())
    (table,) = struct.unpack_from("<Q", content, 32)
    kinds = [struct.unpack_from("<I", content, table + 56 * i)[0] for i in range(20)]
    struct.pack_into("<Q", content, table + 56 * kinds.index(1) + 16, 0x1001)
    library.write_bytes(content)
    assert not binaries.loads(library)


def test_a_stripped_library_still_loads_and_is_no_larger(library: Path) -> None:
    before = library.stat().st_size
    if not binaries.strip([library]):
        pytest.skip("no strip on this machine")
    assert library.stat().st_size <= before
    assert imports(library)
    assert [path.name for path in library.parent.iterdir()] == [library.name]


def test_a_file_that_strip_refuses_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "broken.so"
    file.write_bytes(b"\x7fELF and nothing more")
    binaries.strip([file])
    assert file.read_bytes() == b"\x7fELF and nothing more"


def test_a_blanked_library_has_its_size_and_no_constants(library: Path) -> None:
    before = library.read_bytes()
    binaries.blank(library)
    after = library.read_bytes()
    assert len(after) == len(before)
    assert after.count(0) > before.count(0)
    assert binaries.loads(library)


def test_what_a_program_links_is_told_of_one_folder() -> None:
    if shutil.which("ldd") is None:
        pytest.skip("no ldd on this machine")
    (libc,) = {
        Path(line.split()[5]).parent
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc.so" in line
    }
    linked = binaries.linked([Path(sys.executable)], libc)
    assert linked is not None
    assert "libc.so.6" in linked
    assert binaries.linked([Path(sys.executable)], Path("/nowhere")) == set()


def test_of_a_file_that_ldd_cannot_read_nothing_is_known(tmp_path: Path) -> None:
    file = tmp_path / "broken.so"
    file.write_bytes(b"\x7fELF and nothing more")
    assert binaries.linked([file], tmp_path) is None


# ------------------------------------------------------------------------------------ SciPy's BLAS
def with_scipy(root: Path, *called: bytes) -> Staged:
    """SciPy and NumPy with an OpenBLAS each; SciPy's module names these functions of its own."""
    staged = Staged(root=root)
    names = b"\0".join([b"\x7fELF", *called, b"memcpy", b""])
    for owner, path, content in (
        (SCIPY, "scipy/special/_ufuncs.so", names),
        (SCIPY, "scipy.libs/libscipy_openblas-1.so", b"\x7fELF of SciPy"),
        (NUMPY, "numpy.libs/libscipy_openblas64_-2.so", b"\x7fELF of NumPy"),
    ):
        staged.add(owner, path, lambda to, content=content: to.write_bytes(content))
    return staged


def test_scipys_one_call_of_its_blas_ends_the_process_and_numpys_library_stands_in(
    tmp_path: Path,
) -> None:
    staged = with_scipy(tmp_path, b"scipy_dstevr_")
    before = (tmp_path / "site/scipy/special/_ufuncs.so").stat().st_size
    libraries._without_scipys_blas(staged, "site")
    module = (tmp_path / "site/scipy/special/_ufuncs.so").read_bytes()
    assert b"\0abort\0" in module
    assert b"scipy_dstevr_" not in module
    assert len(module) == before
    stand_in = tmp_path / "site/scipy.libs/libscipy_openblas-1.so"
    assert not is_elf(stand_in)
    assert stand_in.read_bytes() == b"\x7fELF of NumPy"


@pytest.mark.parametrize("called", [(b"scipy_dgemm_",), (b"scipy_dstevr_", b"scipy_dgemm_")])
def test_a_scipy_that_calls_more_of_its_blas_keeps_it(
    tmp_path: Path, called: tuple[bytes, ...]
) -> None:
    staged = with_scipy(tmp_path, *called)
    libraries._without_scipys_blas(staged, "site")
    assert (tmp_path / "site/scipy.libs/libscipy_openblas-1.so").read_bytes() == b"\x7fELF of SciPy"
    assert called[0] in (tmp_path / "site/scipy/special/_ufuncs.so").read_bytes()
