"""Part (b): is what Triton serves what PyTorch answers, in every precision?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.adapters.triton.reference import HttpInfer
from autotune.adapters.triton.server_python import ServerPython
from autotune.core.errors import AutotuneError, ServerFailed
from autotune.core.model_interface import ModelInterface, Sample
from tests.gpu.bench import Bench, definition, opened
from tests.gpu.context import Context
from tests.gpu.host import Apart, python_with_torch
from tests.gpu.images import IMAGES, images_of
from tests.gpu.models import Model, native_model, torch_model, version_folder
from tests.gpu.precisions import FILES, FP32
from tests.gpu.report import Skipped

Array = NDArray[np.float32]

TOLERATED = {"fp32": 0.002, "tf32": 0.02, "fp16": 0.02, "bf16": 0.08}
"""How far an answer may be from PyTorch's own in the same precision, as a share of the largest
value: kernels are chosen by the batch and by what is free, and add in another order. Answers to
different images are apart by about as much as the largest."""
LEAST_COSINE = 0.99
IMAGES_FILE = "images.u1"
NATIVE = "pytorch_libtorch, "
TIMED_BATCHES = (1, 8, 32)
SEED = 11


def run(context: Context) -> None:
    found = python_with_torch()
    if isinstance(found, str):
        raise Skipped(found)
    context.report.made_with(**found.versions)
    direct = answers_of_torch(context, found.python)
    usable = tuple(precision for precision, each in direct.items() if "refused" not in each)
    if FP32 not in usable:
        raise RuntimeError(f"PyTorch gives no answers in fp32: {direct.get(FP32)}")
    largest = float(np.abs(direct[FP32]["answers"]).max())
    context.report.keep(largest_answer=largest)
    comparison = Comparison(context, direct)
    comparison.serve("", torch_model(context, usable, largest), usable)
    comparison.serve(NATIVE, native_model(context, largest), [FP32])
    if not comparison.right:
        raise RuntimeError("no precision was served with the answers of PyTorch")


# ----------------------------------------------------------------------------------- by PyTorch
def answers_of_torch(context: Context, python: ServerPython) -> dict[str, dict[str, Any]]:
    """Make the model's files, and have PyTorch answer the images in every precision: by precision
    ``answers`` (an array) and ``ms``, or ``refused``."""
    folder = direct_folder(context)
    folder.mkdir(parents=True, exist_ok=True)
    version_folder(context).mkdir(parents=True, exist_ok=True)
    order = _order(context, folder)
    found: dict[str, dict[str, Any]] = {}
    with Apart(python, "direct", order, sys.stderr) as process:
        while said := process.hear():
            found[said.pop("precision")] = said
            context.report.keep(direct={name: dict(each) for name, each in found.items()})
    for each in found.values():
        if "answers" in each:
            rows = np.fromfile(folder / each["answers"], dtype=np.float32)
            each["answers"] = rows.reshape(IMAGES, context.scale.shape.classes)
    return found


def direct_folder(context: Context) -> Path:
    return context.out / "parts" / "direct"


def _order(context: Context, folder: Path) -> dict[str, Any]:
    shape = context.scale.shape
    (folder / IMAGES_FILE).write_bytes(images_of(shape).tobytes())
    return {
        "device": context.options.device,
        "shape": asdict(shape),
        "seed": SEED,
        "images": str(folder / IMAGES_FILE),
        "count": IMAGES,
        "files": FILES,
        "models": str(version_folder(context)),
        "answers": str(folder),
        "batches": [size for size in TIMED_BATCHES if size <= context.scale.largest_batch],
    }


# ------------------------------------------------------------------------------------ by Triton
@dataclass(slots=True)
class Comparison:
    """Each precision as it is served, one after another, kept as it is found; one that is not
    served does not end the rest."""

    context: Context
    direct: Mapping[str, Mapping[str, Any]]
    compared: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, each in self.direct.items():
            if "refused" in each:
                self._keep(name, {"served": False, "reason": each["refused"]})

    @property
    def right(self) -> list[str]:
        """The precisions that were served as they should be, fp32 first; none without fp32."""
        found = [name for name in FILES if self.compared.get(name, {}).get("right")]
        return found if FP32 in found else []

    def serve(self, how: str, model: Model, precisions: Sequence[str]) -> None:
        """On a server of its own; ``how`` goes before the precision's name in the results."""
        try:
            with opened(self.context, definition(self.context, model, "outputs")) as bench:
                for precision in precisions:
                    self._keep(how + precision, self._served(bench, model, precision))
        except AutotuneError as error:
            for precision in precisions:
                if how + precision not in self.compared:
                    self._keep(how + precision, {"served": False, "reason": str(error)})

    def _keep(self, name: str, found: dict[str, Any]) -> None:
        self.compared[name] = found
        self.context.report.keep(precisions=self.compared, served_right=self.right)

    def _served(self, bench: Bench, model: Model, precision: str) -> dict[str, Any]:
        if self.context.deadline.left_s <= 0:
            return {"served": False, "reason": "no time was left for it"}
        try:
            applied = bench.server.apply(model.served(precision))
            rows = self._answers(bench)
        except ServerFailed as error:
            return {"served": False, "reason": str(error)}
        own = difference(rows, self.direct[precision]["answers"])
        close = own["relative"] <= TOLERATED[precision] and own["cosine"] >= LEAST_COSINE
        return {
            "served": True,
            "right": close,
            "loaded_in_s": round(applied.seconds, 1),
            "against_torch": own,
            "against_fp32": difference(rows, self.direct[FP32]["answers"]),
            "ran_on": self._where(bench),
        }

    def _answers(self, bench: Bench) -> Array:
        interface = bench.server.interface()
        (output,) = (each.name for each in interface.outputs)
        infer = HttpInfer(bench.server.endpoint, interface)
        answers = infer(self._images(interface), at_once=1)
        return np.concatenate([answer[output] for answer in answers])

    def _images(self, interface: ModelInterface) -> list[Sample]:
        (name,) = (each.name for each in interface.inputs)
        return [{name: image} for image in images_of(self.context.scale.shape)]

    def _where(self, bench: Bench) -> str:
        """What telemetry says of where the server computes, while it answers."""
        bench.telemetry.start(bench.server.pids(), bench.server.endpoint)
        self._answers(bench)
        notes = bench.telemetry.stop().notes
        return f"GPU {notes['nvml_devices']}" if "nvml_devices" in notes else "CPU"


def difference(served: Array, direct: Array) -> dict[str, float]:
    """Between two sets of answers: the largest absolute one, that as a share of the largest value,
    and the least cosine of any two rows."""
    apart = float(np.abs(served - direct).max())
    largest = float(np.abs(direct).max())
    lengths = np.linalg.norm(served, axis=1) * np.linalg.norm(direct, axis=1)
    cosines = np.einsum("ij,ij->i", served, direct) / np.maximum(lengths, 1e-30)
    return {
        "absolute": apart,
        "relative": apart / max(largest, 1e-30),
        "cosine": float(cosines.min()),
    }
