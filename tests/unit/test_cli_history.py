"""A model's history on a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from autotune.cli.history import print_history
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.service_ports import ModelHistory


def test_on_a_narrow_terminal_a_target_is_not_broken_within_a_word(
    printed: Callable[[int], io.StringIO],
) -> None:
    told = printed(80)
    champion = Promotion(
        id=12,
        model="ocr",
        target=Target(repository=Path("/srv/models/production"), grpc="triton-1.example:8001"),
        study_id=41,
        trial=117,
        candidate={},
        state=PromotionState.DONE,
        applied_at=1_700_000_000.0,
        reason="p95 31 ms (30 to 32) meets 40 ms with 22% to spare, beside the live traffic",
    )
    found = ModelHistory(model="ocr", champions=[champion], nights=[], audit=[])
    print_history(found, last=5, diff=False)
    assert {"/srv/models/production", "triton-1.example:8001"} <= set(told.getvalue().split())
