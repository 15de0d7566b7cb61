"""autotune measures how a Triton Inference Server should be configured."""

import os

# ONNX Runtime sends usage data to its maker, from threads of its own, unless told not to before it
# is loaded: by no one's wish here, and beside what is measured. Whoever wishes it may set it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
