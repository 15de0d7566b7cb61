"""What is installed in the Python that serves models."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from autotune.adapters.triton.server_python import ServerPython

_TIMEOUT_S = 60
_LISTED = """
import json
from importlib.metadata import distributions
print(json.dumps({each.name: each.version for each in distributions()}))
"""


def packages_of(python: ServerPython) -> Mapping[str, str]:
    """Versions by package, and that of Python itself; empty where it cannot be asked."""
    code = f"import sys\nsys.path[:0] = {[str(each) for each in python.first]!a}\n{_LISTED}"
    code += "sys.stderr.write(sys.version.split()[0])\n"
    try:
        done = python.run(["-c", code], timeout_s=_TIMEOUT_S)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return {"Python": done.stderr.strip(), **found}
