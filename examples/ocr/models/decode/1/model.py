"""JPEG bytes to what the recogniser takes: a text line 48 pixels high, values from -1 to 1."""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    """``JPEG``: one image per request; ``PIXELS``: 3 × height × width, blue, green, red."""

    def initialize(self, args):
        (output,) = json.loads(args["model_config"])["output"]
        _, self.height, self.width = (int(size) for size in output["dims"])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (content,) = pb_utils.get_input_tensor_by_name(request, "JPEG").as_numpy().ravel()
        try:
            pixels = self.pixels(content)
        except (OSError, ValueError) as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"no image: {error}"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels[np.newaxis])])

    def pixels(self, content):
        """The line at full height and its own proportions, as far as they fit; the rest is 0."""
        image = Image.open(io.BytesIO(content)).convert("RGB")
        width = min(self.width, max(1, round(image.width * self.height / image.height)))
        image = image.resize((width, self.height), Image.Resampling.BILINEAR)
        values = np.asarray(image, dtype=np.float32)[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
        pixels = np.zeros((3, self.height, self.width), dtype=np.float32)
        pixels[:, :, :width] = values
        return pixels
