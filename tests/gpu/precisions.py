"""Precisions, and how autotune's PyTorch runner is told one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FP32, TF32 = "fp32", "tf32"
FILES = {FP32: "model.pt", TF32: "tf32.pt", "fp16": "fp16.pt", "bf16": "bf16.pt"}
"""Of the network in each precision, in its version directory."""
MODEL_FILE = "parameters.model_file"
TF32_ALLOWED = "parameters.tf32"
"""What autotune's PyTorch runner is told a precision by: a file, and whether TF32 may be used."""


def precision_of(candidate: Mapping[str, Any]) -> str:
    """In words, of a candidate's values."""
    files = {file: precision for precision, file in FILES.items()}
    return files.get(str(candidate.get(MODEL_FILE)), FP32)
