"""What is said of a variant: where it came from, and how its graph was prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.variants import prepare as preparing
from autotune.adapters.variants import task as tasks
from autotune.adapters.variants.builder import VariantBuilder
from autotune.adapters.variants.quiet import told
from autotune.adapters.variants.request import BuildRequest
from autotune.core.variants import AS_GIVEN, Variant, VariantRecord
from tests.variant_models import network, requests, spec

HALF = Variant.parse("onnxruntime-fp16")


@pytest.mark.parametrize(
    ("told_of_it", "words"),
    [
        ({"notes": (AS_GIVEN,)}, "nothing to build"),
        ({"seconds": 74.2}, "built in 74 s"),
        ({"seconds": 74.2, "cached": True}, "from the cache"),
        ({"refused": "no kernels for Conv"}, "refused"),
    ],
)
def test_what_came_of_a_variant_is_said_in_a_few_words(
    told_of_it: dict[str, Any], words: str
) -> None:
    assert VariantRecord(variant=HALF, **told_of_it).came_of == words


def test_a_graph_that_needs_its_dimensions_merged_is_noted_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = preparing.quant_pre_process

    def only_merged(*paths: str, **options: Any) -> None:
        if not options.pop("auto_merge", False):
            raise Exception("Incomplete symbolic shape inference")  # noqa: TRY002 - as ONNX Runtime
        whole(*paths, **options)

    monkeypatch.setattr(preparing, "quant_pre_process", only_merged)
    found = preparing.prepare(network(tmp_path / "n.onnx"), tmp_path, 17)
    (note,) = found.notes
    assert note == (
        "prepared for quantization with unknown dimensions taken for equal where they meet, since"
        " ONNX Runtime does not settle them by itself: Incomplete symbolic shape inference"
    )


def test_an_exception_s_name_is_told_where_it_says_something() -> None:
    assert told(ValueError("no")) == "ValueError: no"
    assert told(Exception("no")) == "no"
    assert told(Exception()) == "Exception"


def test_what_goes_on_inside_a_long_build_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_EVERY_S", 0.0)
    said: list[str] = []
    request = BuildRequest(
        source=network(tmp_path / "n.onnx", delicate=True),
        variant=Variant.parse("onnxruntime-int8"),
        samples=requests(3, seed=1),
        drop=lambda _: 0.5,
        limit=0.1,
        calibration=spec(),
        calibration_samples=requests(4, seed=2),
    )
    VariantBuilder(tmp_path, said.append).build(request)
    assert said[1] == "onnxruntime-int8: preparing the graph"
    assert "calibrating on 4 requests" in said[2]
    assert any("asked 3 requests" in words for words in said)
    assert any("1 of 3 layers quantized alone" in words for words in said)
