"""Starts Python with what a bundle brings, on a host of which nothing is known but its Python.

Lies at the top of an unpacked bundle and is run by the script `python` beside it. It stands on the
standard library alone, and imports nothing of autotune: ``python -I start.py -m autotune doctor``.

The folder may be read-only, and so may the home directory. What is written goes into one folder
below AUTOTUNE_CACHE: a virtual environment that holds nothing but links, so that every process of
autotune, also one that ignores PYTHONPATH, finds the bundle's packages before the host's own.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
APP = "triton-autotune"
HOST_PYTHON = "host-python"
"""The line of pyvenv.cfg that says which Python the host's own is; see `interpreter.host`."""
MODULES = ("ctypes", "sqlite3", "ssl", "zlib")
"""Of the standard library what a Python may have been built without."""
SHOWN = 5
"""Of what is gone from a bundle, how much is named."""
LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1")
"""That programs and wheels take from the host, beside those of glibc."""


def main(arguments: list[str], environ: dict[str, str]) -> NoReturn:
    about = described()
    lacks = list(lacking(about))
    if lacks:
        fail("this host lacks what the bundle needs:", *(f"  - {each}" for each in lacks))
    cache = writable("AUTOTUNE_CACHE", "XDG_CACHE_HOME", ".cache", environ)
    work = writable("AUTOTUNE_WORK", "XDG_STATE_HOME", ".local/state", environ)
    try:
        python = linked(cache / "bundle", about)
        link_models(cache / "packaged")
    except OSError as error:
        fail(f"{cache} cannot be written: {error}", "  set AUTOTUNE_CACHE to a folder that can")
    for name in ("PYTHONHOME", "PYTHONPATH"):
        environ.pop(name, None)
    environ["AUTOTUNE_CACHE"] = str(cache)
    environ["AUTOTUNE_WORK"] = str(work)
    environ["AUTOTUNE_SERVER"] = str(HERE / "server")
    environ["PYTHONNOUSERSITE"] = "1"
    if not os.access(HERE, os.W_OK):
        environ.setdefault("PYTHONPYCACHEPREFIX", str(cache / "bundle" / "compiled"))
    os.execve(python, [str(python), *arguments], environ)  # noqa: S606


# --------------------------------------------------------------------------------- what is damaged
def described() -> dict[str, Any]:
    """What bundle.json says of this folder, all of whose packages are there."""
    try:
        about: dict[str, Any] = json.loads((HERE / "bundle.json").read_text("utf-8"))
        listed = about.get("entries", {}).items()
        gone = [path for folder, names in listed for path in missing(folder, names)]
    except (OSError, ValueError, AttributeError) as error:
        damaged(f"bundle.json: {error}")
    if gone:
        more = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
        damaged(f"gone: {', '.join(gone[:SHOWN])}{more}")
    return about


def missing(folder: str, names: list[str]) -> Iterator[str]:
    for name in names:
        path = os.path.normpath(f"{folder}/{name}")
        if not (HERE / path).exists():
            yield path


def damaged(what: str) -> NoReturn:
    fail(f"the bundle is damaged: unpack it again ({what})", f"  its folder: {HERE}")


# ---------------------------------------------------------------------------------- what is lacking
def lacking(about: dict[str, Any]) -> Iterator[str]:
    """What this host does not have, in words."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        yield f"Linux on x86-64 (this is {platform.system()} on {platform.machine()})"
    if glibc() < tuple(about["glibc"]):
        wanted, here = (".".join(map(str, each)) for each in (about["glibc"], glibc()))
        yield f"glibc {wanted} or newer (this host has {here or 'another C library'})"
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here != about["python"] or sys.implementation.name != "cpython":
        yield f"CPython {about['python']} (this is {sys.implementation.name} {here})"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        yield f"CPython {about['python']} with its lock (this is the free-threaded build)"
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        yield f"in {sys.executable}, of the standard library: {', '.join(missing)}"
    absent = [name for name in LIBRARIES if "ctypes" not in missing and not loads(name)]
    if absent:
        yield f"the shared libraries {', '.join(absent)}"


def loads(library: str) -> bool:
    import ctypes  # noqa: PLC0415 - a Python may lack it

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def glibc() -> tuple[int, ...]:
    """Empty where the C library is another."""
    try:
        told = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ()
    parts = told.removeprefix("glibc").strip().split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


# ---------------------------------------------------------------------------------- where to write
def writable(name: str, base: str, below: str, environ: dict[str, str]) -> Path:
    """The folder that autotune would take; without a home to write to, one for temporary files."""
    given = environ.get(name)
    if given:
        return Path(given).expanduser().absolute()
    home = environ.get("HOME")
    roots = [environ.get(base), f"{home}/{below}" if home else None]
    for root in roots:
        if root and Path(root).is_absolute() and can_write(Path(root) / APP):
            return Path(root) / APP
    return private(Path(tempfile.gettempdir()) / f"{APP}-{os.getuid()}") / below.lstrip(".")


def can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def private(folder: Path) -> Path:
    """A folder that others may not have prepared."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        fail(f"there is no folder to write to: {error}", "  set AUTOTUNE_CACHE and AUTOTUNE_WORK")
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or folder.is_symlink():
        fail(f"{folder} is not this user's own", "  set AUTOTUNE_CACHE and AUTOTUNE_WORK")
    return folder


# -------------------------------------------------------------------------------- the environment
def linked(folder: Path, about: dict[str, Any]) -> Path:
    """The Python of an environment of links, made on the first start."""
    host = Path(sys.executable)
    text = f"{HERE}\n{host}\n{host.resolve()}\n{about['python']}\n{site.getsitepackages()}"
    root = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    while not (root / "bin" / "python").exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder))
        try:
            build(made, host, about["python"])
            put(made, root)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return root / "bin" / "python"


def put(made: Path, root: Path) -> None:
    """At its place: another start may be first, and an old one point to a Python that is gone."""
    try:
        made.rename(root)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not (root / "bin" / "python").exists():
            shutil.rmtree(root, ignore_errors=True)


def build(root: Path, host: Path, version: str) -> None:
    (root / "bin").mkdir()
    for name in ("python", "python3", f"python{version}"):
        (root / "bin" / name).symlink_to(host.resolve())
    packages = root / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    folders = [str(HERE / "site"), str(HERE), *site.getsitepackages()]
    lines = [f"import site; site.addsitedir({each!a})\n" for each in folders]
    (packages / "bundle.pth").write_text("".join(lines), "ascii")
    home = f"home = {Path(sys.base_prefix) / 'bin'}\n"
    (root / "pyvenv.cfg").write_text(f"{home}{HOST_PYTHON} = {host}\n", "utf-8")


def link_models(folder: Path) -> None:
    """Put the models that the bundle brings where they are looked for."""
    for model in (HERE / "packaged").glob("*/*"):
        target = folder / model.parent.name / model.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(model)


def fail(*lines: str) -> NoReturn:
    sys.stderr.write("\n".join([f"autotune: {lines[0]}", *lines[1:]]) + "\n")
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:], dict(os.environ))
