from __future__ import annotations

import sys
from pathlib import Path

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.server_python import (
    ServerPython,
    of_environment,
    of_unpacked,
    this_python,
)
from autotune.adapters.triton.unpacked import Unpacked


def test_what_a_python_has_is_told_by_running_it() -> None:
    assert "CPUExecutionProvider" in this_python().providers()


def test_what_it_lacks_is_none_of_it_and_no_error(tmp_path: Path) -> None:
    hollow = tmp_path / "python"
    hollow.write_text("#!/bin/sh\nexit 1\n")
    hollow.chmod(0o755)
    for path in (hollow, tmp_path / "missing"):
        python = ServerPython(path=path)
        assert python.torch() is None
        assert python.providers() == frozenset()


def test_pytorch_is_told_with_its_version_and_whether_it_sees_a_gpu(tmp_path: Path) -> None:
    """Whatever the interpreter prints before, its last line counts."""
    standing = tmp_path / "python"
    standing.write_text(
        f'#!/bin/sh\necho a warning\nexec {sys.executable} -c \'print("""'
        '{"version": "2.9.0+cpu", "gpu": false}""")\'\n'
    )
    standing.chmod(0o755)
    found = ServerPython(path=standing).torch()
    assert found is not None
    assert (found.version, found.gpu) == ("2.9.0+cpu", False)


def environment(root: Path) -> ServerEnvironment:
    return ServerEnvironment(
        root=root, tritonserver=root / "t", backends=root / "b", libraries=root / "l"
    )


def test_the_embedded_servers_python_is_asked_as_the_server_will_run_it(tmp_path: Path) -> None:
    python = of_environment(environment(tmp_path / "py311"), ["1"])
    assert python.path == tmp_path / "py311" / "bin" / "python"
    assert python.variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert python.variables["PATH"].startswith(str(tmp_path / "py311" / "bin"))
    assert "server.requirements" in python.install


def test_a_bundles_server_takes_packages_from_the_python_that_it_was_started_with(
    tmp_path: Path,
) -> None:
    assert "the bundle" in of_environment(environment(tmp_path / "unpacked-1a2b")).install


def test_an_unpacked_server_is_asked_what_its_own_onnx_runtime_has(tmp_path: Path) -> None:
    """Not that of this Python, nor the one of the host's, which the server's comes before."""
    own = tmp_path / "a bundle" / "site" / "onnxruntime"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("def get_available_providers():\n    return ['ItsOwn']\n")
    server = Unpacked(
        python=(sys.version_info[0], sys.version_info[1]),
        tritonserver=tmp_path / "t",
        backends=tmp_path / "b",
        packages=own.parent,
        links="",
        spare=tmp_path / "s",
    )
    assert of_unpacked(server).providers() == {"ItsOwn"}
