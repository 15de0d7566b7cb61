"""The direction classifier of PP-OCR: 0.6 MB, depthwise convolutions, hard swish, pools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.adapters.triton.environment import fetch_from_package
from autotune.adapters.variants.builder import VariantBuilder
from autotune.adapters.variants.request import BuildRequest
from autotune.core.model_interface import Sample
from autotune.core.variants import Engine, Precision, Variant
from tests.variant_models import error_against, spec

CLASSIFIER = (
    "rapidocr==3.10.0",
    "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
)


@pytest.fixture(scope="module")
def classifier(cache_dir: Path) -> Path:
    return fetch_from_package(*CLASSIFIER, cache_dir)


def strips(count: int, seed: int) -> list[Sample]:
    """Dark bars on light paper, of the density of a text line."""
    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        paper = np.full((48, 192), draw.uniform(0.4, 1.0), dtype=np.float32)
        for left in range(4, 184, 8):
            top, bottom = sorted(draw.integers(6, 42, 2))
            paper[top:bottom, left : left + int(draw.integers(1, 6))] = draw.uniform(-1.0, -0.4)
        noise = draw.normal(0, 0.05, (3, 48, 192))
        samples.append({"x": (paper + noise).clip(-1, 1).astype(np.float32)})
    return samples


@pytest.mark.parametrize(
    ("variant", "worst"),
    [
        (Variant(Engine.ONNXRUNTIME, Precision.INT8), 0.3),
        (Variant(Engine.ONNXRUNTIME_TENSORRT, Precision.FP8), 0.3),
        (Variant(Engine.ONNXRUNTIME_TENSORRT, Precision.BF16), 0.1),
    ],
    ids=str,
)
def test_each_variant_of_a_real_network_is_smaller_and_answers_nearly_alike(
    classifier: Path, tmp_path: Path, variant: Variant, worst: float
) -> None:
    samples = strips(8, seed=1)
    record = VariantBuilder(tmp_path).build(
        BuildRequest(
            source=classifier,
            variant=variant,
            samples=samples,
            drop=error_against(classifier, samples),
            limit=worst,
            calibration=spec(),
            calibration_samples=strips(12, seed=2),
        )
    )
    assert record.usable, record.refused
    assert record.accuracy_drop is not None
    assert 0 < record.accuracy_drop <= worst
    assert record.size_mb is not None
    assert record.size_mb < 0.75 * classifier.stat().st_size / 1e6
