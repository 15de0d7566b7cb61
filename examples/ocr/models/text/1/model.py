"""The recogniser's scores to text: the best character at each place, repeats and blanks left out
(greedy decoding of connectionist temporal classification, CTC)."""

from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

RECOGNISER = Path(__file__).with_name("recogniser.onnx")
BLANK = 0


class TritonPythonModel:
    """``SCORES``: places × characters per request; ``TEXT``: the line as UTF-8."""

    def initialize(self, args):  # noqa: ARG002 - what Triton calls it with
        self.alphabet = alphabet(RECOGNISER)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
        texts = [self.text(line).encode() for line in scores]
        tensor = pb_utils.Tensor("TEXT", np.array(texts, dtype=object)[:, np.newaxis])
        return pb_utils.InferenceResponse([tensor])

    def text(self, line):
        best = line.argmax(axis=-1)
        first = np.append(True, best[1:] != best[:-1])
        return "".join(self.alphabet[i] for i in best[first & (best != BLANK)])


def alphabet(recogniser):
    """The characters by index, from the model file's own metadata: the blank, its list, a space."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        str(recogniser), options, providers=["CPUExecutionProvider"]
    )
    characters = session.get_modelmeta().custom_metadata_map["character"].split("\n")
    return ["", *characters, " "]
