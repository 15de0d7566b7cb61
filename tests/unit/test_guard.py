"""What a study that comes over the network may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.bootstrap.guard import Guard, Limits, study_within
from autotune.bootstrap.named_files import paths_of
from autotune.core.errors import InputRefused
from autotune.core.promotions import Target
from autotune.core.study import Launch
from tests import onnx_models

EVERYTHING: dict[str, Any] = {
    "study": "asked",
    "model": {"onnx": "linear.onnx", "name": "linear"},
    "server": {"launch": "embedded", "flags": {"log-verbose": "0"}, "ports": [1, 2, 3]},
    "workload": {
        "target_qps": 50,
        "arrival": {"kind": "gamma", "cv": 2.0},
        "inputs": {"kind": "random", "shapes": {"x": [4]}},
    },
    "sla": {"p95_ms": 100},
    "space": {"max_batch_size": [1, 2], "parameters.x": ["a"], "server.log-verbose": [0, 1]},
    "objectives": ["p95_ms"],
    "budget": {"trials": 5, "minutes": 1.0},
    "robust": {"qps": 0.2, "cv": [1.0]},
}
PATHS = st.sampled_from(["/etc/passwd", "../secret.yaml", "out/secret.yaml", "~/x.py:f", ".env/"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | PATHS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
PACKAGE = {"requirement": "small==1.0", "file": "small/model.onnx", "sha256": "0" * 64}
VARIANTS = {
    "space": {"variant": ["onnxruntime-fp32", "onnxruntime-int8"]},
    "calibration": {"data": "data.npz"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


def make_root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "models").mkdir(parents=True)
    onnx_models.linear(folder / "linear.onnx")
    (folder / "space.yaml").write_text("max_batch_size: [1, 2]\n")
    (tmp_path / "secret.yaml").write_text("max_batch_size: [1, 2]\n")
    (folder / "out").symlink_to(tmp_path)
    return folder


def request(**sections: Any) -> dict[str, Any]:
    return {
        "study": "asked",
        "model": {"onnx": "linear.onnx", "name": "linear"},
        "workload": {"target_qps": 50},
        "sla": {"p95_ms": 100},
        "space": {"max_batch_size": [1, 2]},
        **sections,
    }


def test_a_study_of_what_lies_below_the_root_is_read(root: Path) -> None:
    study = study_within(request(space="space.yaml"), Limits(root=root))
    assert study.model.onnx == root / "linear.onnx"
    assert study.space.targets == ("max_batch_size",)


def test_what_is_no_plain_text_is_shown_once_quoted(root: Path) -> None:
    with pytest.raises(InputRefused) as refused:
        study_within(request(model={"onnx": "a\0b.onnx"}), Limits(root=root))
    assert str(refused.value).endswith(r"(got 'a\x00b.onnx')")


def test_a_file_that_is_no_onnx_model_is_refused_at_once(root: Path) -> None:
    (root / "linear.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(InputRefused, match="not a whole ONNX file") as refused:
        Guard(Limits(root=root)).study(request())
    assert str(root) not in str(refused.value)


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"onnx": "/etc/model.onnx"}},
        {"model": {"onnx": "../model.onnx"}},
        {"model": {"onnx": "out/model.onnx"}},
        {"model": {"onnx": "~/model.onnx"}},
        {"model": {"repository": "models/../..", "name": "m"}},
        {"space": "../secret.yaml"},
        {"space": "out/secret.yaml"},
        {"space": "/etc/passwd.yaml"},
        {"workload": {"target_qps": 5, "arrival": {"kind": "trace", "trace": "/etc/passwd"}}},
        {"workload": {"target_qps": 5, "inputs": "/etc/x.json"}},
        {"workload": {"target_qps": 5, "inputs": "../x.py:function"}},
        {"server": {"requirements": "/tmp/requirements.txt"}},
        {**VARIANTS, "accuracy": {"metric": "../metric.py:f"}},
        {**VARIANTS, "accuracy": {"metric": "top1", "expected": "/etc/x.npy", "data": "a.npz"}},
        {**VARIANTS, "calibration": {"data": "/etc/data.npz"}},
    ],
    ids=str,
)
def test_a_path_outside_of_the_root_is_refused(root: Path, sections: dict[str, Any]) -> None:
    with pytest.raises(InputRefused, match="below the service's root"):
        study_within(request(**sections), Limits(root=root))


def test_whether_a_file_outside_is_there_is_not_told(root: Path) -> None:
    def told(path: str) -> str:
        arrival = {"kind": "trace", "trace": path}
        with pytest.raises(InputRefused) as refused:
            study_within(request(workload={"target_qps": 5, "arrival": arrival}), Limits(root=root))
        return str(refused.value)

    assert told("../secret.yaml") == told("../nothing.yaml")


@pytest.mark.parametrize(
    "server",
    [
        {"launch": "binary", "binary": "linear.onnx"},
        {"launch": "binary"},
        {"binary": "linear.onnx"},
        {"launch": "docker", "image": "x"},
        {"launch": "embedded", "image": "x"},
    ],
    ids=str,
)
def test_a_program_to_launch_is_refused(root: Path, server: dict[str, Any]) -> None:
    with pytest.raises(InputRefused, match="program or an image"):
        study_within(request(server=server), Limits(root=root))


@pytest.mark.parametrize("flag", ["backend-directory", "backend_directory", "trace-config"])
def test_a_server_flag_that_may_name_a_library_is_refused(root: Path, flag: str) -> None:
    with pytest.raises(InputRefused, match="server flags"):
        study_within(request(server={"flags": {flag: "models"}}), Limits(root=root))


def test_a_swept_server_flag_is_held_to_the_same(root: Path) -> None:
    space = {"server.cache-directory": ["a", "b"]}
    with pytest.raises(InputRefused, match="server flags"):
        study_within(request(space=space), Limits(root=root))
    plain = {"server.buffer-manager-thread-count": [1, 2]}
    assert study_within(request(space=plain), Limits(root=root)).space.size() == 2


@pytest.mark.parametrize("value", ["/opt/env.tar.gz", "$$TRITON_MODEL_DIRECTORY/x", "../x", "a b"])
@pytest.mark.parametrize("target", ["parameters.EXECUTION_ENV_PATH", "s.parameters.library"])
def test_a_backend_parameter_that_may_name_a_path_is_refused(
    root: Path, target: str, value: str
) -> None:
    with pytest.raises(InputRefused, match="plain words"):
        study_within(request(space={target: [value, "fine"]}), Limits(root=root))


@pytest.mark.parametrize(
    "requirement", ["small", "small>=1", "--index-url=x", "small @ file:///etc", "./small", "-r x"]
)
@pytest.mark.parametrize("where", ["package", "files"])
def test_a_package_that_is_not_pinned_by_name_is_refused(
    root: Path, where: str, requirement: str
) -> None:
    package = {**PACKAGE, "requirement": requirement}
    model = {
        "package": {"package": package, "name": "m"},
        "files": {"repository": "models", "name": "m", "files": {"m/1/model.onnx": package}},
    }[where]
    with pytest.raises(InputRefused, match="name==version"):
        study_within(request(model=model), Limits(root=root))


@pytest.mark.parametrize(
    "grpc", ["10.0.0.7:8001", "127.0.0.1.evil.test:1", "evil@127.0.0.1:1", "[::2]:1", "a/b:1"]
)
def test_a_remote_server_that_was_not_allowed_is_refused(root: Path, grpc: str) -> None:
    remote = {"launch": "remote", "grpc": grpc, "http": "127.0.0.1:8000"}
    with pytest.raises(InputRefused, match="servers of this machine"):
        study_within(request(server=remote, model={"name": "far"}), Limits(root=root))


def test_this_machine_and_allowed_hosts_may_be_tuned(root: Path) -> None:
    remote = {
        "launch": "remote",
        "grpc": "gpu7.internal:8001",
        "http": "[::1]:8000",
        "metrics": "http://localhost:8002/metrics",
    }
    asked = request(server=remote, model={"name": "far"})
    study = study_within(asked, Limits(root=root, remotes=("gpu7.internal",)))
    assert study.server.grpc == "gpu7.internal:8001"
    with pytest.raises(InputRefused, match="servers of this machine"):
        study_within(
            {**asked, "server": {**remote, "metrics": "http://x@localhost:1/"}},
            Limits(root=root, remotes=("gpu7.internal",)),
        )


def test_nesting_without_end_is_refused(root: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    with pytest.raises(InputRefused, match="deep"):
        study_within(request(space=deep), Limits(root=root))


def test_what_would_take_hours_to_refuse_is_refused_at_once(root: Path) -> None:
    with pytest.raises(InputRefused, match="at most 300 keys"):
        study_within(request(**{f"k{n}": n for n in range(301)}), Limits(root=root))
    wide: dict[str, Any] = {"parameters.x": {"range": [1, 10**9], "step": 1}}
    with pytest.raises(InputRefused, match="at most 100000 values"):
        study_within(request(space=wide), Limits(root=root))
    wide = {
        "parameters.x": {"range": [1, 10**9]},
        "instances": {"values": [1, 2], "when": {"parameters.x": {"above": 1}}},
    }
    with pytest.raises(InputRefused, match="give the range of"):
        study_within(request(space=wide), Limits(root=root))


def test_what_a_study_file_may_not_say_is_refused_likewise(root: Path) -> None:
    with pytest.raises(InputRefused, match="unknown key"):
        study_within(request(modle={}), Limits(root=root))


def test_a_target_lies_below_the_root_and_its_server_is_one_that_may_be_named(root: Path) -> None:
    guard = Guard(Limits(root=root, remotes=("gpu7.internal",)))
    given = Target(repository=Path("models"), grpc="gpu7.internal:8001")
    assert guard.target(given).repository == root / "models"
    for refused in (
        Target(repository=Path("/srv")),
        Target(repository=Path("..")),
        Target(repository=Path()),
        Target(repository=Path("out/models")),
        Target(grpc="elsewhere:8001"),
        Target(grpc="localhost:8001", http="elsewhere:8000"),
    ):
        with pytest.raises(InputRefused):
            guard.target(refused)


@pytest.mark.parametrize("path", [".keys/model.onnx", "models/.env.onnx", "hidden/model.onnx"])
def test_what_has_a_dot_first_holds_keys_and_settings_and_is_not_named(
    root: Path, path: str
) -> None:
    (root / ".keys").mkdir()
    (root / "hidden").symlink_to(root / ".keys")
    with pytest.raises(InputRefused, match="dot first"):
        study_within(request(model={"onnx": path}), Limits(root=root))


@pytest.mark.parametrize("path", ["\0.onnx", "models/\0/x.onnx", "\ud800.onnx", "a" * 5000])
@pytest.mark.parametrize("where", ["model", "space", "inputs"])
def test_a_path_that_no_file_system_can_name_is_refused(root: Path, path: str, where: str) -> None:
    sections: dict[str, Any] = {
        "model": {"model": {"onnx": path}},
        "space": {"space": f"{path}.yaml"},
        "inputs": {"workload": {"target_qps": 5, "inputs": f"{path}/"}},
    }[where]
    with pytest.raises(InputRefused):
        study_within(request(**sections), Limits(root=root))


def test_a_link_that_leads_to_itself_is_outside(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(InputRefused):
        study_within(request(model={"onnx": "loop/x.onnx"}), Limits(root=root))


@pytest.mark.parametrize("name", [".", "..", "..."])
def test_a_name_that_leads_to_another_folder_is_refused(root: Path, name: str) -> None:
    with pytest.raises(InputRefused):
        study_within(request(model={"onnx": "linear.onnx", "name": name}), Limits(root=root))
    with pytest.raises(InputRefused):
        study_within(request(study=name), Limits(root=root))


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc", "a\nb", "é", "x" * 101, "", 5, None])
def test_a_study_has_a_plain_name(root: Path, name: object) -> None:
    with pytest.raises(InputRefused):
        study_within(request(study=name), Limits(root=root))


def test_where_the_root_lies_is_not_told(root: Path) -> None:
    guard = Guard(Limits(root=root))
    for asked in (
        request(model={"onnx": "none.onnx"}),
        request(space="none.yaml"),
        request(workload={"target_qps": 5, "arrival": {"kind": "trace", "trace": "none.csv"}}),
        request(workload={"target_qps": 5, "inputs": "none.json"}),
        request(space="broken.yaml"),
    ):
        (root / "broken.yaml").write_text("max_batch_size: [1,\n")
        with pytest.raises(InputRefused) as refused:
            guard.study(asked)
        told = f"{refused.value} {refused.value.value}"
        assert str(root) not in told
        assert str(root.resolve()) not in told


@pytest.mark.parametrize(
    "definition",
    [
        {},
        {"study": []},
        {"server": []},
        {"server": {"launch": []}},
        {"server": {"launch": {"a": 1}}},
        {"space": 5},
        {"space": [[]]},
        {"space": None},
        {"model": None},
        {"model": {"onnx": 5}},
        {"model": {"onnx": []}},
        {"workload": {"inputs": {"kind": "json", "path": {}}}},
        {"space": {"max_batch_size": [float("nan"), float("inf")]}},
        {"space": {"instances": {"low": 1, "high": 10**400}}},
        {"space": {"parameters.x": {"low": 1, "high": 10**12}}},
        {"sla": {"p95_ms": 10**400}},
        {"sla": {"p95_ms": float("nan")}},
        {1: 2},
    ],
    ids=str,
)
def test_whatever_is_asked_is_refused_and_nothing_else_raised(
    root: Path, definition: dict[str, Any]
) -> None:
    with pytest.raises(InputRefused):
        Guard(Limits(root=root)).study({**request(), **definition} if definition else definition)


@st.composite
def asked_strangely(draw: st.DrawFn) -> dict[str, Any]:
    """A study in which one value, or a key that is new, is whatever it may be."""

    def changed(node: Any) -> Any:
        if not isinstance(node, dict) or draw(st.integers(0, 2)) == 0:
            return draw(ANYTHING)
        key = draw(st.sampled_from(sorted(node)) | st.text(max_size=8))
        return {**node, key: changed(node.get(key, 0))}

    section = draw(st.sampled_from(sorted(EVERYTHING)))
    return {**EVERYTHING, section: changed(EVERYTHING[section])}


@pytest.fixture(scope="module")
def lasting_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("asked"))


@given(definition=asked_strangely())
def test_whatever_stands_in_a_study_it_is_refused_or_names_nothing_outside(
    lasting_root: Path, definition: dict[str, Any]
) -> None:
    limits = Limits(root=lasting_root)
    try:
        study = study_within(definition, limits)
    except InputRefused:
        return
    for _, path in paths_of(study):
        assert path.resolve().is_relative_to(lasting_root)
    assert study.server.launch in (Launch.EMBEDDED, Launch.REMOTE)


def test_the_study_that_is_made_strange_can_be(lasting_root: Path) -> None:
    assert study_within(EVERYTHING, Limits(root=lasting_root)).name == "asked"
