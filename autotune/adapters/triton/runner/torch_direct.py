"""Runs a PyTorch model's file directly, without a server, in the Python that serves it:

    python torch_direct.py ORDER.json ANSWER.json

The order: ``file``, ``device`` ("cuda" is used where PyTorch sees one), the configuration's
``input`` and ``output`` lists, ``feeds`` (an .npz with ``<index>/<input>`` arrays, run one after
the other as they are) and ``answers`` (the .npz to write, ``<index>/<output>``). The answer: the
``torch`` version and the ``device`` that it ran on; or ``refused`` with a reason, and ``index``
where it is one feed's.

The file is loaded, and its tensors are named, as `torch_model` does it; nothing else of that is
used: no batching, no DLPack, no stream, no CUDA graph, no TF32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

# What the file beside it asks of the Python backend, outside of it.
sys.modules["triton_python_backend_utils"] = SimpleNamespace(  # type: ignore[assignment]
    TritonModelException=type("TritonModelException", (Exception,), {})
)
sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
import torch_model  # type: ignore[import-not-found]  # noqa: E402


def main(order_file: str, answer_file: str) -> None:
    order = json.loads(Path(order_file).read_text(encoding="utf-8"))
    answer = answer_to(order)
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


def answer_to(order: dict[str, Any]) -> dict[str, Any]:
    """On the device that is asked for; on the CPU where that is a GPU without room, most of which
    the server may have."""
    torch_model.set_switches({"intra_op_threads": "0", "inter_op_threads": "0"})
    on_gpu = order["device"] == "cuda" and torch.cuda.is_available()
    answer = {}
    for device in ("cuda", "cpu") if on_gpu else ("cpu",):
        answer = answer_on(torch.device(device), order)
        if "out of memory" not in answer.get("refused", ""):
            break
    return answer


def answer_on(device: Any, order: dict[str, Any]) -> dict[str, Any]:
    try:
        program = torch_model.load(Path(order["file"]), device)
        inputs, places = torch_model.refuse_mismatch(order, program)
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        return {"refused": torch_model.first_line(error)}
    types = {each["name"]: torch_model.DTYPES[each["data_type"]] for each in order["input"]}
    names = [each["name"] for each in order["output"]]
    model = torch_model.selecting(program, places)
    answers: dict[str, Any] = {}
    with np.load(order["feeds"]) as feeds, torch.inference_mode():
        for index in range(order["count"]):
            given = [
                torch.from_numpy(feeds[f"{index}/{name}"]).to(device, types[name])
                for name in inputs
            ]
            try:
                outputs = model(*given)
            except Exception as error:  # noqa: BLE001 - told to whoever asked
                return {"refused": torch_model.first_line(error), "index": index}
            for name, output in zip(names, outputs, strict=True):
                answers[f"{index}/{name}"] = to_array(output)
    np.savez(order["answers"], **answers)
    return {"torch": torch.__version__, "device": device.type}


def to_array(tensor: Any) -> Any:
    tensor = tensor.cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


if __name__ == "__main__":
    main(*sys.argv[1:])
