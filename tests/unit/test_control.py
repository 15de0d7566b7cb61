"""What is said of a server that does not answer; how its models are put back."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf import json_format

from autotune.adapters.triton import remote
from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.control import Control, Refused, Unanswered
from autotune.adapters.triton.remote import restore
from autotune.adapters.triton.repository import from_configuration
from autotune.core.errors import ServerFailed
from autotune.core.study import Launch, ServerSpec
from search_spaces.candidate import Candidate


def test_a_server_that_hangs_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with (
            closing(Control(address, "ocr", call_timeout_s=0.3)) as control,
            pytest.raises(Unanswered, match=f"the server at {address} did not answer within 0.3 s"),
        ):
            control.loaded()


@dataclass
class Models:
    """Stands in for `Control`: what is served of each model, and what was asked of it. A load that
    was given up is still under way: it ends as soon as the next one comes."""

    served: dict[str, ModelConfig]
    pending: dict[str, ModelConfig] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def loaded(self, model: str) -> bool:
        return model in self.served

    def config(self, model: str) -> ModelConfig:
        return self.served[model]

    def load(self, override: str | None, timeout_s: float, model: str = "m") -> None:
        self.served |= self.pending
        self.pending = {}
        self.asked.append(model if override else f"{model} from its file")
        if override:
            self.served[model] = json_format.Parse(override, ModelConfig())

    def unload(self, timeout_s: float, model: str) -> None:
        del self.served[model]


def config(name: str, size: int) -> ModelConfig:
    return ModelConfig(name=name, max_batch_size=size)


def test_what_is_served_as_it_was_is_not_loaded_again() -> None:
    models = Models({"m": config("m", 4)})
    restore(models, {"m": config("m", 4)}, 1.0, unsettled=False)  # type: ignore[arg-type]
    assert models.asked == []


@pytest.mark.parametrize("names", [("m",), ("step", "m")])
def test_where_a_load_was_given_up_all_is_loaded_though_it_is_served_as_it_was(
    names: tuple[str, ...],
) -> None:
    before = {name: config(name, 4) for name in names}
    models = Models(dict(before), pending={name: config(name, 1) for name in names})
    restore(models, before, 1.0, unsettled=True)  # type: ignore[arg-type]
    assert models.served == before
    assert models.pending == {}


class Stubborn(Models):
    """A server that refuses every load for a time."""

    refuses = False

    def load(self, override: str | None, timeout_s: float, model: str = "m") -> None:
        if self.refuses:
            raise Refused("the server refused", value="a stub died")
        super().load(override, timeout_s, model)

    def live(self) -> bool:
        return True

    def version(self) -> str:
        return "2.51.0"

    def config(self, model: str = "m") -> ModelConfig:
        return self.served[model]

    def close(self) -> None: ...


def test_a_remote_server_that_could_not_be_put_back_is_put_back_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor is what it has by then taken for what was found."""
    before = ModelConfig(name="m", backend="python", max_batch_size=4)
    before.input.add(name="x", data_type="TYPE_FP32", dims=[4])
    before.output.add(name="y", data_type="TYPE_FP32", dims=[3])
    server = Stubborn({"m": before})
    monkeypatch.setattr(remote, "Control", lambda *_, **__: server)
    monkeypatch.setattr(server, "unload", lambda model: None)
    spec = ServerSpec(launch=Launch.REMOTE, http="host:1", grpc="host:2")
    far = remote.RemoteServer(spec, from_configuration(before, "m", tmp_path))
    far.apply(Candidate({"max_batch_size": 2}))
    server.refuses = True
    with pytest.raises(ServerFailed, match="could not be left as it was found"):
        far.close()
    server.refuses = False
    far.apply(Candidate({"max_batch_size": 3}))
    assert server.config().max_batch_size == 3
    far.close()
    assert server.config() == before
