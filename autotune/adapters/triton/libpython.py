"""The shared libpython that the server's Python stub links, found or fetched.

Each stub wants ``libpythonX.Y.so.1.0`` of its own version. Interpreters of pyenv, uv and the
official Docker images bring it; Debian's and Ubuntu's python3 is linked statically, and there it
is a package of its own, which can be unpacked without being installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from autotune.adapters.triton.interpreter import Interpreter, installed_paths, probe
from autotune.core.errors import ServerFailed


class NoLibpython(ServerFailed):
    """There is no shared library for this interpreter; another version may have one."""


_TIMEOUT_S = 300
_SYSTEM_DIRS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")


def locate(
    python: Interpreter, cache_dir: Path, progress: Callable[[str], None] = lambda _: None
) -> Path:
    """The path of the library for this interpreter's version.

    Looks beside the interpreter, in the loader's directories and beside other interpreters of the
    version, then in Debian's or Ubuntu's archive. NoLibpython names the package to install.
    """
    here = find(python)
    if here is not None:
        return here
    name = python.shared_library
    fetched = fetch_debian(name, python.minor, cache_dir, progress)
    if fetched is not None:
        return fetched
    raise NoLibpython(
        "the embedded server's Python backend needs a shared libpython",
        value=f"no {name} for {python.path}",
        next_step=advice(python.minor),
    )


def find(python: Interpreter) -> Path | None:
    """The library as this machine has it, nothing fetched."""
    folders = (*beside(python), *system_folders(), *beside_others(python))
    here = (folder / python.shared_library for folder in folders)
    return next((path.resolve() for path in here if path.is_file()), None)


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


def advice(minor: tuple[int, int]) -> str:
    version = f"{minor[0]}.{minor[1]}"
    return (
        f"install it: `apt-get install libpython{version}` (Debian, Ubuntu; libpython{version}t64"
        f" from Ubuntu 24.04) or `dnf install python{version}-libs` (Fedora, RHEL); a Python from"
        f" `uv python install {version}` brings it too"
    )


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
