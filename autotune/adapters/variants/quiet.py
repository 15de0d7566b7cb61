"""Libraries that print: ONNX Runtime's quantization writes to standard output and to the log."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing that is run here prints, warns, logs or changes `sys.path`; what it raises comes
    through."""
    before, disabled = list(sys.path), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        sys.path[:] = before


def told(error: BaseException, length: int = 200) -> str:
    """An exception of a library in one line, for people."""
    words = " ".join(str(error).split())
    name = type(error).__name__
    text = words if words and type(error) is Exception else f"{name}: {words}" if words else name
    return text if len(text) <= length else text[: length - 1] + "…"
