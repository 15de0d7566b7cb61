"""A live server as a promotion's target, over a fake of its control."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from autotune.adapters.deploy import live as module
from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.adapters.deploy.live import LiveDeployment
from autotune.adapters.deploy.served import Known
from autotune.adapters.triton.config import ModelConfig, parse, read
from autotune.core.errors import Busy, ExportFailed, InputRefused, ServerFailed
from tests import promoting
from tests.promoting import put, tree

NAME = "ocr"


class FakeControl:
    """A server that loads from ``repository``, or what it is sent; ``refuses`` models by name."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.served: dict[str, ModelConfig] = {}
        self.calls: list[str] = []
        self.sent: dict[str, Mapping[str, bytes]] = {}
        self.refuses: set[str] = set()
        self.alive = True

    def load(
        self,
        override: str | None,
        timeout_s: float,
        model: str | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        assert model is not None
        self.calls.append(f"load {model}" + (" with files" if files else ""))
        self.sent[model] = files or {}
        if model in self.refuses:
            raise ServerFailed("the server refused", value="bad model")
        if override is None:
            config = read(self.repository / model / "config.pbtxt")
        else:
            config = json_format.Parse(override, ModelConfig())
        config.version_policy.latest.num_versions = 1  # as a server completes it
        self.served[model] = config

    def unload(self, timeout_s: float | None = None, model: str | None = None) -> None:
        assert model is not None
        if model.startswith("autotune-probe"):
            return
        self.calls.append(f"unload {model}")
        self.served.pop(model, None)

    def live(self) -> bool:
        return self.alive

    def loaded(self, model: str | None = None) -> bool:
        return model in self.served

    def config(self, model: str | None = None) -> ModelConfig:
        assert model is not None
        copy = ModelConfig()
        copy.CopyFrom(self.served[model])
        return copy

    def wait_until_ready(self, timeout_s: float, model: str | None = None) -> None:
        assert self.loaded(model)

    def close(self) -> None: ...


Make = Callable[..., LiveDeployment]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    put(tmp_path / "models", NAME)
    return tmp_path / "models"


@pytest.fixture
def server(repository: Path) -> FakeControl:
    control = FakeControl(repository)
    control.load(None, 1.0, NAME)
    control.calls.clear()
    return control


@pytest.fixture
def make(
    server: FakeControl, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Make:
    monkeypatch.setattr(module, "Control", lambda *_, **__: server)

    def made(
        *,
        files: bool = False,
        known: Sequence[Known] | None = None,
        sends: frozenset[str] = frozenset(),
    ) -> LiveDeployment:
        directory = DirectoryDeployment(repository, known=known) if files else None
        return LiveDeployment(
            "host:1", directory=directory, known=known, states=tmp_path / "states", sends=sends
        )

    return made


def new(tmp_path: Path, *, batch: int = 8) -> Any:
    put(tmp_path / "release", NAME, batch=batch)
    return promoting.release(tmp_path / "release", NAME)


def known(batch: int = 1) -> Sequence[Known]:
    return [Known(configs={NAME: parse(promoting.config(NAME, batch), NAME)})]


def test_a_configuration_is_sent_and_the_servers_own_comes_back(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    before = server.config(NAME)
    was = make().before(new(tmp_path))
    kept = make().apply(new(tmp_path), label="p1")
    make().verify(new(tmp_path))
    assert "-max_batch_size: 8\n+max_batch_size: 1\n" in make().undoing(kept, was)
    make().restore(kept, was)
    assert server.config(NAME) == before
    assert server.calls == [f"load {NAME}"] * 2
    assert not make().undoing(kept, was)


def test_an_override_that_was_there_before_comes_back(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    server.served[NAME].max_batch_size = 2
    was = make().before(new(tmp_path))
    make().restore(make().apply(new(tmp_path), label="p1"), was)
    assert server.config(NAME).max_batch_size == 2


def test_how_an_earlier_autotune_found_the_server_is_in_a_file_of_its_own(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    was = make().before(new(tmp_path))["models"]
    make().apply(new(tmp_path), label="p1")
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "p1.json").write_text(json.dumps({"models": was}))
    make().restore(str(tmp_path / "states" / "p1.json"), {})
    assert server.config(NAME).max_batch_size == 1


def test_what_is_served_already_is_not_loaded_again(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    make().apply(new(tmp_path, batch=1), label="p1")
    assert not server.calls
    assert not make().preflight(new(tmp_path, batch=1))


def test_a_switch_that_the_server_does_not_load_can_be_taken_back(
    make: Make, server: FakeControl, repository: Path, tmp_path: Path
) -> None:
    before, was = tree(repository), make().before(new(tmp_path))
    server.refuses = {NAME}
    with pytest.raises(ServerFailed, match="cannot load ocr as it was to be promoted"):
        make(files=True).apply(new(tmp_path), label="p1")
    server.refuses.clear()
    make(files=True).restore("p1", was)
    assert tree(repository) == before


def test_the_files_are_put_back_though_the_server_does_not_answer(
    make: Make, server: FakeControl, repository: Path, tmp_path: Path
) -> None:
    before, was = tree(repository), make().before(new(tmp_path))
    kept = make(files=True).apply(new(tmp_path), label="p1")
    server.refuses = {NAME}
    with pytest.raises(ServerFailed, match="the files are those from before"):
        make(files=True).restore(kept, was)
    assert tree(repository) == before


def test_where_the_files_were_not_switched_nothing_is_loaded_when_it_is_put_back(
    make: Make, server: FakeControl, repository: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    def full(root: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("autotune.adapters.deploy.directory.sync_tree", full)
    was = make().before(new(tmp_path))
    with pytest.raises(ExportFailed):
        make(files=True).apply(new(tmp_path), label="p1")
    make(files=True).restore("p1", was)
    assert not server.calls


def test_by_a_label_under_which_nothing_was_applied_nothing_is_put_back(
    make: Make, server: FakeControl
) -> None:
    make().restore("p1", {})
    assert not server.calls


def test_how_a_server_was_that_is_not_kept_any_more_is_told(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="how the server was before"):
        make().restore(str(tmp_path / "states" / "p1.json"), {})


def test_an_ensemble_is_unloaded_before_its_steps(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    promoting.pipeline(tmp_path / "release")
    release = promoting.release(tmp_path / "release", "first", "second", "whole")
    was = json.loads(json.dumps(make().before(release), sort_keys=True))  # as a database keeps it
    make().restore(make().apply(release, label="p1"), was)
    assert server.calls == [
        "load first",
        "load second",
        "load whole",
        "unload whole",
        "unload second",
        "unload first",
    ]


def test_the_difference_is_told_in_the_words_of_the_file_that_is_known(
    make: Make, tmp_path: Path
) -> None:
    diff = make(known=known()).preflight(new(tmp_path))
    assert "-max_batch_size: 1\n+max_batch_size: 8\n" in diff
    assert "version_policy" not in diff


def test_what_somebody_has_loaded_is_refused_with_the_difference(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    server.served[NAME].max_batch_size = 2
    with pytest.raises(InputRefused, match="max_batch_size is 2, not 1"):
        make(known=known()).preflight(new(tmp_path))
    assert make(known=None).preflight(new(tmp_path))


def test_what_somebody_has_loaded_is_refused_beside_its_repository_too(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    server.served[NAME].max_batch_size = 2
    with pytest.raises(InputRefused, match="served with a configuration that is neither"):
        make(files=True, known=known()).preflight(new(tmp_path))


def test_files_too_large_to_send_are_refused(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SENT_BYTES", 5)
    with pytest.raises(InputRefused, match="too many to send"):
        make(sends=frozenset({NAME})).preflight(new(tmp_path))


def test_files_that_change_go_with_the_configuration(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    deployment = make(sends=frozenset({NAME}))
    deployment.apply(new(tmp_path), label="p1")
    deployment.verify(new(tmp_path))
    assert server.calls == [f"load {NAME} with files"]


def test_files_that_had_been_sent_before_are_sent_again_when_it_is_put_back(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    deployment = make(sends=frozenset({NAME}))
    deployment.apply(new(tmp_path), label="p1")
    first = server.sent[NAME]
    put(tmp_path / "release", NAME, batch=8, weights="w2")
    release = promoting.release(tmp_path / "release", NAME)
    was = deployment.before(release)
    kept = deployment.apply(release, label="p2")
    assert server.sent[NAME] != first
    deployment.restore(kept, was)
    assert server.sent[NAME] == first
    shutil.rmtree(tmp_path / "states" / "sent")
    with pytest.raises(ExportFailed, match="not kept here"):
        deployment.restore(kept, was)


def test_a_server_that_is_not_there_is_told_before_anything_is_touched(
    make: Make, server: FakeControl, tmp_path: Path
) -> None:
    server.alive = False
    with pytest.raises(ServerFailed, match="no live Triton answers at host:1"):
        make().preflight(new(tmp_path))


def test_two_promotions_to_one_server_at_once_are_one_and_a_refusal(make: Make) -> None:
    with make().locked(), pytest.raises(Busy), make().locked():
        pass
