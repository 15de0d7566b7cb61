"""What docs/api.md says: its commands are run, and it knows every route."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.core.access import Role
from tests.service_app import Service, apart, listening

DOCS = Path(__file__).parents[2] / "docs" / "api.md"
NOT_HERE = ("autotune ",)
"""Commands of the service's own machine."""


def commands() -> str:
    """All that is typed in the document, as one script."""
    blocks = re.findall(r"```console\n(.*?)```", DOCS.read_text(), re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines()]
    return "\n".join(line for line in lines if not line.startswith(NOT_HERE))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_of_the_document_do_what_they_say(tmp_path: Path) -> None:
    service = Service.in_folder(tmp_path)
    service.all_of_it()
    token = service.token("ci", Role.OPERATE)
    here = tmp_path / "here"
    here.mkdir()
    with apart(tmp_path), listening(service.app()) as address:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands()],
            cwd=here,
            env={**os.environ, "URL": address, "TOKEN": token},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'name: "linear"' in (here / "config.pbtxt").read_text()
    assert service.store.jobs.job(3).state == "cancelled"
    assert service.store.schedules.schedule("linear-nightly").created_by == "ci"
    assert service.store.promotions.promotion(1).state == "approved"


def test_every_route_is_documented(tmp_path: Path) -> None:
    table = DOCS.read_text().split("## What there is")[1].split("##")[0]
    paths = Service.in_folder(tmp_path).app().openapi()["paths"]
    last = {path.split("/")[-1] for path in paths}
    wanted = {name for name in last if not name.startswith("{")}
    assert len(wanted) > 15
    assert {name for name in wanted if f"/{name}`" not in table} == set()
