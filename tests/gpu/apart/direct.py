"""Makes the network's files and answers images with it, by PyTorch alone:

    python -m tests.gpu.apart.direct ORDER

ORDER, JSON: ``device``, ``shape`` (see `tests.gpu.plan.Shape`), ``seed``, ``images`` (a file of
bytes, ``count`` × 3 × size × size), ``files`` (the names of the TorchScript files to make, by
precision: fp32, tf32, fp16, bf16), ``models`` and ``answers`` (folders) and ``batches``, whose
service times are taken. For each precision one line of JSON is printed: ``answers`` (a file of
float32) and ``ms`` by batch size; or ``refused``, why there is none.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.apart.network import network

TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
TF32_CAPABILITY = (8, 0)
TIMED_S = 0.3
"""How long each batch size is run for."""


def main(arguments: Sequence[str]) -> int:
    order = json.loads(arguments[0])
    torch = importlib.import_module("torch")
    torch.manual_seed(order["seed"])
    images = images_of(torch, order)
    source = network(torch, order["shape"], images)
    for precision in order["files"]:
        try:
            found = made(torch, source, images, precision, order)
        except Exception as error:  # noqa: BLE001 - a precision that cannot be here says why
            found = {"refused": f"{type(error).__name__}: {error}".splitlines()[0]}
        sys.stdout.write(json.dumps({"precision": precision, **found}) + "\n")
        sys.stdout.flush()
    return 0


def images_of(torch: Any, order: Mapping[str, Any]) -> Any:
    content = bytearray(Path(order["images"]).read_bytes())
    size = order["shape"]["size"]
    return torch.frombuffer(content, dtype=torch.uint8).reshape(order["count"], 3, size, size)


def made(
    torch: Any, source: Any, images: Any, precision: str, order: Mapping[str, Any]
) -> dict[str, Any]:
    """The network in a precision, saved, and run from its file."""
    device = torch.device(order["device"])
    if precision == "tf32":
        refuse_without_tf32(torch, device)
    allow_tf32(torch, allowed=precision == "tf32")
    file = Path(order["models"]) / order["files"][precision]
    with torch.no_grad():
        if not file.exists():
            typed = copy.deepcopy(source).to(device, getattr(torch, TYPES[precision]))
            traced = torch.jit.trace(typed, images[:2].to(device), check_trace=False)
            torch.jit.save(traced.to("cpu"), str(file))
        module = torch.jit.load(str(file), map_location=device).eval()
        answers = module(images.to(device)).cpu().contiguous()
        times = {size: milliseconds(torch, module, images, size) for size in order["batches"]}
    kept = Path(order["answers"]) / f"{precision}.f4"
    kept.write_bytes(bytes(answers.view(torch.uint8).flatten().tolist()))
    return {"answers": kept.name, "ms": times}


def refuse_without_tf32(torch: Any, device: Any) -> None:
    if device.type != "cuda":
        raise ValueError("TF32 is a mode of a GPU's Tensor Cores")
    if torch.cuda.get_device_capability(device) < TF32_CAPABILITY:
        raise ValueError("TF32 needs a GPU of compute capability 8.0")


def allow_tf32(torch: Any, *, allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def milliseconds(torch: Any, module: Any, images: Any, size: int) -> float:
    """Of one execution of a batch, its way to the device and back included; the mean over
    `TIMED_S`, after two that warm up."""
    device = next(module.parameters()).device
    batch = images.repeat(-(-size // len(images)), 1, 1, 1)[:size]
    for _ in range(2):
        module(batch.to(device)).cpu()
    began, done = time.perf_counter(), 0
    while done < 3 or time.perf_counter() - began < TIMED_S:
        module(batch.to(device)).cpu()
        done += 1
    return 1000 * (time.perf_counter() - began) / done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
