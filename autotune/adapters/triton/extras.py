"""Packages that the models' own Python code needs, for the embedded server.

They go into a virtual environment of their own, which sees the embedded server's as well: that one,
which every study shares, is not touched, and its pins (NumPy 1, ONNX Runtime) hold here too.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from autotune.adapters.triton.environment import (
    PIP,
    Progress,
    ServerEnvironment,
    make_virtualenv,
    own_requirements,
    prepare,
    run,
)
from autotune.core.errors import InputRefused, ServerFailed

_MARKER = "complete.json"
_CONSTRAINTS = "constraints.txt"
_ELSEWHERE = re.compile(r"-[rce]\b|--(requirement|constraint|editable)\b|\.|file:")
"""How a line begins that has packages come from another file, whose change would go unseen."""


def prepare_with_packages(
    requirements: Path,
    cache_dir: Path,
    progress: Progress = lambda _: None,
    server_dir: Path | None = None,
) -> ServerEnvironment:
    """The embedded server's environment with the packages of a pip requirements file, built under
    ``cache_dir`` once for each content of that file. Wheels alone are installed.

    InputRefused if the file cannot be read, points to other files, or cannot be installed beside
    what the server has; ServerFailed as `environment.prepare`.
    """
    text = _read(requirements)
    base = prepare(cache_dir, progress, server_dir)
    key = hashlib.sha256(f"{base.root.name}\n{text}".encode()).hexdigest()[:16]
    root = base.root.with_name(f"{base.root.name}-with-{key}")
    with FileLock(f"{root}.lock"):
        if not _whole(root):
            progress(f"installing the server's packages of {requirements.name} (once)")
            _build(root, base, requirements, text)
    return replace(base, root=root)


def _read(requirements: Path) -> str:
    try:
        text = requirements.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InputRefused(
            "server.requirements cannot be read", value=str(requirements), next_step=str(exc)
        ) from exc
    for number, line in enumerate(text.splitlines(), start=1):
        if _ELSEWHERE.match(line.strip()):
            raise InputRefused(
                f"{requirements}:{number}: server.requirements names packages of an index, each in"
                " this file",
                value=line.strip(),
            )
    return text


def _whole(root: Path) -> bool:
    return (root / _MARKER).is_file() and (root / "bin" / "python").exists()


def _build(root: Path, base: ServerEnvironment, requirements: Path, text: str) -> None:
    if root.exists():
        shutil.rmtree(root)
    make_virtualenv(root, base.python)
    _see_base(root, base)
    (root / _CONSTRAINTS).write_text(_constraints(), "utf-8")
    copy = root / "requirements.txt"
    copy.write_text(text, "utf-8")
    command = [str(root / "bin/python"), "-m", "pip", "install", "--quiet", *PIP]
    command += ["--constraint", str(root / _CONSTRAINTS), "-r", str(copy)]
    try:
        run(command, "")
    except ServerFailed as exc:
        raise InputRefused(
            f"the packages of {requirements} cannot be installed for the embedded server",
            value=str(exc.value),
            next_step="its own packages stay as they are: " + ", ".join(_pins()) + "; only wheels"
            " are installed, and pip must reach a package index here",
        ) from exc
    (root / _MARKER).write_text(json.dumps({"base": base.root.name}), "utf-8")


def _see_base(root: Path, base: ServerEnvironment) -> None:
    """Let Python, and pip, find the server's own packages after these."""
    for packages in (base.root / "lib").glob("python3*/site-packages"):
        own = root / packages.relative_to(base.root)
        (own / "embedded_server.pth").write_text(f"{packages}\n", "utf-8")


def _constraints() -> str:
    """The server's pins without their hashes: with a hash pip would ask for those of the user's."""
    return "".join(f"{pin}\n" for pin in _pins())


def _pins() -> list[str]:
    lines = own_requirements().splitlines()
    return [line.rstrip(" \\") for line in lines if line and line[0] not in " #"]
