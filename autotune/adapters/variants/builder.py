"""Variants of a model: a recipe becomes an artefact, once, and is judged before it is served."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.onnx_graph import read_graph
from autotune.adapters.variants import graphs
from autotune.adapters.variants.cache import (
    VariantCache,
    digest_of,
    digest_of_samples,
)
from autotune.adapters.variants.gate import Source
from autotune.adapters.variants.made import EngineBuilder, Made, Say
from autotune.adapters.variants.recipes import Recipe, make, recipe_of
from autotune.adapters.variants.request import BuildRequest
from autotune.adapters.variants.task import Task
from autotune.core.variants import Engine, VariantRecord

SEARCH_S = 300.0
_RECIPES = 3
"""Raised when a recipe changes, so that what an older one made is not taken from the cache."""
_TOOLS = ("onnx", "onnxruntime", "numpy")
_CPUINFO = Path("/proc/cpuinfo")


class VariantBuilder:
    """Builds variants under ``cache_dir``/variants; ``say`` is told what goes on.

    ``search_s`` is the longest that layers to leave in the source's precision are looked for.
    """

    def __init__(
        self,
        cache_dir: Path,
        say: Say = lambda _: None,
        *,
        search_s: float = SEARCH_S,
        clock: Callable[[], float] = time.monotonic,
        engines: Mapping[Engine, EngineBuilder] | None = None,
    ) -> None:
        self._root, self._say = cache_dir / "variants", say
        self._search_s, self._clock = search_s, clock
        self._engines = engines or {}

    def build(self, request: BuildRequest) -> VariantRecord:
        """The variant's artefact and what came of it, from the cache if it was built before.

        What fails is told by the record: attempts, notes, ``refused``. InputRefused if the source
        cannot be read, or the metric of ``request.drop`` cannot be used.
        """
        engine = request.variant.engine
        if engine is Engine.PYTORCH:
            return self._by_engine(request, None)
        graph = self._graph(request)
        if engine is not Engine.TENSORRT or not graph.usable:
            return graph
        return self._by_engine(request, graph)

    # ------------------------------------------------------------------------------- ONNX graphs
    def _graph(self, request: BuildRequest) -> VariantRecord:
        """The graph that the engine is given, gated in ONNX Runtime."""
        recipe = recipe_of(request.variant)
        tools = _tools(recipe)
        weights = tuple(
            request.source.parent / name for name in read_graph(request.source).external
        )
        key: dict[str, Any] = {
            "recipes": _RECIPES,
            "recipe": recipe,
            "for": str(request.variant) if recipe is Recipe.SOURCE else _served_by(request),
            "source": _hashes((request.source, *weights)),
            "tools": tools,
            "gate": _gate_key(request),
        }
        if recipe.calibrates:
            key["calibration"] = _calibration_key(request)

        def made(folder: Path) -> Made:
            with tempfile.TemporaryDirectory(dir=folder.absolute()) as scratch:
                task = Task(
                    request=request,
                    source=Source(request.source, weights),
                    scratch=Path(scratch),
                    tell=self._say,
                    search_s=self._search_s,
                    clock=self._clock,
                )
                return make(task, folder)

        record = self._cached(request, digest_of(key), tools, made)
        if recipe is Recipe.SOURCE and record.file:  # the same file may stand elsewhere by now
            return dataclasses.replace(record, file=str(request.source))
        return record

    # ------------------------------------------------------------------------------ other engines
    def _by_engine(self, request: BuildRequest, graph: VariantRecord | None) -> VariantRecord:
        engine = self._engines.get(request.variant.engine)
        if engine is None:
            return VariantRecord(
                variant=request.variant,
                step=request.step,
                refused=f"no builder for {request.variant.engine} is at hand",
            )
        tools = {**_tools(Recipe.SOURCE), **engine.tools()}
        onnx = None if graph is None else Path(graph.file)
        key = {
            "recipes": _RECIPES,
            "variant": str(request.variant),
            "source": _hashes((request.source,) if onnx is None else (onnx, *graphs.beside(onnx))),
            "tools": tools,
            "batches": request.batch_sizes,
            "shapes": {name: list(shapes) for name, shapes in request.shapes.items()},
            "gate": _gate_key(request) if graph is None else None,
        }
        record = self._cached(
            request,
            digest_of(key),
            tools,
            lambda folder: engine.build(request, onnx, folder, self._say),
        )
        return record if graph is None else _joined(graph, record)

    def _cached(
        self,
        request: BuildRequest,
        digest: str,
        tools: Mapping[str, str],
        made: Callable[[Path], Made],
    ) -> VariantRecord:
        def fill(folder: Path) -> VariantRecord:
            self._say(f"{request.variant}: building")
            started = self._clock()
            return _record(request, digest, tools, made(folder), self._clock() - started)

        cache = VariantCache(
            root=self._root,
            waiting=lambda: self._say(f"{request.variant}: another process builds it; waiting"),
        )
        record = cache.get(digest, fill)
        return dataclasses.replace(record, variant=request.variant, step=request.step)


# ------------------------------------------------------------------------------------------- keys
def _gate_key(request: BuildRequest) -> dict[str, Any]:
    return {
        "samples": digest_of_samples(request.samples),
        "drop": request.gate,
        "limit": request.limit,
    }


def _served_by(request: BuildRequest) -> str:
    """What is served by ONNX Runtime's CPU provider is also judged as that runs it."""
    return "cpu" if request.variant.engine is Engine.ONNXRUNTIME else "other"


def _hashes(files: Iterable[Path]) -> list[tuple[str, str]]:
    return [(file.name, sha256_of(file)) for file in files]


def _calibration_key(request: BuildRequest) -> dict[str, Any]:
    spec = request.calibration
    return {
        "samples": digest_of_samples(request.calibration_samples),
        "spec": None
        if spec is None
        else {
            "samples": spec.samples,
            "methods": [str(method) for method in spec.methods],
            "per_channel": spec.per_channel,
            "exclude": spec.exclude,
            "max_excluded": spec.max_excluded,
        },
    }


def _tools(recipe: Recipe) -> dict[str, str]:
    """Versions that a graph depends on. The CPU's own int8 depends on its instructions too: without
    VNNI sums of products saturate."""
    tools = {name: _version(name) for name in _TOOLS}
    if recipe.calibrates:
        tools["sympy"] = _version("sympy")
    if recipe is Recipe.INT8_CPU:
        tools["cpu"] = f"{platform.machine()}, {'VNNI' if _has_vnni() else 'no VNNI'}"
    return tools


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _has_vnni() -> bool:
    try:
        flags = _CPUINFO.read_text("utf-8", "replace")
    except OSError:
        return False
    return any(name in flags for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


# ---------------------------------------------------------------------------------------- records
def _record(
    request: BuildRequest, digest: str, tools: Mapping[str, str], made: Made, seconds: float
) -> VariantRecord:
    # What was refused for want of time is not kept: given more, on a quieter machine, it may pass.
    file = None if made.refused and made.hurried else made.file
    files = () if file is None else (file, *made.beside)
    return VariantRecord(
        variant=request.variant,
        step=request.step,
        digest=digest,
        file="" if file is None else str(file),
        size_mb=sum(f.stat().st_size for f in files) / 1e6 if files else None,
        seconds=seconds,
        accuracy_drop=made.accuracy_drop,
        refused=made.refused,
        attempts=made.attempts,
        tools=tools,
        notes=made.notes,
    )


def _joined(graph: VariantRecord, engine: VariantRecord) -> VariantRecord:
    """The engine's artefact, with what is known of the graph that it was built from."""
    drop = graph.accuracy_drop if engine.accuracy_drop is None else engine.accuracy_drop
    return dataclasses.replace(
        engine,
        accuracy_drop=drop,
        seconds=graph.seconds + engine.seconds,
        attempts=(*graph.attempts, *engine.attempts),
        notes=tuple(dict.fromkeys((*graph.notes, *engine.notes))),
        tools={**graph.tools, **engine.tools},
    )
