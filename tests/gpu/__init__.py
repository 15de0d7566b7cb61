"""The GPU check: what this project says of GPUs, tried on one, in minutes (docs/gpu-check.md)."""
