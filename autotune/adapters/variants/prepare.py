"""What a graph goes through before it is quantized: a newer opset, inferred shapes, folded
constants."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.adapters.variants import graphs
from autotune.adapters.variants.ort import quant_pre_process
from autotune.adapters.variants.quiet import quiet, told
from autotune.adapters.variants.running import Runner

_WAYS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("", {}),
    ("with unknown dimensions taken for equal where they meet", {"auto_merge": True}),
    ("with unknown dimensions left unknown", {"skip_symbolic_shape": True}),
)
"""Tried in turn: each gives up a little more of what is known about shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A graph that can be quantized: every node has a name, ``notes`` say what did not work."""

    path: Path
    model: Any
    notes: tuple[str, ...]

    @property
    def large(self) -> bool:
        """Whether its weights stand in a file of their own."""
        return bool(graphs.beside(self.path))


def prepare(source: Path, folder: Path, opset: int) -> Prepared:
    """Prepare a source model, in ``folder``. What cannot be done is left out and noted; a source
    that ONNX itself cannot read raises what ONNX raises."""
    model = graphs.load(source)
    graphs.name_free_dimensions(model)
    raw, notes = folder / "raw.onnx", []
    with quiet():
        try:
            newer = graphs.raised(model, opset)
            graphs.save(newer, raw)
            Runner(raw)
        except OSError:  # a full disk says nothing of the model
            raise
        except Exception as error:  # noqa: BLE001 - ONNX's converter raises bare exceptions
            notes.append(
                f"the opset stays {graphs.opset(model)}: it cannot be raised to {opset}"
                f" ({told(error, 120)})"
            )
            graphs.save(model, raw)
        path = folder / "prepared.onnx"
        notes += _preprocess(raw, path)
    prepared = graphs.load(path)
    graphs.name_nodes(prepared)
    graphs.save(prepared, path)
    return Prepared(path=path, model=prepared, notes=tuple(notes))


def _preprocess(raw: Path, path: Path) -> list[str]:
    """ONNX Runtime's own preprocessing, in the first way that works."""
    large = bool(graphs.beside(raw))
    failures = []
    for how, options in _WAYS:
        try:
            # Where it fails, it leaves its graph in the working directory.
            with contextlib.chdir(path.parent):
                quant_pre_process(
                    str(raw),
                    str(path),
                    save_as_external_data=large,
                    all_tensors_to_one_file=True,
                    external_data_location=f"{path.name}.data" if large else None,
                    **options,
                )
            Runner(path)
        except OSError:  # a full disk says nothing of the model
            raise
        except Exception as error:  # noqa: BLE001 - it raises whatever its parts raise
            failures.append(told(error, 120))
            continue
        if not failures:
            return []
        return [
            f"prepared for quantization {how}, since ONNX Runtime does not settle them by itself:"
            f" {failures[-1]}"
        ]
    graphs.save(graphs.load(raw), path)
    return [f"quantized without ONNX Runtime's preprocessing, which fails: {failures[-1]}"]
