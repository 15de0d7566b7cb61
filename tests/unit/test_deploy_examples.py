"""The examples of deploying: schemas hold the manifests, autotune understands their commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from tests.commands import command_lines, understood

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "deploy"
KUBERNETES = EXAMPLES / "kubernetes"
NIGHTLY = ROOT / "examples" / "nightly" / "kubernetes.yaml"
RAY = EXAMPLES / "ray" / "raycluster.yaml"
PAGE = ROOT / "docs" / "deploy.md"
COMPOSE = ("compose.yaml", "compose.gpu.yaml")
OURS = "kustomize.config.k8s.io", "ray.io"
"""Groups whose schemas are not Kubernetes' own."""

Manifest = dict[str, Any]


@cache
def _documents(path: Path) -> list[Manifest]:
    return list(YAML(typ="safe").load_all(path.read_text()))


def _manifests() -> list[Manifest]:
    paths = [*sorted(KUBERNETES.glob("*.yaml")), RAY]
    return [each for path in paths for each in _documents(path)]


def _named(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest.get('metadata', {}).get('name', '')}".strip()


def _is_kubernetes_own(manifest: Manifest) -> bool:
    return not manifest["apiVersion"].startswith(OURS)


def _templates(node: object) -> Iterator[Manifest]:
    """Every template of a pod, wherever it stands."""
    if isinstance(node, dict):
        if "spec" in node and "containers" in (node["spec"] or {}):
            yield node
        for each in node.values():
            yield from _templates(each)
    elif isinstance(node, list):
        for each in node:
            yield from _templates(each)


def _pods() -> list[Manifest]:
    return [template["spec"] for each in _manifests() for template in _templates(each)]


def _held(manifest: Manifest) -> None:
    """Against the newest schema that there is; a field that it does not have is refused."""
    newest = kubernetes_validate.latest_version()
    kubernetes_validate.validate(manifest, newest, strict=True)


# ------------------------------------------------------------------------------------- schemas
@pytest.mark.parametrize(
    "manifest",
    [each for each in (*_manifests(), *_documents(NIGHTLY)) if _is_kubernetes_own(each)],
    ids=_named,
)
def test_kubernetes_schema_holds_a_manifest(manifest: Manifest) -> None:
    _held(manifest)


def test_kubernetes_schema_holds_the_pods_of_a_ray_cluster() -> None:
    (cluster,) = (each for each in _documents(RAY) if each["kind"] == "RayCluster")
    templates = list(_templates(cluster))
    assert len(templates) == 2
    for template in templates:
        named = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "ray"}}
        _held({**named, "template": template})


@pytest.mark.parametrize(("key", "value"), [("replica", 2), ("replicas", "two")])
def test_a_manifest_with_a_wrong_field_would_be_told(key: str, value: object) -> None:
    (deployment,) = (each for each in _manifests() if each["kind"] == "Deployment")
    with pytest.raises(kubernetes_validate.ValidationError):
        _held({**deployment, "spec": {**deployment["spec"], key: value}})


def test_composes_schema_holds_its_files(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((EXAMPLES / "compose.yaml").read_text().replace("healthcheck:", "health:"))
    assert _composed(*(EXAMPLES / name for name in COMPOSE)) == 0
    assert _composed(wrong) == 1


def _composed(*paths: Path) -> int:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run([*command, *paths], capture_output=True, check=False).returncode


def test_systemd_finds_nothing_wrong_with_its_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze here")
    programs = {path: tmp_path / Path(path).name for path in _programs()}
    for program in programs.values():
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    units = [tmp_path / unit.name for unit in (EXAMPLES / "systemd").iterdir()]
    for unit in units:
        text = (EXAMPLES / "systemd" / unit.name).read_text()
        for path, program in programs.items():
            text = text.replace(f"ExecStart={path} ", f"ExecStart={program} ")
        unit.write_text(text)
    checked = subprocess.run(
        [verify, "--recursive-errors=no", "verify", *map(str, units)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def _programs() -> set[str]:
    texts = (unit.read_text() for unit in (EXAMPLES / "systemd").glob("*.service"))
    return {found for text in texts for found in re.findall(r"^ExecStart=(\S+)", text, re.M)}


# ------------------------------------------------------------------------------------ commands
def _called() -> Iterator[list[str]]:
    yield from command_lines(PAGE)
    for pod in _pods():
        yield from (each["command"] for each in pod["containers"] if "command" in each)
    for service in _documents(EXAMPLES / "compose.yaml")[0]["services"].values():
        if "command" in service:
            yield service["command"]
    unit = (EXAMPLES / "systemd" / "autotune.service").read_text().replace("\\\n", " ")
    yield ["autotune", *unit.partition("ExecStart=")[2].splitlines()[0].split()[1:]]
    text = (EXAMPLES / "Dockerfile").read_text()
    yield [*YAML(typ="safe").load(text.rpartition("CMD ")[2])]


@pytest.mark.parametrize("argv", [*_called()], ids=" ".join)
def test_every_command_line_is_one_of_autotunes(argv: list[str]) -> None:
    understood(argv)


def test_every_variable_is_one_that_autotune_reads() -> None:
    read = set(re.findall(r"AUTOTUNE_[A-Z_]+", (ROOT / "autotune" / "settings.py").read_text()))
    compose_own = {"AUTOTUNE_NAME"}
    for path in (PAGE, *(path for path in EXAMPLES.rglob("*") if path.is_file())):
        assert set(re.findall(r"AUTOTUNE_[A-Z_]+", path.read_text())) <= read | compose_own


# ---------------------------------------------------------------------------- what belongs together
def test_what_a_pod_mounts_is_there() -> None:
    claims = {e["metadata"]["name"] for e in _manifests() if e["kind"] == "PersistentVolumeClaim"}
    for pod in _pods():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= set(volumes)
        wanted = (volume.get("persistentVolumeClaim") for volume in volumes.values())
        assert {each["claimName"] for each in wanted if each} <= claims


def test_every_selector_finds_pods() -> None:
    labels = [t["metadata"]["labels"] for each in _manifests() for t in _templates(each)]
    for manifest in _manifests():
        spec = manifest.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector if manifest["kind"] == "Service" else {})
        assert any(wanted.items() <= each.items() for each in labels), _named(manifest)


def test_every_secret_is_made_on_the_page() -> None:
    text = "".join(path.read_text() for path in (*KUBERNETES.glob("*.yaml"), RAY))
    found = re.findall(r"secret(?:KeyRef|Ref|Name): (?:\{name: )?([\w-]+)(?:, key: (\w+))?", text)
    assert len(found) > 4
    page = PAGE.read_text()
    for name, key in found:
        assert re.search(rf"create secret \w+ {name}\b", page), name
        assert f"--from-literal={key}=" in page or not key, key


def test_the_kustomization_has_every_manifest_but_the_one_that_is_for_once() -> None:
    (found,) = _documents(KUBERNETES / "kustomization.yaml")
    others = {"kustomization.yaml", "token.yaml"}
    assert {path.name for path in KUBERNETES.iterdir()} == {*found["resources"], *others}


def test_the_image_is_built_from_what_there_is() -> None:
    sent = (EXAMPLES / "Dockerfile.dockerignore").read_text().splitlines()
    assert all((ROOT / line[1:]).exists() for line in sent if line.startswith("!"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    recipe = (EXAMPLES / "Dockerfile").read_text()
    extras = re.findall(r"EXTRAS=([\w,]+)", recipe)
    assert {each for found in extras for each in found.split(",")} <= set(
        project["project"]["optional-dependencies"]
    )
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"!{package}" for package in packages} <= set(sent)
    lock = (ROOT / "requirements.lock").read_text()
    (uv,) = re.findall(r"uv==[\d.]+", recipe)
    assert f"\n{uv} " in lock
    (cluster,) = (each for each in _documents(RAY) if each["kind"] == "RayCluster")
    assert f"\nray=={cluster['spec']['rayVersion']} " in lock.replace("ray[tune]", "ray")


def test_the_readme_names_every_file_beside_it() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    files = (path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*") if path.is_file())
    assert all(f"({path})" in readme for path in files if path.name != "README.md")
