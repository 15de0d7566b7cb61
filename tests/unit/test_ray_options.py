"""What `autotune tune` takes about a Ray cluster; none of it needs Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from autotune.bootstrap import executors
from autotune.bootstrap.executors import OnRay
from autotune.cli import tune
from autotune.core.errors import InputRefused


def given(*options: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OnRay | None:
    """What these options say of where a study's trials run."""
    seen: list[OnRay | None] = []

    def run_study(_study: object, **where: object) -> int:
        ray = where["ray"]
        assert ray is None or isinstance(ray, OnRay)
        seen.append(ray)
        return 0

    monkeypatch.setattr(tune, "run_study", run_study)
    monkeypatch.chdir(tmp_path)
    onnx = ("m.onnx", "--qps", "60", "--p95-ms", "80")
    ended = CliRunner().invoke(tune.command, [*onnx, *options])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return seen[0]


def test_what_is_said_of_a_cluster_is_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_RAY_ADDRESS", "head:6379")
    options = ("--executor", "ray", "--slots", "3", "--slot-cpus", "4", "--slot-gpus", "0")
    assert given(*options, monkeypatch=monkeypatch, tmp_path=tmp_path) == OnRay(
        address="head:6379", slots=3, cpus=4, gpus=0
    )
    named = given(
        *("--executor", "ray", "--ray-address", "local"),
        monkeypatch=monkeypatch,
        tmp_path=tmp_path,
    )
    assert named == OnRay(address="local")
    assert given(monkeypatch=monkeypatch, tmp_path=tmp_path) is None


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--slot-gpus", "0"), "--slot-gpus goes with --executor ray"),
        (("--ray-address", ""), "--ray-address goes with --executor ray"),
        (("--executor", "ray", "--ray-address", ""), "--ray-address is empty"),
        (("--executor", "ray", "--slot-gpus", "2"), "--slot-gpus is 0 or 1"),
        (("--executor", "ray", "--slots", "0"), "--slots is at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: tuple[str, ...], rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match=rule):
        given(*options, monkeypatch=monkeypatch, tmp_path=tmp_path)


def test_every_option_of_a_cluster_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "ray.md").read_text()
    options = tune.executor_options(lambda: None).__click_params__
    assert len(options) == 5
    assert not [each.opts[0] for each in options if f"| `{each.opts[0]}" not in documented]
    assert executors.AUTO in documented
