"""How busy the hardware was: an emulated device by its own word, a GPU by
NVML or by the server's own metrics, else process CPU."""

from autotune.adapters.telemetry.choose import choose

__all__ = ["choose"]
