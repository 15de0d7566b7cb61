"""A bundle for the Python at hand, unpacked elsewhere, and a study in it without a network."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from autotune.adapters.triton.environment import prepare
from autotune.adapters.triton.interpreter import POSSIBLE
from autotune.bootstrap.bundling import make_bundle
from autotune.studyfile import read_study_file
from tests.integration.studies import CALM, QUICK, next_turn

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        sys.version_info[:2] not in POSSIBLE, reason="bundles are for Python 3.11 to 3.13"
    ),
]

MODULES = """
import importlib, json, pkgutil, sys
import autotune, dashboards, search_spaces, storage
tried, failed = 0, []
for package in (autotune, dashboards, search_spaces, storage):
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if any(part in each.name for part in ("runner", "migrations", "exec_guard", "__main__")):
            continue
        tried += 1
        try:
            importlib.import_module(each.name)
        except Exception as error:
            if getattr(error, "name", None) not in sys.argv[1:]:
                failed.append(f"{each.name}: {error!r}")
import onnxruntime.quantization, onnxruntime.tools.symbolic_shape_infer
import onnxruntime.transformers.float16
print(json.dumps([tried, failed]))
"""
OF_EXTRAS = (
    *("anyio", "dash", "dash_ag_grid", "fastapi", "itsdangerous", "limits"),
    *("prometheus_client", "ray", "starlette", "uvicorn"),
)
"""Modules of what the extras `serve` and `ray` bring, which a bundle does not have."""
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", 1 | 64))
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Brings the loopback interface of a new network up (SIOCSIFFLAGS: IFF_UP, IFF_RUNNING)."""


@pytest.fixture(scope="module")
def unpacked(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bundle, packed as quickly as can be and unpacked as `tar` does it, into a
    folder whose name a shell takes apart."""
    prepare(cache_dir)
    folder = tmp_path_factory.mktemp("bundle")
    out = folder / "bundle.tar.xz"
    packed = make_bundle(sys.version_info[:2], out, with_demo=False, level=0, say=lambda _: None)
    with tarfile.open(out) as archive:
        archive.extractall(folder / "für a (new) host", filter="data")
    out.unlink()
    return folder / "für a (new) host" / packed.top


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The environment of a host with a Python of its own, an empty home, and no way out."""
    (tmp_path / "a home").mkdir()
    refuses = "http://127.0.0.1:9"
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path / "a home"),
        "TMPDIR": str(tmp_path),
        "AUTOTUNE_PYTHON": str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"),
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), refuses),
        "no_proxy": "127.0.0.1,localhost",
        "PIP_NO_INDEX": "1",
    }


def without_network() -> list[str]:
    """What has a command run where there is no network but loopback; nothing where that may not be
    made: the proxies of the environment refuse then."""
    for flags in ("--net", "-rn"):
        through = ["unshare", flags, sys.executable, "-I", "-c", LOOPBACK]
        if subprocess.run([*through, "true"], check=False, capture_output=True).returncode == 0:
            return through
    return []


def run(
    *command: str | Path, env: dict[str, str], cwd: Path, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*without_network(), *map(str, command)],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_a_study_runs_in_an_unpacked_bundle_without_a_network_and_exports_its_pick(
    unpacked: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    study = {
        "study": "first",
        "model": {"name": "first", "onnx": str(unpacked / "examples" / "first" / "model.onnx")},
        "workload": QUICK,
        "sla": {"p50_ms": 300},
        "space": {"max_batch_size": [1, 4]},
        "search": "grid",
        **CALM,
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    with next_turn():
        done = run(
            unpacked / "autotune", "tune", "study.yaml", "--out", "out", env=alone, cwd=tmp_path
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "first" / "config.pbtxt").is_file()
    assert "plotly.js" in (tmp_path / "out" / "report.html").read_text()
    written = {
        path.relative_to(tmp_path / "a home").parts[0] for path in (tmp_path / "a home").iterdir()
    }
    assert written <= {".cache", ".local"}


def test_every_module_of_autotune_finds_what_it_imports_in_a_bundle(
    unpacked: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    done = run(unpacked / "python", "-c", MODULES, *OF_EXTRAS, env=alone, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tried, failed = json.loads(done.stdout.splitlines()[-1])
    assert tried > 100
    assert failed == []
    # A process of its own, as it is in a study: it patches what others have imported before.
    load = run(unpacked / "python", "-c", "import loadgen.worker", env=alone, cwd=tmp_path)
    assert load.returncode == 0, load.stderr


def test_doctor_says_in_a_bundle_what_serves_its_stub(
    unpacked: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    done = run(unpacked / "autotune", "doctor", "--no-load", "--json", env=alone, cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["embedded Triton"]["state"] == "ok", done.stdout
    assert "libpython" in checks["embedded Triton"]["detail"]


def test_the_example_of_a_bundle_is_a_study_that_autotune_accepts(unpacked: Path) -> None:
    study = read_study_file(unpacked / "examples" / "first" / "study.yaml")
    assert study.model.onnx == unpacked / "examples" / "first" / "model.onnx"


def test_a_bundle_says_what_is_in_it(unpacked: Path) -> None:
    about = json.loads((unpacked / "bundle.json").read_text())
    assert about["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    named = {(part["name"], part["folder"]) for part in about["components"]}
    assert {("onnxruntime", "site"), ("numpy", "site"), ("numpy", "server/site")} <= named
    assert all(len(part["sha256"]) == 64 for part in about["components"])
    assert any(left["of"] == "virtualenv" for left in about["left_out"])


def test_what_needs_an_index_is_refused_in_a_bundle_with_what_to_do_instead(
    unpacked: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "from pathlib import Path\n"
        "from autotune.adapters.triton.environment import make_virtualenv\n"
        "from autotune.core.errors import ServerFailed\n"
        "try:\n"
        "    make_virtualenv(Path('v'), Path('p'))\n"
        "except ServerFailed as error:\n"
        "    print(error)\n"
    )
    done = run(unpacked / "python", "-c", code, env=alone, cwd=tmp_path)
    assert "take server.requirements out" in done.stdout, done.stderr


def test_nothing_is_left_of_the_tools_of_the_machine_that_packed(unpacked: Path) -> None:
    """No link out of the bundle, and no name of this machine's folders in what it says."""
    links = [path for path in unpacked.rglob("*") if path.is_symlink()]
    assert links
    assert all(not path.readlink().is_absolute() for path in links)
    assert str(Path.home()) not in (unpacked / "bundle.json").read_text()
