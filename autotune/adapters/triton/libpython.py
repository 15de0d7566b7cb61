"""The shared libpython that the server's Python stub links, found or fetched.

Each stub wants ``libpythonX.Y.so.1.0`` of its own version. Interpreters of pyenv, uv and the
official Docker images bring it; Debian's and Ubuntu's python3 is linked statically, and there it
is a package of its own, which can be unpacked without being installed. Where nothing can be
fetched it is linked from the static library, if there is one and a compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from autotune.adapters.triton.interpreter import Interpreter, installed_paths, probe
from autotune.core.errors import ServerFailed

BROUGHT = ((3, 13),)
"""Whose stub links a library that comes in the server's wheel, by a name of its own. It is of a
build that has few modules in it, and does not suit the Python of Debian or Ubuntu."""


class NoLibpython(ServerFailed):
    """There is no shared library for this interpreter; another version may have one."""


_TIMEOUT_S = 300
_TELL = """
import ctypes, json, sys
class Module(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("start", ctypes.c_void_p)]
library = ctypes.CDLL(sys.argv[1])
library.Py_GetVersion.restype = ctypes.c_char_p
table = ctypes.POINTER(Module).in_dll(library, "PyImport_Inittab")
names = []
while table[len(names)].name:
    names.append(table[len(names)].name.decode())
print(json.dumps([library.Py_GetVersion().decode().split()[0], names]))
"""
_IDLE = frozenset({"spwd", "xxsubtype"})
"""Modules that nothing imports."""
_COMPILERS = ("cc", "gcc", "clang")
_SYSTEM_DIRS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")


def locate(
    python: Interpreter,
    cache_dir: Path,
    progress: Callable[[str], None] = lambda _: None,
    spare: Path | None = None,
) -> Path:
    """The path of the library for this interpreter's version.

    Looks beside the interpreter, in the loader's directories and beside other interpreters of the
    version; takes ``spare``, of another build, where that suits it; else looks in Debian's or
    Ubuntu's archive. NoLibpython names the package to install.
    """
    found = find(python) or _suiting(spare, python)
    found = found or fetch_debian(python.shared_library, python.minor, cache_dir, progress)
    if found is None:
        raise lacking(python)
    return found


def locate_offline(
    python: Interpreter,
    cache_dir: Path,
    progress: Callable[[str], None] = lambda _: None,
    spare: Path | None = None,
) -> Path:
    """The same without a network, but linked below ``cache_dir`` from the interpreter's static
    library, where that can be, before the spare one is taken."""
    found = find(python) or link_static(python, cache_dir, progress) or _suiting(spare, python)
    if found is None:
        raise lacking(python)
    return found


def lacking(python: Interpreter) -> NoLibpython:
    return NoLibpython(
        "the embedded server's Python backend needs a shared libpython",
        value=f"no {python.shared_library} for {python.path}",
        next_step=advice(python.minor),
    )


def find(python: Interpreter) -> Path | None:
    """The library as this machine has it, nothing fetched: the interpreter's own, or another that
    suits it."""
    name = python.shared_library
    for folder in beside(python):
        if (folder / name).is_file():
            return (folder / name).resolve()
    others = (folder / name for folder in (*system_folders(), *beside_others(python)))
    return next((path.resolve() for path in others if suits(path, python)), None)


def suits(library: Path, python: Interpreter) -> bool:
    """Whether it loads, and has what is built into the interpreter: what one build has in files,
    as `math`, another has in its library, and no files of it."""
    told = _told(library) if library.is_file() else None
    return told is not None and python.builtins - told[1] <= _IDLE


def version_of(library: Path) -> str | None:
    """What a shared libpython says that it is; None if it does not load here."""
    told = _told(library)
    return told[0] if told else None


def _suiting(library: Path | None, python: Interpreter) -> Path | None:
    return library if library is not None and suits(library, python) else None


def _told(library: Path) -> tuple[str, frozenset[str]] | None:
    """Its version and the modules built into it."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _TELL, str(library)],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        version, names = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return version, frozenset(names)


def brought(libraries: Path, python: Interpreter) -> Path | None:
    """The one that came in the wheel for its stub, in the folder of the wheel's libraries."""
    if python.minor not in BROUGHT:
        return None
    return next(libraries.glob(f"libpython{python.version[0]}-*.{python.version[1]}.so.1.0"), None)


def beside(python: Interpreter) -> list[Path]:
    """Folders where an interpreter's own build keeps its library."""
    own = [python.libdir] if python.libdir else []
    return [*own, python.base_prefix / "lib", python.base_prefix / "lib64"]


def beside_others(python: Interpreter) -> Iterable[Path]:
    for path in installed_paths(python.minor):
        other = probe(path)
        if other is not None and other.minor == python.minor:
            yield from beside(other)


def system_folders() -> list[Path]:
    """Where the loader looks without being told, multi-architecture folder first."""
    triplet = sysconfig.get_config_var("MULTIARCH")
    multiarch = [f"/usr/lib/{triplet}", f"/lib/{triplet}"] if triplet else []
    return [Path(folder) for folder in (*multiarch, *_SYSTEM_DIRS)]


def packages(minor: tuple[int, int]) -> str:
    """What brings it, by distribution."""
    version = f"{minor[0]}.{minor[1]}"
    return (
        f"libpython{version} (Debian, Ubuntu; libpython{version}t64 from Ubuntu 24.04) or"
        f" python{version}-libs (Fedora, RHEL)"
    )


def advice(minor: tuple[int, int]) -> str:
    version = f"{minor[0]}.{minor[1]}"
    return (
        f"install it: `apt-get install libpython{version}` (Debian, Ubuntu; libpython{version}t64"
        f" from Ubuntu 24.04) or `dnf install python{version}-libs` (Fedora, RHEL); a Python from"
        f" `uv python install {version}` brings it too"
    )


def static_library(python: Interpreter) -> Path | None:
    """The interpreter's own static library, that of position-independent code first."""
    folders = [*([python.archives] if python.archives else []), *beside(python)]
    names = (f"libpython{python.name}-pic.a", f"libpython{python.name}.a")
    here = (folder / name for name in names for folder in folders)
    return next((path.resolve() for path in here if path.is_file()), None)


def compiler() -> str | None:
    return next((path for name in _COMPILERS if (path := shutil.which(name))), None)


def link_static(
    python: Interpreter, cache_dir: Path, progress: Callable[[str], None] = lambda _: None
) -> Path | None:
    """A shared library below ``cache_dir``, linked once from the interpreter's static one. None
    where there is no such library or no compiler, or what comes out does not load.

    (Not with -Bsymbolic: the stub has copies of Python's own objects, None among them, and would
    wait for ever for a library that has others.)
    """
    archive, cc = static_library(python), compiler()
    if archive is None or cc is None:
        return None
    key = hashlib.sha256(f"{archive}\n{archive.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    folder = cache_dir / "libpython" / python.name / f"linked-{key}"
    library = folder / python.shared_library
    if library.is_file():
        return library
    progress(f"linking {library.name} from {archive}")
    folder.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}.part")  # another start may link it as well
    command = [cc, "-shared", "-o", str(made), f"-Wl,-soname,{library.name}"]
    command += ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive", *python.link]
    if not _runs(command, cwd=folder) or not suits(made, python):
        made.unlink(missing_ok=True)
        return None
    made.replace(library)
    return library


def fetch_debian(
    name: str, minor: tuple[int, int], cache_dir: Path, progress: Callable[[str], None]
) -> Path | None:
    """Download and unpack the distribution's package under ``cache_dir``, without root.

    None where that is not a Debian or Ubuntu, or its archive has no such version.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    root = cache_dir / "libpython" / f"{minor[0]}.{minor[1]}"
    have = _unpacked(root, name)
    if have is not None:
        return have
    progress(f"fetching {name} from the distribution's archive")
    packages = [f"libpython{minor[0]}.{minor[1]}{suffix}" for suffix in ("", "t64")]
    for refresh in (False, True):
        if refresh and not _apt(root, ["update"]):
            return None
        for package in packages:
            if _apt(root, ["download", package], private=refresh) and _unpack(root):
                have = _unpacked(root, name)
                if have is not None:
                    return have
    return None


def apt_options(root: Path) -> list[str]:
    """Options for apt that keep its lists, cache and locks under ``root``."""
    return [
        *("-o", f"Dir::State={root}/state"),
        *("-o", f"Dir::State::Lists={root}/lists"),
        *("-o", f"Dir::Cache={root}/cache"),
        *("-o", "Debug::NoLocking=1"),
        *("-o", "APT::Sandbox::User="),
        *("-o", "Acquire::Retries=2"),
    ]


def _apt(root: Path, arguments: Sequence[str], *, private: bool = True) -> bool:
    for folder in ("state", "lists/partial", "cache/archives/partial", "download"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    options = apt_options(root) if private else []
    return _runs(["apt-get", "-q", *options, *arguments], cwd=root / "download")


def _unpack(root: Path) -> bool:
    packages = sorted((root / "download").glob("libpython*.deb"))
    return bool(packages) and all(
        _runs(["dpkg-deb", "-x", str(package), str(root / "files")], cwd=root)
        for package in packages
    )


def _unpacked(root: Path, name: str) -> Path | None:
    return next((path for path in sorted((root / "files").rglob(name)) if path.is_file()), None)


def _runs(command: list[str], *, cwd: Path) -> bool:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
