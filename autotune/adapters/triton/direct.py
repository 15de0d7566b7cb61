"""Models run directly, without a server: what served answers are compared with."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType

from autotune.adapters.triton.comparison import Array, Outputs
from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.onnx_graph import open_session
from autotune.adapters.triton.server_python import ServerPython
from autotune.core.errors import InputRefused, OutputsDiffer

SCRIPT = Path(__file__).parent / "runner" / "torch_direct.py"
_DEADLINE_S = 600.0


class NotRun(Exception):
    """A feed that the model does not take: its index, and what was said."""

    def __init__(self, index: int, said: str) -> None:
        super().__init__(said)
        self.index = index


class Direct(Protocol):
    """Runs a model's file on feeds as they are, with the batch dimension where it has one."""

    @property
    def file(self) -> Path: ...

    @property
    def by(self) -> str:
        """What ran it, in words that stand after "run directly"; empty where that goes without
        saying."""

    def __call__(self, feeds: Sequence[Mapping[str, Array]], names: Sequence[str]) -> list[Outputs]:
        """The outputs of each, in order, by the names given. NotRun; OutputsDiffer where the file
        has no such output; InputRefused where it cannot be run at all."""


@dataclass(frozen=True, slots=True)
class OnnxDirect:
    """By this process's ONNX Runtime, on the CPU."""

    file: Path

    @property
    def by(self) -> str:
        return ""

    def __call__(self, feeds: Sequence[Mapping[str, Array]], names: Sequence[str]) -> list[Outputs]:
        session = open_session(self.file)
        found = {node.name for node in session.get_outputs()}
        if missing := [name for name in names if name not in found]:
            raise OutputsDiffer(
                f"the server gives outputs that {self.file.name} does not have",
                value=", ".join(missing),
                next_step="Is the server's model of that name the one that the study names?",
            )
        results = []
        for index, feed in enumerate(feeds):
            given = {name: _as_text(array) for name, array in feed.items()}
            try:
                values = session.run(list(names), given)
            except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
                raise NotRun(index, str(error)) from error
            results.append(dict(zip(names, values, strict=True)))
        return results


@dataclass(slots=True)
class TorchDirect:
    """By PyTorch in a process of the server's Python, ``on_gpu`` where it sees one; of the same
    feeds only once. ``config`` says which tensor is which."""

    file: Path
    config: ModelConfig
    python: ServerPython
    on_gpu: bool = False
    _ran: str = ""
    _known: dict[bytes, list[Outputs]] = field(default_factory=dict)

    @property
    def by(self) -> str:
        return self._ran

    def __call__(self, feeds: Sequence[Mapping[str, Array]], names: Sequence[str]) -> list[Outputs]:
        key = _key(feeds)
        if key not in self._known:
            self._known[key] = self._run(feeds)
        return [{name: each[name] for name in names} for each in self._known[key]]

    def _run(self, feeds: Sequence[Mapping[str, Array]]) -> list[Outputs]:
        with tempfile.TemporaryDirectory(prefix="autotune-direct-") as scratch:
            folder = Path(scratch)
            answer = self._answer(feeds, folder)
            if "refused" in answer:
                self._refuse(answer)
            device = "a GPU" if answer["device"] == "cuda" else "the CPU"
            self._ran = f" by PyTorch {answer['torch']} on {device}"
            with np.load(folder / "answers.npz") as arrays:
                found: list[Outputs] = [{} for _ in feeds]
                for key in arrays.files:
                    index, _, name = key.partition("/")
                    found[int(index)][name] = arrays[key]
        return found

    def _answer(self, feeds: Sequence[Mapping[str, Array]], folder: Path) -> dict[str, Any]:
        order = {
            "file": str(self.file),
            "device": "cuda" if self.on_gpu else "cpu",
            "input": [_tensor(each) for each in self.config.input],
            "output": [_tensor(each) for each in self.config.output],
            "feeds": str(folder / "feeds.npz"),
            "count": len(feeds),
            "answers": str(folder / "answers.npz"),
        }
        flat = {
            f"{i}/{name}": array for i, feed in enumerate(feeds) for name, array in feed.items()
        }
        np.savez(folder / "feeds.npz", **flat)  # type: ignore[arg-type]
        (folder / "order.json").write_text(json.dumps(order), encoding="utf-8")
        arguments = [str(SCRIPT), str(folder / "order.json"), str(folder / "answer.json")]
        try:
            done = self.python.run(arguments, timeout_s=_DEADLINE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._not_run(str(error)) from error
        if done.returncode != 0:
            raise self._not_run("\n".join(done.stderr.strip().splitlines()[-5:]))
        return dict(json.loads((folder / "answer.json").read_text(encoding="utf-8")))

    def _refuse(self, answer: Mapping[str, Any]) -> None:
        if "index" in answer:
            raise NotRun(int(answer["index"]), str(answer["refused"]))
        raise self._not_run(str(answer["refused"]))

    def _not_run(self, said: str) -> InputRefused:
        return InputRefused(
            f"{self.file.name} cannot be run directly, to compare served answers with, by"
            f" {self.python.where}: {said}"
        )


def _tensor(declared: Any) -> dict[str, str]:
    """Of a ``ModelInput`` or a ``ModelOutput``, in a configuration's words."""
    return {"name": declared.name, "data_type": DataType.Name(declared.data_type)}


def _key(feeds: Sequence[Mapping[str, Array]]) -> bytes:
    """Short enough to keep: feeds of a study's requests are the same few each time."""
    whole = hashlib.sha256()
    for feed in feeds:
        for name, array in sorted(feed.items()):
            whole.update(f"{name}{array.dtype}{array.shape}".encode())
            whole.update(np.ascontiguousarray(array).tobytes())
    return whole.digest()


def _as_text(array: Array) -> Array:
    """Strings as ONNX Runtime takes them: str, not bytes."""
    if array.dtype != object:
        return array
    texts = [
        v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in array.flat
    ]
    return np.array(texts, dtype=object).reshape(array.shape)
