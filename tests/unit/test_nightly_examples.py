"""The examples of nights without the service: what they call is what autotune understands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from autotune.adapters.scheduling import trigger
from autotune.studyfile import read_study_file
from tests.commands import understood

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "nightly"


def _manifests() -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all((EXAMPLES / "kubernetes.yaml").read_text()))


def _manifest(kind: str) -> dict[str, Any]:
    (found,) = (each for each in _manifests() if each["kind"] == kind)
    return found


def _pods() -> Iterator[dict[str, Any]]:
    yield _manifest("Job")["spec"]["template"]["spec"]
    yield _manifest("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def _command_lines() -> Iterator[list[str]]:
    for pod in _pods():
        yield from (container["command"] for container in pod["containers"])
    (line,) = _cron_lines()
    called = re.fullmatch(r'.*&& "\S+/bin/(autotune)" (.+?) >> .*', line)
    assert called is not None
    yield [called[1], *shlex.split(called[2])]
    yield ["autotune", *_unit("service")["ExecStart"].split()[1:]]


def _cron_lines() -> list[str]:
    lines = (EXAMPLES / "crontab").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def _unit(kind: str) -> dict[str, str]:
    text = (EXAMPLES / f"autotune-nightly.{kind}").read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("argv", [*_command_lines()], ids=" ".join)
def test_every_command_line_is_one_of_autotunes(argv: list[str]) -> None:
    context = understood(argv)
    assert context is not None
    if context.info_name == "nightly":
        assert context.params["once"]
    else:
        assert context.command_path == "autotune schedule add"
        trigger(context.params["cron"], context.params["timezone"])


def test_a_command_line_of_no_autotune_would_be_told() -> None:
    with pytest.raises(click.UsageError):
        understood(["autotune", "nightly", "--onec"])


def test_cron_and_kubernetes_start_at_times_that_there_are() -> None:
    spec = _manifest("CronJob")["spec"]
    trigger(spec["schedule"], spec["timeZone"])
    (line,) = _cron_lines()
    trigger(" ".join(line.split()[:5]), "UTC")


def test_the_study_of_the_config_map_can_be_read(tmp_path: Path) -> None:
    ((name, text),) = _manifest("ConfigMap")["data"].items()
    (tmp_path / name).write_text(text)
    assert read_study_file(tmp_path / name).name == "resnet"
    schedule_add = _manifest("Job")["spec"]["template"]["spec"]["containers"][0]
    assert f"/studies/{name}" in schedule_add["command"]


def test_what_a_pod_mounts_is_there() -> None:
    objects = {(each["kind"], each["metadata"]["name"]) for each in _manifests()}
    for pod in _pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        (claim,) = (v["persistentVolumeClaim"] for v in volumes.values() if _claims(v))
        assert ("PersistentVolumeClaim", claim["claimName"]) in objects


def _claims(volume: dict[str, Any]) -> bool:
    return "persistentVolumeClaim" in volume


def test_every_variable_is_one_that_autotune_reads() -> None:
    known = set(re.findall(r"AUTOTUNE_[A-Z_]+", (ROOT / "autotune" / "settings.py").read_text()))
    for path in EXAMPLES.iterdir():
        assert set(re.findall(r"AUTOTUNE_[A-Z_]+", path.read_text())) <= known


def test_systemd_finds_nothing_wrong_with_its_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze here")
    tool = tmp_path / "autotune"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    for kind in ("service", "timer"):
        text = (EXAMPLES / f"autotune-nightly.{kind}").read_text()
        unit = tmp_path / f"autotune-nightly.{kind}"
        unit.write_text(text.replace("/opt/autotune/bin/autotune", str(tool)))
    checked = subprocess.run(
        [verify, "--recursive-errors=no", "verify", *map(str, tmp_path.glob("autotune-nightly.*"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_readme_names_every_file_beside_it() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    others = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    assert all(f"({name})" in readme for name in others)
